"""Networks of others as classifiers: torchvision's, timm's, any ``nn.Module`` of a plug-in.

The linear layer whose output is the network's is taken out and replaced by a head of the task's
classes; what it read are the features.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, final

import torch
from torch import Tensor, nn

from common.errors import at, line
from common.models.classifier import Classifier
from common.models.layers import Shape
from common.settings.plugins import nearest
from common.training import seeds

Factory = Callable[..., object]


@final
class Headed(Classifier):
    """``trunk`` with a linear head behind it; ``last``: where the trunk's own last layer was."""

    def __init__(self, net: nn.Module, last: str, classes: int) -> None:
        super().__init__()
        own = net.get_submodule(last)
        assert isinstance(own, nn.Linear)
        parent, _, name = last.rpartition(".")
        setattr(net.get_submodule(parent), name, nn.Identity())
        self.trunk, self.last = net, last
        self.head = nn.Linear(own.in_features, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.trunk(x)
        return features


@final
@dataclass(frozen=True)
class ExternalModel:
    """Builds a network of others; ``name`` is what the run config calls it.

    ``make(shape, classes)`` gives a ``Classifier``, which is taken as it is, or another module.
    """

    name: str
    make: Callable[[Shape, int], object]
    light: bool = False
    """It can be tried without numbers; so a client may bring one, whatever its size."""

    def __call__(self, shape: Shape, classes: int, factor: float) -> Classifier:
        last = self.check(shape, classes)
        net = self._made(shape, classes)
        return net if isinstance(net, Classifier) else Headed(net, last, classes)

    def check(self, shape: Shape, classes: int) -> str:
        """Where the last linear layer is; empty for a ``Classifier``. Nothing is computed.

        Raises ``ValueError``, one line, for a network that cannot be built, does not take the
        images or has no linear layer at its end.
        """
        return _last(self, shape, classes)

    def refusal(self, why: str) -> ValueError:
        found = self.make.args[:1] if isinstance(self.make, partial) else ()
        where = "" if ", line " in why else "".join(map(at, found))
        return ValueError(f"model {self.name!r}: {why}{where}")

    def _made(self, shape: Shape, classes: int) -> nn.Module:
        """The network on torch's default device, also one that cannot be built without numbers."""
        try:
            try:
                net = self.make(shape, classes)
            except (NotImplementedError, RuntimeError):
                device = torch.get_default_device()
                if device.type != "meta" or self.light:
                    raise
                with torch.device("cpu"):
                    net = self.make(shape, classes)
                net = net.to(device) if isinstance(net, nn.Module) else net
        except Exception as error:  # whatever the plug-in's author did
            raise self.refusal(f"it cannot be built: {line(error, typed=True)}") from error
        if not isinstance(net, nn.Module):
            raise self.refusal(f"it makes a value of type {type(net).__name__}, not an nn.Module")
        return net

    def _tried(self, shape: Shape, classes: int, device: str) -> tuple[object, str]:
        """What a new network gives for two images in training, and which linear layer gave it."""
        called: list[tuple[str, object]] = []
        with torch.device(device), seeds.scope(0, "probe"), torch.no_grad():
            net = self._made(shape, classes).train()
            for name, module in net.named_modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_hook(
                        lambda *io, name=name: called.append((name, io[2]))
                    )
            try:
                out = net(torch.zeros(2, *shape))
            except Exception as error:  # whatever the plug-in's author did
                if device == "meta" and not self.light:  # it may want to look at numbers
                    return self._tried(shape, classes, "cpu")
                size = "×".join(map(str, shape))
                raise self.refusal(
                    f"it does not take images {size}: {line(error, typed=True)}"
                ) from error
        return out, next((name for name, output in reversed(called) if output is out), "")


@lru_cache(maxsize=64)
def _last(outside: ExternalModel, shape: Shape, classes: int) -> str:
    out, last = outside._tried(shape, classes, "meta")
    if not last:
        raise outside.refusal("its output is not that of a linear layer, so it has no head")
    assert isinstance(out, Tensor)
    if out.ndim != 2 or len(out) != 2:
        size = "×".join(map(str, shape))
        given = tuple(out.shape)
        raise outside.refusal(f"two images {size} give {given}; it should be (2, logits)")
    return last


def of_plugin(name: str, found: Factory) -> ExternalModel:
    """A plug-in's class or function; it is given what it asks for by name.

    Raises ``ValueError``, one line, if it asks for something else.
    """
    if isinstance(found, type) and issubclass(found, Classifier):
        return ExternalModel(name, partial(_of_classifier, found))
    asked = inspect.signature(found).parameters.values()
    offered = ("shape", "classes", "num_classes", "channels", "in_channels", "in_chans")
    needed = [p.name for p in asked if p.default is p.empty and p.kind not in _VARIADIC]
    if other := [each for each in needed if each not in offered]:
        raise ValueError(
            f"model {name!r}: its parameter {other[0]!r} needs a default; what it can be given: "
            + ", ".join(offered)
        )

    def make(found: Factory, shape: Shape, classes: int) -> object:
        values = (shape, classes, classes, shape[0], shape[0], shape[0])
        given = dict(zip(offered, values, strict=True))
        return found(**{p.name: given[p.name] for p in asked if p.name in given})

    return ExternalModel(name, partial(make, found))


def _of_classifier(kind: type[Classifier], shape: Shape, classes: int) -> Classifier:
    return kind(shape, classes, 1.0)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def of_family(family: str, name: str) -> tuple[ExternalModel, str]:
    """A network of torchvision or timm, and what torchvision calls its published weights.

    Raises ``ValueError``, one line: no such network, or timm is not installed.
    """
    whole, published = f"{family}:{name}", ""
    if family == "torchvision":
        from common.vision import torchvision

        known = torchvision.models.list_models(module=torchvision.models)
        make: Factory = partial(_of_torchvision, name)
        if name in known:
            weights: str = torchvision.models.get_model_weights(name).__name__
            published = weights.removesuffix("_Weights")  # ResNet18
    else:
        known, make = _timm(whole).list_models(), partial(_of_timm, name)
    if name not in known:
        raise ValueError(f"model {whole!r}: {family} has no network {name!r}{nearest(name, known)}")
    return ExternalModel(whole, make, light=True), published


def _of_torchvision(name: str, shape: Shape, classes: int) -> nn.Module:
    """The network; where the images have other channels, its first convolution is a new one."""
    from common.vision import torchvision

    net: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes)
    first = next((n for n, m in net.named_modules() if isinstance(m, nn.Conv2d)), "")
    conv: Any = net.get_submodule(first)
    if first and conv.in_channels != shape[0] and conv.groups == 1:
        parent, _, last = first.rpartition(".")
        sizes = (conv.out_channels, conv.kernel_size, conv.stride, conv.padding)
        fresh = nn.Conv2d(shape[0], *sizes, bias=conv.bias is not None)
        setattr(net.get_submodule(parent), last, fresh)
    return net


def _timm(what: str) -> Any:
    importlib.import_module("common.vision")  # timm imports torchvision
    try:
        return importlib.import_module("timm")
    except ImportError:
        raise ValueError(f"model {what!r} needs timm: pip install 'fedmosaic[vision]'") from None


def _of_timm(name: str, shape: Shape, classes: int) -> nn.Module:
    timm = _timm(name)
    more: dict[str, object] = {"num_classes": classes, "in_chans": shape[0]}
    usual = timm.get_pretrained_cfg(name)
    if usual is not None and usual.fixed_input_size:
        more["img_size"] = shape[1:]
    net: nn.Module = timm.create_model(name, pretrained=False, **more)
    return net
