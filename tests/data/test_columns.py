"""CSV files: tables, and windows of signals."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from common.data import Dataset, load
from common.data.columns import windows
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
        (["1,2,0.5,a", "1,2,1,a"], {}, "the label '0.5' is no class; regression is not supported"),
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
    for text, line in (
        ("sit\nwalk\n", "classes.txt: class 'run' of the data is not in it"),
        ("sit\nwalk\nrun\nwalk\n", "classes.txt: class 'walk' is in it more than once"),
    ):
        names.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=line):
            csv()
