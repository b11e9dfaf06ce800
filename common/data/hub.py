"""A Hugging Face data set that was saved to a folder (the extra ``hub``).

The folder comes from ``datasets.DatasetDict.save_to_disk`` with ``train`` and ``test``, or from
``Dataset.save_to_disk``. The latter is split into 80 % of every class for training and 20 % for
testing, always the same. Nothing is downloaded.

The data set's files are not trusted. They can name other files, and an image can be a URL. Only
regular files inside the folder are read, and never the network.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from common.data import decoded
from common.data.arrays import samples
from common.data.dataset import Dataset, check_classes, halved, measured
from common.data.folder import GREY, as_bytes
from common.extras import imported
from common.files import check_regular, in_order, parse_json
from common.settings.config import Data

UNREADABLE = (OSError, SyntaxError, ValueError, AttributeError, Image.DecompressionBombError)
"""Exceptions of the decoder for files that are no images."""
NUMBERS = ("int", "uint", "float")  #: beginnings of the names of numeric types


def load_hub(data: Data) -> Dataset:
    """Load the columns of samples and classes, which are recognised by their feature types.

    Samples are images; without an image column the arrays of the only column of lists, whose kind
    ``data.kind`` says, or the rows of a table of all columns of numbers.
    ``data.label_column`` selects one of several class columns, ``data.owner_column`` the column of
    owners. The data set has the name of the folder.
    """
    root = decoded.data_folder(data, "hub")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    options = (data.label_column, data.owner_column, str(data.image_size), data.kind)
    tensors = decoded.cached_files("hub", files, lambda: _decode(root, data), *options)
    names = tuple(bytes(tensors.pop("classes").tolist()).decode().split("\n"))
    if "x_test" not in tensors:
        tensors = halved(tensors, "folder")
    return measured(root.name, names, **tensors)


def _decode(root: Path, data: Data) -> dict[str, Tensor]:
    """Return the data set as tensors, including the class names as bytes."""
    datasets = imported("datasets")
    _check_files(root)
    try:
        loaded = datasets.load_from_disk(str(root))
    except Exception as error:  # errors of Arrow, fsspec and datasets have no common base
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{root}: damaged or not saved by save_to_disk ({reason})") from None
    parts = {"": loaded}
    if isinstance(loaded, dict):
        if missing := [name for name in ("train", "test") if name not in loaded]:
            raise ValueError(f"{root}: no split {missing[0]!r}; it has {', '.join(loaded)}")
        parts = {"": loaded["train"], "_test": loaded["test"]}
    features = parts[""].features
    label = data.label_column or _column(root, features, datasets.ClassLabel, "label")
    if not isinstance(features.get(label), datasets.ClassLabel):
        there = _describe(features)
        raise ValueError(f"{root}: column {label!r} holds no classes; there are {there}")
    check_classes(len(features[label].names) - 1, f"{root}: column {label!r}")
    names = "\n".join(map(str, features[label].names))
    tensors = {"classes": torch.tensor(list(names.encode()), dtype=torch.uint8)}
    owner = data.owner_column
    if owner and not isinstance(features.get(owner), (datasets.Value, datasets.ClassLabel)):
        raise ValueError(
            f"{root}: no column {owner!r} with owners; there are {_describe(features)}"
        )
    inputs = _inputs(root, features, {label, owner})
    columns = list(filter(None, (*inputs, label, owner)))
    for suffix, part in parts.items():
        for column in columns:
            kind = part.features.get(column)
            if type(kind) is not type(features[column]) and (column != owner or kind is not None):
                there = _describe(part.features)
                raise ValueError(f"{root}: the test split has other columns: {there}")
        known = [column for column in columns if column in part.features]
        parts[suffix] = part = part.select_columns(known).with_format(None)
        labels = list(part[label])
        if None in labels:
            raise ValueError(f"{root}: sample {labels.index(None)} has no {label!r}")
        tensors[f"y{suffix}"] = torch.tensor(labels, dtype=torch.int64)
    if isinstance(features[inputs[0]], datasets.Image):
        tensors |= _images(root, parts, inputs[0], data.image_size)
    else:
        tensors |= _numbers(root, parts, inputs, data.kind)
    if owner:
        tensors |= _owners(parts, owner)
    return tensors


def _check_files(root: Path) -> None:
    """Raise ``ValueError`` unless the files that the data set consists of are regular and inside.

    ``dataset_dict.json`` names the folders of the splits, ``state.json`` the files of a split.
    """
    try:
        _check_splits(root)
    except OSError as error:  # a name that is too long
        raise ValueError(
            f"{root}: damaged or not saved by save_to_disk ({error.strerror})"
        ) from None


def _check_splits(root: Path) -> None:
    splits = [""]
    if (root / "dataset_dict.json").exists():
        splits += _named(root / "dataset_dict.json", root, lambda content: content["splits"])
    for folder in (root / split for split in splits):
        if (state := folder / "state.json").exists():
            check_regular(folder / "dataset_info.json", root)
            names = _named(
                state, root, lambda content: [f["filename"] for f in content["_data_files"]]
            )
            for name in names:
                check_regular(folder / name, root)


def _named(path: Path, root: Path, names: Callable[[Any], list[str]]) -> list[str]:
    """Return the file or folder names that ``names`` takes from the content of a JSON file."""
    check_regular(path, root)
    try:
        return list(map(str, names(parse_json(path.read_bytes()))))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: damaged or not saved by save_to_disk ({reason})") from None


def _column(root: Path, features: Any, kind: type, role: str) -> str:
    """Return the name of the only column with feature type ``kind``."""
    names: list[str] = [name for name, feature in features.items() if isinstance(feature, kind)]
    if len(names) != 1:
        hint = "; choose with data.label-column" if role == "label" and names else ""
        raise ValueError(
            f"{root}: {len(names)} {role} columns, one is needed{hint}; "
            f"there are {_describe(features)}"
        )
    return names[0]


def _inputs(root: Path, features: Any, others: set[str]) -> list[str]:
    """Return the columns of the samples: images, else lists of numbers, else all numbers."""
    datasets = imported("datasets")
    single = (datasets.Value, datasets.ClassLabel)
    lists = [
        name
        for name, feature in features.items()
        if not isinstance(feature, (*single, datasets.Image)) and name not in others
    ]
    numbers = [
        name
        for name, feature in features.items()
        if isinstance(feature, datasets.Value)
        and feature.dtype.startswith(NUMBERS)
        and name not in others
    ]
    images = any(isinstance(feature, datasets.Image) for feature in features.values())
    if images or not (lists or numbers):
        return [_column(root, features, datasets.Image, "image")]
    if len(lists) > 1:
        raise ValueError(
            f"{root}: {len(lists)} columns of lists, one is needed; there are {_describe(features)}"
        )
    return lists or numbers


def _numbers(root: Path, parts: dict[str, Any], columns: list[str], kind: str) -> dict[str, Tensor]:
    """Return the samples of each part: a column of lists, or rows of several columns."""
    tensors = {}
    for suffix, part in parts.items():
        values: Any = [list(part[column]) for column in columns]
        table = isinstance(values[0][0], (int, float)) if values[0] else True
        try:
            rows = [list(row) for row in zip(*values, strict=True)] if table else values[0]
            x = samples(rows, "table" if table and kind == "auto" else kind)
        except ValueError as error:
            raise ValueError(f"{root}: {error}") from None
        tensors[f"x{suffix}"] = torch.from_numpy(x)
    if len({tuple(x.shape[1:]) for x in tensors.values()}) > 1:
        raise ValueError(f"{root}: samples of the two splits differ in shape")
    return tensors


def _describe(features: Any) -> str:
    return ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())


def _images(root: Path, parts: dict[str, Any], column: str, size: int) -> dict[str, Tensor]:
    """Return uint8 (N, C, H, W) for each part: grey if all images are grey, else RGB."""
    try:
        pictures = partial(_pictures, root, column)
        grey = all(image.mode in GREY for part in parts.values() for image in pictures(part))
        tensors = {}
        for suffix, part in parts.items():
            pixels = [as_bytes(image, "L" if grey else "RGB", size) for image in pictures(part)]
            if len({array.shape for array in pixels}) > 1:
                raise ValueError("images differ in size: set data.image-size")
            tensors[f"x{suffix}"] = torch.from_numpy(np.stack(pixels))
        return tensors
    except UNREADABLE as error:
        raise ValueError(f"{root}: {error}") from None


def _pictures(root: Path, column: str, part: Any) -> Iterator[Image.Image]:
    """Yield the decoded images of a column, from bytes in the data set or files inside ``root``.

    ``datasets`` itself would open any path and download any URL.
    """
    feature = part.features[column]
    undecoded = part.cast_column(column, type(feature)(decode=False))
    for i, stored in enumerate(undecoded[column]):
        content = stored["bytes"] if stored else None
        if content is None:
            if not stored or not stored["path"]:
                raise ValueError(f"image {i} has neither bytes nor a path")
            check_regular(path := root / stored["path"], root)
            content = path.read_bytes()
        yield type(feature)(feature.mode).decode_example({"bytes": content, "path": None})


def _owners(parts: dict[str, Any], column: str) -> dict[str, Tensor]:
    """Return the owner of each sample; no test owners if some of them have no training samples."""
    owners = {}
    for suffix, part in parts.items():
        if column in part.features:
            owners[suffix] = [str(value) for value in part[column]]
    number = {name: i for i, name in enumerate(sorted(set(owners[""]), key=in_order))}
    return {
        f"owner{suffix}": torch.tensor([number[name] for name in names], dtype=torch.int64)
        for suffix, names in owners.items()
        if number.keys() >= set(names)
    }
