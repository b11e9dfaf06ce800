"""FedMRL: the losses by hand, local training and FedAvg's mean at its edges, and the scores."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.bases.composite import JointState
from client_app.methods.fedmrl import FedMRL
from client_app.participant import Participant
from common.exchange.protocol import ScoreRequest
from common.models.classifier import Classifier
from common.models.composite import Matryoshka, Small
from common.settings.parse import parse
from common.training import tree
from tests.support.halves import task
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, flat
from tests.support.weights import own_models, same

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
        grad = net.get_parameter(name).grad
        assert grad is not None
        torch.testing.assert_close(grad.flatten(), torch.tensor(value).float().flatten())
    assert net(x).tolist() == [[3.5, 0.0]]
    assert Small(net)(x)[0].tolist() == pytest.approx([0.0, 0.7])


def test_w_is_the_mean_of_the_copies_with_equal_weights(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert score["accuracy"] == score["accuracy_global"] == p.accuracy(net)
        assert score["accuracies"] == {"small": p.accuracy(Small(net))}


def test_before_its_first_round_a_client_scores_its_first_draw(tmp_path: Path) -> None:
    p = Participant(parse(flat(tmp_path, **MRL)), {"partition-id": 0}, "test")
    half, w = FedMRL(p), p.model(p.global_spec, part="any").state_dict()
    own, small = (half.to_score(ScoreRequest(w=w, spec="", models={}), part) for part in (w, {}))
    assert p.accuracy(own) is not None and isinstance(small, Small)
    assert same(own.state_dict(), half.composite(1, w).state_dict())
