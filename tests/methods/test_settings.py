"""Settings of methods: which change the result, and which do not go together."""

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


PUBLIC, DIGITS = "data.public=0.5", "data.public-name=digits"
ALLOWED = "is not allowed"
UNCUT, OWN = ("shufflenetv2", "densenet-bc-40-12"), ("depth", "depth average.own=head")
UNAVERAGED = ("hetfedfl", "fedgkt", "local", "dl-sh")
#: method and settings, and the line's beginning
REFUSED: list[tuple[str, str]] = [
    ("scaffold train.optimizer=adam", f'scaffold.correction = "gradient" {ALLOWED}'),
    ("scaffold average.robust=clip", f'average.robust = "clip" {ALLOWED}'),
    (
        "scaffold average.across=same scaffold.server-lr=0.5",
        f'scaffold.server-lr = 0.5 {ALLOWED} with average.across = "same"',
    ),
    ("heterofl average.across=same", f'average.across = "same" {ALLOWED}'),
    (
        "heterofl heterofl.rates=redrawn node.1.model=cnn2@0.25",
        f'heterofl.rates = "redrawn" {ALLOWED} with a model in [node.K]',
    ),
    (
        "heterofl fleet=cnn2@0.5,cnn2@0.25 score.bn=running",
        f'score.bn = "running" {ALLOWED} with method = "heterofl"',
    ),
    ("depthfl fleet=cnn4", "model 'cnn4' has no exits, which depthfl needs"),
    ("depthfl fleet=cnn3-exits1,cnn4-exits2", "models 'cnn3-exits1' and 'cnn4-exits2' are"),
    ("depthfl fleet=cnn4-linear1,cnn4-exits2@0.5", "models 'cnn4-linear1' and"),
    ("depthfl average.robust=median", f'average.robust = "median" {ALLOWED}'),
    *(
        (f"{method} average.robust={rule}", f'average.robust = "{rule}" {ALLOWED} with')
        for rule in ("krum", "multi-krum", "geometric-median", "fltrust")
        for method in (
            *("scaffold", "depthfl depthfl.feddyn=false", "fedin", "heterofl", "inclusivefl"),
            *("fedavg average.across=depth", "fedssa", "lg-fedavg", "fedkd"),
        )
    ),
    *(
        (f"{method} average.robust=fltrust", 'average.robust = "fltrust" needs a labelled public')
        for method in ("fedavg", f"feddf {DIGITS}")
    ),
    ("depthfl average.across=depth", f'average.across = "depth" {ALLOWED}'),
    *(
        (f"{method} projection=on", f'projection = "on" {ALLOWED}')
        for method in ("depthfl", "fedin", "fedgkt")
    ),
    *(
        (
            f"fedrolex fedrolex.update-counts=true {key}={value}",
            f'{key} = "{value}" {ALLOWED} with fedrolex.update-counts = true; allowed: ',
        )
        for key, value in (
            *(("average.weights", "samples"), ("average.robust", "median")),
            ("oca.aggregate", "on"),
        )
    ),
    ("fiarse average.robust=median", f'average.robust = "median" {ALLOWED}'),
    *(
        (f"fiarse fiarse.sizes={sizes}", f"fiarse.sizes = '{sizes}' {ALLOWED}")
        for sizes in ("1,2", "half")
    ),
    ("fiarse fiarse.running=false", f'score.bn = "running" {ALLOWED}'),
    (f"feddf {PUBLIC} average.across=layerwise", f'average.across = "layerwise" {ALLOWED}'),
    *((name, f"method = '{name}' needs a public set: ") for name in ("feddf", "fedkemf", "dl-sh")),
    (f"fedkemf {DIGITS} fedkemf.labels=true", "fedkemf.labels = true needs a public set"),
    (f"fedmd {DIGITS} fedmd.public-epochs=2", "fedmd.public-epochs = 2 needs a public set"),
    (f"dl-sh {PUBLIC} dl-sh.free-riders=4", f"dl-sh.free-riders = 4 {ALLOWED}"),
    (
        f"dl-sh {PUBLIC} dl-sh.incentive=ensemble dl-sh.targets=labels",
        f'dl-sh.incentive = "ensemble" {ALLOWED}',
    ),
    ("fedin fleet=cnn2@0.5,mlp@0.25", "model 'mlp@0.25' cannot be split"),
    ("fedin fleet=cnn2@0.5,cnn3", "no common split: s_in and s_out are 16×4×4"),
    ("fedavg fleet=cnn2@0.5,cnn3 average.across=layerwise", 'average.across = "layerwise": '),
    ("fedgkd average.across=same", f'average.across = "same" {ALLOWED}'),
    ("fedkf oca.aggregate=off", f'oca.aggregate = "off" {ALLOWED}'),
    ("qffl oca.init=w0", f'oca.init = "w0" {ALLOWED}'),
    *(
        (f"{method} feature-dim=16 {key}={value}", f'{key} = "{value}" {ALLOWED} with method')
        for method in ("fedper", "fedrep", "fedbn", "fedmrl", "pfedmoe")
        for key, value in (("average.robust", "fltrust"), ("average.across", "width"))
    ),
    *(
        (f"{method} fleet={fleet}", f'method = "{method}" needs {line}')
        for method in ("fedssa", "lg-fedavg", "pfedmoe", "fedproto")
        for fleet, line in (
            ("cnn2@0.5,mlp@0.5", "a common number of features, but "),
            ("cnn4-exits2@0.5", "one head; cnn4-exits2@0.5 has several exits"),
        )
    ),
    (
        "fedproto fleet=mlp@0.5,cnn2@0.5",
        'method = "fedproto" needs a common number of features, but mlp@0.5 has 64 and '
        "cnn2@0.5 has 32: set feature-dim",
    ),
    (
        "fedl2g fedl2g.guide=features fedl2g.warm-up=1 fleet=cnn2@0.5,mlp@0.5",
        'method = "fedl2g" needs a common number of features',
    ),
    ("fedmrl global-model=mlp@0.5", 'method = "fedmrl" needs networks with at least the feat'),
    ("fedmrl fleet=cnn4-exits2@0.5", 'method = "fedmrl" needs one head; cnn4-exits2@0.5 has'),
    ("fedmrl score.bn=recalibrated", f'score.bn = "recalibrated" {ALLOWED} with'),
    ("fedssa fedssa.mu=-0.1", "fedssa.mu = -0.1"),
    ("pfedmoe pfedmoe.gate-hidden=0", "pfedmoe.gate-hidden = 0"),
    *(
        (f"{method} average.across=layerwise", f'average.across = "layerwise" {ALLOWED}')
        for method in ("inclusivefl", "ditto")
    ),
    ("qffl average.robust=median", f'average.robust = "median" {ALLOWED}'),
    *(
        (
            f"inclusivefl fleet=cnn2@0.5,cnn3@0.5,cnn4@0.5 inclusivefl.lr-factors={text}",
            "inclusivefl.lr-factors = ",
        )
        for text in ("cnn5=1", "cnn2@0.5", "cnn2@0.5=0", "cnn2@0.5=nan")
    ),
    *((f"fedgen fedgen.decay={value}", "fedgen.decay = ") for value in (0.0, 1.5)),
    *(
        (f"{method} {PUBLIC} public.robust=median", f'public.robust = "median" {ALLOWED} with met')
        for method in ("fedavg", "kt-pfl", "dl-sh", "fedkemf fedkemf.ensemble=vote")
    ),
    (f"dl-mh {PUBLIC} ensemble.aggregation=median", f'ensemble.aggregation = "median" {ALLOWED}'),
    *(
        (f"{method} {key}={value}", f"{key} = {shown} {ALLOWED}; it should be ")
        for method, key, value, shown in (
            (f"fedmd {PUBLIC}", "public.robust", "krum", '"krum"'),
            (f"fedmd {PUBLIC}", "public.trim", 0.5, 0.5),
            ("fedgkt", "fedgkt.bound", -1.0, -1.0),
            *(("fedavg", "average.trim", 0.5, 0.5), ("fedavg", "average.clip-norm", 0.0, 0.0)),
            ("fedavg", "average.robust", "bulyan", '"bulyan"'),
        )
    ),
    *(
        (f"fedavg average.across={across} fleet={fleet}", f'average.across = "{word}": {line}')
        for across, word, fleet, line in (
            ("width", "width", "cnn2,cnn3@0.5", "cnn3@0.5 is no width of cnn2, as in cnn2@0.5"),
            *(("width", "width", f"{n},{n}@0.5", f"{n} cannot take part") for n in UNCUT),
            ("width", "width", "resnet8-a@0.5,resnet8-a", "resnet8-a cannot take part"),
            ("depth", "depth", "cnn2,lenet5", "cnn2 is no sub-model of lenet5"),
            *((own, "depth", "mlp", "mlp has no stages of blocks; it takes part") for own in OWN),
        )
    ),
    *(
        (f"{method} average.across=width", f'average.across = "width" {ALLOWED} with method')
        for method in ("scaffold", "fednova", "fedgkd", "fedin")
    ),
    *(
        (f"{method} {key}={to}", f'{key} = "{to}" {ALLOWED} with {named}: nothing is averaged')
        for key, to in (("oca.aggregate", "on"), ("average.robust", "median"))
        for method, named in (
            ("lwn", 'lwn.init = "previous"'),
            ("fedorion fedorion.aggregate=false", "fedorion.aggregate = false"),
            *((f"{name} {PUBLIC}", f'method = "{name}"') for name in UNAVERAGED),
        )
    ),
    ("fedin feature-dim=8", f'feature-dim = 8 {ALLOWED} with method = "fedin", which cuts'),
    ("moon feature-dim=8", f'feature-dim = 8 {ALLOWED} with projection = "on"; allowed: 0'),
    (
        "fedavg privacy.mode=central finetune.epochs=2",
        f'finetune.epochs = 2 {ALLOWED} with privacy.mode = "central"',
    ),
]
FLEETS = {"depthfl": "cnn4-exits1@0.5,cnn4-exits2@0.5,cnn4-exits3@0.5", "fiarse": "cnn2@0.5"}


@pytest.mark.parametrize(("settings", "line"), REFUSED)
def test_what_does_not_go_together_is_one_line(settings: str, line: str) -> None:
    method = settings.partition(" ")[0]
    given = {"fleet": FLEETS[method]} if method in FLEETS else {}
    with pytest.raises(ValueError) as refused:
        check_fleet(task(**{**given, **overrides(f"method={settings}")}))
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
