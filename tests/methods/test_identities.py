"""Methods that are another one at the edge of their settings: the same weights and the same course.

A pair may be of three: then the third one is not the same.
"""

from typing import Any

import pytest

from tests.support.tiny import Run, TinyRun

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

Settings = dict[str, Any]
SAME: dict[str, tuple[Settings, ...]] = {
    "FedProx with μ = 0": ({"method": "fedprox", "fedprox__mu": 0.0}, FEDAVG),
    "Ditto's global model": ({"method": "ditto"}, FEDAVG),
    "FedNTD with β = 0": ({"method": "fedntd", "fedntd__beta": 0.0}, FEDAVG, {"method": "fedntd"}),
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
