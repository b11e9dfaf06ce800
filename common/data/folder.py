"""Data sets of image folders, decoded once and cached as one memory-mapped file.

There are three layouts. The first is ``DIR/{train,test}/<class>/*.png``; ``layout.py`` has further
names of parts. The second has ``valid`` (or ``val``) in addition. It becomes the public set if
there is a ``test`` folder (CINIC-10), else the test set (TinyImageNet, including
``val_annotations.txt``). The third is ``DIR/<class>/*.png``, with a fixed split of 80 % and 20 % of
every class. ``client-folders`` has a folder per client. With labels or numbers to learn, there are
no class folders: the images of a part, or of ``DIR``, are the rows of the ``labels.csv`` in it.

Photos are turned upright by their EXIF orientation. TIFF and GIF files with several frames are not
read, because no frame of them is the image; the data set's account counts them. With ``data.images
= "stored"`` pixels are as stored and TIFF and GIF files are left out.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from common.data import decoded
from common.data.account import Account
from common.data.dataset import Dataset, holdout, of_files, strata
from common.data.layout import check_classes_of, clients_of, part_folders, subfolders
from common.data.sheets import Sheet, unused
from common.files import check_regular, read_text
from common.seeds import rng
from common.settings.config import Data

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".webp")
UPRIGHT = (".jpe", ".jfif", ".pnm", ".pbm", ".dib", ".jp2", ".tga")  #: unless images are "stored"
SEVERAL = (".tif", ".tiff", ".gif")  #: the same, of files that often have several frames
LABELS = "labels.csv"  #: a row for each image: its path in the column "file", labels or numbers
ANNOTATIONS = "val_annotations.txt"  #: TinyImageNet: "<file> <class> <box>" per line
GREY = ("1", "L", "LA")
TURNED = (5, 6, 7, 8)  #: EXIF orientations that swap width and height
DEEP = ("I", "F", "I;16", "I;16L", "I;16B")

Part = list[tuple[str, int | list[float]]]  #: image files, and their classes, labels or numbers


def load_folder(data: Data) -> Dataset:
    """Load the images of ``data.dir``; statistics are computed from the training images.

    Images have one channel if all of them are grey, else all become RGB. They must have equal
    sizes unless ``data.image_size`` is set. The data set has the name of the folder.
    """
    root = decoded.data_folder(data, "folder")
    train = part_folders(root).get("train", root)
    classes = _outputs(data, [train])
    if data.objective_of_files == "classes":
        check_classes_of(train, classes)
    parts = _parts(root, classes, data)
    if "test" in parts and not parts["test"]:
        raise ValueError(f"{root}: no images for testing")
    return _load(root, parts, data, classes=classes)


def load_client_folders(data: Data) -> Dataset:
    """Load the images of several clients, ``DIR/<client>/<class>/*.png``, as ``load_folder`` does.

    A client's folder can have ``train`` and ``test`` above the classes. Without them, 80 % of each
    class are for training and 20 % for testing, always the same. Clients are owners in the order of
    their folders' names. A client need not have images of every class.
    """
    root = decoded.data_folder(data, "client-folders")
    clients = clients_of(root, "folder")
    training = [part_folders(root / name).get("train", root / name) for name in clients]
    classes = _outputs(data, training)
    parts: dict[str, Part] = {"train": [], "test": []}
    owners: dict[str, list[int]] = {"train": [], "test": []}
    for k, name in enumerate(clients):
        of_client = _parts(root / name, classes, data)
        if "test" not in of_client:
            if data.objective_of_files == "classes":
                check_classes_of(root / name, subfolders(root / name))
            y = strata(torch.tensor([c for _, c in of_client["train"]]))
            split = zip(parts, holdout(y, 0.2, rng(0, "folder", name)), strict=True)
            of_client = {
                part: [of_client["train"][i] for i in rows.tolist()] for part, rows in split
            }
        for part in parts:
            parts[part] += of_client[part]
            owners[part] += [k] * len(of_client[part])
    known = {"classes": classes, "owners": tuple(clients)}
    return _load(root, parts, data, "clients-", owners, **known)


def _load(
    root: Path,
    parts: Mapping[str, Part],
    data: Data,
    kind: str = "",
    owner: Mapping[str, list[int]] | None = None,
    **known: tuple[str, ...],
) -> Dataset:
    """Return the data set of the images of each part, which are decoded at most once.

    ``kind``: see ``decoded.cached``. ``owner``: of each image by part. ``known``: the
    classes and the names of the owners.
    """
    paths = [path for part in parts.values() for path, _ in part]
    objective = data.objective_of_files
    dtype = torch.int64 if objective == "classes" else torch.float32
    upright, size = data.images == "upright", data.image_size
    images = decoded.cached(
        root,
        paths,
        size,
        lambda: decode(parts, size, upright),
        kind=kind + "stored-" * (not upright),
    )
    tensors = {"account": images["account"]}
    for name, part in parts.items():
        suffix = "" if name == "train" else f"_{name}"
        tensors[f"x{suffix}"] = images[name]
        tensors[f"y{suffix}"] = torch.tensor([c for _, c in part], dtype=dtype)
        if owner is not None:
            tensors[f"owner{suffix}"] = torch.tensor(owner[name], dtype=torch.int64)
    sheets = [] if objective == "classes" else root.rglob(LABELS)
    return of_files(root, tensors, [*paths, *sheets], objective, **known)


def _parts(root: Path, classes: Sequence[str], data: Data) -> dict[str, Part]:
    """Return the files of the parts "train", "test" and "public" that exist.

    Raises ``ValueError`` without training images, or with a ``train`` but neither test nor valid.
    """
    folders = part_folders(root)
    train, valid, test = folders.get("train", root), folders.get("valid"), folders.get("test")
    parts = {"train": listed(train, classes, data)}
    if not parts["train"]:
        raise ValueError(f"{train}: no images")
    if train == root:
        return parts
    if test is None or (valid is not None and (valid / ANNOTATIONS).is_file()):
        valid, test = None, valid  # TinyImageNet: the test images have no labels
    if test is None:
        why = "there is a train folder, but no test folder"
        raise ValueError(f"{root}: {why}, neither test nor valid")
    parts["test"] = listed(test, classes, data)
    return parts if valid is None else {**parts, "public": listed(valid, classes, data)}


def listed(folder: Path, classes: Sequence[str], data: Data) -> Part:
    """Return every image inside ``folder/<class>``, in order of class and path.

    With labels or numbers: every image inside ``folder``, in order of path.
    """
    if data.objective_of_files != "classes":
        return _labelled(folder, classes, data)
    if (folder / ANNOTATIONS).is_file():
        return _annotated(folder, classes)
    names = subfolders(folder)
    if unknown := sorted(names - set(classes)):
        raise ValueError(f"{folder / unknown[0]}: class {unknown[0]!r} has no training folder")
    return [
        (path, c)
        for c, name in enumerate(classes)
        if name in names
        for path in sorted(_images(str(folder / name), data))
    ]


def _outputs(data: Data, folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the classes of the folders, or the labels or numbers of their ``labels.csv``."""
    if data.objective_of_files != "classes":
        return _targets(Sheet(folders[0] / LABELS), data)
    classes = tuple(sorted({name for folder in folders for name in subfolders(folder)}))
    if len(classes) < 2:
        where = str(folders[0]) if len(folders) == 1 else f"{folders[0]} and others"
        advice = f"; set data.objective to 'labels' or 'number' to read {LABELS}"
        hint = advice if (folders[0] / LABELS).is_file() else ""
        raise ValueError(f"{where}: {len(classes)} class folders, at least 2 are needed{hint}")
    return classes


def _targets(sheet: Sheet, data: Data) -> tuple[str, ...]:
    """Return the columns of labels or numbers: ``data.label_columns``, else all but ``file``."""
    wanted = ("file", *data.label_columns)
    if missing := [name for name in wanted if name not in sheet.header]:
        raise ValueError(
            f"{sheet.path}: no column {missing[0]!r}; there are {', '.join(sheet.header)}"
        )
    left = unused(sheet.header, wanted, data.ignore_columns, sheet.path)
    others = tuple(name for name in sheet.header if name != "file" and name not in left)
    if not others:
        raise ValueError(f"{sheet.path}: no column of labels or numbers besides 'file'")
    return data.label_columns or others


def _labelled(folder: Path, targets: Sequence[str], data: Data) -> Part:
    """Return every image inside ``folder``, in order of path, with its row of ``labels.csv``.

    Raises ``ValueError``, one line, unless each image has one row and each row an image.
    """
    sheet, rows = Sheet(folder / LABELS), dict[str, tuple[int, list[float]]]()
    if _targets(sheet, data) != tuple(targets):
        raise ValueError(f"{sheet.path}: its columns are not {', '.join(targets)}")
    images = sorted(_images(str(folder), data))
    known = {os.path.relpath(path, folder) for path in images}
    for first, columns in sheet.blocks():
        y = sheet.targets(columns, targets, first, data.objective_of_files)
        for i, name in enumerate(columns[sheet.header.index("file")], first):
            path = os.path.normpath(str(name).strip())
            if path not in known:
                why = "does not exist" if not (folder / path).exists() else "is no image to read"
                raise ValueError(f"{sheet.path}: row {i}: {str(name)!r} {why} in {folder}")
            if path in rows:
                raise ValueError(f"{sheet.path}: row {i}: row {rows[path][0]} has {path!r} too")
            rows[path] = i, y[i - first].tolist()
    if missing := sorted(known - rows.keys()):
        raise ValueError(f"{sheet.path}: {len(missing)} images have no row, such as {missing[0]!r}")
    return [(path, rows[os.path.relpath(path, folder)][1]) for path in images]


def _annotated(folder: Path, classes: Sequence[str]) -> Part:
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


def _images(folder: str, data: Data) -> Iterator[str]:
    more = (*UPRIGHT, *SEVERAL) if data.images == "upright" else ()
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith((*SUFFIXES, *more)) and name[0] != ".":
                path = _file(os.path.join(parent, name))
                if not (name.lower().endswith(SEVERAL) and _frames(path) > 1):
                    yield path


def _frames(path: str) -> int:
    with _opened(path) as image:
        return int(getattr(image, "n_frames", 1))


def _file(path: str) -> str:
    """Return ``path`` if opening it cannot block.

    Raises ``ValueError`` for a named pipe, a socket or a device, also behind a link.
    """
    with suppress(OSError):  # a missing or unreadable file raises later, where it is read
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(f"{path}: not a regular file")
    return path


def decode(parts: Mapping[str, Part], size: int, upright: bool) -> dict[str, Tensor]:
    """Return uint8 images (N, C, H, W) for each part, and the account of sizes and modes."""
    paths = {name: [path for path, _ in part] for name, part in parts.items()}
    everything = [path for part in paths.values() for path in part]
    headers = [_header(path, upright) for path in everything]
    grey = all(mode in GREY for mode, _ in headers)
    first = everything[0]
    expected = (size, size) if size else headers[0][1]
    kinds = Counter(f"{width}×{height} {mode}" for mode, (width, height) in headers)
    out = {"account": Account(images=dict(kinds.most_common())).packed()}
    for name, part in paths.items():
        images = np.empty((len(part), 1 if grey else 3, expected[1], expected[0]), dtype=np.uint8)
        for row, path in zip(images, part, strict=True):
            pixels = _pixels(path, "L" if grey else "RGB", size, upright)
            if pixels.shape[1:] != row.shape[1:]:
                raise ValueError(
                    f"images differ in size ({path} is {pixels.shape[2]}×{pixels.shape[1]}, "
                    f"{first} is {expected[0]}×{expected[1]}): set data.image-size"
                )
            row[:] = pixels
        out[name] = torch.from_numpy(images)
    return out


def _header(path: str, upright: bool) -> tuple[str, tuple[int, int]]:
    """Return PIL mode and (width, height), without decoding the pixels."""
    with _opened(path) as image:
        width, height = image.size
        if upright and image.format != "TIFF" and _orientation(image) in TURNED:
            width, height = height, width
        mode = "L" if upright and _is_grey_gif(image) else image.mode
        return mode, (width, height)  # Pillow turns the size of TIFF files itself


def _is_grey_gif(image: Image.Image) -> bool:
    """Return whether an image is a GIF with only grey in its palette; it has no mode for grey."""
    if image.format != "GIF" or image.mode != "P":
        return False
    colours = image.getpalette() or []
    return colours[::3] == colours[1::3] == colours[2::3]


def _orientation(image: Image.Image) -> int:
    value = image.getexif().get(ExifTags.Base.Orientation, 1)
    return value if isinstance(value, int) else 1


def _pixels(path: str, mode: str, size: int, upright: bool) -> np.ndarray:
    """Return uint8 (C, H, W), resized bilinearly to size × size unless ``size`` is 0."""
    with _opened(path) as image:
        image.load()  # it turns a TIFF file, and removes its orientation
        turned = upright and _orientation(image) != 1
        return as_bytes(ImageOps.exif_transpose(image) if turned else image, mode, size)


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """Open an image; turn the decoder's exceptions into a one-line ``ValueError`` with the path.

    A TIFF file is opened without its name, because Pillow 13 maps an uncompressed one into memory
    with the width and height swapped if its orientation swaps them.
    """
    try:
        nameless = path.lower().endswith(SEVERAL)
        with open(path, "rb") as file, Image.open(file if nameless else path) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not a readable image ({error})") from error


def as_bytes(image: Image.Image, mode: str, size: int) -> np.ndarray:
    """Return uint8 (C, H, W) of an opened image; raise ``ValueError`` for more than 8 bits."""
    if image.mode in DEEP:
        raise ValueError("more than 8 bits per channel")
    picture = image.convert(mode)
    if size and picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(picture.height, picture.width, -1).transpose(2, 0, 1)
