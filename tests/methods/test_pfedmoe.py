"""pFedMoE: the mixture by hand, local training and FedPer at its edges, what travels and stays."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from client_app.bases.own_model import ClientState
from client_app.bases.partly_shared import ClientState as PrivatePart
from client_app.methods.pfedmoe import PFedMoE
from client_app.participant import Participant
from common.exchange.protocol import ModelReply
from common.exchange.records import StateDict
from common.models.classifier import Classifier
from common.models.composite import Gate, Gated
from common.settings.parse import parse
from common.training.task import check_fleet
from tests.support.battery import Changing
from tests.support.halves import server, task
from tests.support.scalar import kept
from tests.support.tiny import Run, TinyRun, flat, play

MOE: dict[str, Any] = {"method": "pfedmoe", "feature_dim": 16}


def own_model(run: TinyRun, t: int, k: int) -> StateDict:
    return ClientState.load(kept(run.folder, t, k, ClientState.kind)).local


def same(a: StateDict, b: StateDict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# By hand.


class Fixed(Classifier):
    """Network whose features of every sample are ``values``."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor([*map(float, values)]))
        self.head = nn.Linear(2, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.values.expand(len(x), 2)


class Constant(nn.Module):
    """Gate with the same logits for every image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([*map(float, logits)]))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), 2)


def test_the_mixture_by_hand() -> None:
    net = Gated(Fixed(0, 2), Fixed(1, 0), Constant(0, math.log(3)))
    r = net.features(torch.zeros(1, 1, 2, 2))
    assert r.tolist()[0] == pytest.approx([0.25, 1.5])


def test_a_gradient_by_hand() -> None:
    own, shared, gate = Fixed(0, 1), Fixed(1, 0), Constant(0, 0)
    own.head.load_state_dict({"weight": 2 * torch.eye(2), "bias": torch.zeros(2)})
    loss = F.cross_entropy(Gated(own, shared, gate)(torch.zeros(1, 1, 2, 2)), torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    for parameter in (gate.logits, own.values, shared.values):
        assert parameter.grad is not None and parameter.grad.tolist() == pytest.approx([-0.5, 0.5])
    assert shared.head.weight.grad is None


def test_the_gate_reads_each_image() -> None:
    x = torch.arange(8.0).reshape(2, 1, 2, 2)
    gate = Gate(4, 3, normalise=False)
    hidden = torch.sigmoid(gate[2](x.flatten(1)))
    torch.testing.assert_close(gate(x), gate[4](hidden))
    # the second image is the first one plus 4, which the normalisation removes
    first, second = Gate(4, 3, normalise=True)(x)
    torch.testing.assert_close(first, second)
    assert not torch.allclose(*gate(x))


# Reductions.


def fixed_gate(monkeypatch: pytest.MonkeyPatch, *logits: float) -> None:
    monkeypatch.setattr(Gate, "forward", lambda self, x: torch.tensor(logits).expand(len(x), 2))


def test_with_the_private_extractor_alone_it_is_local_training(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a small network without BatchNorm, whose statistics would follow the data
    settings = {"feature_dim": 16, "rounds": 3, "global_model": "lenet5@0.5"}
    local = run(**settings, method="local")
    fixed_gate(monkeypatch, -math.inf, 0.0)
    mixture = run(**settings, method="pfedmoe")
    for t in (1, 2, 3):
        assert all(same(own_model(mixture, t, k), own_model(local, t, k)) for k in range(4))
    assert same(mixture.model, server(**MOE, global_model="lenet5@0.5").w)
    scores = [[s["accuracy"] for s in one.journal[-1]["scores"]] for one in (mixture, local)]
    assert scores[0] == scores[1]


def test_with_the_shared_extractor_alone_it_is_fedper(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"fleet": "cnn2@0.5", "feature_dim": 16, "rounds": 3, "per_round": 3}
    settings |= {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}
    fedper = run(**settings, method="fedper")
    fixed_gate(monkeypatch, 0.0, -math.inf)
    mixture = run(**settings, method="pfedmoe")
    assert same(mixture.model, fedper.model)
    for k in mixture.journal[-1]["replied"]:
        head = PrivatePart.load(kept(fedper.folder, 3, k, PrivatePart.kind)).w
        assert same({name: own_model(mixture, 3, k)[name] for name in head}, head)
    scores = [[s["accuracy"] for s in one.journal[-1]["scores"]] for one in (mixture, fedper)]
    assert scores[0] == scores[1]


# What travels, what stays, and what is scored.


def test_only_the_small_extractor_travels(played: Run) -> None:
    run = played(**MOE, rounds=3, score__every=3)
    assert not {name for name in run.model if name.startswith("head.")}
    size = sum(value.nbytes for value in run.model.values())
    moved = run.journal[2]["bytes"]
    assert moved["arrays_up"] == moved["arrays_down"] == 4 * size


def test_a_client_scores_the_mixture_with_the_newest_w(played: Run) -> None:
    run = played(**MOE)
    for k, score in enumerate(run.journal[-1]["scores"]):
        node = {"partition-id": k, "state-dir": str(run.folder / "state")}
        p = Participant(parse(flat(run.folder, **MOE)), node, "test")
        net = PFedMoE(p).composite(3, run.model)
        assert score["accuracy"] == score["accuracy_global"] == p.accuracy(net)
        assert all(torch.equal(net.shared.state_dict()[n], w) for n, w in run.model.items())
    assert run.summary["accuracy"] is None


def test_own_network_gate_and_w_all_learn_and_the_gate_is_kept(played: Run) -> None:
    run = played(**MOE)
    node = {"partition-id": 0, "state-dir": str(run.folder / "state")}
    half = PFedMoE(Participant(parse(flat(run.folder, **MOE)), node, "test"))
    nets = [half.composite(t, run.model).state_dict() for t in (1, 2, 3)]
    for name in ("own.head.weight", "joint.2.weight", "joint.4.weight"):
        assert not any(torch.equal(a[name], b[name]) for a, b in itertools.pairwise(nets))
    assert not same(run.model, server(**MOE).w)


def test_the_normalised_gate_is_a_setting(run: Run) -> None:
    plain, normalised = (run(**MOE, rounds=1, pfedmoe__gate_norm=how) for how in ("none", "layer"))
    assert not same(plain.model, normalised.model)


# Hostile clients, and federations that do not suit it.


def put(name: str, value: Tensor) -> Any:
    return lambda reply: {"w": {**reply.w, name: value}}


FIRST = "base.layers.0.weight"
LIES: dict[str, tuple[Any, str]] = {
    "a head": (put("head.weight", torch.ones(3, 16)), "w has 1 unknown entries, first 'head.weig"),
    "a part": (lambda reply: {"w": {FIRST: reply.w[FIRST]}}, "w lacks "),
    "too wide": (put(FIRST, torch.ones(2, 2)), "is float32[2, 2], expected float32["),
    "not finite": (lambda reply: put(FIRST, reply.w[FIRST] * math.nan)(reply), "not finite"),
    "infinite": (lambda reply: put(FIRST, reply.w[FIRST] + math.inf)(reply), "not finite"),
    "enormous": (lambda reply: put(FIRST, reply.w[FIRST] + 1e5)(reply), "times the median of 4"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_extractor_that_cannot_be_is_refused_by_name(lie: str, tmp_path: Path) -> None:
    change, reason = LIES[lie]
    settings = {**MOE, "rounds": 1, "min_replies": 0.5, "global_model": "mlp@0.25"}
    (entry,) = play(flat(tmp_path, **settings), Changing.by(ModelReply, change)).journal[1:]
    (failure,) = entry["failures"]
    assert failure["k"] == 1 and failure["reason"].startswith("reply refused: ")
    assert reason in failure["reason"], failure["reason"]
    assert entry["replied"] == [0, 2, 3]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"fleet": "cnn2@0.5", "global_model": "mlp@0.5"},
            'method = "pfedmoe" needs a common number of features, but mlp@0.5 has 64 and cnn2',
        ),
        (
            {"fleet": "cnn4-exits2@0.5", "global_model": "cnn2@0.5"},
            'method = "pfedmoe" needs one head; cnn4-exits2@0.5 has',
        ),
        ({**MOE, "oca__aggregate": "on"}, 'oca.aggregate = "on" is not allowed with'),
        ({**MOE, "average__robust": "fltrust"}, 'average.robust = "fltrust" is not allowed with'),
        ({**MOE, "average__across": "same"}, 'average.across = "same" is not allowed with'),
        ({**MOE, "privacy__mode": "central"}, 'privacy.mode = "central" is not allowed with'),
        ({**MOE, "pfedmoe__gate_hidden": 0}, "pfedmoe.gate-hidden = 0"),
    ],
)
def test_what_does_not_suit_it_is_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_fleet(task(**{"method": "pfedmoe", **changes}))
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
