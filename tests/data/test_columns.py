"""CSV files: tables, and windows of signals."""

import importlib
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from common.data import Dataset, load
from common.data.columns import load_csv, windows
from common.data.overview import overview
from common.settings.config import Data

Options = Callable[..., Data]
Csv = Callable[..., Dataset]
HEADER = "ax,ay,label,who"


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def recording(label: str, rows: int, who: str = "a", first: int = 0) -> list[str]:
    """Rows whose first value counts up, the second is its half."""
    return [f"{i},{i / 2},{label},{who}" for i in range(first, first + rows)]


@pytest.fixture
def csv(options: Options, tmp_path: Path) -> Csv:
    """``csv(window=10)``: the data set of the CSV files in ``tmp_path``."""
    return lambda **changes: load(
        options(**{"name": "csv", "dir": str(tmp_path), "owner_column": "who", **changes})
    )


def table(folder: Path) -> Path:
    """30 rows of three classes, of owners ``p2`` and ``p10``."""
    rows = [f"{i},{-i},{['run', 'walk', 'sit'][i % 3]},p{(2, 10)[i % 2]}" for i in range(30)]
    write(folder / "train.csv", rows)
    return folder


def test_rows_of_a_table_are_samples(csv: Csv, tmp_path: Path) -> None:
    table(tmp_path)
    data = csv()
    assert data.kind.name == "table" and data.shape == (2,)
    assert data.classes == ("run", "sit", "walk")
    assert len(data.y) + len(data.y_test) == 30
    both = torch.cat([data.x, data.x_test])
    assert both[:, 0].sort().values.tolist() == [float(i) for i in range(30)]
    assert torch.equal(both[:, 1], -both[:, 0])
    owner = torch.cat([data.owner, data.owner_test])  # p2 before p10
    assert torch.equal(owner, both[:, 0].long() % 2)
    assert torch.bincount(data.owner_test * 3 + data.y_test).tolist() == [1] * 6
    expected = torch.tensor([0, 2, 1])[both[:, 0].long() % 3]
    assert torch.equal(torch.cat([data.y, data.y_test]), expected)


def test_a_test_file_is_the_test_set_and_integers_are_classes(csv: Csv, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ["1,2,10,a", "3,4,9,a"])
    write(tmp_path / "test.csv", ["5,6,9,b"])
    data = csv()
    assert data.classes == ("9", "10") and data.y.tolist() == [1, 0]
    assert data.x_test.tolist() == [[5.0, 6.0]] and data.y_test.tolist() == [0]
    assert data.owner is not None and data.owner_test is None  # b has no training samples
    write(tmp_path / "train.csv", ["1,2,10,c", "3,4,9,c"])
    assert csv(seed=2).owner.tolist() == [0, 0] and csv(seed=2).account.owners == ("c",)
    write(tmp_path / "test.csv", ["1,2,run,a"], "ax,az,label,who")
    with pytest.raises(ValueError, match=r"test.csv: its columns are ax, az, .* are ax, ay,"):
        csv(seed=1)


def test_windows_are_of_one_recording_and_none_crosses_the_cut(csv: Csv, tmp_path: Path) -> None:
    rows = recording("walk", 50) + recording("run", 50, first=100) + recording("walk", 50, "b", 200)
    write(tmp_path / "train.csv", rows)
    data = csv(window=10, stride=5)
    assert data.kind.name == "signal" and data.shape == (2, 10)
    assert data.x[:, 0, 0].tolist() == [*range(0, 35, 5), *range(100, 135, 5), *range(200, 235, 5)]
    assert data.x_test[:, 0, 0].tolist() == [40, 140, 240]
    assert torch.equal(data.x[:, 1], data.x[:, 0] / 2)
    assert bool((data.x[:, 0].diff(dim=1) == 1).all())
    assert data.y.tolist() == [1] * 7 + [0] * 7 + [1] * 7
    assert data.owner.tolist() == [0] * 14 + [1] * 7
    assert torch.equal(csv(window=10).x, data.x)  # half a window is the default
    rows = np.arange(14.0).reshape(7, 2)
    assert windows(rows, 4, 3).tolist() == [
        [[0, 2, 4, 6], [1, 3, 5, 7]],
        [[6, 8, 10, 12], [7, 9, 11, 13]],
    ]
    assert windows(rows, 8).shape == (0, 2, 8)


def test_a_folder_of_files_per_client(options: Options, tmp_path: Path) -> None:
    for client, first in (("h10", 0), ("h2", 1000)):
        for name, label, start in (("a", "walk", first), ("b", "run", first + 100)):
            rows = [f"{i},{i / 2},{label}" for i in range(start, start + 40)]
            write(tmp_path / client / f"{name}.csv", rows, "ax,ay,label")
    data = load(options(name="client-csv", dir=str(tmp_path), window=8, stride=8))
    assert data.owners == 2 and data.owner_test is not None
    starts = [*range(1000, 1032, 8), *range(1100, 1132, 8)]
    assert data.x[data.owner == 0][:, 0, 0].tolist() == starts
    assert data.x_test[data.owner_test == 1][:, 0, 0].tolist() == [32, 132]
    (tmp_path / "h3" / "train").mkdir(parents=True)
    with pytest.raises(ValueError, match="h2: there is no train folder, but other clients have"):
        load(options(name="client-csv", dir=str(tmp_path), window=9))


@pytest.mark.parametrize(
    ("rows", "settings", "line"),
    [
        (["1,x,run,a"], {}, "train.csv: row 1, column 'ay': 'x' is not a finite number"),
        (["1,2,run,a", "1,nan,run,a"], {}, "row 2, column 'ay': 'nan' is not a finite number"),
        (["1,1e99,run,a"], {}, "row 1, column 'ay': '1e99' is not a finite number"),
        (["1,2,run"], {}, "train.csv: row 1 has 3 values for 4 columns"),
        (["1,2,,a"], {}, "train.csv: row 1 has no 'label'"),
        (["1,2,0.5,a", "1,2,1,a"], {}, "the label '0.5' is no class; to learn numbers, set"),
        (["1,2,run,a"], {"label_column": "y"}, "no column 'y'; data.label-column should be one"),
        (["1,2,run,a"], {"owner_column": "y"}, "no column 'y'; data.owner-column should be one of"),
        (recording("run", 9), {"window": 10}, "no 10 rows in a row have one class"),
        (["1,2,run,a"], {"kind": "signal"}, "set data.window, the rows of a signal"),
        (["1,2,run,a"], {"kind": "image"}, "data.kind = 'image' is not allowed with data.window"),
    ],
)
def test_a_wrong_file_is_one_line(csv, tmp_path, rows, settings, line) -> None:
    write(tmp_path / "train.csv", rows)
    with pytest.raises(ValueError, match=line) as refused:
        csv(**settings)
    assert "\n" not in str(refused.value)


def test_classes_that_a_client_lacks_are_in_classes_txt(csv: Csv, tmp_path: Path) -> None:
    write(table(tmp_path).parent / "unused.csv", [])
    names = tmp_path / "classes.txt"
    names.write_text("sit\nwalk\nrun\nswim\n", encoding="utf-8")
    for partition in ("own", "iid"):
        assert csv(partition=partition).classes == ("sit", "walk", "run", "swim")
    for seed, (text, line) in enumerate(
        (
            ("sit\nwalk\n", "classes.txt: class 'run' of the data is not in it"),
            ("sit\nwalk\nrun\nwalk\n", "classes.txt: class 'walk' is in it more than once"),
        ),
        1,
    ):
        names.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=line):
            csv(seed=seed)


def test_row_numbers_and_ignored_columns_are_no_features(csv: Csv, tmp_path: Path) -> None:
    rows = [f"{i},{i},{i % 7},{i},{'ab'[i > 19]},u" for i in range(40)]
    write(tmp_path / "train.csv", rows, ",Unnamed: 0,x,id,label,who")
    data = csv(ignore_columns=" id ")
    assert data.shape == (1,) and data.account.features == ("x",)
    assert data.account.unused.keys() == {"", "Unnamed: 0", "id"}
    assert data.account.unused["id"] == "data.ignore-columns"
    assert csv(owner_column="x", ignore_columns="who").owners == 7
    with pytest.raises(ValueError, match="data.ignore-columns names 'ID'; the columns are , Unnam"):
        csv(ignore_columns="ID")
    with pytest.raises(ValueError, match="two columns are called 'x'"):
        write(tmp_path / "train.csv", rows, "x,y,x,id,label,who")
        csv(seed=1)


@pytest.mark.parametrize(
    ("separator", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ",")]
)
def test_separators_and_decimal_commas(csv: Csv, tmp_path: Path, separator, decimal) -> None:
    values = [[f"{i}.5", f"-{i}.25", "ab"[i % 2], "u"] for i in range(20)]
    rows = [separator.join([x.replace(".", decimal) for x in row[:2]] + row[2:]) for row in values]
    path = write(tmp_path / "train.csv", rows, HEADER.replace(",", separator))
    data = csv()
    assert data.x.sum() + data.x_test.sum() == sum(0.25 for _ in range(20))
    assert bool(data.account.notes) is (decimal == ",")
    if decimal == ",":
        path.write_text(path.read_text() + separator.join(["1.5", "2", "a", "u"]) + "\n")
        line = r"row 1, column 'ax': '0,5' has a decimal comma, but row 21, column 'ax': '1.5'"
        with pytest.raises(ValueError, match=line):
            csv(seed=1)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["0", "0.0", "1", "1."], ("0", "1")),
        (["yes ", "no", "yes", " no"], ("no", "yes")),
        (["Yes", "no", "yes", "no"], "row 3, column 'label': 'yes' looks like 'Yes' .row 1.; use"),
        (["01", "2", "1", "2"], "row 3, column 'label': '1' looks like '01' .row 1.; use one"),
        (["a", "NaN", "a", "b"], "row 2 has no 'label'; 'NaN' is a missing value"),
        (["a", "b", "", "b"], "row 3 has no 'label'"),
    ],
)
def test_a_class_has_one_spelling(csv: Csv, tmp_path: Path, labels, classes) -> None:
    write(tmp_path / "train.csv", [f"{i},0,{label},u" for i, label in enumerate(labels * 2)])
    if isinstance(classes, tuple):
        assert csv().classes == classes
        return
    with pytest.raises(ValueError, match=f"train.csv: {classes}"):
        csv()
    names = dict.fromkeys(label.strip() for label in labels if label)
    (tmp_path / "classes.txt").write_text("\n".join(names))
    if "" not in labels:  # what the user lists may look alike
        assert csv(partition="own").classes == tuple(names)


def test_owners_are_complete_and_a_number_is_no_class(csv: Csv, tmp_path: Path) -> None:
    owners = ["1", "1.0", "A", "a"]
    write(tmp_path / "train.csv", [f"{i},0,{'xy'[i % 2]},{owners[i % 4]}" for i in range(40)])
    data = csv()
    assert data.account.owners == ("1", "A", "a")
    assert data.account.notes == ("'A' and 'a' are two owners (row 3)",)
    write(tmp_path / "train.csv", ["1,2,x,a", "1,2,x,"])
    with pytest.raises(ValueError, match="train.csv: row 2 has no 'who'"):
        csv(seed=1)
    write(tmp_path / "train.csv", [f"{i},0,{i % 41},a" for i in range(60)])
    with pytest.raises(ValueError, match="41 different numbers in 60 samples are no classes"):
        csv(seed=2)
    write(tmp_path / "train.csv", [f"{i},0,{i % 30},a" for i in range(60)])
    assert csv(seed=3).num_classes == 30


def test_parts_in_any_case_and_files_that_are_not_read(csv: Csv, tmp_path: Path) -> None:
    write(tmp_path / "Training.CSV", ["1,2,x,a", "3,4,y,a"])
    write(tmp_path / "Validation.tsv", ["5\t6\tx\ta"], HEADER.replace(",", "\t"))
    assert csv().x_test.tolist() == [[5, 6]]
    write(tmp_path / "testing.csv", ["7,8,x,a"])
    write(tmp_path / "raw" / "notes.txt", [])
    data = csv(seed=1)
    assert data.x_test.tolist() == [[7, 8]]
    assert data.account.ignored == {".tsv": (1, "Validation.tsv"), ".txt": (1, "raw/notes.txt")}
    write(tmp_path / "train.csv", [])
    with pytest.raises(ValueError, match="train.csv: 'Training.CSV' is the same part"):
        csv(seed=2)
    with pytest.raises(ValueError, match="'train' is a part of a data set, not a client; .* 'csv'"):
        write(tmp_path / "clients" / "train" / "a.csv", ["1,2,x,a"])
        csv(name="client-csv", dir=str(tmp_path / "clients"))


def test_parquet_is_read_like_csv_and_needs_an_extra(csv: Csv, tmp_path: Path, monkeypatch) -> None:
    rows = [f"{i},{i / 4},{i % 3},{'ab'[i % 2]}" for i in range(30)]
    write(tmp_path / "train.csv", rows)
    (folder := tmp_path / "parquet").mkdir()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (folder / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"pip install 'fedmosaic\[hub\]'"):
        csv(dir=str(folder))
    monkeypatch.undo()
    pyarrow: ModuleType = pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="train.parquet: not readable as Parquet"):
        csv(dir=str(folder))
    columns = [*zip(*(row.split(",") for row in rows), strict=True)]
    numbers = {"ax": [*map(int, columns[0])], "ay": [*map(float, columns[1])]}
    labels = {
        "label": [*map(float, columns[2])],
        "who": columns[3],
        "__index_level_0__": columns[0],
    }
    table = pyarrow.table(numbers | labels)
    importlib.import_module("pyarrow.parquet").write_table(table, folder / "train.parquet")
    same, other = csv(), csv(dir=str(folder), seed=1)
    assert same.classes == other.classes == ("0", "1", "2")
    assert torch.equal(same.x, other.x) and torch.equal(same.owner, other.owner)
    holes = table.set_column(1, "ay", pyarrow.array([None, *numbers["ay"][1:]]))
    importlib.import_module("pyarrow.parquet").write_table(holes, folder / "train.parquet")
    with pytest.raises(ValueError, match="row 1, column 'ay': an empty value is not a finite numb"):
        csv(dir=str(folder), seed=2)


def test_a_file_is_read_in_at_most_four_times_its_size(options: Options, tmp_path: Path) -> None:
    draw = np.random.default_rng(0).normal(size=(20_000, 10))
    rows = [",".join(f"{v:.4f}" for v in row) + f",c{i % 3}" for i, row in enumerate(draw)]
    path = write(tmp_path / "train.csv", rows, ",".join("abcdefghij") + ",label")
    data = options(name="csv", dir=str(tmp_path))
    tracemalloc.start()
    try:
        dataset = load_csv(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(dataset.x) + len(dataset.x_test) == len(rows)
    assert peak < 4 * path.stat().st_size


def test_copies_are_counted(csv: Csv, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ["1,2,x,a", "1,2,x,a", "3,4,y,a"])
    write(tmp_path / "test.csv", ["1,2,x,a", "5,6,x,a", "5,6,x,a"])
    found = overview(csv())
    assert (found.copies, found.leaked) == (1, 1)
    assert found.classes == (("x", 2, 3), ("y", 1, 0))
    one_class, leaked = found.warnings()
    assert "'x'" in one_class and leaked.startswith("1 of 3 test samples are training samples")
