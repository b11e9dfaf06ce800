"""``python -m tests.bench.secure``: what secure sums cost, in seconds of one core and in bytes.

Updates of 10⁶ numbers, without training: a client's masked upload, its answer of the second
exchange, and the server's sum, with no client lost and with a tenth of them lost. Bytes are those
of packed payloads without seals. ``--out FILE`` adds the figures to the file.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from common.exchange.protocol import ModelReply
from common.exchange.records import count_bytes
from common.exchange.secure import sums
from tests.bench import record
from tests.support.secure_sums import Fleet, told

T = TypeVar("T")
CLIENTS = (10, 50, 100)
NUMBERS = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.secure", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    table: Table | None = None
    for n in CLIENTS:
        with TemporaryDirectory() as folder:
            found[str(n)] = figures = attempt(Path(folder), n)
        table = table or Table("clients", *figures, box=None)
        table.add_row(str(n), *(f"{value:.3g}" for value in figures.values()))
    assert table is not None, "there are numbers of clients"
    Console(width=140).print(table)
    record.add(options.out, "secure", value=found)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the processor's seconds of ``work()``, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def attempt(folder: Path, n: int) -> dict[str, float]:
    """Return the figures of an attempt with n clients.

    The second exchange does not depend on the size of an update, so it is measured with small ones.
    """
    ks, large = list(range(n)), Fleet(folder / "large", n, size=NUMBERS)
    request = large.begin(ks)[0]
    mask, masked = timed(lambda: large.upload(0, told(request)))
    empty = request.model_copy(update={"secure": None})
    small = Fleet(folder / "small", n)
    asked, members = small.begin(ks), small.members(ks)
    assert small.sums.survive([(c, small.upload(c.k, told(asked[c.k]))) for c in members])
    second = small.sums.second()
    answer, unmasking = timed(lambda: small.unmask(0, second[0]))
    key, lost = bytes(32), n // 10
    y = masked.y.numpy().view(np.uint32)

    def total(lost: int) -> object:
        alive = range(lost, n)
        peers = dict.fromkeys(range(lost), key)
        of_lost = dict.fromkeys(alive, peers)
        return sums.unmasked([(k, y) for k in alive], dict.fromkeys(alive, key), of_lost, len(y))

    return {
        "plain, MB": count_bytes(ModelReply(w={"w": large.before["w"]}).pack()) / 1e6,
        "masked, MB": count_bytes(masked.pack()) / 1e6,
        "more down, kB": (count_bytes(request.pack()) - count_bytes(empty.pack())) / 1e3,
        "second down, kB": count_bytes(second[0].pack()) / 1e3,
        "second up, kB": count_bytes(unmasking.pack()) / 1e3,
        "mask, s": round(mask, 3),
        "answer, s": round(answer, 3),
        "sum, s": round(timed(lambda: total(0))[0], 3),
        "sum with lost, s": round(timed(lambda: total(lost))[0], 3),
    }


if __name__ == "__main__":
    main()
