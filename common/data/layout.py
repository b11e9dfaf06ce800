"""Names of folders and files: parts of a data set, and layouts that are easily confused."""

from collections.abc import Iterable
from pathlib import Path

from common.files import in_order

PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "valid"),
}
"""Name of a folder or file, in any case, to the part of the data set in it."""


def subfolders(folder: Path) -> set[str]:
    """Return the names of the folders in ``folder``, without hidden ones."""
    return {p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != "."}


def by_part(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the path of each part, ``train``, ``test`` and ``valid``, by the name of the path.

    The suffix of a file does not count. Raises ``ValueError``, one line, for two paths of a part.
    """
    parts: dict[str, Path] = {}
    for path in sorted(paths):
        part = PARTS.get((path.name if path.is_dir() else path.stem).casefold())
        if part and parts.setdefault(part, path) != path:
            raise ValueError(f"{path}: {parts[part].name!r} is the same part; keep one of them")
    return parts


def part_folders(root: Path) -> dict[str, Path]:
    """Return the folders of parts in ``root`` as ``by_part`` does."""
    return by_part(root / name for name in subfolders(root))


def check_classes_of(root: Path, names: Iterable[str]) -> None:
    """Raise ``ValueError``, one line, if the folders ``names`` in ``root`` are no classes.

    They are parts without one for training, or all of them hold the same subfolders: then the
    classes are one level below or above.
    """
    inside = {name: subfolders(root / name) for name in sorted(names)}
    if odd := [name for name in inside if name.casefold() in PARTS and inside[name]]:
        raise ValueError(
            f"{root}: there is {odd[0]!r} but no folder 'train'; the layout is train/CLASS and "
            "test/CLASS"
        )
    first, *others = inside.values()
    if len(first) < 2 or not others or any(other != first for other in others):
        return  # TinyImageNet has one folder "images" in each class
    parts = {PARTS.get(name.casefold(), "") for name in first}
    fits = "data.name = 'client-folders' reads CLIENT/CLASS and CLIENT/train/CLASS"
    if all(parts) and not any(subfolders(root / n / part) for n in inside for part in first):
        fits = "put them above the class folders, as train/CLASS and test/CLASS"
    raise ValueError(
        f"{root}: the {len(inside)} class folders {', '.join(inside)[:80]} all hold the same "
        f"folders {', '.join(sorted(first))[:80]}, so they are no classes: {fits}"
    )


def clients_of(root: Path, layout: str) -> list[str]:
    """Return the names of the clients' folders in ``root``, in their order.

    ``layout``: the value of ``data.name`` for one data set in parts. Raises ``ValueError``, one
    line, if there is none, or if one of them is a part.
    """
    clients = sorted(subfolders(root), key=in_order)
    if not clients:
        raise ValueError(f"{root}: no client's folder in it")
    if odd := [name for name in clients if name.casefold() in PARTS]:
        raise ValueError(
            f"{root / odd[0]}: {odd[0]!r} is a part of a data set, not a client; for one data set "
            f"in parts set data.name to {layout!r}"
        )
    return clients
