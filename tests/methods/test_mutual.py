"""FML: losses by hand, and both networks alone where they do not learn from each other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.methods.fedkemf import FedKEMF
from client_app.methods.fml import FML
from client_app.participant import Participant
from common.methods.fml import Options
from common.settings.parse import parse
from tests.support.tiny import Run, flat

OWN, SHARED, Y = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([0])
FLEET = {"fleet": "cnn2@0.25,mlp@0.25"}


def losses(own: Tensor = OWN, shared: Tensor = SHARED, **options: Any) -> tuple[Tensor, Tensor]:
    half: Any = SimpleNamespace(options=Options(**options))
    return FML.losses(half, own, shared, Y)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # CE .12693 and .69315, KL(meme ‖ own) .43378, KL(own ‖ meme) .32781
        ({}, (0.28035, 0.51048)),
        ({"alpha": 1.0, "beta": 0.0}, (0.12693, 0.32781)),
        ({"alpha": 0.0, "beta": 1.0}, (0.43378, 0.69315)),
        ({"alpha": 0.0, "beta": 0.0, "kl": "mean"}, (0.43378 / 2, 0.32781 / 2)),
    ],
)
def test_both_losses_by_hand(options: dict[str, Any], expected: tuple[float, float]) -> None:
    assert [float(loss) for loss in losses(**options)] == pytest.approx(expected, abs=1e-5)


def test_a_teacher_has_a_gradient_only_without_detach() -> None:
    for detach in (True, False):
        own, shared = (z.clone().requires_grad_() for z in (OWN, SHARED))
        first, _ = losses(own, shared, alpha=0.0, detach=detach)
        _, wrong = torch.autograd.grad(first, [own, shared], allow_unused=True)
        assert (wrong is None) == detach


def test_without_mutual_terms_memes_are_fedavgs(played: Run) -> None:
    """FedAvg of the meme: every client trains the global architecture."""
    fml = played(method="fml", fml__alpha=1.0, fml__beta=1.0, **FLEET)
    fedavg = played(method="fedavg", average__weights="uniform", **FLEET)
    assert fml.weights == fedavg.weights
    assert fml.weights != played(method="fml", **FLEET).weights


def test_half_weights_at_twice_the_rate_are_lwns_client(tmp_path: Path) -> None:
    steps = []
    for half, changes in ((FML, {"method": "fml", "train__lr": 0.1}), (FedKEMF, {"method": "lwn"})):
        config = parse(flat(tmp_path, **{"train__lr": 0.05, "fleet": "cnn2@0.25", **changes}))
        p = Participant(config, {"partition-id": 0}, "test")
        nets = [p.model("cnn2@0.25", part=name) for name in ("own", "shared")]
        half(p).learn_mutually(1, *nets)
        steps.append([w for net in nets for w in net.parameters()])
    for ours, theirs in zip(*steps, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_one_step_of_htfllibs_undetached_losses(tmp_path: Path) -> None:
    """Each network clipped at its own norm; KL divided by samples and classes."""
    settings = {"fml__detach": False, "fml__kl": "mean", "train__clip": 0.3, "train__steps": 1}
    given = {"fleet": "cnn2@0.25", "train__lr": 0.5, "train__momentum": 0.0}
    config = parse(flat(tmp_path, method="fml", **settings, **given))
    p = Participant(config, {"partition-id": 0}, "test")
    ours, theirs = ([p.model("cnn2@0.25", part=n) for n in ("own", "shared")] for _ in range(2))
    (x, y), *_ = p.task.batches(*p.train_set, p.k, 1, drop_last=True)
    kl_div = torch.nn.KLDivLoss(reduction="none")
    logs = [F.log_softmax(net(x), 1) for net in theirs]
    for log, other in (logs, logs[::-1]):
        loss = 0.5 * F.nll_loss(log, y) + 0.5 * kl_div(log, other.exp()).mean()
        loss.backward(retain_graph=True)
    for net in theirs:
        assert torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3) > 0.3
        torch.optim.SGD(net.parameters(), 0.5).step()
    FML(p).learn_mutually(1, *ours)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            dict(one.named_parameters()), dict(two.named_parameters()), rtol=0, atol=1e-6
        )
