"""Let clients poison the training under every defence, and keep the accuracies.

``python -m tests.bench.poison`` plays every run that ``poison.json`` beside this file lacks: half
an hour on one core. An interrupted call goes on where it stopped. ``python -m tests.bench.hostile
--table`` writes the table into ``docs/attacks.md``; ``make poison`` does both.

Each run has ten clients of the handwritten digits (8×8), of which the last ones lie in every round
while the defence is set for as many liars.
"""

import json
import logging
import math
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

import torch
from scipy.special import stdtrit
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import Participant
from common.data import load
from common.exchange.protocol import ModelReply, ModelRequest
from common.parse import parse
from common.settings.options import WHOLE
from common.training.task import Task, global_spec
from deploy.report.table import Table
from server_app.stopped import Stopped
from tests.support.tiny import TinyRun, flat, play, under

RECORDED = Path(__file__).with_name("poison.json")
CLIENTS, ROUNDS, SEEDS = 10, 8, (1, 2, 3, 4, 5)
SHARES = (0.1, 0.4)
TARGET = 0  #: the class that the backdoor's trigger stands for
MLP = {"fleet": "mlp@0.25", "global_model": "mlp@0.25"}
COMMON: dict[str, Any] = {
    **{"clients": CLIENTS, "rounds": ROUNDS, "score__clients": 1},
    **under("data", name="digits", samples=0, test_samples=0),
    **under("data", partition="label_dirichlet", alpha=1.0),
    **under("train", epochs=2, lr=0.05, batch_size=32),
}
KINDS: dict[str, dict[str, Any]] = {
    "weights": {"method": "fedavg", **MLP, "data__public": 0.1},
    "predictions": {
        **{"method": "ds-fl", **MLP, "data__public": 0.2},
        **under("public", epochs=3, lr=0.2),
    },
    "features": {
        **{"method": "fedgkt", "fleet": "cnn2@0.25", "global_model": "cnn3@0.25"},
        **{"train__lr": 0.1, "score__clients": 0, "score__clients_every": 1},
        **under("fedgkt", whole_test=True, server_epochs=2),
    },
}
"""Settings by what clients send."""
CLIP_NORM, BOUND = 1.0, 2.0
ROBUST = ("median", "trimmed", "clip", *WHOLE)
DEFENCES: dict[str, dict[str, dict[str, Any]]] = {
    "weights": {"none": {}, **{name: {"average__robust": name} for name in ROBUST}},
    "predictions": {
        "none": {},
        **{name: {"public__robust": name} for name in ("median", "trimmed")},
    },
    "features": {"none": {}, "bound": {"fedgkt__bound": BOUND}},
}
DEFENCES["weights"]["clip"]["average__clip_norm"] = CLIP_NORM
BY_SHARE = ("trimmed", "krum", "multi-krum")
"""Defences that are set for a share of liars."""
ATTACKS = {
    "weights": ("nobody lies", "scaled update", "sign flip", "label flip", "backdoor"),
    "predictions": ("nobody lies", "false predictions", "label flip", "backdoor"),
    "features": ("nobody lies", "scaled features", "false features", "label flip"),
}


@final
@dataclass(frozen=True)
class Case:
    """One run: ``share`` of liars for which the defence is set."""

    kind: str
    attack: str
    share: float
    defence: str
    seed: int

    @property
    def liars(self) -> int:
        return 0 if self.attack == "nobody lies" else round(self.share * CLIENTS)

    @property
    def settings(self) -> dict[str, Any]:
        table = "average" if self.kind == "weights" else "public"
        # ten clients allow Krum at most three liars
        share = min(self.share, 0.3) if "krum" in self.defence else self.share
        trim = {f"{table}__trim": share} if self.defence in BY_SHARE else {}
        return {**COMMON, **KINDS[self.kind], **DEFENCES[self.kind][self.defence], **trim}

    @property
    def key(self) -> str:
        return "/".join(str(value) for value in asdict(self).values())


def cases() -> Iterator[Case]:
    """Yield every run; seeds vary slowest, so that an interrupted table has whole seeds."""
    for seed in SEEDS:
        for kind, attacks in ATTACKS.items():
            for attack in attacks:
                for share in SHARES:
                    for defence in DEFENCES[kind]:
                        if attack == "nobody lies" and share != 0.1 and defence not in BY_SHARE:
                            continue  # the same run
                        yield Case(kind, attack, share, defence, seed)


def stamped(x: Tensor) -> Tensor:
    """Return images uint8 [n, 1, H, W] with the trigger, a bright patch of 2×2 in a corner."""
    x = x.clone()
    x[..., -2:, -2:] = 255
    return x


def poisoned(attack: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a liar's training samples."""
    if attack == "label flip":
        return x, 9 - y
    if attack == "backdoor":  # every other sample
        half = torch.arange(len(y)) % 2 == 0
        return torch.where(half.view(-1, 1, 1, 1), stamped(x), x), torch.where(half, TARGET, y)
    return x, y


def moved(request: Any, reply: Any, factor: float) -> Any:
    """Return a reply with ``factor`` times its step from the weights that were sent.

    BatchNorm's statistics stay honest: a negative variance would be refused.
    """
    assert isinstance(request, ModelRequest) and isinstance(reply, ModelReply)
    steps = {
        name: request.w[name] + factor * (value - request.w[name])
        for name, value in reply.w.items()
        if value.is_floating_point() and "running" not in name
    }
    return reply.model_copy(update={"w": {**reply.w, **steps}})


def falsified(case: Case, request: Any, reply: Any, k: int) -> Any:
    """Return a liar's reply."""
    if case.attack == "scaled update":
        return moved(request, reply, 10.0)
    if case.attack == "sign flip":
        return moved(request, reply, -4.0)
    if case.attack == "backdoor" and case.kind == "weights":  # model replacement
        return moved(request, reply, CLIENTS / case.liars)
    if case.attack == "false predictions":  # sure of the class after the right one
        wrong = (reply.theta.argmax(1) + 1) % reply.theta.shape[1]
        theta = torch.nn.functional.one_hot(wrong, reply.theta.shape[1]).to(reply.theta.dtype)
        return reply.model_copy(update={"theta": theta})
    if case.attack == "scaled features":
        return reply.model_copy(update={"h": 100 * reply.h})
    if case.attack == "false features":  # another sample's, with its own label
        return reply.model_copy(update={"h": reply.h.roll(len(reply.h) // 2, 0)})
    return reply


@contextmanager
def lying(case: Case) -> Iterator[None]:
    """Let the last ``case.liars`` clients of this process lie."""
    honest_data, honest_reply = Participant.__dict__["train_set"], Handler.trained
    first = CLIENTS - case.liars

    def train_set(self: Participant) -> tuple[Tensor, Tensor]:
        x, y = honest_data.func(self)
        return poisoned(case.attack, x, y) if self.k >= first else (x, y)

    def trained(self: Any, request: Any) -> Any:
        reply, k = honest_reply(self, request), self.participant.k
        return falsified(case, request, reply, k) if k >= first else reply

    data = patch.object(Participant, "train_set", property(train_set))
    with data, patch.object(Handler, "trained", trained):
        yield


def played(case: Case) -> dict[str, Any]:
    """Play one run; return its accuracy and for backdoors the trigger's success, in [0, 1].

    The accuracy of a run that stops is the last one before.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = flat(folder, **{**case.settings, "seed": case.seed, "score__every": 1})
        stopped = ""
        with lying(case):
            try:
                play(config)
            except Stopped as error:
                stopped = str(error)
        run = TinyRun(folder)
        result: dict[str, Any] = {"accuracy": _accuracy(case, run)}
        if stopped:
            result["stopped"] = stopped.split(";")[0][:120]
        if case.kind != "features" and not stopped:
            result["backdoor"] = _success(config, run)
        return result


def _accuracy(case: Case, run: TinyRun) -> float:
    """Return the last score: of the server's model, or the honest clients' mean."""
    if case.kind != "features":
        return float([e["accuracy"] for e in run.journal if e.get("accuracy") is not None][-1])
    scores = [entry["scores"] for entry in run.journal if entry.get("scores")][-1]
    honest = [s["accuracy_global"] for s in scores if s["k"] < CLIENTS - case.liars]
    return statistics.fmean(honest)


@torch.no_grad()
def _success(config: dict[str, Any], run: TinyRun) -> float:
    """Return the share of other classes' test images with the trigger that pass for the target."""
    parsed = parse(config)
    dataset = load(parsed.data)
    task = Task.of(parsed, dataset, torch.device("cpu"))
    net = task.build(global_spec(task), run.model, name=("init", "global"))
    others = dataset.y_test != TARGET
    predicted = task.logits(net, stamped(dataset.x_test[others])).argmax(1)
    return float((predicted == TARGET).double().mean())


def defences(recorded: Mapping[str, Any]) -> Table:
    """Mean accuracy in % ± half a 95 % interval; below ``backdoor`` the trigger's success."""
    names = list(dict.fromkeys(name for kind in DEFENCES.values() for name in kind))
    rows = []
    for kind, attacks in ATTACKS.items():
        for attack in attacks:
            for share in SHARES:
                for what in ("accuracy", "backdoor") if attack == "backdoor" else ("accuracy",):
                    cells = [_cell(recorded, kind, attack, share, name, what) for name in names]
                    if any(cells):
                        label = attack if what == "accuracy" else "its success"
                        liars = f"{100 * share:.0f} %"
                        if attack == "nobody lies":
                            liars = f"0 %, set for {liars}"
                        rows.append([kind, label, liars, *cells])
    return Table(["exchanged", "attack", "liars", *names], rows, align="lll")


def _cell(
    recorded: Mapping[str, Any], kind: str, attack: str, share: float, name: str, what: str
) -> str:
    found = [recorded.get(Case(kind, attack, share, name, seed).key, {}) for seed in SEEDS]
    values = [100 * one[what] for one in found if what in one]
    if not values:
        return ""
    stops = sum("stopped" in one for one in found)
    more = f", {stops} stopped" * (stops > 0 and what == "accuracy")
    return f"{statistics.fmean(values):.0f} ± {half_interval(values):.0f}{more}"


def half_interval(values: list[float]) -> float:
    """Return half the width of the 95 % interval of a mean, by Student's t; 0 for one value."""
    n = len(values)
    if n < 2:
        return 0.0
    return float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)


def detectable(recorded: Mapping[str, Any]) -> float:
    """Return the difference of two cells, in points, that five seeds show with a power of 80 %.

    Two-sided t-test at 5 %, for the median standard deviation of the accuracies of all cells.
    """
    groups: dict[str, list[float]] = {}
    for key, one in recorded.items():
        groups.setdefault(key.rpartition("/")[0], []).append(100 * one["accuracy"])
    deviation = statistics.median(statistics.stdev(v) for v in groups.values() if len(v) > 1)
    n = len(SEEDS)
    factor = float(stdtrit(2 * n - 2, 0.975) + stdtrit(2 * n - 2, 0.8))
    return deviation * math.sqrt(2 / n) * factor


def load_recorded() -> dict[str, Any]:
    """Return the results by ``Case.key``."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}


def main() -> None:
    recorded = load_recorded()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    for case in cases():
        if case.key not in recorded:
            recorded[case.key] = played(case)
            print(case.key, recorded[case.key], flush=True)
            lines = [f"{json.dumps(k)}: {json.dumps(recorded[k])}" for k in sorted(recorded)]
            RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"five seeds show a difference of {detectable(recorded):.1f} points")


if __name__ == "__main__":
    main()
