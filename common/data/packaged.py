"""Data sets inside packages of other projects: sensor signals and tables, read from their files.

The packages are not imported, and nothing of them is copied into this project. A file is searched
in ``data.dir``, or where the package is installed; its absence is an error that names the package.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.columns import windows
from common.data.dataset import Dataset, measured
from common.data.rda import read_frame
from common.data.unpickle import read_npy
from common.settings.config import Data

EXERCISES = (
    *("pendulum", "abduction", "forward elevation", "internal rotation", "external rotation"),
    *("trapezius extension", "upright row"),
)
"""Shoulder exercises of ``smartwatch``, in the order of their labels."""
LENGTH = 100  #: steps of a window of ``smartwatch``: 2 seconds
HELD_OUT = 0.3  #: share of each recording's last rows for testing
MLBENCH = Path("/usr/lib/R/site-library/mlbench/data")
LETTERS, SATELLITE = 16_000, 4_435  #: first rows, for training, as in the original descriptions


def file_of_package(data: Data, file: str, folder: Path | None, package: str) -> Path:
    """Return the path of a package's file; raise ``ValueError``, one line, if there is none."""
    own = Path(data.dir).expanduser() if data.dir else folder
    if own is not None and (own / file).is_file():
        return own / file
    where = f"in {own}" if own else "on this machine"
    raise ValueError(
        f"data set {data.name!r}: {file} is not {where}; install it by {package}, or set data.dir "
        "to the folder of the file"
    )


def smartwatch(data: Data) -> Dataset:
    """Return windows (6, 100) of a smartwatch during seven shoulder exercises of ten people.

    The 140 recordings of PyPI's ``seglearn`` (Burns et al. 2018, "Shoulder physiotherapy exercise
    recognition: machine learning the inertial signals from a smartwatch") have acceleration and
    rotation at 50 Hz. Windows overlap by half. The last 30 % of each recording are for testing, and
    no window crosses the cut. People are owners.
    """
    spec = importlib.util.find_spec("seglearn")
    folder = Path(spec.origin).parent / "data" if spec and spec.origin else None
    path = file_of_package(data, "watch_dataset.npy", folder, "pip install seglearn")

    def decode() -> dict[str, Tensor]:
        content = read_npy(path)
        names = ("X", "y", "subject")
        if not isinstance(content, dict) or not {*names} <= content.keys():
            raise ValueError(f"{path}: there are no 'X', 'y' and 'subject' in it")
        recordings, labels, people = (list(content[name]) for name in names)
        if not len(recordings) == len(labels) == len(people):
            raise ValueError(f"{path}: 'X', 'y' and 'subject' differ in length")
        fields: dict[str, list[Tensor]] = {}
        for rows, label, person in zip(recordings, labels, people, strict=True):
            values = np.asarray(rows, dtype=np.float32)
            cut = round((1 - HELD_OUT) * len(values))
            for suffix, samples in (("", values[:cut]), ("_test", values[cut:])):
                x = torch.from_numpy(windows(samples, LENGTH))
                fields.setdefault(f"x{suffix}", []).append(x)
                for name, number in (("y", int(label)), ("owner", int(person) - 1)):
                    fields.setdefault(f"{name}{suffix}", []).append(torch.full((len(x),), number))
        return {name: torch.cat(tensors) for name, tensors in fields.items()}

    return measured("smartwatch", EXERCISES, **decoded.cached_files("smartwatch", [path], decode))


def letters(data: Data) -> Dataset:
    """Return 16 numbers of each of 20,000 images of capital letters (Frey and Slate 1991).

    The first 16,000 rows are for training. Debian's package ``r-cran-mlbench`` has the file.
    """
    return _mlbench(data, "letters", "LetterRecognition", "lettr", LETTERS)


def satellite(data: Data) -> Dataset:
    """Return 36 numbers of each of 6,435 places in a Landsat image, of six kinds of soil.

    The first 4,435 rows are for training, as in Statlog. Debian's package ``r-cran-mlbench`` has
    the file.
    """
    return _mlbench(data, "satellite", "Satellite", "classes", SATELLITE)


def _mlbench(data: Data, name: str, frame_name: str, label: str, first: int) -> Dataset:
    """Return a data set whose ``first`` rows are for training; ``label``: column of the classes."""
    path = file_of_package(data, f"{frame_name}.rda", MLBENCH, "apt-get install r-cran-mlbench")
    frame = read_frame(path, frame_name)
    numbers = [values for key, values in frame.columns.items() if key != label]
    x = torch.from_numpy(np.stack(numbers, axis=1).astype(np.float32))
    y = torch.from_numpy(frame.columns[label].astype(np.int64))
    fields = {"x": x[:first], "y": y[:first], "x_test": x[first:], "y_test": y[first:]}
    return measured(name, frame.levels[label], **fields)
