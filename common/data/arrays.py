"""Clients' data in other projects' formats: PFLlib's .npz files and LEAF's JSON files.

Arrays become images (N, C, H, W), signals (N, C, T) or tables (N, F), and labels (N,). Bytes of
images stay bytes, and floats are not rescaled, whatever their range. An array that can be more than
one kind is refused unless ``data.kind`` says what it is. Texts in LEAF's files become tokens.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from types import NoneType

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.account import Account, unpacked
from common.data.dataset import Dataset, check_classes, fields_of, of_files
from common.data.kinds import TOKENS
from common.data.layout import part_folders
from common.data.spelling import check_numbers
from common.data.texts import Encoder, Texts
from common.data.unpickle import check_sizes, read_npz
from common.errors import first_line
from common.files import check_regular, in_order, parse_json
from common.measures import ObjectiveName
from common.settings.config import OWN, Data

CHANNELS = (1, 3)  #: numbers of channels for which the last axis counts as channels
MOST_CHANNELS = 4  #: most channels of images that are not square, unless ``data.kind`` says so
LONGEST = 200  #: most characters in a user's name
DEEPEST = 64  #: most dimensions of an array of numpy
PARTS = ("train", "test")
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 letters of Shakespeare, the classes of a next letter; one more is for all others."""
OTHER = "other"

Pair = tuple[np.ndarray, np.ndarray]  #: images and labels
Owned = tuple[str, str, Pair | None]
"""Source (for messages), name of the owner, and samples and labels if there are any."""


def load_npz(data: Data) -> Dataset:
    """Load all clients' samples of ``data.dir``; classes are numbers, the name is the folder's.

    ``train/K.npz`` and ``test/K.npz`` store under ``data`` a pickled dictionary of samples ``x``
    and labels ``y``. Client K is owner K. ``config.json`` in ``data.dir`` can set ``num_classes``
    (Zhang et al. 2023, "PFLlib: Personalized Federated Learning Library"; HtFLlib).
    """
    root = decoded.data_folder(data, "npz")
    folders = part_folders(root)
    files = {part: _numbered_files(folders.get(part, root / part)) for part in PARTS}
    if odd := sorted(files["train"].keys() ^ files["test"].keys()):
        missing = "test" if odd[0] in files["train"] else "train"
        raise ValueError(f"{root / missing / str(odd[0])}.npz is missing")
    paths = {part: list(of_part.values()) for part, of_part in files.items()}
    check = partial(check_sizes, key="data")
    return _load(data, root, paths, _from_npz, check, root / "config.json")


def _numbered_files(folder: Path) -> dict[int, Path]:
    """Return the clients' files in order, from 0 on."""
    files = {int(p.stem): p for p in folder.glob("*.npz") if p.stem.isdecimal()}
    for k in range(max(len(files), 1)):
        if k not in files:
            raise ValueError(f"{folder / str(k)}.npz is missing")
    return dict(sorted(files.items()))


def _from_npz(path: Path, data: Data) -> Iterator[Owned]:
    """Yield one client's samples and labels."""
    content = read_npz(path, "data")
    with _located_at(str(path)):
        samples = pair(content, data)
    yield str(path), path.stem, samples


def load_leaf(data: Data) -> Dataset:
    """Load all users' samples of ``data.dir``; classes are numbers, the name is the folder's.

    Each ``train/*.json`` and ``test/*.json`` has ``users``, ``num_samples`` and ``user_data``,
    which contains each user's ``x`` and ``y``: rows of numbers, such as FEMNIST's 784 in [0, 1],
    nested lists, or texts, whose ``y`` can be texts too: classes, or single letters, of which
    those that are none of ``LETTERS`` are one class. Users are owners in the order of their names.
    Test samples have no owners if a user has test samples only. Caldas et al. 2018, "LEAF: A
    Benchmark for Federated Settings".
    """
    root = decoded.data_folder(data, "leaf")
    folders = part_folders(root)
    files = {part: sorted(folders.get(part, root / part).glob("*.json")) for part in PARTS}
    for part, paths in files.items():
        if not paths:
            raise ValueError(f"{root / part}: no *.json files")
    encoder = Encoder(data)
    return _load(data, root, files, partial(_users, encoder=encoder), encoder=encoder)


def _users(path: Path, data: Data, encoder: Encoder) -> Iterator[Owned]:
    """Yield the samples and labels of each user with samples in one file."""
    pairs: dict[str, Pair] = {}
    try:
        check_regular(path)
        content = parse_json(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = first_line(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: damaged or no JSON ({reason})") from None
    with _located_at(str(path)):
        if not isinstance(content, dict) or not isinstance(content.get("user_data"), dict):
            raise ValueError("there is no 'user_data' by user in it")
        users = content.get("users", list(content["user_data"]))
        if not _all_of(users, (str, int)):
            raise ValueError("'users' is no list of names")
        counts = content.get("num_samples", [None] * len(users))
        if not _all_of(counts, (int, float, NoneType)):
            raise ValueError("'num_samples' is no list of numbers")
        if len(counts) != len(users):
            raise ValueError(f"num_samples has {len(counts)} entries for {len(users)} users")
        for user, n in zip(users, counts, strict=True):
            with _located_at(f"user {str(user)[:80]!r}"):
                if len(str(user)) > LONGEST:
                    raise ValueError(f"a name of {len(str(user))} characters, more than {LONGEST}")
                samples = pair(content["user_data"].get(str(user)), data, encoder)
                if n not in (None, len(samples[1]) if samples else 0):
                    raise ValueError(f"not {n} samples, as num_samples says")
            if samples is not None:
                pairs[str(user)] = samples
    for user, samples in pairs.items():
        yield f"{path}: user {user!r}", user, samples


def _all_of(values: object, kinds: tuple[type, ...]) -> bool:
    """Return whether ``values`` is a list whose entries are instances of ``kinds``."""
    return isinstance(values, list) and all(isinstance(value, kinds) for value in values)


@contextmanager
def _located_at(source: str) -> Iterator[None]:
    """Prefix a ``ValueError`` of the block with ``source``."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def pair(content: object, data: Data, encoder: Encoder | None = None) -> Pair | None:
    """Return samples and y of a dictionary with ``x`` and ``y``, or None without samples.

    ``encoder``: of texts, if they are allowed. Raises ``ValueError``, one line, for anything else.
    """
    if not isinstance(content, dict) or not {"x", "y"} <= content.keys():
        has = ", ".join(map(repr, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"there are no 'x' and 'y', but {has or 'nothing'}")
    x, y = content["x"], content["y"]
    if _empty(x) and _empty(y):
        return None
    objective = data.objective_of_files
    if encoder and isinstance(x, list) and any(isinstance(value, str) for value in x):
        arrays = encoder.encode(x, (f"x of sample {i}" for i in count()))
    elif objective == "next-token" or data.kind == "tokens":
        raise ValueError("x holds no texts, but data.objective or data.kind is for texts")
    else:
        arrays = samples(x, data.kind)
    if objective == "next-token":
        return arrays, np.zeros(len(arrays), np.int64)
    if objective == "classes":
        named = encoder is not None and arrays.dtype == object and _all_of(y, (str,))
        if named and len(y) != len(arrays):
            raise ValueError(f"y has {len(y)} texts, but there are {len(arrays)} samples")
        return arrays, np.array(y) if named else labels(y, len(arrays))
    with _located_at("y"):
        return arrays, targets(y, len(arrays), objective)


def _empty(values: object) -> bool:
    if isinstance(values, np.ndarray):
        return bool(values.shape[:1] == (0,))
    return bool(values == [])


def samples(values: object, kind: str) -> np.ndarray:
    """Convert an array of numbers to samples of ``kind``, a value of ``data.kind``.

    Lists of arrays and arrays of arrays are allowed. With ``auto`` the array must be one of images
    without doubt. Raises ``ValueError``, one line, for other values.
    """
    x = _array(values)
    if kind == "signal":
        return _floats(_signals(x))
    if kind == "table":
        if x.ndim != 2 or not x.shape[1]:
            raise ValueError(f"x has the shape {x.shape}; rows of a table have the shape (N, F)")
        return _floats(x)
    if kind == "auto" and x.ndim in (2, 3, 4) and not _surely_images(x.shape):
        raise ValueError(
            f"x has the shape {x.shape}, which can be images, signals or a table; set data.kind to "
            "'image', 'signal' or 'table'"
        )
    return _images(x)


def _surely_images(shape: tuple[int, ...]) -> bool:
    """Return whether an array is one of images: square, or of few channels and several rows.

    PFLlib stores its sensor data (HAR, PAMAP2) as (N, 9, 1, 128) and (N, 9, 3, 256).
    """
    if len(shape) == 4:
        last = shape[3] in CHANNELS and shape[1] not in CHANNELS
        channels, height, width = (shape[3], *shape[1:3]) if last else shape[1:]
        return height == width or (channels <= MOST_CHANNELS and height > 1)
    return len(shape) == 3 and shape[1] == shape[2]


def _signals(x: np.ndarray) -> np.ndarray:
    """Convert (N, C, T), (N, C, R, T) or (N, T) to signals (N, C, T); R rows become channels."""
    if x.ndim == 2:
        x = x[:, None]
    elif x.ndim == 4:
        x = x.reshape(len(x), x.shape[1] * x.shape[2], x.shape[3])
    if x.ndim != 3 or 0 in x.shape[1:]:
        raise ValueError(f"x has the shape {x.shape}; it should be a shape of signals, (N, C, T)")
    return x


def _floats(x: np.ndarray) -> np.ndarray:
    """Return finite numbers as float32."""
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32)
    if not (finite := np.isfinite(x)).all():
        row = int(np.flatnonzero(~finite.reshape(len(x), -1).all(1))[0])
        raise ValueError(f"x holds numbers that are not finite, the first in sample {row}")
    return x


def _images(x: np.ndarray) -> np.ndarray:
    """Convert (N, H, W, C), (N, C, H, W), (N, H, W) or square (N, H·W) to images (N, C, H, W).

    Integers from 0 to 255 become uint8, other numbers float32.
    """
    if x.ndim == 2:
        side = math.isqrt(x.shape[1])
        if side * side != x.shape[1]:
            raise ValueError(f"x has samples of {x.shape[1]} numbers, which make no square image")
        x = x.reshape(len(x), 1, side, side)
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise ValueError(f"x has the shape {x.shape}; it should be a shape of images")
    if x.dtype.kind in "biu" and (not x.size or (x.min() >= 0 and x.max() <= 255)):
        return np.ascontiguousarray(x, dtype=np.uint8)
    return _floats(x)


def labels(values: object, samples: int) -> np.ndarray:
    """Return labels int64 (N,) from 0 on; raise ``ValueError``, one line, for other values.

    A column (N, 1) counts as (N,). One-hot rows (N, C), each with one 1, are returned as bool.
    """
    y = _array(values)
    if y.shape == (samples, 1):
        y = y[:, 0]
    if y.ndim == 2 and y.shape[1] > 1 and len(y) == samples:
        if ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all():
            return y.astype(np.bool_)
        raise ValueError(
            f"y has the shape {y.shape}; one class for each sample has the shape ({samples},). For "
            "several labels set data.objective to 'labels', for numbers to 'number'"
        )
    if y.shape != (samples,):
        raise ValueError(f"y has the shape {y.shape}, but there are {samples} samples")
    if (wrong := (y != np.floor(y)) | (y < 0)).any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"y has values that are not classes 0, 1, 2, …; sample {row} has {y[row]}. To learn "
            "numbers, set data.objective to 'number'"
        )
    if samples:
        check_classes(y.max().item(), "y")
    return y.astype(np.int64)


def targets(values: object, samples: int, objective: ObjectiveName) -> np.ndarray:
    """Return labels (0 and 1) or numbers to learn as float32 (N, D); (N,) counts as (N, 1).

    Raises ``ValueError``, one line with the sample, for other values.
    """
    y = _array(values)
    if y.shape[:1] != (samples,) or y.ndim > 2 or 0 in y.shape[1:]:
        raise ValueError(f"its shape is {y.shape}, but there are {samples} samples")
    y = y.reshape(samples, -1)
    with np.errstate(over="ignore"):
        y = y.astype(np.float32)
    right = (y == 0) | (y == 1) if objective == "labels" else np.isfinite(y)
    if not right.all():
        row, column = np.argwhere(~right)[0]
        rule = "labels are 0 or 1" if objective == "labels" else "numbers are finite"
        raise ValueError(f"sample {row} has {y[row, column]:g}; {rule}")
    return y


def _array(values: object) -> np.ndarray:
    """Return numbers as one array; arrays of equal shape in a list or object array are stacked."""
    if _has_text(values):  # numpy would pad every value to the length of the longest
        raise ValueError("it holds text, not numbers")
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim:
            array = np.asarray([np.asarray(row) for row in array])
    except ValueError:
        raise ValueError("its samples differ in shape") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds {array.dtype}, not numbers")
    return array


def _has_text(values: object, depth: int = 0) -> bool:
    """Return whether text is in nested lists or object arrays, as deep as numpy nests arrays."""
    if isinstance(values, np.ndarray):
        values = list(values.flat) if values.dtype == object else []
    if not isinstance(values, list):
        return isinstance(values, str | bytes | bytearray)
    kinds = set(map(type, values))
    if kinds <= {int, float, bool} or depth > DEEPEST:
        return False
    return any(_has_text(value, depth + 1) for value in values)


def _load(
    data: Data,
    root: Path,
    files: Mapping[str, list[Path]],
    read: Callable[[Path, Data], Iterator[Owned]],
    check: Callable[[list[Path]], None] = lambda _: None,
    config: Path | None = None,
    encoder: Encoder | None = None,
) -> Dataset:
    """Return the data set of the samples that ``read`` gets from the ``files`` of each part.

    ``check`` gets all files before the first is read. The classes are called by their numbers: 0 up
    to ``num_classes`` in ``config``, or the labels that occur, which are numbered anew if they are
    others than 0, 1, 2, … With partition ``own`` they are 0 up to the largest label, because a
    client's files need not have all classes. Labels and numbers are called ``y``, or ``y0``, …
    """
    objective = data.objective_of_files
    paths = [path for part in files.values() for path in part]

    def decode() -> dict[str, Tensor]:
        check(paths)
        parts = ([one for path in part for one in read(path, data)] for part in files.values())
        return _tensors(root, encoder, *parts)

    options = (data.kind, objective, *(encoder.options if encoder else ()))
    tensors = dict(decoded.cached_files(data.name, paths, decode, *options))
    account = unpacked(tensors["account"])
    if objective == "classes" and not account.classes:
        account = _numbered(data, root, tensors, account.notes, config)
        paths += [config] if config else []
    elif objective in ("labels", "number"):
        width = tensors["y"].shape[1]
        outputs = tuple(f"y{i}" for i in range(width)) if width > 1 else ("y",)
        account = replace(account, classes=outputs)
    tensors["account"] = account.packed()
    dataset = of_files(root, tensors, paths, objective)
    return encoder.described(dataset) if encoder and dataset.kind is TOKENS else dataset


def _numbered(
    data: Data, root: Path, tensors: dict[str, Tensor], notes: Sequence[str], config: Path | None
) -> Account:
    """Return the account with the classes of numbers or one-hot rows in ``tensors``, changed to
    int64 (N,) from 0 on; ``notes``: those of the account."""
    notes, columns = list(notes), tensors["y"].shape[1] if tensors["y"].ndim == 2 else 0
    if columns:
        notes.append("y is one-hot: each column is a class")
        tensors |= {name: tensors[name].byte().argmax(1) for name in ("y", "y_test")}
    used = torch.cat([tensors["y"], tensors["y_test"]]).unique()
    top = int(used[-1])
    names = range(columns or top + 1)
    if is_declared := config is not None and config.is_file():
        names = range(_declared(config, top))
    elif not columns and data.partition != OWN:
        check_numbers(map(str, used.tolist()), len(tensors["y"]), str(root))
        if len(used) <= top:
            notes.append(f"labels are {used[0]} to {top}; they are numbered from 0 on")
            names = used.tolist()
            for name in ("y", "y_test"):
                tensors[name] = torch.searchsorted(used, tensors[name])
    declared, classes = is_declared or bool(columns), tuple(map(str, names))
    return Account(notes=tuple(notes), declared=declared, classes=classes)


def _tensors(
    root: Path, encoder: Encoder | None, train: Sequence[Owned], test: Sequence[Owned]
) -> dict[str, Tensor]:
    """Return x, y and owner of both parts, by the field names of ``Dataset``, and the account.

    Owners of training samples are numbered by their names. There is no ``owner_test`` if somebody
    has test samples only. Raises ``ValueError`` for a part without samples, and for samples that
    differ in shape or type. ``root``: the folder of the data, for messages.
    """
    owners = sorted({owner for _, owner, _ in train}, key=in_order)
    number, parts = {owner: k for k, owner in enumerate(owners)}, list[Texts]()
    first, like, goal = "", np.empty(0), np.empty(0)
    for part in (train, test):
        full = [(name, owner, *samples) for name, owner, samples in part if samples]
        if not full:
            raise ValueError(f"{root}: there are no samples for training, or none for testing")
        if not parts:
            first, _, like, goal = full[0]
        for name, _, x, y in full:
            if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
                shown, others = (
                    "texts" if of.dtype == object else f"{of.dtype} {of.shape[1:]}"
                    for of in (x, like)
                )
                raise ValueError(f"{name}: samples are {shown}, those of {first} {others}")
            if y.shape[1:] != goal.shape[1:]:
                raise ValueError(f"{name}: y is {y.shape}, that of {first} {goal.shape}")
            if (y.dtype.kind == "U") != (goal.dtype.kind == "U"):
                raise ValueError(f"{name}: y is {y.dtype}, that of {first} {goal.dtype}")
        _, names, xs, ys = zip(*full, strict=True)
        numbers = np.array([number.get(name, len(owners)) for name in names], np.int64)
        owner = np.repeat(numbers, [len(y) for y in ys])
        parts.append(Texts(np.concatenate(xs), np.concatenate(ys), owner))
    if encoder and like.dtype == object:
        return _tokens(root, encoder, parts, len(owners))
    sides = [(np.asarray(part.ids), part.label, part.owner) for part in parts]
    return fields_of(sides, len(owners), root) | {"account": Account().packed()}


def _tokens(root: Path, encoder: Encoder, parts: Sequence[Texts], owners: int) -> dict[str, Tensor]:
    """Return the samples of texts, whose classes can be texts too, and the account."""
    classes, declared, notes = tuple[str, ...](), False, list[str]()
    if parts[0].label.dtype.kind == "U":
        used = {*np.concatenate([part.label for part in parts]).tolist()}
        classes = tuple(sorted(used, key=in_order))
        if declared := all(len(name) == 1 for name in used) and not all(map(str.isdecimal, used)):
            classes = (*LETTERS, OTHER)
            if encoder.tokenizer.fingerprint != "byte":
                notes.append("y is the next letter; data.tokenizer = 'byte' makes letters of x")
        place = {name: i for i, name in enumerate(classes)}
        parts = [
            of._replace(label=np.array([place.get(y, len(LETTERS)) for y in of.label.tolist()]))
            for of in parts
        ]
    first = [*pairwise(parts[0].ids[:99])]
    same = [len(a) > 1 and np.array_equal(a[1:], b[:-1]) for a, b in first]
    if encoder.next_token and sum(same) >= max(len(same) / 2, 1):
        notes.append(
            "texts overlap by all but one token, so that a token is learnt many times; "
            "data.objective = 'classes' learns y, the one behind each text"
        )
    fields, more = encoder.fields(parts, owners, root)
    account = Account(classes=classes, declared=declared, notes=(*notes, *more))
    return {**fields, "account": account.packed()}


def _declared(config: Path, top: int) -> int:
    """Return ``num_classes`` of a file; ``top``: the largest label."""
    try:
        count = parse_json(config.read_bytes())["num_classes"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{config}: damaged, or without 'num_classes'") from None
    if type(count) is not int or count <= top:
        raise ValueError(f"{config}: num_classes = {count!r}, but there are labels to {top}")
    check_classes(count - 1, f"{config}: num_classes = {count}")
    return count
