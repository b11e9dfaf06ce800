"""Several labels, or numbers, in a user's own files and in plug-ins."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from common.data import Dataset, decoded, divide, load
from common.data.embedded import toy
from common.data.external import loader
from common.data.overview import overview
from common.settings.config import Data
from tests.support import outputs
from tests.support.data_files import write_npz

Load = Callable[..., Dataset]
ROWS = [
    f"{i},{-i},{i % 2},{('no', 'yes', 'TRUE')[i % 3]},{i / 4},p{(2, 10)[i % 2]}" for i in range(30)
]
HEADER = "ax,ay,cough,fever,dose,who"
AUTO = {"objective": "auto"}
DOSE = {"objective": "number", "label_column": "dose"}


@pytest.fixture
def read(options: Callable[..., Data], tmp_path: Path) -> Load:
    """``read("csv", objective="labels")``: the data set of the files in ``tmp_path``."""
    return lambda name, **changes: load(options(name=name, dir=str(tmp_path), **changes))


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def by_first(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y of all samples, in the order of the first column."""
    x, y = torch.cat([data.x, data.x_test]), torch.cat([data.y, data.y_test])
    order = x[:, 0].argsort()
    return x[order], y[order]


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_several_columns_of_a_table_are_labels_or_numbers(read: Load, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS)
    (tmp_path / "classes.txt").write_text("for other data\n")
    changes = {"owner_column": "who", "ignore_columns": "dose"}
    data = read("csv", objective="labels", label_column="cough, fever", **changes)
    assert (data.objective, data.classes, data.shape) == ("labels", ("cough", "fever"), (2,))
    x, y = by_first(data)
    assert y.dtype == torch.float32 and x[:, 1].tolist() == [float(-i) for i in range(30)]
    assert y.tolist() == [[i % 2, float(i % 3 > 0)] for i in range(30)]
    assert torch.bincount(data.owner_test).tolist() == [3, 3] and data.account.owners[0] == "p2"
    numbers = read("csv", objective="number", label_column="dose", ignore_columns="fever,who")
    assert numbers.objective == "number" and numbers.classes == ("dose",)
    assert by_first(numbers)[1].tolist() == [[i / 4] for i in range(30)]
    assert numbers.scale[0] == pytest.approx((float(numbers.y.mean()),))


def test_a_window_has_the_targets_of_its_last_row(read: Load, tmp_path: Path) -> None:
    rows = [f"{i},{i % 2},{'ab'[i >= 50]}" for i in range(100)]
    write(tmp_path / "train.csv", rows, "x,on,who")
    changes = {"objective": "labels", "label_column": "on", "owner_column": "who", "window": 10}
    data = read("csv", stride=5, **changes)
    assert data.x[:, 0, 0].tolist() == [*range(0, 35, 5), *range(50, 85, 5)]
    assert data.y[:, 0].tolist() == [(first + 9) % 2 for first in data.x[:, 0, 0].tolist()]
    assert data.x_test[:, 0, 0].tolist() == [40, 90] and data.owner.tolist() == [0] * 7 + [1] * 7
    line = refused(lambda: read("csv", **{**changes, "window": 90}))
    assert "no 90 rows in a row have one owner and file" in line


@pytest.mark.parametrize(
    ("row", "changes", "line"),
    [
        ("1,1,2,no,1,p2", {}, "train.csv: row 31, column 'cough': '2' is no label; labels are"),
        ("1,1,0,,1,p2", {}, "train.csv: row 31, column 'fever': '' is no label"),
        ("1,1,0,no,1,p2", {"label_column": "cough,pain"}, "no column 'pain'; data.label-column"),
        ("1,1,0,no,1,p2", AUTO | {"label_column": "a,b"}, "several need data.objective"),
        ("1,1,0,no,nan,p2", DOSE, "row 31, column 'dose': "),
        ("1,1,0,no,,p2", DOSE, "an empty value is not a fi"),
        ("1,1,0,no,1,p2", DOSE | {"label_column": ""}, "no column 'label'; data.label-col"),
        ("1,1,0,no,1,p2", AUTO | {"label_column": "dose"}, "set data.objective to 'number'"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_row(read, tmp_path, row, changes, line) -> None:
    write(tmp_path / "train.csv", [*ROWS, row])
    known = {"objective": "labels", "label_column": "cough,fever", "ignore_columns": "who"}
    if "objective" in changes:
        known["ignore_columns"] = "who,fever"
    assert line in refused(lambda: read("csv", **{**known, **changes}))


def test_labels_without_a_sample_and_constant_targets_are_refused(read: Load, tmp_path) -> None:
    write(tmp_path / "train.csv", [f"{i},0,7,{i % 2}" for i in range(20)], "x,pain,dose,on")
    line = refused(lambda: read("csv", objective="labels", label_column="on,pain"))
    assert f"{tmp_path}: " in line and "label 'pain' has no sample" in line
    line = refused(lambda: read("csv", objective="number", label_column="dose"))
    assert "target 'dose' is 7 for all samples" in line
    write(tmp_path / "train.csv", [f"{i},{1.7e9 + 50 * i}" for i in range(20)], "x,when")
    line = refused(lambda: read("csv", objective="number", label_column="when"))
    assert "target 'when' is about 17000000" in line and "steps of 128" in line
    line = refused(lambda: read("digits", objective="number"))
    assert "data set 'digits' has classes" in line


def test_tests_that_cannot_score_a_label_or_number_are_a_warning(read: Load, tmp_path) -> None:
    write(tmp_path / "train.csv", [f"{i},{i % 3},{i % 2},{i % 2}" for i in range(20)], "x,y,a,b")
    write(tmp_path / "test.csv", [f"{i + 50},7,0,{i % 2}" for i in range(4)], "x,y,a,b")
    (line,) = overview(read("csv", objective="labels", label_column="a,b")).warnings()
    assert line == "all test samples are alike in 'a', which do not count in macro AUC"
    (line,) = overview(read("csv", objective="number", label_column="y,b")).warnings()
    assert line == "all test samples are alike in 'y', which do not count in R²"
    assert not overview(read("csv", objective="number", label_column="b")).warnings()


def picture(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), value).save(path)


def pictures(root: Path, first: int = 0, n: int = 6) -> Path:
    """n pictures of equal grey values in two folders, listed last to first."""
    for i in range(first, first + n):
        picture(root / "ab"[i % 2] / f"{i}.png", i)
    rows = [f"{'ab'[i % 2]}/{i}.png,{i % 2},{int(i % 3 == 0)}" for i in range(first, first + n)]
    return write(root / "labels.csv", rows[::-1], "file,odd,third")


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_pictures_get_their_row_of_labels_csv(read: Load, tmp_path: Path, parts) -> None:
    for k, part in enumerate(parts):
        pictures(tmp_path / part, 10 * k, 10)
    data = read("folder", objective="labels")
    assert data.classes == ("odd", "third") and not data.account.ignored
    assert (len(data.y), len(data.y_test)) == ((8, 2) if len(parts) == 1 else (10, 10))
    grey = torch.cat([data.x, data.x_test])[:, 0, 0, 0].tolist()
    expected = [[i % 2, float(i % 3 == 0)] for i in grey]
    assert torch.cat([data.y, data.y_test]).tolist() == expected
    number = read("folder", objective="number", label_column="odd")
    assert number.classes == ("odd",) and torch.equal(number.y[:, 0], data.y[:, 0])


def test_pictures_of_clients_have_a_labels_csv_each(read: Load, tmp_path: Path) -> None:
    for k, name in enumerate(("h10", "h2")):
        pictures(tmp_path / name, 10 * k, 10)
    data = read("client-folders", objective="labels", ignore_columns="third")
    assert data.classes == ("odd",) and data.account.owners == ("h2", "h10")
    grey = data.x[:, 0, 0, 0].long()
    assert torch.equal(data.owner, (grey < 10).long())
    assert torch.equal(data.y[:, 0], (grey % 2).float()) and len(data.y_test) == 4


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (["a/0.png,0,1", "a/9.png,0,1"], "labels.csv: row 2: 'a/9.png' does not exist in"),
        (["a/0.png,0,1", "labels.csv,0,1"], "row 2: 'labels.csv' is no image to read"),
        (["a/0.png,0,1", "./a/0.png,0,1"], "row 2: row 1 has 'a/0.png' too"),
        (["a/0.png,0,1"], "labels.csv: 1 images have no row, such as 'b/1.png'"),
        (["a/0.png,0,1", "b/1.png,0,x"], "labels.csv: row 2, column 'third': 'x' is no label"),
    ],
)
def test_a_wrong_row_of_labels_csv_is_one_line(read, tmp_path, rows, line) -> None:
    pictures(tmp_path, n=2)
    write(tmp_path / "labels.csv", rows, "file,odd,third")
    assert line in refused(lambda: read("folder", objective="labels"))


def test_a_wrong_folder_of_pictures_is_one_line(read: Load, tmp_path: Path) -> None:
    pictures(tmp_path / "train")
    assert "test/labels.csv" in refused(
        lambda: (tmp_path / "test").mkdir() or read("folder", objective="labels")
    )
    assert "no column 'pain'" in refused(
        lambda: read("folder", objective="labels", label_column="pain")
    )
    write(tmp_path / "test" / "labels.csv", [], "file,odd")
    assert "its columns are not odd, third" in refused(lambda: read("folder", objective="labels"))
    write(tmp_path / "train" / "labels.csv", ["a/0.png"], "file")
    assert "no column of labels" in refused(lambda: read("folder", objective="labels"))
    write(tmp_path / "train" / "labels.csv", ["a/0.png"], "name,odd")
    assert "no column 'file'; there are name, odd" in refused(
        lambda: read("folder", objective="labels")
    )


def clients(root: Path, y: Any, n: int = 8) -> None:
    x = np.arange(n, dtype="float32")[:, None] + np.zeros((n, 3), "float32")
    for part in ("train", "test"):
        write_npz(root / part / "0.npz", {"x": x, "y": y})


def test_arrays_hold_labels_numbers_or_one_hot_classes(read: Load, tmp_path: Path) -> None:
    several = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 1]] * 2)
    clients(tmp_path, several)
    data = read("npz", kind="table", objective="labels")
    assert data.classes == ("y0", "y1", "y2") and data.y.dtype == torch.float32
    assert torch.equal(data.y, torch.from_numpy(several).float()) and data.owners == 1
    assert "data.objective to 'labels'" in refused(lambda: read("npz", kind="table"))
    clients(tmp_path, np.arange(8) / 2)
    assert read("npz", kind="table", objective="number").y[:, 0].tolist() == [
        i / 2 for i in range(8)
    ]
    assert "data.objective to 'number'" in refused(lambda: read("npz", kind="table", seed=1))
    clients(tmp_path, np.eye(4, dtype=int)[[0, 2, 3, 1] * 2])
    data = read("npz", kind="table", seed=2)
    assert data.objective == "classes" and data.y.tolist() == [0, 2, 3, 1] * 2
    assert data.account.notes == ("y is one-hot: each column is a class",)
    clients(tmp_path, np.array([0, 1, 2, 1] * 2)[:, None])
    assert read("npz", kind="table", seed=3).y.tolist() == [0, 1, 2, 1] * 2
    for objective, y, line in (
        ("labels", several + 1, "0.npz: y: sample 0 has 2; labels are 0 or 1"),
        ("number", [0.5] * 7 + [float("inf")], "0.npz: y: sample 7 has inf; numbers are finite"),
        ("number", [0.5] * 7, r"y: its shape is (7,), but there are 8 samples"),
    ):
        clients(tmp_path, y)
        assert line in refused(lambda o=objective: read("npz", kind="table", objective=o, seed=4))


def test_users_of_leaf_have_labels(read: Load, tmp_path: Path) -> None:
    y = [[1, 0], [0, 1], [1, 1], [0, 0]]
    content = {
        "users": ["u"],
        "num_samples": [4],
        "user_data": {"u": {"x": np.eye(4).tolist(), "y": y}},
    }
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "all.json").write_text(json.dumps(content))
    assert read("leaf", kind="table", objective="labels").y.tolist() == y


@pytest.mark.full
def test_columns_of_a_hub_data_set_are_labels_or_numbers(read: Load, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    kind = datasets.ClassLabel(names=["cough", "fever", "pain"])
    ids = [[0], [2, 1], [], [0, 2], [1]] * 2
    columns = {
        "ax": ([float(i) for i in range(10)], datasets.Value("float32")),
        "ill": (ids, datasets.Sequence(kind)),
        "dose": ([i / 2 for i in range(10)], datasets.Value("float32")),
        "at": ([[i, -i] for i in range(10)], datasets.Sequence(datasets.Value("float32"))),
        "on": (["yes", "no"] * 5, datasets.Value("string")),
        "animal": ([i % 3 for i in range(10)], kind),
    }
    features = datasets.Features({name: feature for name, (_, feature) in columns.items()})
    table = datasets.Dataset.from_dict({name: v for name, (v, _) in columns.items()}, features)
    table.save_to_disk(str(tmp_path))
    data = read("hub", objective="labels", ignore_columns="at,dose")
    assert data.classes == ("cough", "fever", "pain") and data.shape == (1,)
    assert by_first(data)[1].tolist() == [[float(c in y) for c in range(3)] for y in ids]
    several = read("hub", objective="labels", label_column="ill,on", ignore_columns="at,dose")
    assert several.classes == ("cough", "fever", "pain", "on")
    assert by_first(several)[1][:, 3].tolist() == [1, 0] * 5
    numbers = read("hub", objective="number", label_column="dose,at", ignore_columns="ill")
    assert numbers.classes == ("dose", "at0", "at1")
    assert by_first(numbers)[1].tolist() == [[i / 2, i, -i] for i in range(10)]
    for objective, column, line in (
        ("number", "", "should name columns of targets, not ''"),
        ("number", "ill", "should name columns of targets, not 'ill'"),
        ("labels", "dose", "sample 1, column 'dose': '0.5' is no label"),
        ("labels", "at", "column 'at': sample 1 has -1; labels"),
    ):
        ignored = ",".join({"ill", "at"} - {column})
        changes = {"objective": objective, "label_column": column, "ignore_columns": ignored}
        assert line in refused(lambda c=changes: read("hub", **c, seed=5))


def test_cached_copies_differ_by_objective_and_columns(read, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(decoded, "SMALL", 0)
    write(tmp_path / "train.csv", ROWS)
    for label in ("cough", "cough,fever", "cough"):
        data = read("csv", objective="labels", label_column=label, ignore_columns="who,fever")
        assert data.classes == tuple(label.split(","))
    assert read("csv", label_column="cough", ignore_columns="who,fever").objective == "classes"
    clients(tmp_path, np.eye(2, dtype=int)[[0, 1] * 4])
    assert read("npz", kind="table", objective="labels").y.shape == (8, 2)
    assert read("npz", kind="table").y.shape == (8,)


def test_a_public_set_of_classes_serves_labels(options: Callable[..., Data]) -> None:
    data = options(name="several-digits", objective="labels", public_name="digits")
    divided = divide(data.model_copy(update={"public_samples": 50}), 1)
    assert divided.public is not None and divided.public.shape == (50, 1, 16, 16)
    assert divided.labels is None and divided.pool.objective == "labels"


@pytest.mark.parametrize(
    ("scale", "line"),
    [
        (((7.0,), (2.0,)), "scale = ((7.0,), (2.0,)); numbers to learn have a finite mean and"),
        (((7.0, 0.0), ()), "deviation each, 2 of both"),
        (((7.0, math.nan), (2.0, 1.0)), "deviation each, 2 of both"),
        (((7.0, 0.0), (2.0, 0.0)), "standard deviations are above 0"),
    ],
)
def test_a_scale_of_a_plugin_is_one_of_its_numbers(scale: Any, line: str) -> None:
    made = outputs.number()
    right = replace(made, scale=((27.0, 0.0), (12.0, 0.4)))
    assert loader("own", lambda: right)(Data()).scale == right.scale
    wrong = replace(made, scale=scale)
    assert line in refused(lambda: loader("own", lambda: wrong)(Data()))
    of_labels = replace(outputs.labels(), scale=((0.0,) * 3, (1.0,) * 3))
    assert "numbers to learn" in refused(lambda: loader("own", lambda: of_labels)(Data()))


def test_a_plugin_of_texts_says_how_long_its_tokens_are() -> None:
    made = outputs.next_token()
    assert loader("own", lambda: made)(Data()).token_bytes == made.token_bytes
    without = replace(made, token_bytes=())
    line = "6 classes and 0 token_bytes; next tokens have one of each for all 6 tokens"
    assert line in refused(lambda: loader("own", lambda: without)(Data()))


def test_a_plugin_says_what_is_learnt() -> None:
    hot = torch.nn.functional.one_hot
    made = replace(
        toy(), objective="labels", y=hot(toy().y, 3).float(), y_test=hot(toy().y_test, 3).float()
    )
    assert loader("own", lambda: made)(Data()).objective == "labels"
    for change, line in (
        ({"y": made.y * 2}, "y of sample 0 is "),
        ({"y": made.y[:, :2]}, "y is float32 (360, 2); it should be float32 (360, 3)"),
        (
            {"objective": "ranks"},
            "objective = 'ranks'; it should be one of classes, labels, number",
        ),
        ({"objective": "number", "y": made.y / 0}, "not finite"),
    ):
        bad = replace(made, **change)
        assert line in refused(lambda data=bad: loader("own", lambda: data)(Data()))
