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

from client_app.methods.fedmrl import FedMRL
from client_app.participant import Participant
from common import seeds
from common.losses.transfer import arcface
from common.models.classifier import Classifier
from common.models.composite import Gate, Matryoshka
from common.models.simplex import simplex
from common.training.fit import Loss
from tests.support.battery import PUBLIC as SHARED_SET
from tests.support.tiny import Run, TinyRun, overrides, under
from tests.support.weights import own_models, same

UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}
SKEW, UNIFORM = "data.partition=quantity_dirichlet data.alpha=1.0", "average.weights=uniform"
DEPTHS, UNEQUAL = "fleet=cnn2@0.5,cnn3@0.5", "fleet=cnn2@0.5,cnn2@0.25 score.bn=batch"
ONE_WIDTH = f"fleet=cnn2@0.5 score.bn=batch train.clip=1.0 {UNIFORM}"
SIZES = "fleet=cnn2@0.5,cnn3@0.5,cnn4@0.5"
THREE = f"fedavg {SIZES} clients=5 {SKEW} average.clip-norm=0.05"
PUBLIC = "data.public=0.4 data.samples=200 public.subset=40 public.epochs=2 public.batch-size=16"
PUBLIC += " train.epochs=1"
SHOT = "data.public=0.6 data.samples=200 confidence.epochs=1 ensemble.epochs=4"
HOM = "fleet=mlp@0.25 average.weights=samples score.bn=running"
SKIPPING = "fleet=mlp@0.25,cnn2@0.5,cnn3@0.25,cnn2@0.5 global-model=mlp@0.25"
OLD = "fedgkd fedgkd.buffer=1 fedgkd.temperature=2.0"
FEDGEN = "fedgen fedgen.server-steps=3 fedgen.hidden=8 fedgen.server-batch-size=8"
SOME = "per-round=2 rounds=3 score.clients-every=1"
FEDKF = f"fedkf fedkf.gamma=0.0 generator.latent=8 generator.width=4 {SOME}"
UNTAUGHT = "fedftg.iterations=0 fleet=cnn2@0.5"
ALL_DEPTHS = f"{THREE} average.across=depth"

CNN2 = "fleet=cnn2@0.5"
RANK = "fleet=mlp-lora4@0.25"

Settings = dict[str, Any]
SAME: dict[str, tuple[str, ...]] = {
    "FedProx with μ = 0": ("fedprox fedprox.mu=0.0", "fedavg", "fedprox", "fedprox fedprox.mu=9.0"),
    "Ditto's global model": ("ditto", "fedavg"),
    "FedNTD with β = 0": ("fedntd fedntd.beta=0.0", "fedavg", "fedntd"),
    "FedGKD with γ = 0": ("fedgkd fedgkd.gamma=0.0 fedgkd.buffer=1", "fedavg"),
    "FedGKD until its buffer is full": (
        "fedgkd fedgkd.gamma=1.0 fedgkd.buffer=2",
        *("fedavg", "fedgkd fedgkd.buffer=2 fedgkd.wait-full=false"),
    ),
    "FedGKD with γ / 2 · 1 and γ / 8 · 2²": (
        *(f"{OLD} fedgkd.gamma=0.8", f"{OLD} fedgkd.gamma=0.2 fedgkd.t-squared=true"),
    ),
    "FedGen without its weights": (
        f"{FEDGEN} fedgen.alpha=0.0 fedgen.beta=0.0",
        *("fedavg", FEDGEN, f"{FEDGEN} fedgen.until=1"),
    ),
    "FedGen's first round": (f"{FEDGEN} rounds=1", "fedavg rounds=1"),
    "FedKF with γ = 0": (FEDKF, f"fedavg oca.aggregate=on {SOME}"),
    "q-FFL with q = 0": (f"qffl qffl.q=0.0 {SKEW}", f"fedavg {UNIFORM} {SKEW}"),
    "SCAFFOLD's first round": (
        f"scaffold rounds=1 train.clip=1.0 {SKEW}",
        f"fedavg rounds=1 train.clip=1.0 {UNIFORM} {SKEW}",
    ),
    "FedNova with equal steps": (
        *(f"{method} train.steps=3 {SKEW}" for method in ("fednova", "fedavg")),
        f"fednova {SKEW}",
    ),
    "FedORION undistilled": (f"fedorion fedorion.distill=false {HOM}", f"fedavg {HOM}"),
    "FedORION in which everybody skips": (
        f"fedorion fedorion.distill=false fedorion.skip-share=1.0 {HOM} {SKIPPING}",
        *(f"fedavg {SKIPPING}", f"fedorion {SKIPPING} fedorion.skip-share=0.0"),
    ),
    "FedORION in which nobody skips": (
        f"fedorion {SKIPPING} fedorion.skip-share=0.0",
        f"fedorion {SKIPPING} fedorion.selective=false",
    ),
    "FedFTG without iterations": (f"fedftg {UNTAUGHT}", "fedavg fleet=cnn2@0.5"),
    "FedFTG without iterations and with μ": (
        *(f"fedftg fedftg.mu=0.5 {UNTAUGHT}", "fedprox fedprox.mu=0.5 fleet=cnn2@0.5"),
    ),
    "FedIN without IN training and with μ = 0": (
        f"fedin fedin.in-training=false fedin.mu=0.0 {DEPTHS}",
        f"fedavg average.across=layerwise {UNIFORM} {DEPTHS}",
    ),
    "DL-MH where every client has every class": (f"dl-mh {SHOT}", f"dl-sh {SHOT}"),
    "I-DL-MH's server": (
        f"i-dl-mh rounds=1 i-dl-mh.incentive-epochs=2 {SHOT}",
        f"dl-mh rounds=1 {SHOT}",
    ),
    "FDmeta by lot": (
        f"fdmeta fdmeta.choose=random clients=2 {PUBLIC}",
        f"ds-fl ds-fl.aggregation=mean clients=2 {PUBLIC}",
    ),
    "FedIT": (f"fedit {RANK}", f"fedavg {RANK}"),
    "FFA-LoRA": (f"rolora rolora.phase=B {RANK}", f"ffa-lora {RANK}", f"rolora {RANK}"),
    "HetLoRA with equal ranks": (
        *(f"hetlora hetlora.weigh=samples hetlora.gamma=1.0 {RANK}", f"fedit {RANK}"),
    ),
    "InclusiveFL": (f"inclusivefl {SIZES}", f"fedavg average.across=depth {SIZES}"),
    "InclusiveFL with one size": ("inclusivefl fleet=cnn3@0.5", "fedavg fleet=cnn3@0.5"),
    "DepthFL at depth 1": (
        f"depthfl depthfl.feddyn=false fleet=cnn4-exits1@0.5 {SKEW}",
        f"fedavg fleet=cnn4-exits1@0.5 {UNIFORM} {SKEW}",
    ),
    "equal clients across widths": (f"fedavg average.across=width {CNN2}", f"fedavg {CNN2}"),
    **{
        f"FedIN without IN training, {across}": (
            f"fedin fedin.in-training=false average.across={across} {DEPTHS}",
            f"fedprox fedprox.mu=0.1 average.across={across} {UNIFORM} {DEPTHS}",
        )
        for across in ("layerwise", "same")
    },
    **{
        f"FedNTD with β = 0, {across}": (
            f"fedntd fedntd.beta=0.0 average.across={across} {DEPTHS}",
            f"fedavg average.across={across} {DEPTHS}",
        )
        for across in ("layerwise", "same")
    },
    **{
        f"FedDF without distillation, {across}": (
            f"feddf public.learn=false average.across={across} {PUBLIC} clients=3 per-round=2",
            f"fedavg average.across={across} {PUBLIC} clients=3 per-round=2",
        )
        for across in ("none", "same")
    },
    **{
        f"MOON with μ = 0, {on}": (f"moon moon.mu=0.0 projection={on}", f"fedavg projection={on}")
        for on in ("on", "off")
    },
    **{
        f"{method} with equal rates, {setting}": (
            *(f"{method} {method}.{setting} {ONE_WIDTH}", f"fedavg {ONE_WIDTH}"),
        )
        for method, setting in (
            *(("heterofl", "mask=none"), ("heterofl", "mask=zero")),
            *(("fedrolex", "windows=roll"), ("fedrolex", "windows=random")),
        )
    },
    **{
        f"FedRolex with static windows, rates {rates}": (
            f"fedrolex fedrolex.windows=static fedrolex.rates={rates} {UNEQUAL}",
            f"heterofl heterofl.rates={rates} {UNEQUAL}",
            f"fedrolex fedrolex.rates={rates} {UNEQUAL}",
        )
        for rates in ("fixed", "redrawn")
    },
    **{
        f"depth with nothing of one's own, {robust}": (
            f"{ALL_DEPTHS} average.robust={robust} average.own=none average.beta=0.0",
            f"{THREE} average.robust={robust} average.across=layerwise",
            f"{ALL_DEPTHS} average.robust={robust} average.own=none",
            f"{ALL_DEPTHS} average.robust={robust} average.beta=0.0",
        )
        for robust in ("none", "clip")
    },
    **{
        f"{method} across depths with one size": (
            f"{method} fleet=cnn3@0.5 average.across=depth {SKEW}",
            f"{method} fleet=cnn3@0.5 {SKEW}",
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
    runs = (played(**overrides(f"method={settings}")) for settings in SAME[case])
    ours, theirs, *others = runs
    assert ours.weights == theirs.weights and course(ours) == course(theirs)
    assert len({ours.weights, *(each.weights for each in others)}) == 1 + len(others)


@pytest.mark.parametrize("across", ["layerwise", "same"])
@pytest.mark.parametrize("method", ["fedavg", "fednova", "scaffold", "fedper", "fedrep", "fedbn"])
def test_with_one_architecture_a_scheme_changes_nothing(method, across, played) -> None:
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

    def loss(_: Participant, net: Classifier) -> Loss:
        def angle(x: Tensor) -> Tensor:
            return F.linear(F.normalize(net.head(net.features(x))), directions)

        return lambda x, y: arcface(angle(x), y, 64.0, 0.5)

    patch.setattr(Participant, "supervised", loss)


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
        *({"method": "fedkd", "fedkd__weight": 0.0}, MIXED, {"fedkd__weight": 1.0}), differs="loss"
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
def test_a_client_that_learns_nothing_from_others_trains_locally(case, run, monkeypatch) -> None:
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


def test_with_the_own_features_fedmrl_trains_locally(run, monkeypatch) -> None:
    own_features(monkeypatch)
    fedmrl = run(method="fedmrl", global_model="cnn2@0.25", fedmrl__weight=0.0)
    local = run(method="local")
    for ours, theirs in zip(own_models(fedmrl, 2), own_models(local, 2), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    for ours, theirs in zip(fedmrl.journal[1:], local.journal[1:], strict=True):
        scores = [[s["accuracy"] for s in entry["scores"]] for entry in (ours, theirs)]
        assert scores[0] == scores[1]
