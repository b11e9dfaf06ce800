"""``python -m tests.bench.held --out tests/bench/scale.json``: the server's memory by clients.

A whole server in this process, with the loopback's clients, but for training: in place of a trained
copy each client sends what it was sent, so that a round of 300 ResNet-18 takes no hours. Written
down is the most anonymous memory (Linux only) during the run beyond what the process had before it,
once for each method and number of clients, each in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from common.exchange.protocol import ModelReply
from common.methods import fedavg, fedorion
from common.parse import defaults
from deploy.flower.messages import empty, head
from deploy.run import preflight
from deploy.run.loopback import RUN_ID, Loopback
from deploy.settings import numbers
from server_app.app import app
from tests.bench import record
from tests.bench.memory import anonymous, peak

CASES: dict[str, dict[str, Any]] = {
    "averaging": {"method": "fedavg"},
    "OCA": {"method": "fedavg", "oca.aggregate": "on"},
    "noise distillation": {"method": "fedorion"},
}
KINDS: dict[str, tuple[Any, type[ModelReply]]] = {
    "fedavg": (fedavg.Request, fedavg.Reply),
    "fedorion": (fedorion.Request, fedorion.Reply),
}
WORK: dict[str, Any] = {
    **{"data.name": "digits", "data.partition": "iid", "data.test-samples": 20},
    **{"fleet": "resnet18", "rounds": 1, "score.clients": 1},
    **{"noise.epochs": 1, "noise.batches": 1, "noise.batch-size": 8},
}


class Parrot(Loopback):  # type: ignore[misc]
    """Clients that send back what they were sent; a reply is made when it is pulled."""

    def __init__(self, clients: int, config: dict[str, Any]) -> None:
        super().__init__(clients, config, workers=0)
        self.kinds = KINDS[str(config["method"])]
        self.asked: dict[str, Message] = {}
        self.w: Any = None

    def _push(self, group: list[Message]) -> list[str]:
        if group[0].metadata.message_type != "train":
            return super()._push(group)
        (message,) = group
        name = str(next(self._numbers))
        self.asked[name] = empty(head(message, RUN_ID, name))
        self.w = self.w or self.kinds[0].unpack(message.content)
        return [name]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        found = list(super().pull_messages(names))
        for name in names:
            if name in self.asked:
                question = self.asked.pop(name)
                k = question.metadata.dst_node_id - 1
                further: dict[str, Any] = {"local": None} if self.kinds[1] is fedorion.Reply else {}
                up = self.kinds[1](w=self.w.w, **further).stamped(self.w, k)
                found.append(Message(up.pack(), reply_to=question))
        return found


def measure(case: str, clients: int) -> dict[str, int]:
    """Return the largest anonymous memory of one run in this process, and its other figures."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        changes = {**defaults(), **WORK, **CASES[case], "clients": clients}
        flat, _ = preflight.fresh(numbers(changes), "loopback", Path(folder) / "run")
        here, begin = os.getpid(), time.monotonic()
        before = anonymous(here)
        memory_peak = peak(lambda: Counter(most=anonymous(here)), 0.03)
        with memory_peak as memory, Parrot(clients, flat) as grid:
            app(grid, Context(RUN_ID, 0, {}, RecordDict(), dict(flat)))
        journal = (Path(folder) / "run" / "journal.jsonl").read_text().splitlines()
    size = json.loads(journal[1])["bytes"]["arrays_down"] // clients
    taken = round(time.monotonic() - begin)
    return {"model": size, "before": before, "most": memory["most"], "seconds": taken}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.held", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    parser.add_argument("--clients", default="10,30,100,300", help="numbers of clients")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--one", action="store_true", help="one case, in this process, as JSON")
    options = parser.parse_args()
    for case in options.cases.split(","):
        for clients in map(int, options.clients.split(",")):
            if options.one:
                print(json.dumps(measure(case, clients)))
                return
            words = ["--one", "--cases", case, "--clients", str(clients)]
            told = subprocess.check_output([sys.executable, "-m", "tests.bench.held", *words])
            found = json.loads(told.splitlines()[-1])
            print(case, clients, found, flush=True)
            record.add(options.out, "held", case, str(clients), value=found)


if __name__ == "__main__":
    main()
