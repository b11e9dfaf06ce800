"""A Hugging Face data set that was saved to a folder (the extra ``hub``).

``datasets.DatasetDict.save_to_disk`` with ``train`` and ``test``, or ``Dataset.save_to_disk``, of
which 80 % of every class train and 20 % are for testing, always the same. Nothing is fetched.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.dataset import Dataset, halved, measured
from common.data.folder import GREY, as_bytes
from common.files import in_order
from common.settings.config import Data
from common.settings.extras import imported


def load_hub(data: Data) -> Dataset:
    """The image column and the class column, found by their features, as bytes.

    ``data.label_column`` names the classes where there are several columns of classes, and
    ``data.owner_column`` whose each sample is. The name is that of the folder.
    """
    root = decoded.given(data, "hub")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    columns = "-".join(filter(None, (data.label_column, data.owner_column, str(data.image_size))))
    tensors = decoded.kept(f"hub-{columns}", files, lambda: _decode(root, data))
    names = tuple(bytes(tensors.pop("classes").tolist()).decode().split("\n"))
    if "x_test" not in tensors:
        tensors = halved(tensors, "folder")
    return measured(root.name, names, **tensors)


def _decode(root: Path, data: Data) -> dict[str, Tensor]:
    """Everything as tensors, the classes' names too."""
    datasets = imported("datasets")
    try:
        held = datasets.load_from_disk(str(root))
    except Exception as error:  # Arrow's, fsspec's and its own, which have no common base
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{root}: damaged or not saved by save_to_disk ({said})") from None
    parts = {"": held}
    if isinstance(held, dict):
        if missing := [name for name in ("train", "test") if name not in held]:
            raise ValueError(f"{root}: no split {missing[0]!r}; it has {', '.join(held)}")
        parts = {"": held["train"], "_test": held["test"]}
    features = parts[""].features
    image = _column(root, features, datasets.Image, "image")
    label = data.label_column or _column(root, features, datasets.ClassLabel, "label")
    if not isinstance(features.get(label), datasets.ClassLabel):
        raise ValueError(f"{root}: column {label!r} holds no classes; there are {_told(features)}")
    names = "\n".join(features[label].names)
    tensors = {"classes": torch.tensor(list(names.encode()), dtype=torch.uint8)}
    for suffix, part in parts.items():
        tensors[f"y{suffix}"] = torch.tensor(part[label], dtype=torch.int64)
    pictures = {suffix: part[image] for suffix, part in parts.items()}
    tensors |= _images(root, pictures, data.image_size)
    if data.owner_column:
        tensors |= _owners(root, parts, data.owner_column)
    return tensors


def _column(root: Path, features: Any, kind: type, what: str) -> str:
    """The only column of this kind."""
    found: list[str] = [name for name, feature in features.items() if isinstance(feature, kind)]
    if len(found) != 1:
        hint = "; choose with data.label-column" if what == "label" and found else ""
        raise ValueError(
            f"{root}: {len(found)} {what} columns, one is needed{hint}; there are {_told(features)}"
        )
    return found[0]


def _told(features: Any) -> str:
    return ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())


def _images(root: Path, parts: dict[str, Any], size: int) -> dict[str, Tensor]:
    """uint8 (N, C, H, W) by part: grey if all images are, else RGB."""
    try:
        grey = all(image.mode in GREY for part in parts.values() for image in part)
        tensors = {}
        for suffix, part in parts.items():
            pixels = [as_bytes(image, "L" if grey else "RGB", size) for image in part]
            if len({each.shape for each in pixels}) > 1:
                raise ValueError("images differ in size: set data.image-size")
            tensors[f"x{suffix}"] = torch.from_numpy(np.stack(pixels))
        return tensors
    except (OSError, SyntaxError, ValueError, AttributeError) as error:
        raise ValueError(f"{root}: {error}") from None


def _owners(root: Path, parts: dict[str, Any], column: str) -> dict[str, Tensor]:
    """Whose each sample is; a test of others than those who train is nobody's own."""
    told = {}
    for suffix, part in parts.items():
        if column in part.features:
            told[suffix] = [str(value) for value in part[column]]
        elif not suffix:
            raise ValueError(f"{root}: no column {column!r}; there are {_told(part.features)}")
    number = {name: i for i, name in enumerate(sorted(set(told[""]), key=in_order))}
    return {
        f"owner{suffix}": torch.tensor([number[name] for name in names], dtype=torch.int64)
        for suffix, names in told.items()
        if number.keys() >= set(names)
    }
