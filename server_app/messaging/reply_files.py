"""Replies that wait for their round's step, in files: memory does not grow with their number.

Every method's step sees all replies, in order of k. The arrays of a reply are written to a file
without a name in the run's folder as soon as the reply is here, and read by a private mapping. The
file is gone with the last tensor that lies in it, and with the process, however that ends.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import final

from flwr.app import RecordDict

from common.files import written_in
from common.flower.rpc import ChunkFile

SMALL = 1 << 14  #: bytes of a reply that stays in memory
EDGE = 64  #: bytes; an array begins at a multiple of them, as in a .npy file


@final
@dataclass(frozen=True)
class ReplyStore:
    """Files in ``folder`` for replies of at most ``most`` bytes.

    A larger one stays in memory until it is refused. Without a folder all stay in memory.
    """

    folder: Path | None = None
    most: int = 0

    def keep(self, content: RecordDict, size: int) -> None:
        """Put the numbers of a reply of ``size`` bytes into a file until nobody needs them.

        Raises ``OSError`` naming the folder if it is full.
        """
        if self.folder is not None and SMALL < size <= self.most:
            move_to_file(content, self.folder)

    @property
    def chunk_file(self) -> Callable[[], ChunkFile] | None:
        """What makes a place for the large parts of a reply while they are pulled."""
        return None if self.folder is None else partial(ChunkFile, self.folder, self.most)


def move_to_file(content: RecordDict, folder: Path) -> None:
    """Move the bytes of a payload's arrays from memory into a file, in place.

    Raises ``OSError`` naming ``folder``: it cannot be written, or is full.
    """
    records = content.array_records.values()
    every = (array for record in records for array in record.values())
    arrays = [array for array in every if not isinstance(array.data, memoryview)]
    if sum(len(array.data) for array in arrays) <= SMALL:
        return
    with written_in(folder, "a client's reply"), tempfile.TemporaryFile(dir=folder) as file:
        begins = []
        for array in arrays:
            begins.append(file.tell())
            file.write(array.data)
            file.write(bytes(-file.tell() % EDGE))
        file.flush()
        mapped = memoryview(mmap(file.fileno(), 0, access=ACCESS_COPY))
    for begin, array in zip(begins, arrays, strict=True):
        piece = mapped[begin : begin + len(array.data)]
        array.data = piece  # type: ignore[assignment]  # what reads it takes any buffer
