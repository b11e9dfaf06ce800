"""The table of architectures: sizes of the papers, inputs, widths, weights, ``feature-dim``."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from common import seeds
from common.data import kinds
from common.data.kinds import IMAGE, OfKind
from common.models import MODELS, build, check, count, parameters, parse, smallest
from common.models.classifier import Classifier, Pooled
from common.models.small import enlarge
from tests.support.battery import tiers
from tests.support.halves import task

INPUTS = [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32)]
OPEN = [name for name, row in MODELS.items() if name[:6] != "points"]
SMALL = ["lenet5", "mlp", "cnn2", "cnn4", "resnet8", "resnet8-a", "resnet8-wide-gn@0.25"]
SMALL += ["resnet8-gn16", "resnet20", "wrn-16-1", "densenet-bc-40-12", "densenet-40-12@0.5"]
SENSORS = [name for name, row in MODELS.items() if IMAGE not in row.kinds]
SMALL += ["mobilenetv2@0.35", "shufflenetv2-x0.5", "resnet10@0.125", "densenet121@0.125"]


def images(shape: tuple[int, ...], n: int = 4) -> torch.Tensor:
    return kinds.random(n, shape, seeds.stream(1, "images"))


def test_parameters_are_those_of_the_papers() -> None:
    counted = {name: parameters(name, row.input, row.outputs) for name, row in MODELS.items()}
    assert counted == {name: row.params for name, row in MODELS.items()}


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "stem", "expected"),
    [
        ("wrn-40-1", (3, 32, 32), 100, "auto", 569_780),
        *(("resnet8", (3, 32, 32), 10, stem, 78_042) for stem in ("cifar", "imagenet")),
        ("resnet18@1.0", (3, 32, 32), 10, "imagenet", 11_181_642),
        ("resnet8-wide-gn", (3, 32, 32), 100, "auto", 1_250_724),
        ("resnet18", (3, 32, 32), 10, "cifar", 11_173_962),
        ("lenet5", (1, 28, 28), 26, "auto", 63_066),
    ],
)
def test_parameters_by_classes_and_stem(spec, shape, classes, stem, expected) -> None:
    assert parameters(spec, shape, classes, stem=stem) == expected


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        *(
            pytest.param(spec, shape, marks=[] if (i + j) % 4 == 0 else [pytest.mark.exhaustive])
            for i, spec in enumerate(SMALL)
            for j, shape in enumerate(INPUTS)
        ),
        *((name, MODELS[name].input) for name in SENSORS),
    ],
)
def test_logits_are_the_head_of_the_features_and_every_weight_learns(spec, shape) -> None:
    every = kinds.every_of(shape)
    outputs = kinds.vocab_of(shape) if every else 7
    model = build(spec, shape, outputs, seed=0).eval()
    x = images(shape)
    with torch.no_grad():
        features = model.features(x)
        logits = model(x)
        rows = (4, *shape) if every else (4,)
        assert features.shape == (*rows, model.head.in_features)
        assert logits.shape == (*rows, outputs)
        assert torch.equal(model.head(features), logits)
    model.train()
    model(x).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("spec", [*SMALL, *SENSORS])
def test_at_its_smallest_input_a_network_still_sees_the_sample(spec) -> None:
    row = MODELS[parse(spec)[0]]
    shape: tuple[int, ...] = (2, *[row.smallest] * (len(row.input) - 1))
    if isinstance(row.input, OfKind):
        given = row.input
        shape = OfKind([row.smallest] * len(given), given.kind, given.vocab, given.every)
    model = build(spec, shape, row.outputs, seed=0).train()
    with seeds.scope(0, "dropout"):
        logits = model(images(shape))
    assert logits.isfinite().all()
    assert logits.std(dim=0).min() > 1e-4


@pytest.mark.parametrize("spec", SMALL)
def test_channels_last_changes_the_layout_and_not_the_result(spec) -> None:
    model = build(spec, (3, 32, 32), 10, seed=0).eval()
    x = images((3, 32, 32), n=2)
    with torch.no_grad():
        plain = model(x)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert torch.allclose(
            model(x.contiguous(memory_format=torch.channels_last)), plain, rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize(
    "spec", ["resnet18@0.125", "mobilenetv2@0.1", "shufflenetv2@0.25", "densenet121@0.125"]
)
def test_both_stems_run_at_their_smallest_input(spec, stem) -> None:
    least = MODELS[parse(spec)[0]].stems[stem]
    model = build(spec, (3, least, least), 10, seed=0, stem=stem)
    assert model(images((3, least, least))).isfinite().all()
    with pytest.raises(ValueError, match=f"stem {stem}.*too small"):
        check(spec, (3, least - 1, least), 10, stem=stem)


@pytest.mark.parametrize("name", tiers(OPEN, ("lenet5", "mlp", "cnn4", "resnet18", "gru")))
def test_a_width_factor_thins_every_architecture(name) -> None:
    shape = (3, 32, 32) if IMAGE in MODELS[name].kinds else MODELS[name].input
    outputs = MODELS[name].outputs
    whole = parameters(name, shape, outputs)
    half = parameters(f"{name}@0.5", shape, outputs)
    tiny = parameters(f"{name}@0.01", shape, outputs)
    assert tiny < half < whole
    # packed sequences need the lengths of texts, which the meta device does not have
    with torch.device("cpu" if kinds.vocab_of(shape) else "meta"):
        model = build(f"{name}@0.01", shape, outputs, seed=0)
        assert len(model(kinds.zeros(2, shape)).flatten(0, -2)[0]) == outputs


def test_the_width_factor_scales_stages_and_fedkf_initialises_by_fan_out() -> None:
    model = build("resnet18@0.25", (3, 32, 32), 10, seed=0)
    assert (model.spec, model.head.in_features) == ("resnet18@0.25", 128)
    assert model.get_submodule("layer2.0.conv1").weight.shape == (32, 16, 3, 3)
    model = build("resnet8-wide-gn", (3, 32, 32), 10, seed=0)
    conv = model.get_submodule("layer3.0.conv1")
    assert conv.weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.01)
    norm = model.get_submodule("layer3.0.bn1")
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == norm.num_channels == 256
    assert norm.weight.eq(1).all() and norm.bias.eq(0).all()


@pytest.mark.parametrize("spec", ["resnet8", "lenet5", "mlp", "shufflenetv2-x0.5"])
def test_the_same_name_gives_the_same_weights_and_leaves_the_global_state(spec) -> None:
    before = torch.random.get_rng_state()
    first = build(spec, (1, 8, 8), 10, seed=3, name=("init", 2)).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    again = build(spec, (1, 8, 8), 10, seed=3, name=("init", 2)).state_dict()
    assert list(first) == list(again)
    assert all(torch.equal(first[key], again[key]) for key in first)
    for seed, name in ((4, ("init", 2)), (3, ("init", 3))):
        other = build(spec, (1, 8, 8), 10, seed=seed, name=name).state_dict()
        assert not torch.equal(first["head.weight"], other["head.weight"])


def test_networks_by_hand() -> None:
    block = build("resnet8-a", (1, 8, 8), 10, seed=0).get_submodule("layer2.0.downsample")
    x = torch.arange(16 * 16.0).reshape(1, 16, 4, 4)
    out = block(x)
    assert out.shape == (1, 32, 2, 2)
    assert out[0, 8].tolist() == [[0.0, 2.0], [8.0, 10.0]]
    assert out[0, :8].eq(0).all() and out[0, 24:].eq(0).all()
    # the network of McMahan et al. without padding: 28 - 4 = 24, 12, 12 - 4 = 8, 4 pixels
    model = build("fedavg-cnn", (1, 28, 28), 10, seed=0)
    assert count(model) == (25 + 1) * 32 + (25 * 32 + 1) * 64 + (16 * 64 + 1) * 512 + 513 * 10
    assert model.features(torch.rand(2, 1, 28, 28)).shape == (2, 512)
    digit = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert enlarge(digit, 5).tolist() == [
        [[[1, 1, 2, 2, 0], [1, 1, 2, 2, 0], [3, 3, 4, 4, 0], [3, 3, 4, 4, 0], [0, 0, 0, 0, 0]]]
    ]
    letter = enlarge(torch.ones(1, 1, 28, 28))
    assert letter.shape == (1, 1, 32, 32)
    assert letter[0, 0, 2:30, 2:30].eq(1).all() and letter.sum() == 28 * 28
    assert enlarge(torch.ones(1, 1, 64, 40)).shape == (1, 1, 64, 40)


def test_resnet18_is_torchvision_s_under_either_name() -> None:
    from common.vision import torchvision

    ours = build("resnet18", (3, 32, 32), 10, seed=0).eval()
    theirs = torchvision.models.resnet18(num_classes=10).eval()
    wrapped = build("torchvision:resnet18", (3, 32, 32), 10, seed=0).eval()
    weights = ours.state_dict()
    state = {key.replace("head.", "fc."): value for key, value in weights.items()}
    assert list(state) == list(theirs.state_dict())
    theirs.load_state_dict(state)
    body = {k if k.startswith("head.") else f"trunk.{k}": v for k, v in weights.items()}
    wrapped.load_state_dict(body)
    x = images((3, 32, 32))
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x)) and torch.equal(ours(x), wrapped(x))


def test_lenet5_shows_the_activations_of_its_last_convolution_and_others_their_features() -> None:
    model = build("lenet5", (1, 28, 28), 26, seed=0)
    x = images((1, 28, 28))
    logits, activations = model.with_activations(x)
    assert activations.shape == (4, 120)
    assert torch.equal(logits, model(x))
    assert torch.equal(model.head(torch.relu(model.fc(activations))), logits)
    other = build("resnet8", (1, 28, 28), 10, seed=0).eval()
    logits, activations = other.with_activations(x)
    assert torch.equal(activations, other.features(x)) and torch.equal(logits, other(x))


def test_the_toy_networks_take_points_and_end_each_hidden_layer_in_batchnorm() -> None:
    for name in ("points-mlp-1", "points-mlp-2", "points-mlp-3"):
        model = build(name, (2,), 3, seed=0)
        assert model(images((2,))).shape == (4, 3)
        kinds = [type(layer) for layer in model.get_submodule("layers").children()]
        assert kinds == [nn.Linear, nn.ReLU, nn.BatchNorm1d] * (len(kinds) // 3)


def test_the_smallest_architecture_is_the_first_of_equals_with_the_common_head() -> None:
    fleet = ["resnet34", "mobilenetv2", "resnet18", "shufflenetv2", "wrn-40-1", "wrn-40-1"]
    assert smallest(fleet, (3, 32, 32), 10) == "wrn-40-1"
    assert smallest(["resnet8", "resnet8-gn16"], (3, 32, 32), 10) == "resnet8"
    fleet, grey = ["resnet10@0.0625", "cnn2"], (1, 32, 32)
    assert smallest(fleet, grey, 100) == "resnet10@0.0625"
    assert smallest(fleet, grey, 100, feature_dim=16) == "cnn2"


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("resnet8", (3, 3, 32), r"'resnet8': input 3×32 is too small, it takes 4×4 or more"),
        ("resnet8-wide-gn", (3, 4, 4), r"'resnet8-wide-gn': input 4×4 is too small, .* 5×5"),
        ("resnet18@0.5", (1, 7, 8), r"'resnet18@0.5' \(stem imagenet\): input 7×8 is too small"),
        ("har-cnn", (6, 27), "'har-cnn': input 27 is too small, it takes 28 or more"),
        ("cnn2", (6, 100), "'cnn2' takes images, but the data are signals of 6 channels"),
        ("gru", (16,), "'gru' takes signals, but the data are rows of 16 columns; .* table-mlp2"),
        ("table-mlp2", (1, 8, 8), "'table-mlp2' takes tables, but the data are images 1×8×8"),
        ("torchvision:resnet18", (6, 100), "'torchvision:resnet18' takes images, but"),
        ("cnn2-exits2", (1, 32, 32), "cnn2 has 1 stages for exits; cnn2-exits1 at most"),
        ("resnet18-exits5", (1, 32, 32), "18 has 4 stages for exits; resnet18-exits4 at most"),
        (
            "wrn-16-1-exits1",
            (1, 32, 32),
            "1 has 0 stages for exits; use resnet10 to resnet34",
        ),
        ("resnet18-exits0", (1, 32, 32), "no architecture 'resnet18-exits0'"),
    ],
)
def test_an_impossible_input_is_refused_in_one_line(spec, shape, message) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        check(spec, shape, 10)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match=message):
        build(spec, shape, 10, seed=0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet9", r"no architecture 'resnet9'; there are wrn-40-1, .*resnet8.*lenet5"),
        ("", "no architecture ''"),
        ("resnet8@", "width factor '' must be a number"),
        ("resnet8@half", r"width factor 'half' must be a number in \(0, 16\], as in resnet8@0.5"),
        ("resnet8@0", "width factor '0'"),
        ("resnet8@-1", "width factor '-1'"),
        ("resnet8@nan", "width factor 'nan'"),
        ("resnet8@1e9", "width factor '1e9'"),
    ],
)
def test_an_unknown_spec_is_refused_with_what_is_allowed(spec, message) -> None:
    with pytest.raises(ValueError, match=message):
        parse(spec)


@pytest.mark.full
def test_small_networks_do_without_torchvision() -> None:
    """A client process starts in the time torch takes, unless it needs torchvision's networks."""
    code = (
        "import sys; from common.models import build; build('resnet8', (1, 8, 8), 10, seed=0); "
        "sys.exit('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_output_and_exits_with_a_common_number_of_features_are_refused() -> None:
    with pytest.raises(ValueError, match="0 outputs; at least 1"):
        check("mlp", (1, 8, 8), 0)
    with pytest.raises(ValueError, match="has exits, whose heads feature-dim cannot change"):
        parameters("cnn2-exits1", GREY, 3, feature_dim=8)


GREY = (1, 8, 8)


class Given(Classifier):
    """The images' values as features."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(d, 3)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.mark.parametrize(
    ("features", "pooled"),
    [([1, 2, 3, 4], [1.5, 3.5]), ([1, 2], [1, 1, 2, 2]), ([1, 2, 3], [1.5, 2.5]), ([5, 7], [5, 7])],
)
def test_features_are_pooled_as_computed_by_hand(features, pooled) -> None:
    net = Pooled(Given(len(features)), len(pooled))
    assert net.features(torch.tensor([features], dtype=torch.float32)).tolist() == [pooled]


@pytest.mark.parametrize(("d", "width"), [(10, 4), (3, 8), (84, 32)])
def test_the_means_are_those_of_torchs_adaptive_pooling(d, width) -> None:
    x = torch.randn(4, d, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Pooled(Given(d), width).features(x), F.adaptive_avg_pool1d(x, width))


@pytest.mark.parametrize("spec", ["mlp", "lenet5", "resnet8", "cnn2@0.5", "torchvision:resnet18"])
def test_every_architecture_has_the_width(spec) -> None:
    plain = build(spec, (3, 32, 32), 10, seed=1)
    net = build(spec, (3, 32, 32), 10, "auto", False, 24, seed=1).eval()
    assert net.features(torch.zeros(2, 3, 32, 32)).shape == (2, 24)
    more = 24 * 10 - plain.head.in_features * 10
    assert count(net) == count(plain) + more
    assert parameters(spec, (3, 32, 32), 10, feature_dim=24) == count(net)
    own = net.state_dict()
    for name, value in plain.state_dict().items():
        assert name.startswith("head.") or torch.equal(own[f"base.{name}"], value), name
    assert net.spec == spec and len(own) == len(plain.state_dict())


def test_all_parts_of_a_run_see_it(played) -> None:
    for client in played(method="local", rounds=1, feature_dim=12).journal[0]["clients"]:
        count = parameters(client["model"], GREY, 3, feature_dim=12)
        assert client["parameters"] == count
    ours = task(fleet="cnn2@0.5,mlp@0.25", feature_dim=12)
    assert ours.expected("cnn2@0.5")["head.weight"].shape == (3, 12)
    assert ours.without_values("mlp@0.25").head.in_features == 12
    assert ours.cached_network("mlp@0.25", ours.build("mlp@0.25", name=("x",)).state_dict())


def test_a_file_of_weights_fits_below_the_common_head(tmp_path) -> None:
    saved = build("cnn2@0.5", GREY, 3, seed=7).state_dict()
    save_file(saved, tmp_path / "w.safetensors")
    ours = task(fleet="cnn2@0.5", feature_dim=12, weights=str(tmp_path / "w.safetensors"))
    net = ours.build("cnn2@0.5", name=("init",), first=True).state_dict()
    below = [name for name in saved if not name.startswith("head.")]
    assert below and all(torch.equal(net[f"base.{name}"], saved[name]) for name in below)
