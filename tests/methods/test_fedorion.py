"""FedORION."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import client_app.methods
from client_app.participant import Participant
from common.losses.distillation import kl, soft_cross_entropy
from common.parse import parse
from tests.support.tiny import TinyRun, flat

HOM = {"method": "fedorion", "fleet": "mlp@0.25", "average__weights": "samples"}


def test_kl_by_hand() -> None:
    teacher = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    student = torch.log(torch.tensor([[0.25, 0.75], [0.9, 0.1]]))
    # ½ ln(0.5/0.25) + ½ ln(0.5/0.75) for the first sample, 0 for the second, mean over two
    expected = (0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 2
    assert kl(teacher, student).item() == pytest.approx(expected, rel=1e-6)


def test_kl_and_soft_cross_entropy_have_the_same_gradient_for_the_student() -> None:
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(4, 3, generator=generator)
    gradients = []
    for loss in (kl, soft_cross_entropy):
        student = torch.ones(4, 3).mul_(torch.arange(3)).requires_grad_()
        loss(teacher, student, T=2.0).backward()
        gradients.append(student.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("dml", [True, False])
def test_without_dml_only_the_copys_loss_changes(dml: bool, tmp_path: Path) -> None:
    """Section 5, "Effect of DML": of equation 2 only the distillation is left, (1) is as it was."""
    config = parse(flat(tmp_path, method="fedorion", fedorion__dml=dml))
    half = client_app.methods.half("fedorion")(Participant(config, {"partition-id": 0}, "test"))
    own, shared = torch.log(torch.tensor([[0.5, 0.5]])), torch.log(torch.tensor([[0.25, 0.75]]))
    l_cm, l_gm = half.losses(own, shared, torch.tensor([0]))  # type: ignore[attr-defined]
    to_own = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    to_copy = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert l_cm.item() == pytest.approx(math.log(2) + to_own, rel=1e-6)
    assert l_gm.item() == pytest.approx(to_copy + (math.log(4) if dml else 0), rel=1e-6)


def test_a_stale_copy_is_what_a_client_was_last_given(run: Callable[..., TinyRun]) -> None:
    # Everybody takes part in every round, so nobody's copy is stale.
    settings = {"method": "fedorion", "rounds": 3}
    assert run(**settings).weights == run(**settings, fedorion__stale_broadcast=True).weights
    some = {**settings, "per_round": 2, "rounds": 5}
    assert run(**some).weights != run(**some, fedorion__stale_broadcast=True).weights


def test_distillation_leaves_the_averaged_running_statistics_alone(
    run: Callable[..., TinyRun],
) -> None:
    settings = {"method": "fedorion", "rounds": 1}
    average = load_file(run(**settings, fedorion__distill=False).folder / "model.safetensors")
    kept = load_file(run(**settings).folder / "model.safetensors")
    lost = load_file(
        run(**settings, noise__protect_running_stats=False).folder / "model.safetensors"
    )
    running = [name for name in average if "running_mean" in name]
    assert running
    assert all(torch.equal(average[name], kept[name]) for name in running)
    assert not any(torch.equal(average[name], lost[name]) for name in running)


def test_clients_of_the_global_architecture_skip_dml_and_send_one_model(
    run: Callable[..., TinyRun],
) -> None:
    hom = run(**HOM, rounds=1)
    everybody = run(**HOM, rounds=1, fedorion__selective=False)
    assert everybody.journal[1]["bytes"]["up"] > 1.9 * hom.journal[1]["bytes"]["up"]


def test_a_private_model_survives_between_rounds(run: Callable[..., TinyRun]) -> None:
    result = run(method="fedorion", rounds=2, fleet="cnn2@0.5,mlp@0.25")
    kept = sorted(
        path.parent.name for path in (result.folder / "state/test/0").rglob("*.safetensors")
    )
    assert kept == ["1", "2"]
    assert result.summary["clients"][0]["model"] == "cnn2@0.5"
