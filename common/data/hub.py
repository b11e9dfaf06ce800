"""A Hugging Face data set that was saved to a folder (the extra ``hub``).

The folder comes from ``datasets.DatasetDict.save_to_disk``, from ``Dataset.save_to_disk``, or has
Parquet files whose names begin with a part, such as ``train-00000-of-00001.parquet``. Without a
split ``test`` a split ``validation`` is for testing; without both, 20 % of every class, always the
same. Nothing is downloaded.

The data set's files are not trusted. They can name other files, and an image can be a URL. Only
regular files inside the folder are read, and never the network.
"""

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from common.data import decoded
from common.data.account import Account
from common.data.arrays import samples, targets
from common.data.dataset import Dataset, check_classes, of_files
from common.data.folder import GREY, as_bytes
from common.data.layout import PARTS
from common.data.sheets import unused
from common.data.spelling import Names, check_numbers, flags
from common.data.texts import Encoder, Fields, Texts
from common.extras import imported
from common.files import check_regular, parse_json
from common.measures import ObjectiveName
from common.objectives import OBJECTIVES
from common.settings.config import Data

UNREADABLE = (OSError, SyntaxError, ValueError, AttributeError, Image.DecompressionBombError)
"""Exceptions of the decoder for files that are no images."""
NUMBERS = ("int", "uint", "float")  #: beginnings of the names of numeric types
LABELS = ("int", "uint", "string", "large_string", "bool")  #: the same, of columns of labels
TO_LEARN = " (for labels or numbers set data.objective)"  #: advice in errors


def load_hub(data: Data) -> Dataset:
    """Load the columns of samples and classes, which are recognised by their feature types.

    Samples are the texts of ``data.text_column``, else images; without an image column the arrays
    of the only column of lists, whose kind ``data.kind`` says, or the rows of a table of all
    columns of numbers.
    ``data.label_column`` selects one of several class columns, or a column of integers or texts,
    ``data.owner_column`` the column of owners. Labels are a column of lists of classes, or several
    columns of 0 and 1; numbers are columns of numbers or of lists of them. The data set has the
    name of the folder.
    """
    root = decoded.data_folder(data, "hub")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    columns, objective = (data.label_column, data.owner_column), data.objective_of_files
    options = [*columns, data.ignore_columns, data.kind, str(data.image_size), objective]
    encoder = Encoder(data) if data.text_column else None
    options += [data.text_column, *encoder.options] if encoder else []
    tensors = decoded.cached_files("hub", files, lambda: _decode(root, data, encoder), *options)
    if not (root / "state.json").exists() and not (root / "dataset_dict.json").exists():
        files = [path for paths in _parquet(root).values() for path in paths]
    dataset = of_files(root, tensors, files, objective)
    return encoder.described(dataset) if encoder else dataset


def _parquet(root: Path) -> dict[str, list[Path]]:
    """Return the Parquet files of each part, by the first word of their names."""
    parts: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.parquet")):
        if part := PARTS.get(re.split(r"[-_. ]", path.name)[0].casefold()):
            parts.setdefault(part, []).append(path)
    return parts


def _loaded(root: Path) -> dict[str, Any]:
    """Return the splits by name, or the only one as ``train``."""
    datasets = imported("datasets")
    _check_files(root)
    try:
        if not (parquet := _parquet(root)) or (root / "dataset_dict.json").exists():
            loaded = datasets.load_from_disk(str(root))
            return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
        read = imported("pyarrow.parquet").read_table
        splits = {}
        for part, paths in parquet.items():
            for path in paths:
                check_regular(path, root)
            tables = [datasets.Dataset(datasets.table.InMemoryTable(read(path))) for path in paths]
            splits[part] = datasets.concatenate_datasets(tables)
        return splits
    except Exception as error:  # errors of Arrow, fsspec and datasets have no common base
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{root}: damaged or not saved by save_to_disk ({reason})") from None


def _parts(root: Path, loaded: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the splits by the suffix of their fields, and notes of splits that are not read."""
    known: dict[str, str] = {}
    for name in loaded:
        if (part := PARTS.get(name.casefold(), name)) in known:
            raise ValueError(f"{root}: the splits {known[part]!r} and {name!r} are the same part")
        known[part] = name
    test = "test" if "test" in known else "valid"
    if "train" not in known or (len(known) > 1 and test not in known):
        lacking = "test" if "train" in known else "train"
        raise ValueError(f"{root}: no split {lacking!r}; it has {', '.join(loaded)}")
    parts = {"": loaded[known["train"]]} | ({"_test": loaded[known[test]]} if test in known else {})
    left = [name for part, name in known.items() if part not in ("train", test)]
    notes = [f"split {name!r} is not read: {len(loaded[name])} samples" for name in left]
    if test == "valid" and test in known:
        notes.append(f"split {known[test]!r} is for testing")
    return parts, notes


def _decode(root: Path, data: Data, encoder: Encoder | None) -> dict[str, Tensor]:
    """Return the data set as tensors, including the account."""
    parts, notes = _parts(root, _loaded(root))
    features, owner = parts[""].features, data.owner_column
    has_classes = data.objective_of_files == "classes"
    follows = data.objective_of_files == "next-token"
    labels = [] if follows else _label_columns(root, features, data)
    kinds = _kinds(features)
    if owner and kinds.get(owner) not in ("label", "number", "value"):
        raise ValueError(
            f"{root}: no column {owner!r} with owners; there are {_describe(features)}"
        )
    left = unused(list(features), [*labels, owner], data.ignore_columns, root)
    text = data.text_column
    if text and (kinds.get(text) != "value" or text in (*labels, owner)):
        raise ValueError(f"{root}: no column {text!r} with texts; there are {_describe(features)}")
    prompts = encoder.columns if encoder else ()
    for name in prompts:
        if kinds.get(name) not in ("label", "number", "value") or name == text:
            raise ValueError(
                f"{root}: no column {name!r} besides the text's; data.prompt can have columns of "
                f"{_describe(features)}"
            )
    inputs = [text, *prompts] if text else _inputs(root, features, {*labels, owner, *left})
    columns = list(filter(None, (*inputs, *labels, owner)))
    for suffix, part in parts.items():
        for column in columns:
            kind = part.features.get(column)
            if type(kind) is not type(features[column]) and (column != owner or kind is not None):
                there = _describe(part.features)
                raise ValueError(f"{root}: the test split has other columns: {there}")
        known = [column for column in columns if column in part.features]
        parts[suffix] = part.select_columns(known).with_format(None)
    classes, tensors = list[str](), dict[str, Tensor]()
    if has_classes:
        classes, tensors = _labels(root, parts, labels[0])
    elif labels:
        classes, tensors = _targets(root, parts, labels, data.objective_of_files)
    more = [name for name in features if name not in (*inputs, *labels, owner, *left)]
    notes += [f"columns of other types are not read: {', '.join(more)}"] if more else []
    owners: tuple[str, ...] = ()
    if owner:
        owners, of_parts, alike = _owners(root, parts, owner)
        tensors |= of_parts
        notes += alike
    if encoder:
        tensors, cut = _texts(root, parts, tensors, inputs[0], encoder)
        notes += cut
    elif kinds[inputs[0]] == "image":
        tensors |= _images(root, parts, inputs[0], data.image_size)
    else:
        tensors |= _numbers(root, parts, inputs, data.kind)
    account = Account(
        features=tuple(inputs),
        label=labels[0] if has_classes else "",
        owner=owner,
        unused=left,
        notes=tuple(notes),
        declared=bool(labels)
        and kinds[labels[0]] == ("label" if has_classes else "list")
        and _names(features[labels[0]]) is not None,
        owners=owners,
        classes=tuple(classes),
    )
    return {**tensors, "account": account.packed()}


def _kinds(features: Any) -> dict[str, str]:
    """Return the kind of each column: ``image``, ``label``, ``number``, ``value`` or ``list``."""
    datasets, kinds = imported("datasets"), {}
    for name, feature in features.items():
        kinds[name] = "list"
        if isinstance(feature, datasets.Image):
            kinds[name] = "image"
        elif isinstance(feature, datasets.ClassLabel):
            kinds[name] = "label"
        elif isinstance(feature, datasets.Value):
            kinds[name] = "number" if feature.dtype.startswith(NUMBERS) else "value"
    return kinds


def _names(feature: Any) -> list[str] | None:
    """Return the names of a column of classes, or of lists of them; None for other columns."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return None if names is None else list(map(str, names))


def _label_columns(root: Path, features: Any, data: Data) -> list[str]:
    """Return the column of classes, or those of labels or numbers.

    Without ``data.label_column`` it is the only column of lists of classes, else ``label`` or
    ``labels``. Raises ``ValueError``, one line, for columns that hold something else.
    """
    if (objective := data.objective_of_files) == "classes":
        return [_label(root, features, data.label_column)]
    columns, kinds = list(data.label_columns), _kinds(features)
    noun = OBJECTIVES[objective].noun[1]
    if not columns:
        lists = [n for n, kind in kinds.items() if kind == "list" and _names(features[n])]
        usual = [n for n in ("label", "labels") if n in kinds]
        columns = lists if objective == "labels" and len(lists) == 1 else usual[:1]
    for name in columns or [""]:
        is_class = objective == "number" and name in kinds and _names(features[name])
        if is_class or kinds.get(name, "image") == "image":
            raise ValueError(
                f"{root}: data.label-column should name columns of {noun}, not {name!r}; "
                f"there are {_describe(features)}"
            )
    return columns


def _label(root: Path, features: Any, chosen: str) -> str:
    """Return ``chosen``, else the only column of the type of a class, else ``label`` or ``labels``.

    Raises ``ValueError``, one line, for a column that holds no classes.
    """
    kinds, name = _kinds(features), chosen
    if not chosen and "label" not in kinds.values():
        usual = [name for name in ("label", "labels") if kinds.get(name) in ("number", "value")]
        name = usual[0] if usual else ""
    name = name or _column(root, features, "label")
    kind = kinds.get(name)
    if kind != "label" and not (
        kind in ("number", "value") and features[name].dtype.startswith(LABELS)
    ):
        there = _describe(features)
        raise ValueError(f"{root}: column {name!r} holds no classes{TO_LEARN}; there are {there}")
    return name


def _labels(root: Path, parts: dict[str, Any], column: str) -> tuple[list[str], dict[str, Tensor]]:
    """Return the classes, and y of each part.

    The classes are those of the feature type, or in a column of integers or texts those that occur.
    Raises ``ValueError``, one line, for a sample without a class.
    """
    where, values = f"{root}: column {column!r}", [list(part[column]) for part in parts.values()]
    if declared := getattr(parts[""].features[column], "names", None):
        check_classes(len(declared) - 1, where)
        for labels in values:
            if missing := [i for i, label in enumerate(labels) if label is None or label < 0]:
                raise ValueError(f"{root}: sample {missing[0]} has no {column!r}")
        classes, numbers = list(map(str, declared)), [np.array(y, np.int64) for y in values]
    else:
        names = Names(column, word="sample")
        codes = [names.codes(labels, root, 0) for labels in values]
        classes = names.order()
        check_classes(len(classes) - 1, where)
        check_numbers(classes, len(codes[0]), where)
        numbers = names.renumbered(classes, codes)
    return classes, {f"y{s}": torch.from_numpy(y) for s, y in zip(parts, numbers, strict=True)}


def _targets(
    root: Path, parts: dict[str, Any], columns: list[str], objective: ObjectiveName
) -> tuple[list[str], dict[str, Tensor]]:
    """Return the names of the labels or numbers, and y float32 (N, D) of each part."""
    names, tensors = list[str](), dict[str, Tensor]()
    for suffix, part in parts.items():
        read = [_column_of_targets(root, part, column, objective) for column in columns]
        of_part = [name for known, _ in read for name in known]
        if suffix and of_part != names:
            raise ValueError(f"{root}: the test split has {', '.join(of_part)} as {objective}")
        names = of_part
        tensors[f"y{suffix}"] = torch.from_numpy(np.concatenate([y for _, y in read], 1))
    return names, tensors


def _column_of_targets(
    root: Path, part: Any, column: str, objective: ObjectiveName
) -> tuple[list[str], np.ndarray]:
    """Return the names of the labels or numbers in a column, and their values (N, D)."""
    values, known = list(part[column]), _names(part.features[column])
    if None in values:
        raise ValueError(f"{root}: sample {values.index(None)} has no {column!r}")
    lists = isinstance(next(iter(values), None), list)
    if lists and known:
        y = np.zeros((len(values), len(known)), np.float32)
        for i, labels in enumerate(values):
            if not set(labels) <= set(range(len(known))):
                raise ValueError(f"{root}: sample {i}: {column!r} holds {labels}, not classes")
            y[i, labels] = 1
        return known, y
    if objective == "labels" and not lists:
        return [column], flags(values, column, f"{root}: sample", 0)[:, None]
    try:
        y = targets(values, len(values), objective)
    except ValueError as error:
        raise ValueError(f"{root}: column {column!r}: {error}") from None
    return [column] if y.shape[1] == 1 else [f"{column}{i}" for i in range(y.shape[1])], y


def _check_files(root: Path) -> None:
    """Raise ``ValueError`` unless the files that the data set consists of are regular and inside.

    ``dataset_dict.json`` names the folders of the splits, ``state.json`` the files of a split.
    """
    folders = [root]
    if (index := root / "dataset_dict.json").exists():
        folders += [root / name for name in _named(index, root, lambda it: it["splits"])]
    for state in (folder / "state.json" for folder in folders):
        if os.path.exists(state):  # no error for a name that is too long
            check_regular(state.parent / "dataset_info.json", root)
            for name in _named(state, root, lambda it: [f["filename"] for f in it["_data_files"]]):
                check_regular(state.parent / name, root)


def _named(path: Path, root: Path, names: Callable[[Any], list[str]]) -> list[str]:
    """Return the file or folder names that ``names`` takes from the content of a JSON file."""
    check_regular(path, root)
    try:
        return list(map(str, names(parse_json(path.read_bytes()))))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: damaged or not saved by save_to_disk ({reason})") from None


def _column(root: Path, features: Any, kind: str) -> str:
    """Return the name of the only column of a kind."""
    names = [name for name, of_column in _kinds(features).items() if of_column == kind]
    if len(names) != 1:
        choose = "; choose with data.label-column" if names else TO_LEARN
        hint = choose if kind == "label" else ""
        raise ValueError(
            f"{root}: {len(names)} {kind} columns, one is needed{hint}; "
            f"there are {_describe(features)}"
        )
    return names[0]


def _inputs(root: Path, features: Any, others: set[str]) -> list[str]:
    """Return the columns of the samples: images, else lists of numbers, else all numbers.

    ``others``: columns that are no samples.
    """
    features = {name: feature for name, feature in features.items() if name not in others}
    kinds = _kinds(features)
    lists = [name for name, kind in kinds.items() if kind == "list"]
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    if "image" in kinds.values() or not (lists or numbers):
        return [_column(root, features, "image")]
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
        for column, of_column in zip(columns, values, strict=True):
            if None in of_column:
                raise ValueError(
                    f"{root}: sample {of_column.index(None)} has no {column!r}; "
                    "data.ignore-columns leaves columns out"
                )
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


def _texts(
    root: Path, parts: dict[str, Any], known: dict[str, Tensor], column: str, encoder: Encoder
) -> Fields:
    """Return the samples of each part's texts with what is ``known``: y and owner; and notes."""
    texts, owners = [], int(known["owner"].max()) + 1 if "owner" in known else 0
    for suffix, part in parts.items():
        places = (f"{root}: column {column!r}: sample {i}" for i in count())
        ids = encoder.encode(part[column], places, [part[name] for name in encoder.columns])
        none = torch.full((len(ids),), owners)
        y, owner = (known.get(f"{name}{suffix}", none).numpy() for name in ("y", "owner"))
        texts.append(Texts(ids, y, owner))
    return encoder.fields(texts, owners, root)


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


def _owners(
    root: Path, parts: dict[str, Any], column: str
) -> tuple[tuple[str, ...], dict[str, Tensor], list[str]]:
    """Return the owners, those of each sample, and notes of owners whose names look alike.

    There are no test owners if some of them have no training samples.
    """
    names = Names(column, classes=False, word="sample")
    known = [suffix for suffix, part in parts.items() if column in part.features]
    codes = [names.codes(list(parts[suffix][column]), root, 0) for suffix in known]
    owners, numbers = names.owners(codes)
    tensors = {
        f"owner{suffix}": torch.from_numpy(of_part)
        for suffix, of_part in zip(known, numbers, strict=True)
        if (of_part < len(owners)).all()
    }
    return owners, tensors, names.alike
