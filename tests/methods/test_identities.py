"""Methods that are another one at the edge of their settings: the same weights and the same course.

A pair may be of three: then the third one is not the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases import own_model
from client_app.methods.fedmrl import FedMRL
from client_app.participant import Participant
from common.losses.transfer import arcface
from common.models.classifier import Classifier
from common.models.composite import Gate, Matryoshka
from common.models.simplex import simplex
from common.training import seeds
from common.training.fit import Loss
from tests.support.battery import PUBLIC as SHARED_SET
from tests.support.tiny import Run, TinyRun, under
from tests.support.weights import own_models, same

UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}
UNIFORM = {"average__weights": "uniform"}
FEDAVG: dict[str, Any] = {"method": "fedavg"}
DEPTHS = {"fleet": "cnn2@0.5,cnn3@0.5"}
WIDTHS = {"fleet": "cnn2@0.5,cnn2@0.25", "score__bn": "batch"}
CLIPPED = {"train__clip": 1.0, **UNIFORM}
ONE_WIDTH = {"fleet": "cnn2@0.5", "score__bn": "batch", **CLIPPED}
THREE = {"fleet": "cnn2@0.5,cnn3@0.5,cnn4@0.5", "clients": 5, **UNEVEN, "average__clip_norm": 0.05}
PUBLIC = {"data__public": 0.4, "data__samples": 200, "public__subset": 40, "public__epochs": 2}
PUBLIC |= {"public__batch_size": 16, "train__epochs": 1, "clients": 2}
SHOT = {"data__public": 0.6, "data__samples": 200, "confidence__epochs": 1, "ensemble__epochs": 4}
FEW = {"fedftg__iterations": 0, "fleet": "cnn2@0.5"}
HOM = {"fleet": "mlp@0.25", "average__weights": "samples", "score__bn": "running"}
SKIPPING = {"fleet": "mlp@0.25,cnn2@0.5,cnn3@0.25,cnn2@0.5", "global_model": "mlp@0.25"}
OLD = {"method": "fedgkd", "fedgkd__buffer": 1, "fedgkd__temperature": 2.0}
FEDDF = {**PUBLIC, "clients": 3, "per_round": 2}
FEDGEN = {"method": "fedgen", **under("fedgen", server_steps=3, hidden=8, server_batch_size=8)}
SOME = {"per_round": 2, "rounds": 3, "score__clients_every": 1}

Settings = dict[str, Any]
SAME: dict[str, tuple[Settings, ...]] = {
    "FedProx with μ = 0": (
        {"method": "fedprox", "fedprox__mu": 0.0},
        FEDAVG,
        *({"method": "fedprox", "fedprox__mu": mu} for mu in (0.1, 10.0)),
    ),
    "FedGen without its weights": (
        {**FEDGEN, "fedgen__alpha": 0.0, "fedgen__beta": 0.0},
        FEDAVG,
        *(FEDGEN, {**FEDGEN, "fedgen__until": 1}),
    ),
    "FedGen's first round": ({**FEDGEN, "rounds": 1}, {**FEDAVG, "rounds": 1}),
    "FedKF with γ = 0": (
        {"method": "fedkf", "fedkf__gamma": 0.0, **under("generator", latent=8, width=4), **SOME},
        {**FEDAVG, "oca__aggregate": "on", **SOME},
    ),
    "InclusiveFL": (
        {"method": "inclusivefl", "fleet": THREE["fleet"]},
        {**FEDAVG, "average__across": "depth", "fleet": THREE["fleet"]},
    ),
    "FedGKD with γ = 0": ({"method": "fedgkd", "fedgkd__gamma": 0.0, "fedgkd__buffer": 1}, FEDAVG),
    "FedGKD until its buffer is full": (
        {"method": "fedgkd", "fedgkd__gamma": 1.0, "fedgkd__buffer": 2},
        FEDAVG,
        {"method": "fedgkd", "fedgkd__buffer": 2, "fedgkd__wait_full": False},
    ),
    "FedGKD with γ / 2 · 1 and γ / 8 · 2²": (
        {**OLD, "fedgkd__gamma": 0.8},
        {**OLD, "fedgkd__gamma": 0.2, "fedgkd__t_squared": True},
    ),
    "q-FFL with q = 0": (
        {"method": "qffl", "qffl__q": 0.0, **UNEVEN},
        {**FEDAVG, **UNIFORM, **UNEVEN},
    ),
    "SCAFFOLD's first round": (
        {"method": "scaffold", "rounds": 1, "train__clip": 1.0, **UNEVEN},
        {**FEDAVG, "rounds": 1, **CLIPPED, **UNEVEN},
    ),
    "FedNova with equal steps": (
        {"method": "fednova", "train__steps": 3, **UNEVEN},
        {**FEDAVG, "train__steps": 3, **UNEVEN},
        {"method": "fednova", **UNEVEN},
    ),
    "FedORION without DML and distillation": (
        {"method": "fedorion", "fedorion__distill": False, **HOM},
        {**FEDAVG, **HOM},
    ),
    "FedORION in which everybody skips": (
        {"method": "fedorion", "fedorion__distill": False, "fedorion__skip_share": 1.0}
        | {**SKIPPING, "average__weights": "samples", "score__bn": "running"},
        {**FEDAVG, **SKIPPING},
        {"method": "fedorion", **SKIPPING, "fedorion__skip_share": 0.0},
    ),
    "FedORION in which nobody skips": (
        {"method": "fedorion", **SKIPPING, "fedorion__skip_share": 0.0},
        {"method": "fedorion", **SKIPPING, "fedorion__selective": False},
    ),
    "FedFTG without iterations": ({"method": "fedftg", **FEW}, {**FEDAVG, "fleet": "cnn2@0.5"}),
    "FedFTG without iterations and with μ": (
        {"method": "fedftg", "fedftg__mu": 0.5, **FEW},
        {"method": "fedprox", "fedprox__mu": 0.5, "fleet": "cnn2@0.5"},
    ),
    "FedIN without IN training and with μ = 0": (
        {"method": "fedin", "fedin__in_training": False, "fedin__mu": 0.0, **DEPTHS},
        {**FEDAVG, "average__across": "layerwise", **UNIFORM, **DEPTHS},
    ),
    "DL-MH where every client has every class": (
        {"method": "dl-mh", "rounds": 2, **SHOT},
        {"method": "dl-sh", "rounds": 2, **SHOT},
    ),
    "I-DL-MH's server": (
        {"method": "i-dl-mh", "rounds": 1, "i_dl_mh__incentive_epochs": 2, **SHOT},
        {"method": "dl-mh", "rounds": 1, **SHOT},
    ),
    "FDmeta by lot": (
        {"method": "fdmeta", "fdmeta__choose": "random", **PUBLIC},
        {"method": "ds-fl", "ds_fl__aggregation": "mean", **PUBLIC},
    ),
    "InclusiveFL with one size": (
        {"method": "inclusivefl", "fleet": "cnn3@0.5"},
        {**FEDAVG, "fleet": "cnn3@0.5"},
    ),
    "DepthFL at depth 1": (
        {"method": "depthfl", "depthfl__feddyn": False, "fleet": "cnn4-exits1@0.5", **UNEVEN},
        {**FEDAVG, "fleet": "cnn4-exits1@0.5", **UNIFORM, **UNEVEN},
    ),
    "equal clients across widths": (
        {**FEDAVG, "average__across": "width", "fleet": "cnn2@0.5"},
        {**FEDAVG, "fleet": "cnn2@0.5"},
    ),
    **{
        f"FedIN without IN training, {across}": (
            {"method": "fedin", "fedin__in_training": False, "average__across": across, **DEPTHS},
            {"method": "fedprox", "fedprox__mu": 0.1, "average__across": across}
            | {**UNIFORM, **DEPTHS},
        )
        for across in ("layerwise", "same")
    },
    **{
        f"FedNTD with β = 0, {across}": (
            {"method": "fedntd", "fedntd__beta": 0.0, "average__across": across, **DEPTHS},
            {**FEDAVG, "average__across": across, **DEPTHS},
        )
        for across in ("layerwise", "same")
    },
    **{
        f"FedDF without distillation, {across}": (
            {"method": "feddf", "public__learn": False, "average__across": across, **FEDDF},
            {**FEDAVG, "average__across": across, **FEDDF},
        )
        for across in ("none", "same")
    },
    **{
        f"MOON with μ = 0, projection {on}": (
            {"method": "moon", "moon__mu": 0.0, "projection": on},
            {**FEDAVG, "projection": on},
        )
        for on in ("on", "off")
    },
    **{
        f"HeteroFL with equal rates, mask {mask}": (
            {"method": "heterofl", "heterofl__mask": mask, **ONE_WIDTH},
            {**FEDAVG, **ONE_WIDTH},
        )
        for mask in ("none", "zero")
    },
    **{
        f"FedRolex with equal rates, windows {windows}": (
            {"method": "fedrolex", "fedrolex__windows": windows, **ONE_WIDTH},
            {**FEDAVG, **ONE_WIDTH},
        )
        for windows in ("roll", "random")
    },
    **{
        f"FedRolex with static windows, rates {rates}": (
            {"method": "fedrolex", "fedrolex__windows": "static", "fedrolex__rates": rates}
            | WIDTHS,
            {"method": "heterofl", "heterofl__rates": rates, **WIDTHS},
            {"method": "fedrolex", "fedrolex__rates": rates, **WIDTHS},
        )
        for rates in ("fixed", "redrawn")
    },
    **{
        f"depth with nothing of one's own, {robust}": (
            {**FEDAVG, **THREE, "average__robust": robust, "average__across": "depth"}
            | {"average__own": "none", "average__beta": 0.0},
            {**FEDAVG, **THREE, "average__robust": robust, "average__across": "layerwise"},
            *(
                {**FEDAVG, **THREE, "average__robust": robust, "average__across": "depth", **more}
                for more in ({"average__own": "none"}, {"average__beta": 0.0})
            ),
        )
        for robust in ("none", "clip")
    },
    **{
        f"{method} across depths with one size": (
            {"method": method, "fleet": "cnn3@0.5", "average__across": "depth", **UNEVEN},
            {"method": method, "fleet": "cnn3@0.5", **UNEVEN},
        )
        for method in ("fedavg", "fedprox", "moon", "fedntd")
    },
}


def course(run: TinyRun) -> list[list[Any]]:
    """What a run computes, without what it sends for it."""
    keys = ("accuracy", "loss", "clients", "selected", "replied")
    return [[entry.get(key) for key in keys] for entry in run.journal]


@pytest.mark.parametrize("case", SAME)
def test_a_method_at_the_edge_is_another_bit_for_bit(case: str, played: Run) -> None:
    ours, theirs, *others = (played(**settings) for settings in SAME[case])
    assert ours.weights == theirs.weights and course(ours) == course(theirs)
    assert len({ours.weights, *(each.weights for each in others)}) == 1 + len(others)


@pytest.mark.parametrize("across", ["layerwise", "same"])
@pytest.mark.parametrize("method", ["fedavg", "fednova", "scaffold", "fedper", "fedrep", "fedbn"])
def test_with_one_architecture_a_scheme_changes_nothing(
    method: str, across: str, played: Run
) -> None:
    if across == "layerwise" and method in ("fedper", "fedrep", "fedbn"):
        across = "same"
    settings = {"method": method, "fleet": "cnn2@0.5", "per_round": 3, "rounds": 3, **UNEVEN}
    one, several = played(**settings), played(**settings, average__across=across)
    alone = {name.removeprefix("cnn2@0.5/"): w for name, w in several.model.items()}
    assert same(one.model, alone)
    keys = ("accuracy", "loss", "metrics", "client_metrics", "scores", "clients")
    for ours, theirs in zip(one.journal, several.journal, strict=True):
        assert [ours.get(key) for key in keys] == [theirs.get(key) for key in keys]


def angular(patch: pytest.MonkeyPatch) -> None:
    """Give local training the loss of FedKTL."""
    with seeds.scope(1, "any"):
        directions = simplex(3, seeds.stream(1, "init", "simplex"))

    def loss(net: Classifier) -> Loss:
        def angle(x: Tensor) -> Tensor:
            return F.linear(F.normalize(net.head(net.features(x))), directions)

        return lambda x, y: arcface(angle(x), y, 64.0, 0.5)

    patch.setattr(own_model, "cross_entropy", loss)


def without_quiz_set(patch: pytest.MonkeyPatch) -> None:
    """Let local training leave out the samples that FedL2G does not train on."""
    patch.setattr(Participant, "train", partialmethod(Participant.train, skip=8))


def private_gate(patch: pytest.MonkeyPatch) -> None:
    """Let the gate of pFedMoE take the private extractor alone."""
    gate = torch.tensor([-math.inf, 0.0])
    patch.setattr(Gate, "forward", lambda self, x: gate.expand(len(x), 2))


def own_features(patch: pytest.MonkeyPatch) -> None:
    """Let the joint features of FedMRL be those of the own network: A = [0, 1], held."""
    drawn = FedMRL.compose

    def fixed(self: FedMRL, own: Classifier, shared: Classifier) -> Matryoshka:
        net = drawn(self, own, shared)
        weight, bias = net.joint.parameters()
        K, inputs = weight.shape
        weight.data, bias.data = torch.eye(inputs)[-K:], torch.zeros(K)
        net.joint.requires_grad_(False)
        return net

    patch.setattr(FedMRL, "compose", fixed)


@dataclass(frozen=True)
class Alone:
    """Settings with which a method is local training, and ``others`` with which it is not."""

    ours: Settings
    both: Settings = field(default_factory=dict)  #: of the local run as well
    others: Settings = field(default_factory=dict)
    later: bool = False  #: the other settings change nothing in round 1
    patch: Callable[[pytest.MonkeyPatch], None] | None = None
    differs: str = ""  #: the number of the journal that is not that of the own model alone


WIDE: Settings = {"feature_dim": 16}
LABELS = {"data__partition": "label_dirichlet", "data__alpha": 0.3, "data__min_size": 4}
TABLES = {"rounds": 3, **LABELS}
MIXED = {"fleet": "cnn2@0.25,mlp@0.25"}
LOGITS = {**SHARED_SET, "clients": 3}
ALONE = {
    **{
        f"FD, {how}": Alone(
            {"method": "fd", "fd__distance": how, "fd__lambda_term": 0.0},
            *(TABLES, {"fd__lambda_term": 1.0}, True),
        )
        for how in ("ce-soft", "raw", "mse")
    },
    "FD, leave one out": Alone(
        {"method": "fd", "fd__weights": "leave-one-out", "fd__lambda_term": 0.0},
        *(TABLES, {"fd__lambda_term": 1.0}, True),
    ),
    **{
        f"FedProto, {how}": Alone(
            {"method": "fedproto", "fedproto__collect": how, "fedproto__lambda_term": 0.0},
            *({**TABLES, **WIDE}, {"fedproto__lambda_term": 1.0}, True),
        )
        for how in ("running", "final")
    },
    "FedTGP": Alone(
        {"method": "fedtgp", "fedtgp__server_epochs": 1, "fedtgp__lambda_term": 0.0},
        *({**TABLES, **WIDE}, {"fedtgp__lambda_term": 1.0}, True),
    ),
    "FedKTL": Alone(
        {"method": "fedktl", "fedktl__server_epochs": 5, "fedktl__mu": 0.0},
        *({"train__clip": 5.0}, {"fedktl__mu": 50.0}, True, angular, "accuracy"),
    ),
    "FedL2G": Alone(
        {"method": "fedl2g", "fedl2g__warm_up": 0, "fedl2g__weight": 0.0},
        *({"train__batch_size": 8}, {"fedl2g__weight": 1.0}, False, without_quiz_set),
    ),
    "FML": Alone(
        {"method": "fml", "fml__alpha": 1.0, "fml__beta": 1.0},
        *(MIXED, {"fml__alpha": 0.5}),
        differs="loss",
    ),
    "FML, clipped": Alone(
        {"method": "fml", "fml__alpha": 1.0, "fml__beta": 1.0},
        {**MIXED, "train__clip": 0.5},
        differs="loss",
    ),
    "FedKD": Alone(
        {"method": "fedkd", "fedkd__weight": 0.0}, MIXED, {"fedkd__weight": 1.0}, differs="loss"
    ),
    "pFedMoE": Alone(  # a small network without BatchNorm, whose statistics would follow the data
        {"method": "pfedmoe"}, {**WIDE, "global_model": "lenet5@0.5"}, patch=private_gate
    ),
    "DENSE": Alone({"method": "dense", **under("dense", epochs=1, generated=6, batch_size=6)}),
    "DS-FL": Alone(
        {"method": "ds-fl", "public__learn": False}, LOGITS, {"public__learn": True}, later=True
    ),
    **{
        method: Alone(
            {"method": method, "public__learn": False, f"{method}.first-epochs": 0, **more},
            *(LOGITS, {"public__learn": True}),
        )
        for method, more in (("fedmd", {}), ("kt-pfl", {"kt_pfl__grow": False}))
    },
}
"""Cases by name. FedMRL, whose gradients pass a slice of the features, is equal to rounding."""


@pytest.mark.parametrize("case", ALONE)
def test_a_client_that_learns_nothing_from_others_trains_locally(
    case: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ALONE[case]
    if one.patch:
        one.patch(monkeypatch)
    both = {"score__clients_every": 1, **one.both}
    ours, local = run(**{**both, **one.ours}), run(**both, method="local")
    rounds = range(1, len(local.journal))
    assert all(same(own_models(ours, t), own_models(local, t)) for t in rounds[-2:])
    for our, their in zip(ours.journal[1:], local.journal[1:], strict=True):
        for k, metrics in their["client_metrics"].items():
            own = our["client_metrics"][k]
            assert {**own, "loss": metrics["loss"]} == {**own, **metrics}
            assert own["loss"] == metrics["loss"] or one.differs == "loss"
        scores = [[s["accuracy"] for s in entry["scores"]] for entry in (our, their)]
        assert scores[0] == scores[1] or one.differs == "accuracy"
    if one.others:
        other = run(**{**both, **one.ours, **one.others})
        assert not same(own_models(other, rounds[-1]), own_models(local, rounds[-1]))
        metrics = [played.journal[1]["client_metrics"] for played in (other, ours)]
        assert not one.later or metrics[0] == metrics[1]


def test_with_the_own_features_fedmrl_trains_locally(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_features(monkeypatch)
    fedmrl = run(method="fedmrl", global_model="cnn2@0.25", fedmrl__weight=0.0)
    local = run(method="local")
    for ours, theirs in zip(own_models(fedmrl, 2), own_models(local, 2), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    for ours, theirs in zip(fedmrl.journal[1:], local.journal[1:], strict=True):
        scores = [[s["accuracy"] for s in entry["scores"]] for entry in (ours, theirs)]
        assert scores[0] == scores[1]
