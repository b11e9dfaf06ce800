"""Images of several clients: ``DIR/<client>/<class>/*.png``.

A client's folder may have ``train`` and ``test`` over the classes; without them 80 % of each class
train and 20 % are for testing, always the same. Clients are owners in the order of their folders'
names. A client need not have images of every class.
"""

from pathlib import Path

import torch

from common.config import Data
from common.data import decoded
from common.data.dataset import Dataset, holdout, measured
from common.data.folder import Part, listed, subfolders, tensors
from common.files import in_order
from common.seeds import rng


def load_client_folders(data: Data) -> Dataset:
    """The images of all clients; otherwise as :func:`common.data.folder.load_folder`."""
    root = decoded.given(data, "client-folders")
    clients = sorted(subfolders(root), key=in_order)
    if not clients:
        raise ValueError(f"{root}: no client's folder in it")
    classes = tuple(sorted({c for name in clients for c in subfolders(_training(root / name))}))
    if len(classes) < 2:
        raise ValueError(f"{root}: {len(classes)} class folders in all, at least 2 are needed")
    parts: dict[str, Part] = {"train": [], "test": []}
    owners: dict[str, list[int]] = {"train": [], "test": []}
    for k, name in enumerate(clients):
        for part, found in _parts(root / name, classes).items():
            parts[part] += found
            owners[part] += [k] * len(found)
    fields = tensors(root, parts, data.image_size, "clients-")
    for part, suffix in (("train", ""), ("test", "_test")):
        fields[f"owner{suffix}"] = torch.tensor(owners[part], dtype=torch.int64)
    return measured(root.name, classes, **fields)


def _training(folder: Path) -> Path:
    """Where a client's class folders are."""
    return folder / "train" if (folder / "train").is_dir() else folder


def _parts(folder: Path, classes: tuple[str, ...]) -> dict[str, Part]:
    """One client's images for training and testing.

    Raises ``ValueError`` for a client that has none to train on, or none set apart for testing.
    """
    train = listed(_training(folder), classes)
    if not train:
        raise ValueError(f"{_training(folder)}: no images")
    if _training(folder) == folder:
        y = torch.tensor([c for _, c in train])
        halves = holdout(y, 0.2, rng(0, "folder", folder.name))
        kept, apart = ([train[i] for i in half.tolist()] for half in halves)
        return {"train": kept, "test": apart}
    if not (folder / "test").is_dir():
        raise ValueError(f"{folder}: there is a train folder, but no test beside it")
    return {"train": train, "test": listed(folder / "test", classes)}
