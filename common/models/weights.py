"""Weights from elsewhere: torchvision's published ones, and a file of the user's own.

FedORION's code starts from ImageNet's; the default everywhere is to start from scratch.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from common import model_file
from common.errors import first_line
from common.models.classifier import Classifier

#: torchvision's published DenseNets say ``norm.1`` where its modules say ``norm1``
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")

HEAD = ("head.weight", "head.bias")


def load_published(model: Classifier, name: str) -> None:
    """Copy torchvision's weights ``name`` into the layers of ``model`` of equal key and shape.

    torchvision's ``features`` are ``trunk`` here. The head stays fresh; so does a first convolution
    of another shape. Without a network: ``ValueError``.
    """
    from common.vision import torchvision

    published = torchvision.models.get_weight(name)
    try:
        state = published.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except OSError as error:
        raise ValueError(
            f"the pretrained weights {name} cannot be fetched from {published.url} ({error}): "
            "run with pretrained = false or with network access"
        ) from error
    own = model.state_dict()
    found = {_ours(_OLD_DENSE.sub(r"\1\2", key), own): value for key, value in state.items()}
    loaded = {k: v for k, v in found.items() if k in own and own[k].shape == v.shape}
    model.load_state_dict(loaded, strict=False)
    missing = [k for k in own if k not in loaded and not k.endswith("num_batches_tracked")]
    stem = next(key for key, value in own.items() if value.ndim == 4)
    assert all(k.startswith("head.") or k == stem for k in missing), missing


def path_of(weights: str, spec: str) -> Path:
    """The file of an architecture; ``{model}`` is its name, with ``-`` for ``:``."""
    return Path(weights.replace("{model}", spec.replace(":", "-"))).expanduser()


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a state dict that torch has saved.

    Raises ``ValueError``, one line: no such file, or one that holds anything but tensors by name.
    """
    try:
        if path.suffix == ".safetensors":
            return model_file.read(path)[0]
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"weights = {str(path)!r}: {error.strerror or error}") from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"weights = {str(path)!r} cannot be read: {first_line(error)}") from None
    except Exception:  # what torch raises for a pickle of anything but tensors is no public type
        raise ValueError(
            f"weights = {str(path)!r} is no state dict of torch: it may hold tensors by name only"
        ) from None
    for wrapping in ("state_dict", "model"):  # as training scripts save them
        if isinstance(found, Mapping) and isinstance(found.get(wrapping), Mapping):
            found = found[wrapping]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ValueError(f"weights = {str(path)!r} holds something else than tensors by name")
    return {str(key): value for key, value in found.items()}


def fitted(model: Classifier, state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The entries of ``state`` by the names that ``model`` has for them; its values are not read.

    The head may be missing, or have other classes: then the model's own stays.

    Raises ``ValueError``, one line, naming a layer that is missing, unknown or of another shape.
    """
    own, last = model.state_dict(), f"{getattr(model, 'last', 'head')}."
    named: dict[str, Tensor] = {}
    for key, value in state.items():
        head = key.startswith(("head.", last))
        name = f"head.{key.rpartition('.')[2]}" if head else _ours(key, own)
        if name not in own:
            raise _unfit(path, model, f"it has {key!r}, which the model does not have")
        named[name] = value
    for name, value in own.items():
        if name.startswith("head.") or (name not in named and name.endswith("tracked")):
            continue
        if name not in named:
            raise _unfit(path, model, f"it lacks {name!r}")
        if named[name].shape != value.shape:
            shapes = f"{tuple(named[name].shape)}, the model's {tuple(value.shape)}"
            raise _unfit(path, model, f"its {name!r} is {shapes}")
    head_fits = all(k in named and named[k].shape == own[k].shape for k in HEAD)
    return {k: v for k, v in named.items() if head_fits or k not in HEAD}


def _unfit(path: Path, model: Classifier, why: str) -> ValueError:
    return ValueError(f"weights = {str(path)!r} does not fit model {model.spec!r}: {why}")


def _ours(key: str, own: Mapping[str, Tensor]) -> str:
    """A layer's name in ``own``; others' ``features`` are ``trunk`` here, or lie in ``trunk``."""
    names = (key, f"trunk.{key}", "trunk." + key.removeprefix("features."))
    return next((name for name in names if name in own), key)
