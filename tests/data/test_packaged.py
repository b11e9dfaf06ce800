"""Data sets inside packages of other projects, read without R and without running a pickle."""

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from common.data import load, packaged
from common.data.packaged import EXERCISES, LENGTH, letters, satellite, smartwatch
from common.data.rda import read_frame
from common.settings.config import Data
from tests.support.data_files import LABEL, factor, integer, rda, reals, strings

Options = Callable[..., Data]


def test_a_data_frame_has_numbers_and_factors(tmp_path: Path) -> None:
    path = rda(tmp_path / "a.rda", "Frame", label=LABEL, x=reals([0.5, -1.0, 2.0]))
    frame = read_frame(path, "Frame")
    assert frame.levels == {"label": ("A", "B")}
    assert frame.columns["label"].tolist() == [1, 0, 1]
    assert frame.columns["x"].tolist() == [0.5, -1.0, 2.0]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"x": integer(3) + integer(254)}, "an object of R's type 3, which is not read"),
        ({"x": strings(["a", "b", "c"])}, "column 'x' holds no numbers and no factor"),
        ({"x": integer(13) + integer(2) + integer(-(2**31)) + integer(1)}, "missing values"),
        ({"x": reals([1.0]), "y": reals([1.0, 2.0])}, "the columns differ in length"),
        ({"x": factor([1, 4], ["A", "B"])}, "column 'x' has codes without a level"),
    ],
)
def test_other_objects_are_one_line(tmp_path: Path, columns: dict[str, bytes], line: str) -> None:
    path = rda(tmp_path / "a.rda", "Frame", **columns)
    with pytest.raises(ValueError, match=line) as refused:
        read_frame(path, "Frame")
    assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)


def test_a_missing_frame_is_one_line(tmp_path: Path) -> None:
    path = rda(tmp_path / "a.rda", "Frame", label=LABEL, x=reals([0.5, -1.0, 2.0]))
    with pytest.raises(ValueError, match="it has no 'Other', but Frame"):
        read_frame(path, "Other")


def test_letters_and_satellite_by_hand(options, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(packaged, "LETTERS", 2)
    monkeypatch.setattr(packaged, "SATELLITE", 1)
    rda(tmp_path / "LetterRecognition.rda", "LetterRecognition", lettr=LABEL, a=reals([1, 2, 3]))
    columns = {"a": reals([1, 2, 3]), "b": reals([4, 5, 6]), "classes": LABEL}
    rda(tmp_path / "Satellite.rda", "Satellite", **columns)
    data = letters(options(name="letters", dir=str(tmp_path)))
    assert (data.classes, data.x.tolist(), data.y_test.tolist()) == (("A", "B"), [[1], [2]], [1])
    data = satellite(options(name="satellite", dir=str(tmp_path)))
    assert (data.x.tolist(), data.x_test.tolist()) == ([[1, 4]], [[2, 5], [3, 6]])


def watch(path: Path, content: object) -> None:
    array = np.empty((), dtype=object)
    array[()] = content
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=True)


def test_exercises_are_windows_of_recordings_of_people(options: Options, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    people = np.repeat(np.arange(1, 4), 7)
    recordings = np.empty(21, dtype=object)
    recordings[:] = [draw.normal(i, 1, (700, 6)) for i in range(21)]
    content = {"X": recordings, "y": np.arange(21) % 7, "subject": people}
    watch(tmp_path / "watch_dataset.npy", content)
    data = smartwatch(options(name="smartwatch", dir=str(tmp_path)))
    assert data.classes == EXERCISES and data.shape == (6, LENGTH) and data.owners == 3
    assert len(data.y) == 21 * 8 and len(data.y_test) == 21 * 3  # 490 and 210 rows
    first = recordings[0].astype(np.float32)
    assert np.array_equal(data.x[1].T, first[50:150])
    assert np.array_equal(data.x_test[0].T, first[490:590])
    assert torch.bincount(data.owner).tolist() == [56] * 3


def test_a_pickle_that_calls_something_is_refused(options: Options, tmp_path: Path) -> None:
    watch(tmp_path / "watch_dataset.npy", {"X": [pickle.Pickler], "y": [0], "subject": [1]})
    with pytest.raises(ValueError, match="its pickle calls _pickle.Pickler, which is not allowed"):
        smartwatch(options(name="smartwatch", dir=str(tmp_path)))
    watch(tmp_path / "watch_dataset.npy", {"X": [], "y": []})
    with pytest.raises(ValueError, match="there are no 'X', 'y' and 'subject' in it"):
        smartwatch(options(name="smartwatch", dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "package"),
    [("smartwatch", "pip install seglearn"), ("letters", "apt-get install r-cran-mlbench")],
)
def test_a_missing_package_is_named_in_one_line(options, tmp_path, name, package) -> None:
    with pytest.raises(ValueError, match=f"install it by {package}, or set data.dir") as refused:
        load(options(name=name, dir=str(tmp_path)))
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(not importlib.util.find_spec("seglearn"), reason="needs seglearn")
def test_the_real_recordings(options: Options) -> None:
    data = load(options(name="smartwatch"))
    assert (len(data.y), len(data.y_test), data.owners) == (3204, 1253, 10)


@pytest.mark.skipif(not packaged.MLBENCH.is_dir(), reason="needs r-cran-mlbench")
def test_the_real_tables(options: Options) -> None:
    data = load(options(name="letters"))
    first = [2, 8, 3, 5, 1, 8, 13, 0, 6, 6, 10, 8, 0, 8, 0, 8]  # a T, as in the original file
    assert data.x[0].tolist() == first and data.classes[int(data.y[0])] == "T"
    assert len(load(options(name="satellite")).y_test) == 2000
