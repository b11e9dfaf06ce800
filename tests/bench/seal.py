"""``python -m tests.bench.seal``: what sealing costs a client's exchange, in seconds and bytes.

A model goes to the client and a trained copy comes back, packed and unpacked on both sides, with
and without a seal, in turns. Nothing is trained and nothing is sent. Seconds are the processor's.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from flwr.app import Context, Message, RecordDict
from rich.console import Console
from rich.table import Table

from client_app.seal import opened
from common import models
from common.protocol import Hello, Model, Trained
from common.records import StateDict, count_bytes
from common.seal.body import encrypt
from common.section import Value
from deploy.machines.certificates import Certificates, make
from server_app.talk.seal import Seal, Trust

SPECS = ("lenet5", "resnet8", "resnet18", "resnet34")
NODE, RUN = 1, "bench"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.seal", description=__doc__)
    parser.add_argument("--turns", type=int, default=9, help="exchanges of each kind (9)")
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    table = Table("model", "bytes", "sealed", "more", "ms", "sealed", "more", box=None)
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
    Console().print(table)


def exchange(w: StateDict) -> tuple[int, float]:
    """Bytes and seconds without a seal."""
    start = time.process_time()
    down = Model(w=w).stamped(RUN, 1)
    there = down.pack()
    question = Model.unpack(there)
    back = Trained(w=question.w).stamped(question, 0).pack()
    Trained.unpack(back)
    return count_bytes(there) + count_bytes(back), time.process_time() - start


class Pair:
    """A ServerApp and a client that have met."""

    def __init__(self, keys: Certificates) -> None:
        node: dict[str, Value] = {"partition-id": 0, "key": str(keys.key(0)), "ca": str(keys.ca)}
        self.context = Context(1, NODE, node, RecordDict(), {})
        self.seal = Seal(Trust(keys.folder), {})
        hello = Hello(clients=1).stamped(RUN, 0).pack()
        letter = opened(
            self.message(self.seal.hello(hello, RUN, [NODE])[NODE], "query.hello"), self.context
        )
        self.seal.meet(NODE, letter.answer(hello))

    def message(self, content: RecordDict, kind: str) -> Message:
        return Message(content, NODE, kind)

    def exchange(self, w: StateDict) -> tuple[int, float]:
        """Bytes and seconds with a seal."""
        start = time.process_time()
        body = encrypt(Model(w=w).stamped(RUN, 1).pack())
        there = self.seal.address(body, RUN, 1, 0, "train")
        letter = opened(self.message(there, "train"), self.context)
        question = Model.unpack(letter.content)
        back = letter.answer(Trained(w=question.w).stamped(question, 0).pack())
        Trained.unpack(self.seal.open(0, back))
        return count_bytes(there) + count_bytes(back), time.process_time() - start


if __name__ == "__main__":
    main()
