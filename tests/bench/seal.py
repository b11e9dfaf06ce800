"""``python -m tests.bench.seal``: what sealing costs, in seconds of the processor and in bytes.

Whole rounds of FedAvg on Fashion-MNIST, with training, averaging, the server's score and the
checkpoint, sealed and not, in turns, all in this process. ``--out FILE`` adds them to the file.
"""

import argparse
import os
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from flwr.app import Message
from rich.console import Console
from rich.table import Table

from common.settings.section import Value
from deploy.flower.certificates import Certificates, make
from server_app.messaging.sealed import TRUST
from tests.bench import record
from tests.support.keys import Keyed
from tests.support.tiny import flat, play

ROUNDS = {"lenet5": (4, 500), "resnet8": (4, 100), "resnet18": (2, 30)}
"""Clients, and images of each: one local epoch, batches of 32."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.seal", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of whole runs (5)")
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record.add(options.out, "sealed", value=rounds(options.pairs))


def rounds(pairs: int) -> dict[str, object]:
    """Seconds of a whole round without a seal, and how many times as long it takes with one."""
    columns = ("model", "clients", "images", "s a round", "sealed, times", "bytes", "more")
    table = Table(*columns, box=None)
    found: dict[str, object] = {}
    for spec, (clients, images) in ROUNDS.items():
        with TemporaryDirectory() as folder:
            work = spec, clients, images
            runs = [
                [whole(Path(folder) / f"{i}-{seal}", *work, sealed=seal) for seal in (False, True)]
                for i in range(pairs)
            ]
        seconds = median(plain for (plain, _), _ in runs)
        times = median(sealed / plain for (plain, _), (sealed, _) in runs)
        (_, size), (_, larger) = runs[0]
        more = larger - size
        cells = (str(clients), str(images), f"{seconds:.2f}", f"{times:.2f}")
        table.add_row(spec, *cells, f"{size:,}", f"{more:,}")
        found[spec] = {
            **{"clients": clients, "images": images},
            **{"seconds": seconds, "times": times, "bytes": size, "more": more},
        }
    Console().print(table)
    return found


class Timed(Keyed):  # type: ignore[misc]
    """Notes the processor's time as each round begins, and the messages' bytes."""

    def __init__(self, config: dict[str, Value], keys: Certificates, *, sealed: bool) -> None:
        super().__init__(config, keys)
        if not sealed:
            for node, of in self._nodes.items():
                self._nodes[node] = {key: of[key] for key in of if key not in ("key", "ca")}
        self.begun: dict[str, float] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            if message.metadata.message_type == "train":
                self.begun.setdefault(message.metadata.group_id, time.process_time())
        return super().push_messages(sent)


def whole(
    out: Path, spec: str, clients: int, images: int, *, sealed: bool = False
) -> tuple[float, int]:
    """Return the seconds of the processor and the bytes, down and up, of round 2 of three.

    The first round pays for more, and the last one ends the run.
    """
    keys = make(out / "certs", [], clients)
    given: dict[str, Value] = {"method": "fedavg", "clients": clients, "fleet": spec, "rounds": 3}
    given |= {"data__samples": clients * images, "data__test_samples": 50, "train__epochs": 1}
    given |= {"score__clients_every": 0, "train__batch_size": 32, "data__name": "fashion-mnist"}
    config = flat(out / "run", **given)
    grid = Timed(config, keys, sealed=sealed)
    with mock.patch.dict(os.environ, {TRUST: str(keys.folder)} if sealed else {}):
        run = play(config, grid)
    moved = run.journal[2]["bytes"]
    return grid.begun["3"] - grid.begun["2"], moved["down"] + moved["up"]


if __name__ == "__main__":
    main()
