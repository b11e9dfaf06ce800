"""pFedMoE and FedMRL: mixtures and losses by hand, reductions, and what is scored."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from client_app.bases.composite import JointState
from client_app.bases.partly_shared import ClientState as PrivatePart
from client_app.methods.fedmrl import FedMRL
from client_app.methods.pfedmoe import PFedMoE
from client_app.participant import Participant
from common.data.kinds import TOKENS, OfKind
from common.exchange import tree
from common.exchange.protocol import ScoreRequest
from common.models.classifier import Classifier
from common.models.composite import Gate, Gated, Matryoshka, Small
from common.parse import parse
from tests.support import halves
from tests.support.halves import server, task
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, TinyRun, flat
from tests.support.weights import own_models, same

MOE: dict[str, Any] = {"method": "pfedmoe", "feature_dim": 16}


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


def test_the_mixture_and_a_gradient_by_hand() -> None:
    net = Gated(Fixed(0, 2), Fixed(1, 0), Constant(0, math.log(3)))
    r = net.features(torch.zeros(1, 1, 2, 2))
    assert r.tolist()[0] == pytest.approx([0.25, 1.5])
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
    gate = Gate((1, 2, 2), 3, normalise=False)
    hidden = torch.sigmoid(gate[2](x.flatten(1)))
    torch.testing.assert_close(gate(x), gate[4](hidden))
    # the second image is the first one plus 4, which the normalisation removes
    first, second = Gate((1, 2, 2), 3, normalise=True)(x)
    torch.testing.assert_close(first, second)
    assert not torch.allclose(*gate(x))


def test_the_gate_of_texts_reads_the_mean_of_their_tokens() -> None:
    gate = Gate(OfKind((4,), TOKENS, 9), 3, normalise=False)
    short, padded = torch.tensor([[3, 5]]).int(), torch.tensor([[3, 5, 0, 0]]).int()
    mean = (gate[0].weight[3] + gate[0].weight[5]) / 2  # type: ignore[operator,index]
    torch.testing.assert_close(gate[0](padded)[0], mean)
    torch.testing.assert_close(gate(padded), gate(short))
    assert gate(torch.zeros(1, 4, dtype=torch.int32)).isfinite().all()


def test_with_the_shared_extractor_alone_it_is_fedper(run, monkeypatch) -> None:
    settings = {"fleet": "cnn2@0.5", "feature_dim": 16, "rounds": 3, "per_round": 3}
    settings |= {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}
    fedper = run(**settings, method="fedper")
    gate = torch.tensor([0.0, -math.inf])
    monkeypatch.setattr(Gate, "forward", lambda self, x: gate.expand(len(x), 2))
    mixture = run(**settings, method="pfedmoe")
    assert same(mixture.model, fedper.model)
    heads = [
        {name: w for name, w in own.items() if name.startswith("head.")}
        for own in own_models(mixture, 3)
    ]
    assert same(heads, own_models(fedper, 3, PrivatePart, "w"))
    scores = [[s["accuracy"] for s in one.journal[-1]["scores"]] for one in (mixture, fedper)]
    assert scores[0] == scores[1]


def half(run: TinyRun, k: int) -> PFedMoE:
    """Return client k's half with the state that it kept."""
    node = {"partition-id": k, "state-dir": str(run.folder / "state")}
    return PFedMoE(Participant(parse(flat(run.folder, **MOE)), node, "test"))


def test_all_parts_learn_and_a_client_scores_the_mixture_with_the_newest_w(played: Run) -> None:
    run = played(**MOE)
    for k, score in enumerate(run.journal[-1]["scores"]):
        mixture = half(run, k)
        net = mixture.composite(3, run.model)
        accuracy = mixture.participant.score(net)
        assert score["accuracy"] == score["accuracy_global"] == accuracy
        assert all(torch.equal(net.shared.state_dict()[n], w) for n, w in run.model.items())
    nets = [half(run, 0).composite(t, run.model).state_dict() for t in (1, 2, 3)]
    for name in ("own.head.weight", "joint.2.weight", "joint.4.weight"):
        assert not any(torch.equal(a[name], b[name]) for a, b in itertools.pairwise(nets))
    assert not same(run.model, server(**MOE).w)


MRL: dict[str, Any] = {"method": "fedmrl", "global_model": "cnn2@0.25"}
"""16 features of the small network, 32 of those of the fleet."""


class Scale(Classifier):
    """One feature, a times the image's number, and a head with the weights ``h``."""

    def __init__(self, a: float, h: tuple[float, float]) -> None:
        super().__init__()
        self.a, self.head = nn.Parameter(torch.tensor(a)), nn.Linear(1, 2, bias=False)
        self.head.weight = nn.Parameter(torch.tensor([[h[0]], [h[1]]]))

    def features(self, x: Tensor) -> Tensor:
        return self.a * x


@pytest.mark.parametrize("weight", [0.0, 1.0, 0.5])
def test_the_losses_and_a_step_by_hand(weight: float) -> None:
    """K = d₁ = 1, A = [1, 2]: r = 1 · 3 x + 2 · 2 x = 7 for x = 1."""
    joint = nn.Linear(2, 1, bias=False)
    joint.weight = nn.Parameter(torch.tensor([[1.0, 2.0]]))
    net = Matryoshka(Scale(2.0, (0.5, 0.0)), Scale(3.0, (0.0, 0.1)), joint)
    x, y = torch.ones(1, 1), torch.tensor([0])
    half = FedMRL.__new__(FedMRL)
    half.participant = halves.learner()
    half.options = task(**MRL, fedmrl__weight=weight).config.method
    loss = half.loss(net)(x, y)
    own, small = math.log(1 + math.exp(-3.5)), math.log(1 + math.exp(0.7))
    assert float(loss.detach()) == pytest.approx(own + weight * small, abs=1e-6)
    loss.backward()
    # the gradients of the logits' difference are −(1 − p_y)
    q, s = 1 - math.exp(-own), 1 - math.exp(-small)
    of_r = -q * 0.5 + weight * s * 0.1
    expected = {"own.a": of_r * 2, "shared.a": of_r * 1, "joint.weight": (of_r * 3, of_r * 2)}
    for name, value in expected.items():
        grad: Any = net.get_parameter(name).grad
        torch.testing.assert_close(grad.flatten(), torch.tensor(value).float().flatten())
    assert net(x).tolist() == [[3.5, 0.0]]
    assert Small(net)(x)[0].tolist() == pytest.approx([0.0, 0.7])


def test_w_is_the_mean_of_the_copies_with_equal_weights(run, monkeypatch) -> None:
    sent = record_calls(monkeypatch, FedMRL, "train", lambda reply, half, request: reply.w)
    uneven = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}
    played = run(**MRL, **uneven, rounds=1)
    assert len({client["n"] for client in played.journal[0]["clients"]}) > 1
    torch.testing.assert_close(played.model, tree.mean(sent, [1] * 4), rtol=0, atol=1e-7)


def test_a_client_scores_its_parts_with_the_newest_w(played: Run) -> None:
    run = played(**MRL)
    kept = zip(own_models(run, 2), own_models(run, 2, JointState, "joint"), strict=True)
    for score, (own, joint) in zip(run.journal[-1]["scores"], kept, strict=True):
        p = Participant(parse(flat(run.folder / "o", **MRL)), {"partition-id": score["k"]}, "test")
        net = FedMRL(p).compose(p.model(p.spec, own), p.model(p.global_spec, run.model))
        net.joint.load_state_dict(joint)
        assert joint["weight"].shape == (32, 48)
        assert score["accuracy"] == score["accuracy_global"] == p.score(net)
        assert score["accuracies"] == {"small": p.score(Small(net))}


def test_before_its_first_round_a_client_scores_its_first_draw(tmp_path: Path) -> None:
    p = Participant(parse(flat(tmp_path, **MRL)), {"partition-id": 0}, "test")
    half, w = FedMRL(p), p.model(p.global_spec, part="any").state_dict()
    own, small = (half.to_score(ScoreRequest(w=w, spec="", models={}), part) for part in (w, {}))
    assert p.score(own) is not None and isinstance(small, Small)
    assert same(own.state_dict(), half.composite(1, w).state_dict())
