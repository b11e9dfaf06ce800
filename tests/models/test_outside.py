"""Networks of others: where their head is, what they take, and which methods cannot take them."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from common.methods.fedin import Options as FedIN
from common.models import architecture, build, check, count, parameters, parse, smallest
from common.models.external import Headed
from common.models.split import splittable
from tests.support.halves import task
from tests.support.own_modules import importing_from, module, new_name
from tests.support.recorded_calls import record_calls

GREY, COLOUR = (1, 32, 32), (3, 32, 32)

NETS = """
import torch
from torch import nn
from common.models.classifier import Classifier


class Small(nn.Module):
    def __init__(self, channels, num_classes, depth=1):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.out = nn.Linear(4, 7)
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        return self.out(self.body(x).mean((2, 3)))


class Looking(Small):  # at numbers, which is impossible where there are none
    def __init__(self, channels, num_classes):
        super().__init__(channels, num_classes)
        self.scale = torch.ones(1).item()

    def forward(self, x):
        return super().forward(x * float(x.max() < 1e9))


class Softmaxed(Small):
    def forward(self, x):
        return super().forward(x).log_softmax(1)


class TwoOutputs(Small):
    def forward(self, x):
        return super().forward(x), x


class Named(Small):
    def forward(self, x):
        return {"logits": super().forward(x)}


class Complex(Small):
    def __init__(self, channels, num_classes):
        super().__init__(channels, num_classes)
        self.register_buffer("phase", torch.zeros(1, dtype=torch.complex64))


class Random(Small):
    def __init__(self, channels, num_classes):
        super().__init__(channels, num_classes)
        self.register_buffer("places", torch.randn(4), persistent=False)


class Half(nn.Sequential):
    def __init__(self, channels, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(1024, 4), nn.Linear(4, num_classes))
        self.half()

    def forward(self, x):
        return super().forward(x.half())


class Lazy(nn.Sequential):
    def __init__(self, channels, num_classes):
        convolution, norm = nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()
        super().__init__(convolution, norm, nn.Flatten(), nn.LazyLinear(num_classes))


class Ours(Classifier):
    def __init__(self, shape, classes, factor):
        super().__init__()
        self.head = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def features(self, x):
        return x.flatten(1)


class Demanding(Small):
    def __init__(self, channels, num_classes, depth):
        super().__init__(channels, num_classes, depth)


class Broken(Small):
    def __init__(self, channels, num_classes):
        raise KeyError("weights")


def sequences(channels):
    return nn.Sequential(nn.Linear(32, 5))


def number():
    return 3
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nets")
    name = module(folder, NETS)
    sys.path.append(str(folder))
    return name


def test_the_last_linear_layer_becomes_a_head_and_the_seed_decides_the_weights(nets: str) -> None:
    net = build(f"{nets}:Small", GREY, 3, seed=1)
    assert isinstance(net, Headed) and net.last == "out" and net.spec == f"{nets}:Small"
    x = torch.rand(2, *GREY)
    net.eval()
    features = net.features(x)
    assert features.shape == (2, 4) and net(x).shape == (2, 3)
    assert torch.equal(net(x), net.head(features))
    assert torch.equal(features, net.trunk.body(x).mean((2, 3)))
    before, key = torch.random.get_rng_state(), "trunk.body.0.weight"
    built = (build(f"{nets}:Small", GREY, 3, seed=seed) for seed in (1, 1, 2))
    one, same, other = (net.state_dict()[key] for net in built)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("kind", ["Small", "Looking", "Ours"])
def test_parameters_are_counted_without_a_network(kind: str, nets: str) -> None:
    spec = f"{nets}:{kind}"
    assert parameters(spec, GREY, 3) == count(build(spec, GREY, 3, seed=0))
    with torch.device("meta"):
        assert all(p.device.type == "meta" for p in build(spec, GREY, 3, seed=0).parameters())
    fleet = ["resnet8", f"{nets}:Small", "torchvision:mobilenet_v3_small"]
    assert smallest(fleet, GREY, 3) == f"{nets}:Small"


def test_lazy_layers_have_sizes_before_anything_is_trained(nets: str) -> None:
    one, same = (build(f"{nets}:Lazy", GREY, 3, seed=1) for _ in range(2))
    assert one.training and count(one) == parameters(f"{nets}:Lazy", GREY, 3) == 40 + 8 + 10803
    assert all(map(torch.equal, one.state_dict().values(), same.state_dict().values()))
    assert isinstance(one, Headed)
    assert one.trunk[1].running_mean.count_nonzero() == one.trunk[1].num_batches_tracked == 0


def test_plugins_keep_their_width_factor_and_have_no_pretrained_weights(nets: str) -> None:
    assert type(build(f"{nets}:Ours", GREY, 3, seed=0)).__name__ == "Ours"
    assert parse(f"{nets}:Ours@0.5") == (f"{nets}:Ours", 0.5)
    with pytest.raises(ValueError, match="no pretrained weights"):
        check(f"{nets}:Small", GREY, 3, pretrained=True)
    check("torchvision:resnet18", COLOUR, 3, pretrained=True)


@pytest.mark.parametrize(
    ("spec", "shape", "line"),
    [
        ("Softmaxed", GREY, "its output, a tensor of shape (2, 7), is not that of a linear layer"),
        ("TwoOutputs", GREY, "its output, of type tuple of 2 values, is not that of a linear"),
        ("Named", GREY, "its output, a dict with 'logits', is not that of a linear layer"),
        ("Half", GREY, "its parameter '1.weight' is float16; it should be float32"),
        ("Random", GREY, "its buffer 'places' is random, and with persistent=False it is not sent"),
        ("Complex", GREY, "its buffer 'phase' is complex64; allowed: bfloat16, bool, float16"),
        ("Small", (1, 2, 2), "it does not take images 1×2×2: RuntimeError"),
        ("Demanding", GREY, "its parameter 'depth' needs a default; known parameters are shape,"),
        ("Broken", GREY, "it cannot be built: KeyError: 'weights'"),
        ("sequences", GREY, "two images 1×32×32 give (2, 1, 32, 5); it should be (2, logits)"),
        ("number", GREY, "it makes a value of type int, not an nn.Module"),
        ("Small@0.5", GREY, "has no width factor"),
        ("torchvision:resnt18", COLOUR, "torchvision has no network 'resnt18'; did you mean 'resn"),
        ("torchvision:squeezenet1_0", COLOUR, "its output, a tensor of shape (2, 3), is not that"),
        ("torchvision:inception_v3", COLOUR, "it does not take images 3×32×32: RuntimeError: Cal"),
        ("torchvision:resnet18@0.5", COLOUR, "torchvision:resnet18 has no width factor"),
        ("torchvision:", COLOUR, "torchvision has no network ''"),
    ],
)
def test_what_cannot_be_a_classifier_is_refused(spec, shape, line, nets) -> None:
    name = spec if ":" in spec else f"{nets}:{spec}"
    with pytest.raises(ValueError) as refused:
        check(name, shape, 3)
    said = str(refused.value)
    assert line in said and "\n" not in said
    assert ":" in spec or said.startswith(f"model '{name}")


@pytest.mark.parametrize(
    ("name", "last"),
    [("googlenet", "fc"), ("mobilenet_v3_small", "classifier.3"), ("vgg11", "classifier.6")],
)
def test_torchvisions_take_any_number_of_channels(name: str, last: str) -> None:
    spec = f"torchvision:{name}"
    for shape in (COLOUR, GREY):
        assert architecture(spec).check and architecture(spec).check(shape, 5) == last  # type: ignore[misc]
    assert parameters(spec, GREY, 5) < parameters(spec, COLOUR, 5)


def test_a_large_network_that_does_not_fit_is_refused_without_being_built(monkeypatch) -> None:
    def device(*_: Any, **named: Any) -> str:
        return torch.get_default_device().type

    from common.vision import torchvision  # two seconds, which only its networks need

    devices = record_calls(monkeypatch, torchvision.models, "get_model", device)
    with pytest.raises(ValueError, match="Wrong image width"):
        check("torchvision:vit_h_14", (3, 28, 32), 10)
    assert devices == ["meta"]


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs the extra vision")
def test_timms_take_channels_and_sizes() -> None:
    assert build("timm:test_resnet", GREY, 3, seed=0)(torch.rand(2, *GREY)).shape == (2, 3)
    assert parameters("timm:test_vit", COLOUR, 3) > 0
    with pytest.raises(ValueError, match="timm has no network 'test_resnt'; did you mean"):
        check("timm:test_resnt", GREY, 3)


def test_timm_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"needs timm: pip install 'fedmosaic\[vision\]'"):
        check(f"timm:{new_name()}", GREY, 3)


def test_methods_that_cut_networks_or_nest_them_refuse_these(nets: str) -> None:
    spec = f"{nets}:Small"
    with pytest.raises(ValueError, match=f"model '{spec}' cannot be split"):
        splittable(build(spec, GREY, 3, seed=0))
    tiny: Any = {"method": "fedin", "fleet": spec}
    with pytest.raises(ValueError, match=f"model '{spec}' cannot be split into extractor"):
        FedIN().check_fleet(task(**tiny), (spec,))
    nested = task(method="fedavg", fleet=f"{spec},cnn2@0.5", average__across="layerwise")
    with pytest.raises(ValueError, match="average.across"):
        nested.config.method.check_fleet(nested, nested.config.fleet)


def test_a_plugin_may_name_an_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importing_from(tmp_path, monkeypatch)
    text = "from common.models import Architecture\nfrom common.models.small import CNN\n"
    text += "def make(*a): return CNN(*a, depth=2)\nx = Architecture(make, 1, 's')"
    name = module(tmp_path, text)
    assert parameters(f"{name}:x@0.5", GREY, 10) == parameters("cnn2@0.5", GREY, 10)
