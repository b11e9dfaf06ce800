"""Store replies in memory-mapped files until the aggregation step.

So memory use does not grow with the number of clients. A method's step reads all replies in order
of k. The arrays of a reply are written to an unnamed file in the run's folder when it arrives, and
read by a private mapping. The system frees the file with the last tensor that uses it, or when the
process ends.
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

SMALL = 1 << 14  #: bytes; replies of at most this size stay in memory
ALIGNMENT = 64  #: bytes; an array begins at a multiple of this, as in a .npy file


@final
@dataclass(frozen=True)
class ReplyStore:
    """Store for replies of at most ``most`` bytes, in files in ``folder``.

    A larger reply stays in memory until it is refused. Without a folder all stay in memory.
    """

    folder: Path | None = None
    most: int = 0

    def keep(self, content: RecordDict, size: int) -> None:
        """Move the arrays of a reply of ``size`` bytes into a file.

        Raises ``OSError`` naming the folder if it is full.
        """
        if self.folder is not None and SMALL < size <= self.most:
            move_to_file(content, self.folder)

    @property
    def chunk_file(self) -> Callable[[], ChunkFile] | None:
        """Factory of files for the large parts of a reply while they are pulled."""
        return None if self.folder is None else partial(ChunkFile, self.folder, self.most)


def move_to_file(content: RecordDict, folder: Path) -> None:
    """Move the bytes of a payload's arrays from memory into a file, in place.

    Raises ``OSError`` naming ``folder`` if it cannot be written or is full.
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
            file.write(bytes(-file.tell() % ALIGNMENT))
        file.flush()
        mapped = memoryview(mmap(file.fileno(), 0, access=ACCESS_COPY))
    for begin, array in zip(begins, arrays, strict=True):
        piece = mapped[begin : begin + len(array.data)]
        array.data = piece  # type: ignore[assignment]  # readers accept any buffer
