"""Settings of methods: which change the result, and which do not go together."""

from typing import Any

import pytest

from common.training.task import check_fleet
from tests.support.halves import task
from tests.support.tiny import Run, overrides

UNEVEN = "data.partition=quantity_dirichlet data.alpha=1.0"
NOISE = "noise.epochs=1 noise.batches=6 noise.batch-size=16 noise.lr=0.05"
ON_NOISE = "noise.temperature=3.0 noise.teacher-bn=running noise.lr=0.1"
SWITCHES: dict[str, tuple[str, str]] = {
    "fedorion": (
        UNEVEN,
        "fedorion.dml=false fedorion.aggregate=false fedorion.distill=false "
        f"fedorion.selective=false fedorion.kd-weights=uniform {ON_NOISE}",
    ),
    "lwn": (
        f"fleet=cnn2@0.5,cnn3@0.25 {NOISE}",
        "lwn.init=average noise.max-norm=none noise.max-norm=softmax noise.kind=uniform "
        "noise.kind=dead_leaves noise.kind=stylegan noise.protect-running-stats=false "
        f"noise.momentum=0.0 noise.batches=5 {ON_NOISE}",
    ),
    "hetfedfl": (
        f"fleet=cnn2@0.5,cnn3@0.25 {NOISE}",
        "hetfedfl.transfer=ensemble hetfedfl.transfer=ensemble&noise.max-norm=none "
        f"hetfedfl.teacher-bn=running noise.kind=dead_leaves {ON_NOISE}",
    ),
    "fedftg-noise": (
        f"fleet=cnn2@0.5 {NOISE} {UNEVEN}",
        "fedftg-noise.mu=0.5 fedftg-noise.aggregate-lr=0.5 average.weights=samples "
        f"noise.kind=stylegan {ON_NOISE}",
    ),
    "fedftg": (
        "fedftg.iterations=2 fedftg.generated=8 generator.latent=8 generator.width=8 "
        "fleet=cnn2@0.5 rounds=1",
        "fedftg.iterations=3 fedftg.student-steps=1 fedftg.generated=9 fedftg.lambda-cls=0.0 "
        "fedftg.lambda-dis=0.0 fedftg.kd-teacher-bn=batch fedftg.server-lr=0.1 fedftg.mu=0.5 "
        "fedftg.draw=iteration fedftg.labels=apportioned fedftg.detach-teacher=true "
        "generator.latent=4 generator.width=4 generator.lr=0.1",
    ),
    "fiarse": (
        "fleet=cnn2@0.5 fiarse.sizes=1,0.25",
        "fiarse.scope=stage fiarse.sizes=1,0.5 fiarse.server-lr=0.5 fiarse.gradient=mask "
        "fiarse.running=false&score.bn=batch",
    ),
    "fedin": (
        "fleet=cnn2@0.5,cnn3@0.5",
        "fedin.grad-mode=eq13 fedin.grad-mode=sequential fedin.grad-mode=phases fedin.clip=0.1 "
        "fedin.noise=0.1",
    ),
    "pfedmoe": ("feature-dim=16 rounds=1", "pfedmoe.gate-norm=layer"),
}
"""Settings of a method's run, and changes of them that give other weights."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "switch"),
    [(name, one) for name, (_, all_) in SWITCHES.items() for one in all_.split()],
)
def test_every_switch_does_something(method: str, switch: str, played: Run) -> None:
    base = overrides(f"method={method} {SWITCHES[method][0]}")
    changed = {**base, **overrides(switch.replace("&", " "))}
    assert played(**base).weights != played(**changed).weights


DEPTHS = "cnn4-exits1@0.5,cnn4-exits2@0.5,cnn4-exits3@0.5"
PUBLIC = {"data__public": 0.5}
DIGITS = {"data__public_name": "digits"}
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
        (method, {"feature_dim": 16, **changes}, line)
        for method in ("fedper", "fedrep", "fedbn", "fedmrl", "pfedmoe")
        for changes, line in (
            ({"average__robust": "fltrust"}, 'average.robust = "fltrust" is not allowed with m'),
            ({"average__across": "width"}, 'average.across = "width" is not allowed with method'),
        )
    ),
    ("fedkd", {"average__robust": "fltrust"}, 'average.robust = "fltrust" is not allowed'),
    *(
        (method, {"average__robust": "krum"}, 'average.robust = "krum" is not allowed with')
        for method in ("fedssa", "lg-fedavg")
    ),
    *(
        (method, {"fleet": fleet}, f'method = "{method}" needs {line}')
        for method in ("fedssa", "lg-fedavg", "pfedmoe", "fedproto")
        for fleet, line in (
            ("cnn2@0.5,mlp@0.5", "a common number of features, but "),
            ("cnn4-exits2@0.5", "one head; cnn4-exits2@0.5 has several exits"),
        )
    ),
    (
        "fedproto",
        {"fleet": "mlp@0.5,cnn2@0.5"},
        'method = "fedproto" needs a common number of features, but mlp@0.5 has 64 and '
        "cnn2@0.5 has 32: set feature-dim",
    ),
    (
        "fedl2g",
        {"fedl2g__guide": "features", "fedl2g__warm_up": 1, "fleet": "cnn2@0.5,mlp@0.5"},
        'method = "fedl2g" needs a c',
    ),
    (
        "fedmrl",
        {"global_model": "mlp@0.5"},
        'method = "fedmrl" needs networks with at least the feat',
    ),
    (
        "fedmrl",
        {"fleet": "cnn4-exits2@0.5"},
        'method = "fedmrl" needs one head; cnn4-exits2@0.5 has',
    ),
    ("fedmrl", {"score__bn": "recalibrated"}, 'score.bn = "recalibrated" is not allowed with'),
    ("fedssa", {"fedssa__mu": -0.1}, "fedssa.mu = -0.1"),
    ("pfedmoe", {"pfedmoe__gate_hidden": 0}, "pfedmoe.gate-hidden = 0"),
    (
        "inclusivefl",
        {"average__across": "layerwise"},
        'average.across = "layerwise" is not allowed',
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
