"""ImageNet weights from torchvision, for those who ask for them and have a network.

FedORION's code starts from them; the default everywhere is to start from scratch.
"""

from __future__ import annotations

import re

from torch import nn

#: torchvision's published DenseNets say ``norm.1`` where its modules say ``norm1``
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")


def load(model: nn.Module, name: str, renamed: tuple[str, str] = ("", "")) -> None:
    """Copy torchvision's weights ``name`` into the layers of ``model`` of equal key and shape.

    ``renamed`` is torchvision's key prefix and ours. The head stays fresh; so does a first
    convolution of another shape. Without a network: ``ValueError``.
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
    theirs, ours = renamed
    loaded = {}
    for key, value in state.items():
        key = _OLD_DENSE.sub(r"\1\2", key)
        if theirs and key.startswith(theirs):
            key = ours + key.removeprefix(theirs)
        if key in own and own[key].shape == value.shape:
            loaded[key] = value
    model.load_state_dict(loaded, strict=False)
    missing = [k for k in own if k not in loaded and not k.endswith("num_batches_tracked")]
    stem = next(iter(own))
    assert all(k.startswith("head.") or k == stem for k in missing), missing
