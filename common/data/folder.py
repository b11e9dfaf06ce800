"""Data sets of image folders, decoded once and cached as one memory-mapped file.

There are three layouts. The first is ``DIR/{train,test}/<class>/*.png``. The second has ``valid``
(or ``val``) in addition. It becomes the public set if there is a ``test`` folder (CINIC-10), else
the test set (TinyImageNet, including ``val_annotations.txt``). The third is ``DIR/<class>/*.png``,
with a fixed split of 80 % and 20 % of every class. ``client-folders`` has a folder per client.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from common.data import decoded
from common.data.dataset import Dataset, halved, holdout, measured
from common.files import check_regular, in_order, read_text
from common.seeds import rng
from common.settings.config import Data

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".webp")
ANNOTATIONS = "val_annotations.txt"  #: TinyImageNet: "<file> <class> <box>" per line
GREY = ("1", "L", "LA")
DEEP = ("I", "F", "I;16", "I;16L", "I;16B")

Part = list[tuple[str, int]]  #: image files and their classes


def load_folder(data: Data) -> Dataset:
    """Load the images of ``data.dir``; statistics are computed from the training images.

    Images have one channel if all of them are grey, else all become RGB. They must have equal
    sizes unless ``data.image_size`` is set. The data set has the name of the folder.
    """
    root = decoded.data_folder(data, "folder")
    classes, parts = _parts(root)
    fields = tensors(root, parts, data.image_size)
    return measured(root.name, classes, **(fields if "test" in parts else halved(fields, "folder")))


def load_client_folders(data: Data) -> Dataset:
    """Load the images of several clients, ``DIR/<client>/<class>/*.png``, as ``load_folder`` does.

    A client's folder can have ``train`` and ``test`` above the classes. Without them, 80 % of each
    class are for training and 20 % for testing, always the same. Clients are owners in the order of
    their folders' names. A client need not have images of every class.
    """
    root = decoded.data_folder(data, "client-folders")
    clients = sorted(subfolders(root), key=in_order)
    if not clients:
        raise ValueError(f"{root}: no client's folder in it")
    classes = tuple(sorted({c for name in clients for c in subfolders(_training(root / name))}))
    if len(classes) < 2:
        raise ValueError(f"{root}: {len(classes)} class folders in all, at least 2 are needed")
    parts: dict[str, Part] = {"train": [], "test": []}
    owners: dict[str, list[int]] = {"train": [], "test": []}
    for k, name in enumerate(clients):
        for part, files in zip(parts, _of_client(root / name, classes), strict=True):
            parts[part] += files
            owners[part] += [k] * len(files)
    fields = tensors(root, parts, data.image_size, "clients-")
    fields |= {"owner": torch.tensor(owners["train"]), "owner_test": torch.tensor(owners["test"])}
    return measured(root.name, classes, **fields)


def _training(folder: Path) -> Path:
    """Return the folder that contains a client's class folders for training."""
    return folder / "train" if (folder / "train").is_dir() else folder


def _of_client(folder: Path, classes: tuple[str, ...]) -> tuple[Part, Part]:
    """Return one client's images for training and testing.

    Raises ``ValueError`` for a client without training images, or with a ``train`` but no ``test``.
    """
    training = _training(folder)
    train = listed(training, classes)
    if not train:
        raise ValueError(f"{training}: no images")
    if training == folder:
        y = torch.tensor([c for _, c in train])
        rows, test = holdout(y, 0.2, rng(0, "folder", folder.name))
        return [train[i] for i in rows.tolist()], [train[i] for i in test.tolist()]
    if not (folder / "test").is_dir():
        raise ValueError(f"{folder}: there is a train folder, but no test folder")
    return train, listed(folder / "test", classes)


def tensors(root: Path, parts: dict[str, Part], size: int, kind: str = "") -> dict[str, Tensor]:
    """Return x and y of each part, by the field names of ``Dataset``; decoded at most once."""
    paths = [path for part in parts.values() for path, _ in part]
    images = decoded.cached(root, paths, size, lambda: decode(parts, size), kind=kind)
    fields = {}
    for name, part in parts.items():
        suffix = "" if name == "train" else f"_{name}"
        fields[f"x{suffix}"] = images[name]
        fields[f"y{suffix}"] = torch.tensor([c for _, c in part], dtype=torch.int64)
    return fields


def _parts(root: Path) -> tuple[tuple[str, ...], dict[str, Part]]:
    """Return class names and the files of the parts "train", "test" and "public" that exist."""
    split = (root / "train").is_dir()
    train = root / "train" if split else root
    classes = tuple(sorted(subfolders(train)))
    if len(classes) < 2:
        raise ValueError(f"{train}: {len(classes)} class folders, at least 2 are needed")
    parts = {"train": listed(train, classes)}
    if not parts["train"]:
        raise ValueError(f"{train}: no images")
    if not split:
        return classes, parts
    valid = next((root / name for name in ("valid", "val") if (root / name).is_dir()), None)
    test: Path | None = root / "test"
    if valid is not None and (valid / ANNOTATIONS).is_file():
        valid, test = None, valid  # TinyImageNet: the test images have no labels
    elif not (root / "test").is_dir():
        valid, test = None, valid
    if test is None:
        raise ValueError(f"{root}: there is a train folder, but neither test nor valid")
    parts["test"] = listed(test, classes)
    if not parts["test"]:
        raise ValueError(f"{test}: no images")
    if valid is not None:
        parts["public"] = listed(valid, classes)
    return classes, parts


def subfolders(folder: Path) -> set[str]:
    """Return the names of the folders in ``folder``, without hidden ones."""
    return {p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != "."}


def listed(folder: Path, classes: tuple[str, ...]) -> Part:
    """Return every image inside ``folder/<class>``, in order of class and path."""
    if (folder / ANNOTATIONS).is_file():
        return _annotated(folder, classes)
    names = subfolders(folder)
    if unknown := sorted(names - set(classes)):
        raise ValueError(f"{folder / unknown[0]}: class {unknown[0]!r} has no training folder")
    return [
        (path, c)
        for c, name in enumerate(classes)
        if name in names
        for path in sorted(_images(str(folder / name)))
    ]


def _annotated(folder: Path, classes: tuple[str, ...]) -> Part:
    number = {name: c for c, name in enumerate(classes)}
    part: Part = []
    for line in read_text(folder / ANNOTATIONS).splitlines():
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in number:
            raise ValueError(f"{folder / ANNOTATIONS}: {line!r} names no class of the training set")
        path = folder / "images" / fields[0]
        check_regular(path, folder.parent)
        part.append((str(path), number[fields[1]]))
    return part


def _images(folder: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith(SUFFIXES) and name[0] != ".":
                yield _file(os.path.join(parent, name))


def _file(path: str) -> str:
    """Return ``path`` if opening it cannot block.

    Raises ``ValueError`` for a named pipe, a socket or a device, also behind a link.
    """
    with suppress(OSError):  # a missing or unreadable file raises later, where it is read
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(f"{path}: not a regular file")
    return path


def decode(parts: dict[str, Part], size: int) -> dict[str, Tensor]:
    """Return uint8 images (N, C, H, W) for each part."""
    paths = {name: [path for path, _ in part] for name, part in parts.items()}
    everything = [path for part in paths.values() for path in part]
    grey = all(_header(path)[0] in GREY for path in everything)
    first = everything[0]
    expected = (size, size) if size else _header(first)[1]
    out = {}
    for name, part in paths.items():
        images = np.empty((len(part), 1 if grey else 3, expected[1], expected[0]), dtype=np.uint8)
        for row, path in zip(images, part, strict=True):
            pixels = _pixels(path, "L" if grey else "RGB", size)
            if pixels.shape[1:] != row.shape[1:]:
                raise ValueError(
                    f"images differ in size ({path} is {pixels.shape[2]}×{pixels.shape[1]}, "
                    f"{first} is {expected[0]}×{expected[1]}): set data.image-size"
                )
            row[:] = pixels
        out[name] = torch.from_numpy(images)
    return out


def _header(path: str) -> tuple[str, tuple[int, int]]:
    """Return PIL mode and (width, height), without decoding the pixels."""
    with _naming(path), Image.open(path) as image:
        return image.mode, image.size


def _pixels(path: str, mode: str, size: int) -> np.ndarray:
    """Return uint8 (C, H, W), resized bilinearly to size × size unless ``size`` is 0."""
    with _naming(path), Image.open(path) as image:
        return as_bytes(image, mode, size)


def as_bytes(image: Image.Image, mode: str, size: int) -> np.ndarray:
    """Return uint8 (C, H, W) of an opened image; raise ``ValueError`` for more than 8 bits."""
    if image.mode in DEEP:
        raise ValueError("more than 8 bits per channel")
    picture = image.convert(mode)
    if size and picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(picture.height, picture.width, -1).transpose(2, 0, 1)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Convert the decoder's exceptions into a one-line ``ValueError`` with the path."""
    try:
        yield
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not a readable image ({error})") from error
