"""Settings of methods: which change the result, and which do not go together."""

from typing import Any

import pytest

from common.training.task import check_fleet
from tests.support.halves import task
from tests.support.tiny import Run

UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}
NOISE = {"noise__epochs": 1, "noise__batches": 6, "noise__batch_size": 16, "noise__lr": 0.05}
GENERATED = {f"fedftg__{key}": value for key, value in (("iterations", 2), ("generated", 8))}
GENERATED |= {"generator__latent": 8, "generator__width": 8, "fleet": "cnn2@0.5", "rounds": 1}
TWO = {"fleet": "cnn2@0.5,cnn3@0.25", **NOISE}
BASES: dict[str, dict[str, Any]] = {
    "fedorion": UNEVEN,
    "lwn": TWO,
    "hetfedfl": TWO,
    "fedftg-noise": {"fleet": "cnn2@0.5", **NOISE, **UNEVEN},
    "fedftg": GENERATED,
}
ON_NOISE: list[dict[str, Any]] = [
    {"noise__temperature": 3.0},
    {"noise__teacher_bn": "running"},
    {"noise__lr": 0.1},
]
SWITCHES: dict[str, list[dict[str, Any]]] = {
    "fedorion": [
        *({f"fedorion__{key}": False} for key in ("dml", "aggregate", "distill", "selective")),
        {"fedorion__kd_weights": "uniform"},
        *ON_NOISE,
    ],
    "lwn": [
        {"lwn__init": "average"},
        *({"noise__max_norm": norm} for norm in ("none", "softmax")),
        *({"noise__kind": kind} for kind in ("uniform", "dead_leaves", "stylegan")),
        {"noise__protect_running_stats": False},
        {"noise__momentum": 0.0},
        {"noise__batches": 5},
        *ON_NOISE,
    ],
    "hetfedfl": [
        {"hetfedfl__transfer": "ensemble"},
        {"hetfedfl__transfer": "ensemble", "noise__max_norm": "none"},
        {"hetfedfl__teacher_bn": "running"},
        {"noise__kind": "dead_leaves"},
        *ON_NOISE,
    ],
    "fedftg-noise": [
        *({f"fedftg_noise__{key}": 0.5} for key in ("mu", "aggregate_lr")),
        {"average__weights": "samples"},
        {"noise__kind": "stylegan"},
        *ON_NOISE,
    ],
    "fedftg": [
        {"fedftg__iterations": 3},
        {"fedftg__student_steps": 1},
        {"fedftg__generated": 9},
        {"fedftg__lambda_cls": 0.0},
        {"fedftg__lambda_dis": 0.0},
        {"fedftg__kd_teacher_bn": "batch"},
        {"fedftg__server_lr": 0.1},
        {"fedftg__mu": 0.5},
        {"fedftg__draw": "iteration"},
        {"fedftg__labels": "apportioned"},
        {"fedftg__detach_teacher": True},
        *(
            {f"generator__{key}": value}
            for key, value in (("latent", 4), ("width", 4), ("lr", 0.1))
        ),
    ],
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "switch"), [(method, each) for method, those in SWITCHES.items() for each in those]
)
def test_every_switch_does_something(method: str, switch: dict[str, Any], played: Run) -> None:
    base = {"method": method, **BASES[method]}
    assert played(**base).weights != played(**{**base, **switch}).weights


DEPTHS = "cnn4-exits1@0.5,cnn4-exits2@0.5,cnn4-exits3@0.5"
PUBLIC = {"data__public": 0.5}
DIGITS = {"data__public_name": "digits"}
FEDIN = {"fleet": "cnn2@0.5,cnn3@0.5"}
INCLUSIVE = {"fleet": "cnn2@0.5,cnn3@0.5,cnn4@0.5"}
#: method, settings, and the line's beginning
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("scaffold", {"train__optimizer": "adam"}, 'scaffold.correction = "gradient" is not allowed'),
    ("scaffold", {"average__robust": "clip"}, 'average.robust = "clip" is not allowed'),
    (
        "scaffold",
        {"average__across": "same", "scaffold__server_lr": 0.5},
        'scaffold.server-lr = 0.5 is not allowed with average.across = "same"',
    ),
    ("heterofl", {"average__across": "same"}, 'average.across = "same" is not allowed'),
    (
        "heterofl",
        {"heterofl__rates": "redrawn", "node__1__model": "cnn2@0.25"},
        'heterofl.rates = "redrawn" is not allowed with a model in [node.K]',
    ),
    (
        "heterofl",
        {"fleet": "cnn2@0.5,cnn2@0.25", "score__bn": "running"},
        'score.bn = "running" is not allowed with method = "heterofl"',
    ),
    ("depthfl", {"fleet": "cnn4"}, "model 'cnn4' has no exits, which depthfl needs"),
    ("depthfl", {"fleet": "cnn3-exits1,cnn4-exits2"}, "models 'cnn3-exits1' and 'cnn4-exits2' are"),
    ("depthfl", {"fleet": "cnn4-linear1,cnn4-exits2@0.5"}, "models 'cnn4-linear1' and"),
    ("depthfl", {"average__robust": "median"}, 'average.robust = "median" is not allowed'),
    *(
        (
            method,
            {**more, "average__robust": rule},
            f'average.robust = "{rule}" is not allowed with',
        )
        for rule in ("krum", "multi-krum", "geometric-median", "fltrust")
        for method, more in (
            *(("scaffold", {}), ("depthfl", {"depthfl__feddyn": False}), ("fedin", {})),
            *(("heterofl", {}), ("fedavg", {"average__across": "depth"}), ("inclusivefl", {})),
        )
    ),
    *(
        (method, more, 'average.robust = "fltrust" needs a labelled public set at the server')
        for method, more in (
            ("fedavg", {"average__robust": "fltrust"}),
            ("feddf", {**DIGITS, "average__robust": "fltrust"}),
        )
    ),
    ("depthfl", {"average__across": "depth"}, 'average.across = "depth" is not allowed'),
    ("depthfl", {"projection": "on"}, 'projection = "on" is not allowed'),
    ("fedin", {"projection": "on"}, 'projection = "on" is not allowed'),
    ("fedgkt", {"projection": "on"}, 'projection = "on" is not allowed'),
    *(
        (
            "fedrolex",
            {"fedrolex__update_counts": True, key.replace(".", "__"): value},
            f'{key} = "{value}" is not allowed with fedrolex.update-counts = true; allowed: ',
        )
        for key, value in (
            ("average.weights", "samples"),
            ("average.robust", "median"),
            ("oca.aggregate", "on"),
        )
    ),
    ("fiarse", {"oca__aggregate": "on"}, 'oca.aggregate = "on" is not allowed'),
    ("fiarse", {"average__robust": "median"}, 'average.robust = "median" is not allowed'),
    ("fiarse", {"fiarse__sizes": "1, 2"}, "fiarse.sizes = '1, 2' is not allowed"),
    ("fiarse", {"fiarse__sizes": "half"}, "fiarse.sizes = 'half' is not allowed"),
    ("fiarse", {"fiarse__running": False}, 'score.bn = "running" is not allowed'),
    ("feddf", {**PUBLIC, "average__across": "layerwise"}, 'average.across = "layerwise" is not'),
    ("feddf", {}, "method = 'feddf' needs a public set"),
    ("fedkemf", {}, "method = 'fedkemf' needs a public set"),
    ("fedkemf", {**DIGITS, "fedkemf__labels": True}, "fedkemf.labels = true needs a public set"),
    ("fedmd", {**DIGITS, "fedmd__public_epochs": 2}, "fedmd.public-epochs = 2 needs a public set"),
    ("dl-sh", {**PUBLIC, "dl_sh__free_riders": 4}, "dl-sh.free-riders = 4 is not allowed"),
    (
        "dl-sh",
        {**PUBLIC, "dl_sh__incentive": "ensemble", "dl_sh__targets": "labels"},
        'dl-sh.incentive = "ensemble" is not allowed',
    ),
    ("fedin", {"fleet": "cnn2@0.5,mlp@0.25"}, "model 'mlp@0.25' cannot be split"),
    ("fedin", {"fleet": "cnn2@0.5,cnn3"}, "no common split: s_in and s_out are 16×4×4"),
    ("fedavg", {"fleet": "cnn2@0.5,cnn3", "average__across": "layerwise"}, 'average.across = "lay'),
    ("fedgkd", {"average__across": "same"}, 'average.across = "same" is not allowed'),
    ("fedkf", {"oca__aggregate": "off"}, 'oca.aggregate = "off" is not allowed'),
    ("qffl", {"oca__init": "w0"}, 'oca.init = "w0" is not allowed'),
    *(
        (method, changes, line)
        for method in ("fedper", "fedrep", "fedbn")
        for changes, line in (
            ({"oca__aggregate": "on"}, 'oca.aggregate = "on" is not allowed with method = '),
            ({"average__robust": "fltrust"}, 'average.robust = "fltrust" is not allowed with m'),
            ({"average__across": "width"}, 'average.across = "width" is not allowed with method'),
            ({"privacy__mode": "central"}, 'privacy.mode = "central" is not allowed with method'),
        )
    ),
    ("ditto", {"average__across": "layerwise"}, 'average.across = "layerwise" is not allowed'),
    ("qffl", {"average__robust": "median"}, 'average.robust = "median" is not allowed'),
    *(
        ("inclusivefl", {**INCLUSIVE, "inclusivefl__lr_factors": text}, "inclusivefl.lr-factors = ")
        for text in ("cnn5=1", "cnn2@0.5", "cnn2@0.5=0", "cnn2@0.5=nan")
    ),
    *(("fedgen", {"fedgen__decay": value}, "fedgen.decay = ") for value in (0.0, 1.5)),
]
FLEETS = {"depthfl": DEPTHS, "fiarse": "cnn2@0.5"}


@pytest.mark.parametrize(("method", "changes", "line"), REFUSED)
def test_what_does_not_go_together_is_one_line(
    method: str, changes: dict[str, Any], line: str
) -> None:
    given = {"fleet": FLEETS[method]} if method in FLEETS else {}
    with pytest.raises(ValueError) as refused:
        check_fleet(task(**{"method": method, **given, **changes}))
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
