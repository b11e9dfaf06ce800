"""FedGen, in FedKF's variant and in its authors'."""

import pytest
import torch

from common.methods.fedgen import Reply
from common.models.generator import FeatureGenerator
from server_app.method import Replies
from tests.support.halves import client, server
from tests.support.tiny import Run

SMALL = {"fedgen__server_steps": 3, "fedgen__hidden": 8, "fedgen__server_batch_size": 8}
AUTHORS = {
    "fedgen__ensemble": "labels", "fedgen__noise": "normal", "fedgen__alpha": 10.0,
    "fedgen__beta": 1.0, "fedgen__decay": 0.98, "fedgen__until": 20,
}  # fmt: skip


def test_the_generator_has_the_layers_of_the_paper() -> None:
    generator = FeatureGenerator(32, 26, 120, 256)
    # 58·256 + 256, 2·256, 256·120 + 120
    assert sum(p.numel() for p in generator.parameters()) == 15_104 + 512 + 30_840
    draw = torch.Generator().manual_seed(0)
    uniform = generator.latents(1000, "uniform", draw)
    assert uniform.shape == (1000, 32) and uniform.min() >= 0 and uniform.max() < 1
    assert generator.latents(1000, "normal", draw).min() < -1
    assert bool((generator(uniform[:5], torch.tensor([0, 1, 2, 3, 25])) >= 0).all())


def test_the_authors_variant_learns_too(run: Run) -> None:
    result = run(method="fedgen", rounds=3, **SMALL, **AUTHORS)
    assert result.summary["accuracy"]["final"] > 0.5


@pytest.mark.parametrize(("ensemble", "expected"), [("logits", 0.5), ("labels", 0.95)])
def test_the_ensembles_by_hand(ensemble: str, expected: float) -> None:
    # Features are 1. Client 0 (n = 10, all of class 0) has logits (2, 0); client 1 (n = 30, of
    # which 10 of class 0) has (0, 2). Asked for class 0.
    up0 = Reply(w=head(2.0, 0.0), counts=[10, 0])
    up1 = Reply(w=head(0.0, 2.0), counts=[10, 20])
    fedgen = server(method="fedgen", fedgen__ensemble=ensemble, fedgen__diversity=0.0)
    loss = fedgen._loss(Replies.of([(client(0, 10), up0), (client(1, 30), up1)]), Ones())
    value = loss(torch.zeros(2, 1), torch.tensor([0, 0])).item()
    ce = [torch.log1p(torch.tensor(d).exp()).item() for d in (-2.0, 2.0)]
    if ensemble == "logits":  # ¼ (2, 0) + ¾ (0, 2) = (.5, 1.5): CE = log(1 + e)
        assert value == pytest.approx(torch.log1p(torch.tensor(1.0).exp()).item())
    else:  # class 0 is half client 0's and half client 1's
        assert value == pytest.approx((ce[0] + ce[1]) / 2)
    assert value > expected


class Ones(torch.nn.Module):
    """Features of 1."""

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(z), 1)


def head(a: float, b: float) -> dict[str, torch.Tensor]:
    return {"head.weight": torch.tensor([[a], [b]]), "head.bias": torch.zeros(2)}
