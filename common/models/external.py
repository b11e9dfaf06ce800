"""Classifiers from external networks: torchvision, timm, or any ``nn.Module`` of a plug-in.

The last linear layer, whose output is the network's output, is replaced by a head for the task's
classes. Its inputs are the features.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from common import seeds
from common.data.kinds import describe, every_of, vocab_of, zeros
from common.errors import at, line
from common.exchange.records.schema import DTYPES
from common.models.classifier import Classifier
from common.models.layers import Shape
from common.settings.plugins import nearest

Factory = Callable[..., object]
# of lazy layers, which have their sizes before anything is trained
warnings.filterwarnings(
    "ignore", "Lazy modules are a new feature|Initializing zero-element tensors"
)


@final
class Headed(Classifier):
    """Classifier of ``trunk`` and a linear head; ``last``: name of the layer that it replaces."""

    def __init__(self, net: nn.Module, last: str, classes: int) -> None:
        super().__init__()
        linear = net.get_submodule(last)
        assert isinstance(linear, nn.Linear)
        parent, _, name = last.rpartition(".")
        setattr(net.get_submodule(parent), name, nn.Identity())
        self.trunk, self.last = net, last
        self.head = nn.Linear(linear.in_features, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.trunk(x)
        return features


@final
@dataclass(frozen=True)
class ExternalModel:
    """Constructor of an external network; ``name`` is its name in the run config.

    ``make(shape, classes)`` returns a ``Classifier``, which is used unchanged, or another module.
    """

    name: str
    make: Callable[[Shape, int], object]
    light: bool = False
    """Whether a trial run works on the meta device, so that a client may use it at any size."""

    def __call__(self, shape: Shape, classes: int, factor: float) -> Classifier:
        last = self.check(shape, classes)
        net = self._build(shape, classes)
        return net if isinstance(net, Classifier) else Headed(net, last, classes)

    def check(self, shape: Shape, classes: int) -> str:
        """Return the name of the last linear layer; the result of a trial run is cached.

        Raises ``ValueError``, one line, for a network that cannot be built, does not accept the
        samples, does not end with a linear layer, or has numbers that cannot be trained or sent.
        """
        return _last(self, shape, classes)

    def refusal(self, why: str) -> ValueError:
        factory = self.make.args[:1] if isinstance(self.make, partial) else ()
        where = "" if ", line " in why else "".join(map(at, factory))
        return ValueError(f"model {self.name!r}: {why}{where}")

    def _build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network on the default device; if the meta device fails, build on the CPU.

        Lazy layers get their sizes, from samples of zeros.
        """
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
        if any(map(is_lazy, (*net.parameters(), *net.buffers()))):
            with torch.no_grad():
                self._run(net.eval(), shape)
            net.train()
        return net

    def _run(self, net: nn.Module, shape: Shape) -> object:
        """Return a network's output for two samples of zeros."""
        try:
            return net(zeros(2, shape))
        except Exception as error:  # whatever the plug-in's author did
            why = line(error, typed=True)
            raise self.refusal(f"it does not take {describe(shape)}: {why}") from error

    def _trial(self, shape: Shape, classes: int, device: str) -> str:
        """Return the linear layer that computes a new network's output, after trying the network:
        one pass, one loss, and what its numbers become in a message."""
        called: list[tuple[str, object]] = []
        with torch.device(device), seeds.scope(0, "probe"), torch.no_grad():
            net = self._build(shape, classes).train()
            for name, module in net.named_modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_hook(
                        lambda *io, name=name: called.append((name, io[2]))
                    )
            try:
                out = self._run(net, shape)
            except ValueError:
                if device == "meta" and not self.light:  # its code may depend on values
                    return self._trial(shape, classes, "cpu")
                raise
            last = next((name for name, output in reversed(called) if output is out), "")
            if not last:
                raise self.refusal(
                    f"its output, {_described(out)}, is not that of a linear layer, so it has no "
                    "head; it should return the logits of its last nn.Linear, unchanged"
                )
            assert isinstance(out, Tensor)
            rows = (2, *shape) if every_of(shape) else (2,)
            if out.shape[:-1] != rows:
                given, wanted = tuple(out.shape), ", ".join(map(str, rows))
                raise self.refusal(
                    f"two {describe(shape)} give {given}; it should be ({wanted}, logits)"
                )
            self._check_numbers(net, shape, classes)
            whole = net if isinstance(net, Classifier) else Headed(net, last, classes)
            logits = self._run(whole, shape)
            if not isinstance(logits, Tensor) or logits.shape != (*rows, classes):
                raise self.refusal(f"it gives {_described(logits)}, not {(*rows, classes)} logits")
            nn.functional.cross_entropy(logits.flatten(0, -2), torch.zeros(rows).long().flatten())
        return last

    def _check_numbers(self, net: nn.Module, shape: Shape, classes: int) -> None:
        """Raise ``ValueError`` for a parameter or buffer that cannot be sent, or that is not sent
        and differs from machine to machine."""
        kinds = {f"parameter {name!r}": p.dtype for name, p in net.named_parameters()}
        for what, dtype in kinds.items():
            if dtype != torch.float32:
                raise self.refusal(f"its {what} is {_short(dtype)}; it should be float32")
        for name, value in net.state_dict().items():
            if (kind := _short(value.dtype)) not in DTYPES:
                allowed = ", ".join(sorted(DTYPES))
                raise self.refusal(f"its buffer {name!r} is {kind}; allowed: {allowed}")
        if kept := dict(net.named_buffers()).keys() - net.state_dict().keys():
            with torch.device("cpu"):
                seeded = []
                for seed in (0, 1):
                    with seeds.scope(seed, "probe"):
                        seeded.append(dict(self._build(shape, classes).named_buffers()))
            one, other = seeded
            if random := [name for name in sorted(kept) if not torch.equal(one[name], other[name])]:
                raise self.refusal(
                    f"its buffer {random[0]!r} is random, and with persistent=False it is not sent"
                )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(out: object) -> str:
    """Return what a network returned, in words."""
    if isinstance(out, Tensor):
        return f"a tensor of shape {tuple(out.shape)}"
    if isinstance(out, Mapping):
        return f"a {type(out).__name__} with {', '.join(map(repr, out))}"
    many = f" of {len(out)} values" if isinstance(out, tuple | list) else ""
    return f"of type {type(out).__name__}{many}"


@lru_cache(maxsize=64)
def _last(model: ExternalModel, shape: Shape, classes: int) -> str:
    return model._trial(shape, classes, "meta")


def of_plugin(name: str, factory: Factory) -> ExternalModel:
    """Return the network of a plug-in's class or function, called with the arguments that it names.

    Raises ``ValueError``, one line, if a required parameter has an unknown name.
    """
    if isinstance(factory, type) and issubclass(factory, Classifier):
        return ExternalModel(name, partial(_of_classifier, factory))
    parameters = inspect.signature(factory).parameters.values()
    offered = ("shape", "classes", "num_classes", "channels", "in_channels", "in_chans", "vocab")
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
    if unknown := [parameter for parameter in required if parameter not in offered]:
        raise ValueError(
            f"model {name!r}: its parameter {unknown[0]!r} needs a default; known parameters are "
            + ", ".join(offered)
        )

    def make(factory: Factory, shape: Shape, classes: int) -> object:
        values = (shape, classes, classes, shape[0], shape[0], shape[0], vocab_of(shape))
        named = dict(zip(offered, values, strict=True))
        return factory(**{p.name: named[p.name] for p in parameters if p.name in named})

    return ExternalModel(name, partial(make, factory))


def _of_classifier(kind: type[Classifier], shape: Shape, classes: int) -> Classifier:
    return kind(shape, classes, 1.0)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def of_family(family: str, name: str) -> tuple[ExternalModel, str]:
    """Return a network of torchvision or timm, and torchvision's name of its published weights.

    Raises ``ValueError``, one line, for an unknown network or if timm is not installed.
    """
    spec, published = f"{family}:{name}", ""
    if family == "torchvision":
        from common.vision import torchvision

        known = torchvision.models.list_models(module=torchvision.models)
        make: Factory = partial(_of_torchvision, name)
        if name in known:
            weights: str = torchvision.models.get_model_weights(name).__name__
            published = weights.removesuffix("_Weights")  # ResNet18
    else:
        known, make = _timm(spec).list_models(), partial(_of_timm, name)
    if name not in known:
        raise ValueError(f"model {spec!r}: {family} has no network {name!r}{nearest(name, known)}")
    return ExternalModel(spec, make, light=True), published


def _of_torchvision(name: str, shape: Shape, classes: int) -> nn.Module:
    """Return the network, with a new first convolution if the number of channels differs.

    GoogLeNet and Inception have no further outputs in training; a vision transformer is built for
    the height of the images.
    """
    from common.vision import torchvision

    options: dict[str, object] = {}
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}
    elif name.startswith("vit_"):
        options = {"image_size": shape[1]}
    net: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=classes, **options
    )
    first = next((n for n, m in net.named_modules() if isinstance(m, nn.Conv2d)), "")
    conv: Any = net.get_submodule(first)
    if first and conv.in_channels != shape[0] and conv.groups == 1:
        parent, _, last = first.rpartition(".")
        sizes = (conv.out_channels, conv.kernel_size, conv.stride, conv.padding)
        fresh = nn.Conv2d(shape[0], *sizes, bias=conv.bias is not None)
        setattr(net.get_submodule(parent), last, fresh)
    return net


def _timm(model: str) -> Any:
    importlib.import_module("common.vision")  # timm imports torchvision
    try:
        return importlib.import_module("timm")
    except ImportError:
        raise ValueError(f"model {model!r} needs timm: pip install 'fedmosaic[vision]'") from None


def _of_timm(name: str, shape: Shape, classes: int) -> nn.Module:
    timm = _timm(name)
    options: dict[str, object] = {"num_classes": classes, "in_chans": shape[0]}
    config = timm.get_pretrained_cfg(name)
    if config is not None and config.fixed_input_size:
        options["img_size"] = shape[1:]
    net: nn.Module = timm.create_model(name, pretrained=False, **options)
    return net
