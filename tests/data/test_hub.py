"""Hugging Face data sets from a folder, without a network."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from common.data import Dataset, decoded, load
from common.settings.config import Data

Hub = Callable[..., Dataset]
datasets: Any = pytest.importorskip("datasets")
NAMES = ["cat", "dog", "emu"]


def table(n: int, *, hospitals: list[str] | None = None, **columns: tuple[Any, Any]) -> Any:
    """Grey images 0, 1, 2, …, labelled in turn; ``columns``: values and kinds of further ones."""
    known = {
        "picture": ([Image.new("L", (6, 6), i) for i in range(n)], datasets.Image()),
        "animal": ([i % 3 for i in range(n)], datasets.ClassLabel(names=NAMES)),
        "row": (list(range(n)), datasets.Value("int64")),
        **({"hospital": (hospitals, datasets.Value("string"))} if hospitals else {}),
        **columns,
    }
    return of_columns(known)


def of_columns(columns: dict[str, tuple[Any, Any]]) -> Any:
    content = {name: values for name, (values, _) in columns.items()}
    features = datasets.Features({name: kind for name, (_, kind) in columns.items()})
    return datasets.Dataset.from_dict(content, features=features)


def saved(folder: Path, **parts: Any) -> Path:
    datasets.disable_progress_bars()
    datasets.DatasetDict(parts).save_to_disk(str(folder))
    return folder


@pytest.fixture
def hub(options: Callable[..., Data]) -> Hub:
    """``hub(folder, label_column="x")``: the data set saved in a folder."""
    return lambda folder, **changes: load(options(name="hub", dir=str(folder), **changes))


def test_columns_are_found_by_their_features_and_owners_by_name(hub: Hub, tmp_path: Path) -> None:
    train = table(9, hospitals=["h10", "h2", "h2"] * 3)
    folder = saved(tmp_path / "animals", train=train, test=table(6, hospitals=["h2"] * 6))
    data = hub(folder)
    assert (data.name, data.classes, data.shape) == ("animals", tuple(NAMES), (1, 6, 6))
    assert data.x[:, 0, 0, 0].tolist() == list(range(9)) and data.x.dtype == torch.uint8
    assert data.y_test.tolist() == [0, 1, 2] * 2 and data.owner is None
    owned = hub(folder, owner_column="hospital")
    assert owned.owner.tolist() == [1, 0, 0] * 3 and owned.owner_test.tolist() == [0] * 6
    assert hub(folder, image_size=4).shape == (1, 4, 4)
    with pytest.raises(ValueError, match="no column 'clinic' with owners; there are picture"):
        hub(folder, owner_column="clinic")


def numbers(n: int, **columns: tuple[Any, Any]) -> Any:
    """Rows of two numbers, labelled in turn, and further columns."""
    known = {
        "ax": ([float(i) for i in range(n)], datasets.Value("float32")),
        "ay": ([10 * i for i in range(n)], datasets.Value("int64")),
        "move": ([i % 3 for i in range(n)], datasets.ClassLabel(names=NAMES)),
        "who": (["b", "a", "a"] * (n // 3), datasets.Value("string")),
    }
    return of_columns({**known, **columns})


def test_columns_of_numbers_are_a_table_and_lists_what_data_kind_says(hub, tmp_path) -> None:
    folder = saved(tmp_path / "moves", train=numbers(6), test=numbers(3))
    data = hub(folder, owner_column="who")
    assert data.kind.name == "table" and data.classes == tuple(NAMES)
    assert data.x.tolist() == [[i, 10 * i] for i in range(6)]
    assert data.owner is not None and data.owner.tolist() == [1, 0, 0] * 2
    missing = numbers(6, ay=([None] * 6, datasets.Value("int64")))
    broken = saved(tmp_path / "broken", train=missing, test=numbers(3))
    with pytest.raises(ValueError, match="broken: sample 0 has no 'ay'"):
        hub(broken)
    kind = datasets.Array2D((2, 4), "float32")
    signals = [[[i, 1, 2, 3], [4, 5, 6, i]] for i in range(6)]
    parts = [numbers(n, signal=(signals[:n], kind)) for n in (6, 3)]
    folder = saved(tmp_path / "signals", train=parts[0], test=parts[1])
    data = hub(folder, kind="signal")
    assert data.shape == (2, 4) and data.x[5].tolist() == [[5, 1, 2, 3], [4, 5, 6, 5]]
    with pytest.raises(ValueError, match=r"signals: x has the shape \(6, 2, 4\), .* set data.kind"):
        hub(folder)


def test_column_names_decide_the_cached_copy_but_not_its_folder(hub, tmp_path, monkeypatch) -> None:
    kind = datasets.ClassLabel(names=NAMES)
    other = {name: [2 - i % 3 for i in range(9)] for name in ("animal-hospital", "x/../../../y")}
    classes = {name: (values, kind) for name, values in other.items()}
    part = table(9, hospitals=["a"] * 9, **classes)  # three columns of classes
    folder = saved(tmp_path / "animals", train=part, test=part)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(decoded, "SMALL", 0)
    known = {*tmp_path.rglob("*")}
    owned = hub(folder, label_column="animal", owner_column="hospital")
    for name in other:
        assert hub(folder, label_column=name).y.tolist() == other[name]
    assert owned.y.tolist() == [0, 1, 2] * 3
    copies = [path for path in {*tmp_path.rglob("*")} - known if path.is_file()]
    assert {path.parent for path in copies} == {tmp_path / "cache" / "fedmosaic" / "decoded"}
    assert len(copies) == 3


def test_a_test_of_strangers_is_nobodys_and_a_single_table_is_cut_four_to_one(hub, tmp_path):
    parts = {"train": table(6, hospitals=["a", "b"] * 3), "test": table(3, hospitals=["c"] * 3)}
    folder = saved(tmp_path / "strangers", **parts)
    data = hub(folder, owner_column="hospital")
    assert data.owners == 2 and data.owner_test is None
    table(30, hospitals=["a", "b", "c"] * 10).save_to_disk(str(tmp_path / "single"))
    single = hub(tmp_path / "single", owner_column="hospital")
    assert torch.bincount(single.y).tolist() == [8] * 3 and len(single.y_test) == 6
    assert single.owner is not None and single.owner.equal(single.y)


def test_what_is_ambiguous_missing_or_damaged_is_one_line(hub: Hub, tmp_path: Path) -> None:
    part = table(6, kind=([0] * 6, datasets.ClassLabel(names=["a"])))
    two = saved(tmp_path / "two", train=part, test=part)
    assert hub(two, label_column="animal").num_classes == 3
    unnamed = table(6).remove_columns("animal")
    cut = saved(tmp_path / "cut", train=table(6), test=table(6))
    (arrow,) = (cut / "train").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:200])
    cases = [
        (two, {}, "two: 2 label columns, one is needed; choose with data.label-column; there are"),
        (two, {"label_column": "picture"}, "two: column 'picture' holds no classes .for labels or"),
        (two, {"label_column": "breed"}, "two: column 'breed' holds no classes .for labels or"),
        (saved(tmp_path / "u", train=unnamed, test=unnamed), {}, "u: 0 label columns"),
        (saved(tmp_path / "t", train=table(6), more=table(6)), {}, "no split 'test'; it has train"),
        (cut, {}, "cut: damaged or not saved by save_to_disk"),
        (tmp_path, {}, "damaged or not saved by save_to_disk"),
    ]
    for folder, changes, line in cases:
        with pytest.raises(ValueError, match=line) as refused:
            hub(folder, **changes)
        assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


def test_without_the_extra_the_command_that_installs_it_is_told(hub, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"datasets is not .*: pip install 'fedmosaic\[hub\]'"):
        hub(tmp_path)


def referring(
    patch: pytest.MonkeyPatch, folder: Path, paths: list[str], **columns: tuple[Any, Any]
) -> Path:
    """A data set whose images are paths instead of bytes, as no ``save_to_disk`` writes it."""
    patch.setattr(datasets.Image, "embed_storage", lambda self, stored, **_: stored)
    patch.setattr(datasets.Dataset, "_estimate_nbytes", lambda self: 0)
    stored = [{"bytes": None, "path": path} for path in paths]
    part = table(len(paths), picture=(stored, datasets.Image()), **columns)
    return saved(folder, train=part, test=part)


def test_images_in_files_of_the_folder_are_read(hub, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "named"
    referring(monkeypatch, folder, [f"images/{i}.png" for i in range(6)])
    (folder / "images").mkdir()
    for i in range(6):
        Image.new("L", (6, 6), 10 * i).save(folder / "images" / f"{i}.png")
    assert hub(folder).x[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize("place", ["http", "absolute", "above", "link", "pipe", "device", "none"])
def test_images_outside_of_the_folder_are_never_opened(place, hub, tmp_path, monkeypatch) -> None:
    Image.new("L", (6, 6), 9).save(tmp_path / "secret.png")
    folder = tmp_path / "data"
    names = {"http": "http://127.0.0.1:9/x.png", "absolute": str(tmp_path / "secret.png")}
    names |= {"above": "../secret.png", "device": "/dev/zero", "none": ""}
    referring(monkeypatch, folder, [names.get(place, "x.png")] * 6)
    if place == "link":
        (folder / "x.png").symlink_to(tmp_path / "secret.png")
    if place == "pipe":
        os.mkfifo(folder / "x.png")
    line = {"http": "cannot be read", "pipe": "not a regular file", "none": "neither bytes nor a"}
    opened = []
    monkeypatch.setattr("socket.socket.connect", lambda *to: opened.append(to))
    with pytest.raises(ValueError, match=line.get(place, "is outside of")) as refused:
        hub(folder)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value) and not opened


@pytest.mark.parametrize("kind", ["above", "pipe", "split"])
def test_files_of_the_table_outside_of_the_folder_are_never_opened(kind, hub, tmp_path) -> None:
    folder = saved(tmp_path / "data", train=table(6), test=table(6))
    (arrow,) = (folder / "train").glob("*.arrow")
    if kind == "pipe":
        arrow.unlink()
        os.mkfifo(arrow)
    elif kind == "above":
        state = folder / "train" / "state.json"
        arrow.rename(tmp_path / "other.arrow")
        state.write_text(state.read_text().replace(arrow.name, "../../other.arrow"))
    else:
        (folder / "train").rename(tmp_path / "train")
        (folder / "dataset_dict.json").write_text('{"splits": ["../train", "test"]}')
    line = "not a regular file" if kind == "pipe" else "is outside of"
    with pytest.raises(ValueError, match=line) as refused:
        hub(folder)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


def test_other_columns_are_not_decoded(hub, tmp_path, monkeypatch) -> None:
    row = ([None] * 6, datasets.Image())
    folder = referring(monkeypatch, tmp_path / "data", ["x.png"] * 6, row=row)
    with pytest.raises(ValueError, match="2 image columns, one is needed"):
        hub(folder)
    unlike = ([1] * 6, datasets.Value("int64"))
    null = ([0, None] * 3, datasets.ClassLabel(names=NAMES))
    for name, test, line in (
        ("unlike", table(6, picture=unlike), "the test split has other columns: picture .Value."),
        ("less", table(6).remove_columns("animal"), "the test split has other columns: picture"),
        ("null", table(6, animal=null), "sample 1 has no 'animal'"),
        ("owner", table(6, row=row), "the test split has other columns: picture .Image.*row .Ima"),
    ):
        with pytest.raises(ValueError, match=line):
            hub(saved(tmp_path / name, train=table(6), test=test), owner_column="row")
    with pytest.raises(ValueError, match="no column 'picture' with owners"):
        hub(saved(tmp_path / "two", train=table(6), test=table(6)), owner_column="picture")


def test_labels_can_be_integers_or_texts_and_a_split_called_validation(hub, tmp_path) -> None:
    texts = numbers(9, label=(["b", "a", "c"] * 3, datasets.Value("string")))
    texts = texts.remove_columns("move")
    folder = saved(tmp_path / "texts", train=texts, validation=texts, extra=texts)
    data = hub(folder)
    assert data.classes == ("a", "b", "c") and data.y.tolist() == [1, 0, 2] * 3
    assert data.y_test.tolist() == data.y.tolist()
    assert "split 'extra' is not read: 9 samples" in data.account.notes
    several = [f"{i}" for i in (3, 1, 10)] * 3
    integers = texts.add_column("target", list(map(int, several)))
    folder = saved(tmp_path / "integers", train=integers, validation=texts, test=integers)
    data = hub(folder, label_column="target", ignore_columns="ay")
    assert data.classes == ("1", "3", "10") and data.y.tolist() == [1, 0, 2] * 3
    assert data.account.features == ("ax",) and "ay" in data.account.unused
    assert "columns of other types are not read: who, label" in data.account.notes
    holes = numbers(9, label=(["b", None, "c"] * 3, datasets.Value("string")))
    with pytest.raises(ValueError, match="sample 1 has no 'label'"):
        hub(saved(tmp_path / "holes", train=holes, test=holes), label_column="label")


def test_parquet_files_of_the_parts_are_read(hub, tmp_path) -> None:
    folder = tmp_path / "animals"
    (folder / "data").mkdir(parents=True)
    for name, n in (("train-00000-of-00002", 9), ("train-00001-of-00002", 3), ("test", 6)):
        table(n).to_parquet(folder / "data" / f"{name}.parquet")
    (folder / "README.md").write_text("")
    data = hub(folder)
    assert (data.classes, data.shape, len(data.y)) == (tuple(NAMES), (1, 6, 6), 12)
    assert len(data.y_test) == 6 and data.account.ignored == {".md": (1, "README.md")}
