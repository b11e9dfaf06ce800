"""``python -m tests.bench.seal``: what sealing costs, in seconds of the processor and in bytes.

The first table is of a client's exchange alone: a model goes to it and a trained copy comes back,
packed and unpacked on both sides, with and without a seal, in turns; nothing is trained. The other
is of whole rounds of FedAvg on Fashion-MNIST, with training, averaging, the server's score and the
checkpoint, sealed and not, in turns, all in this process. ``--out FILE`` keeps both as JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from flwr.app import Context, Message, RecordDict
from rich.console import Console
from rich.table import Table

from client_app.seal import open_message
from common import models
from common.exchange.protocol import CensusRequest, ModelReply, ModelRequest
from common.exchange.records import StateDict, count_bytes
from common.settings.parse import parse
from common.settings.section import Value
from deploy.machines.certificates import Certificates, make
from server_app.messaging.sealed import TRUST, SealedChannel, Trust
from tests.support.sealed import Keyed
from tests.support.tiny import flat, play

SPECS = ("lenet5", "resnet8", "resnet18", "resnet34")
NODE, RUN = 1, "bench"
ROUNDS = {"lenet5": (4, 500), "resnet8": (4, 100), "resnet18": (2, 30)}
"""Clients, and images of each: one local epoch, batches of 32."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.seal", description=__doc__)
    parser.add_argument("--turns", type=int, default=9, help="exchanges of each kind (9)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of whole runs (5)")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {"exchange": exchanges(options.turns), "rounds": rounds(options.pairs)}
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def exchanges(turns: int) -> dict[str, object]:
    """Bytes and milliseconds of an exchange with one client, by network."""
    table = Table("model", "bytes", "sealed", "more", "ms", "sealed", "more", box=None)
    found: dict[str, object] = {}
    with TemporaryDirectory() as folder:
        pair = Pair(make(Path(folder) / "certs", [], 1))
        for spec in SPECS:
            w = models.build(spec, (3, 32, 32), 10, seed=1).state_dict()
            plain, sealed = zip(
                *((exchange(w), pair.exchange(w)) for _ in range(turns)), strict=True
            )
            size, more = plain[0][0], sealed[0][0] - plain[0][0]
            a, b = (1000 * median(seconds for _, seconds in of) for of in (plain, sealed))
            cells = (f"{size:,}", f"{size + more:,}", f"{more:,}", f"{a:.1f}", f"{b:.1f}")
            table.add_row(spec, *cells, f"{b - a:.1f}")
            found[spec] = {"bytes": size, "more": more, "ms": a, "ms sealed": b}
    Console().print(table)
    return found


def rounds(pairs: int) -> dict[str, object]:
    """Seconds of a whole round without a seal, and how many times as long it takes with one."""
    columns = ("model", "clients", "images", "s a round", "sealed, times", "bytes", "more")
    table = Table(*columns, box=None)
    found: dict[str, object] = {}
    for spec, (clients, images) in ROUNDS.items():
        with TemporaryDirectory() as folder:
            runs = [
                (whole(Path(folder) / f"{i}", spec, clients, images, sealed=False),
                 whole(Path(folder) / f"{i}-sealed", spec, clients, images, sealed=True))
                for i in range(pairs)
            ]  # fmt: skip
        seconds = median(a.seconds for a, _ in runs)
        times = median(b.seconds / a.seconds for a, b in runs)
        size, more = runs[0][0].bytes, runs[0][1].bytes - runs[0][0].bytes
        cells = (str(clients), str(images), f"{seconds:.2f}", f"{times:.2f}")
        table.add_row(spec, *cells, f"{size:,}", f"{more:,}")
        work: dict[str, object] = {"clients": clients, "images": images}
        found[spec] = work | {"seconds": seconds, "times": times, "bytes": size, "more": more}
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


@dataclass(frozen=True)
class Whole:
    """A round in the middle of a run: seconds of the processor, and bytes down and up together."""

    seconds: float
    bytes: int


def whole(out: Path, spec: str, clients: int, images: int, *, sealed: bool) -> Whole:
    """Round 2 of three: the first one pays for more, and the last one ends the run."""
    keys = make(out / "certs", [], clients)
    given: dict[str, Value] = {"method": "fedavg", "clients": clients, "fleet": spec, "rounds": 3}
    given |= {"data__samples": clients * images, "data__test_samples": 50, "train__epochs": 1}
    given |= {"score__clients_every": 0, "train__batch_size": 32, "data__name": "fashion-mnist"}
    config = flat(out / "run", **given)
    grid = Timed(config, keys, sealed=sealed)
    with mock.patch.dict(os.environ, {TRUST: str(keys.folder)} if sealed else {}):
        run = play(config, grid)
    moved = run.journal[2]["bytes"]
    return Whole(grid.begun["3"] - grid.begun["2"], moved["down"] + moved["up"])


def exchange(w: StateDict) -> tuple[int, float]:
    """Bytes and seconds without a seal."""
    start = time.process_time()
    down = ModelRequest(w=w).stamped(RUN, 1)
    there = down.pack()
    question = ModelRequest.unpack(there)
    back = ModelReply(w=question.w).stamped(question, 0).pack()
    ModelReply.unpack(back)
    return count_bytes(there) + count_bytes(back), time.process_time() - start


class Pair:
    """A ServerApp and a client that have met."""

    def __init__(self, keys: Certificates) -> None:
        node: dict[str, Value] = {"partition-id": 0, "key": str(keys.key(0)), "ca": str(keys.ca)}
        node["state-dir"] = str(keys.folder.parent)
        self.context = Context(1, NODE, node, RecordDict(), {})
        config = parse(flat(keys.folder, clients=1))
        self.channel = SealedChannel(config, RUN, Trust(keys.folder), {})
        hello = CensusRequest(clients=1).stamped(RUN, 0).pack()
        letter = open_message(
            self.message(self.channel.census_requests(hello, [NODE])[NODE], "query.hello"),
            self.context,
        )
        letter.admit()
        self.channel.open_census_reply(NODE, letter.answer(hello))

    def message(self, content: RecordDict, kind: str) -> Message:
        return Message(content, NODE, kind)

    def exchange(self, w: StateDict) -> tuple[int, float]:
        """Bytes and seconds with a seal."""
        start = time.process_time()
        there = self.channel.wrap(ModelRequest(w=w).stamped(RUN, 1).pack(), 1, "train")(0)
        letter = open_message(self.message(there, "train"), self.context)
        letter.admit()
        question = ModelRequest.unpack(letter.content)
        back = letter.answer(ModelReply(w=question.w).stamped(question, 0).pack())
        ModelReply.unpack(self.channel.open(0, back))
        return count_bytes(there) + count_bytes(back), time.process_time() - start


if __name__ == "__main__":
    main()
