"""Distillation on noise: FedORION, LWN, HetFedFL and the modified FedFTG."""

import math
from pathlib import Path

import pytest
import torch

import client_app.methods
from client_app.participant import Participant
from common.losses.distillation import kl, mean_soft_cross_entropy
from common.parse import parse
from server_app.methods.fedftg_noise import towards
from tests.support.tiny import Run, flat

HOM = {"method": "fedorion", "fleet": "mlp@0.25", "average__weights": "samples"}


def test_kl_by_hand_has_the_gradient_of_soft_cross_entropy() -> None:
    teacher = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    student = torch.log(torch.tensor([[0.25, 0.75], [0.9, 0.1]]))
    # ½ ln(0.5/0.25) + ½ ln(0.5/0.75) for the first sample, 0 for the second, mean over two
    expected = (0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 2
    assert kl(teacher, student).item() == pytest.approx(expected, rel=1e-6)
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(4, 3, generator=generator)
    gradients = []
    for loss in (kl, mean_soft_cross_entropy):
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


def test_a_stale_copy_is_what_a_client_was_last_given(run: Run) -> None:
    # Everybody takes part in every round, so nobody's copy is stale.
    settings = {"method": "fedorion", "rounds": 3}
    assert run(**settings).weights == run(**settings, fedorion__stale_broadcast=True).weights
    some = {**settings, "per_round": 2, "rounds": 5}
    assert run(**some).weights != run(**some, fedorion__stale_broadcast=True).weights


def test_distillation_leaves_the_averaged_running_statistics_alone(run: Run) -> None:
    settings = {"method": "fedorion", "rounds": 1}
    average = run(**settings, fedorion__distill=False).model
    kept = run(**settings).model
    lost = run(**settings, noise__protect_running_stats=False).model
    running = [name for name in average if "running_mean" in name]
    assert running
    assert all(torch.equal(average[name], kept[name]) for name in running)
    assert not any(torch.equal(average[name], lost[name]) for name in running)


def test_clients_of_the_global_architecture_skip_dml_and_send_one_model(run: Run) -> None:
    hom = run(**HOM, rounds=1)
    everybody = run(**HOM, rounds=1, fedorion__selective=False)
    assert everybody.journal[1]["bytes"]["up"] > 1.9 * hom.journal[1]["bytes"]["up"]


def skipping(run: Run, share: float) -> set[int]:
    """The clients that skip DML at this share."""
    fleet = {"fleet": "cnn2@0.5", "global_model": "mlp@0.25", "rounds": 1}
    clients = run(method="fedorion", **fleet, fedorion__skip_share=share).journal[0]["clients"]
    return {client["k"] for client in clients if client["model"] == "mlp@0.25"}


def test_a_share_is_rounded_to_clients_and_who_skips_at_it_skips_at_a_larger_one(run: Run) -> None:
    chosen = [skipping(run, share) for share in (0.1, 0.125, 0.5, 0.75)]
    assert [len(clients) for clients in chosen] == [0, 1, 2, 3]
    assert chosen[1] < chosen[2] < chosen[3]


NOISE = {"noise__epochs": 1, "noise__batches": 6, "noise__batch_size": 16, "noise__lr": 0.05}
LWN_RUN = {"method": "lwn", **NOISE}
STILL = {"noise__lr": 1e-38}  #: distillation that moves nothing


def test_averaged_and_undistilled_it_is_fedorion_in_which_everybody_does_dml(run: Run) -> None:
    lwn = run(**{**LWN_RUN, **STILL}, lwn__init="average")
    fedorion = run(method="fedorion", fedorion__selective=False, fedorion__distill=False)
    torch.testing.assert_close(lwn.model, fedorion.model, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["sum", "none"])
def test_one_client_s_small_network_is_taken_as_it_is(norm: str, run: Run) -> None:
    alone = {**LWN_RUN, "clients": 1, "rounds": 1, "lwn__init": "average"}
    distilled = run(**alone, noise__max_norm=norm)
    torch.testing.assert_close(distilled.model, run(**{**alone, **STILL}).model, rtol=0, atol=1e-5)


def test_the_first_server_starts_from_what_it_sent(run: Run) -> None:
    first = run(**{**LWN_RUN, **STILL}, rounds=1)
    again = run(**{**LWN_RUN, **STILL}, rounds=1, train__epochs=1)
    torch.testing.assert_close(first.model, again.model, rtol=0, atol=1e-12)


HETFEDFL = {"method": "hetfedfl", **NOISE}


@pytest.mark.parametrize("norm", ["sum", "none"])
def test_with_one_client_combine_is_ensemble(norm: str, run: Run) -> None:
    alone = {**HETFEDFL, "clients": 1, "noise__max_norm": norm}
    combine = run(**alone, hetfedfl__transfer="combine")
    ensemble = run(**alone, hetfedfl__transfer="ensemble")
    torch.testing.assert_close(combine.model, ensemble.model, rtol=0, atol=1e-5)


def test_hetfedfl_averages_nothing_and_the_server_teaches_the_clients(run: Run) -> None:
    # A server that does not step keeps its first model, whatever the clients learn.
    still = {**HETFEDFL, "fleet": "mlp@0.25", "noise__lr": 1e-38}
    one, two = run(**still, rounds=1), run(**still, rounds=2)
    torch.testing.assert_close(one.model, two.model, rtol=0, atol=1e-12)
    # In round 2 the clients hear a server that has stepped, or one that has not.
    loud, still = run(**HETFEDFL), run(**{**HETFEDFL, "noise__lr": 1e-38})
    assert loud.journal[1]["client_metrics"] == still.journal[1]["client_metrics"]
    assert loud.journal[2]["client_metrics"] != still.journal[2]["client_metrics"]


FEDFTG = {"method": "fedftg-noise", **NOISE}


@pytest.mark.parametrize(("method", "mu"), [("fedavg", 0.0), ("fedprox", 0.5)])
def test_undistilled_it_is_fedavg_or_fedprox(method: str, mu: float, run: Run) -> None:
    ours = run(**{**FEDFTG, **STILL}, fedftg_noise__mu=mu)
    settings = {"average__weights": "uniform"} | ({"fedprox__mu": mu} if mu else {})
    theirs = run(method=method, **settings)
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=1e-12)


def test_one_client_teaches_its_own_average_nothing(run: Run) -> None:
    ours = run(**FEDFTG, clients=1, rounds=1)
    fedavg = run(method="fedavg", clients=1, rounds=1)
    torch.testing.assert_close(ours.model, fedavg.model, rtol=0, atol=1e-5)


def test_a_step_towards_the_mean_by_hand() -> None:
    w = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "running_var": torch.tensor(2.0)}
    mean = {"a": torch.tensor([3.0, 0.0]), "n": torch.tensor(5), "running_var": torch.tensor(0.5)}
    half, twice = towards(w, mean, 0.5), towards(w, mean, 2.0)
    assert half["a"].tolist() == [2.0, 1.0] and half["n"].item() == 5
    assert twice["a"].tolist() == [5.0, -2.0] and towards(w, mean, 1.0) is mean
    assert twice["running_var"].item() == 0.0, "no negative variance"
