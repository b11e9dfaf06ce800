"""Initial weights from torchvision or from a user's file.

FedORION's code starts from ImageNet weights; the default everywhere is random initialisation.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from common.errors import first_line
from common.exchange import model_file
from common.models.classifier import Classifier

#: published DenseNet weights use the key ``norm.1`` for torchvision's module ``norm1``
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")

HEAD = ("head.weight", "head.bias")


@lru_cache(maxsize=4)
def digest(net: nn.Module) -> str:
    """Return a digest of the tensors of a network that does not change: names, types, numbers."""
    found = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:12]


def load_published(model: Classifier, name: str) -> None:
    """Copy torchvision's weights ``name`` into the layers of ``model`` with equal key and shape.

    torchvision's ``features`` correspond to ``trunk``. The head keeps its initial weights, and so
    does a first convolution of another shape. Raises ``ValueError`` if the download fails.
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
    renamed = {_own_key(_OLD_DENSE.sub(r"\1\2", key), own): value for key, value in state.items()}
    loaded = {k: v for k, v in renamed.items() if k in own and own[k].shape == v.shape}
    model.load_state_dict(loaded, strict=False)
    missing = [k for k in own if k not in loaded and not k.endswith("num_batches_tracked")]
    stem = next(key for key, value in own.items() if value.ndim == 4)
    assert all(k.startswith("head.") or k == stem for k in missing), missing


def path_of(weights: str, spec: str) -> Path:
    """Return the path ``weights`` with ``{model}`` replaced by ``spec``, with ``-`` for ``:``."""
    return Path(weights.replace("{model}", spec.replace(":", "-"))).expanduser()


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file or of a state dict that torch has saved.

    Raises ``ValueError``, one line, for a missing file or a file that is not a state dict.
    """
    try:
        if path.suffix == ".safetensors":
            return model_file.read(path)[0]
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"weights = {str(path)!r}: there is no such file") from None
    except OSError as error:
        raise ValueError(f"weights = {str(path)!r}: {error.strerror or error}") from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"weights = {str(path)!r} cannot be read: {first_line(error)}") from None
    except Exception:  # torch raises no public type for a pickle of anything but tensors
        raise ValueError(
            f"weights = {str(path)!r} is no state dict of torch: it may hold tensors by name only"
        ) from None
    for key in ("state_dict", "model"):  # training scripts nest the state dict under these keys
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"weights = {str(path)!r} holds something else than tensors by name")
    return {str(key): value for key, value in state.items()}


def fitted(model: Classifier, state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the entries of ``state`` under the names of ``model``'s state dict.

    A head that is missing or has another number of classes is left out, but not one that is also
    the embedding of tokens. Only shapes are compared.

    Raises ``ValueError``, one line, that names a layer that is missing, unknown or of another
    shape.
    """
    inner = getattr(model, "base", model)
    own, last = model.state_dict(), f"{getattr(inner, 'last', 'head')}."
    named: dict[str, Tensor] = {}
    for key, value in state.items():
        head = key.startswith(("head.", last))
        name = f"head.{key.rpartition('.')[2]}" if head else _own_key(key, own)
        if name not in own:
            raise _unfit(path, model, f"it has {key!r}, which the model does not have")
        named[name] = value
    for name, value in own.items():
        new_head = name.startswith("head.") and not model.tied
        if new_head or (name not in named and name.endswith("tracked")):
            continue
        if name not in named:
            raise _unfit(path, model, f"it lacks {name!r}")
        if named[name].shape != value.shape:
            shapes = f"{tuple(named[name].shape)}, the model's {tuple(value.shape)}"
            raise _unfit(path, model, f"its {name!r} is {shapes}")
    entries = [key for key in HEAD if key in own]  # some heads have no bias
    head_fits = all(k in named and named[k].shape == own[k].shape for k in entries)
    return {k: v for k, v in named.items() if head_fits or k not in entries}


def _unfit(path: Path, model: Classifier, why: str) -> ValueError:
    return ValueError(f"weights = {str(path)!r} does not fit model {model.spec!r}: {why}")


def _own_key(key: str, own: Mapping[str, Tensor]) -> str:
    """Return a layer's key in ``own``, where ``features`` is ``trunk`` or inside ``trunk``.

    ``base`` is the network below a common feature width.
    """
    names = [key, f"trunk.{key}", "trunk." + key.removeprefix("features.")]
    names += [f"base.{name}" for name in names]
    return next((name for name in names if name in own), key)
