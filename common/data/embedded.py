"""Data sets without files: scikit-learn's digits, and synthetic classes for tests and figures.

The synthetic data sets are fast to generate, learnable and the same on every machine.
"""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.data.account import Account
from common.data.dataset import Dataset, halved, measured
from common.extras import missing
from common.seeds import rng

OWNERS = 8  #: of ``several_digits``
EMPTY = 0.4  #: share of its empty quarters but the first
SYSTEM = Path("/usr/share/datasets")  #: folder of the file on a machine without scikit-learn


def digits() -> Dataset:
    """Return 1,797 handwritten digits, 8×8, in a fixed split of 80 % and 20 % of each digit.

    Grey values 0..16 are scaled to 0..255. The source is UCI Optical Recognition of Handwritten
    Digits (test part), as in ``sklearn.datasets``.
    """
    table = _table()
    scaled = np.rint(table[:, :64].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    x, y = torch.from_numpy(scaled), torch.from_numpy(table[:, 64].astype(np.int64))
    names = tuple(str(c) for c in range(10))
    return measured("digits", names, **halved({"x": x, "y": y}, "digits"))


def several_digits() -> Dataset:
    """Return pictures (N, 1, 16, 16) of up to four of the ``digits``, with labels (N, 10).

    Each quarter but the first is empty with a probability of 0.4. Eight owners prefer different
    digits: theirs have the shares p ~ Dir(0.5). Test pictures have test digits.
    """
    single, draw = digits(), rng(0, "several-digits")
    shares = draw.dirichlet(np.full(10, 0.5), OWNERS)

    def sample(n: int, x: Tensor, y: Tensor, suffix: str) -> dict[str, Tensor]:
        owner, of = np.arange(n) % OWNERS, [np.flatnonzero(y.numpy() == c) for c in range(10)]
        pictures, labels = np.zeros((n, 1, 16, 16), np.uint8), np.zeros((n, 10), np.float32)
        for i, k in enumerate(owner):
            for row, column in ((0, 0), (0, 8), (8, 0), (8, 8)):
                if (row or column) and draw.random() < EMPTY:
                    continue
                c = int(draw.choice(10, p=shares[k]))
                digit = x[int(draw.choice(of[c]))].numpy()
                pictures[i, :, row : row + 8, column : column + 8] = digit
                labels[i, c] = 1
        tensors = {"x": pictures, "y": labels, "owner": owner}
        return {f"{name}{suffix}": torch.from_numpy(value) for name, value in tensors.items()}

    parts = sample(2400, single.x, single.y, "")
    parts |= sample(800, single.x_test, single.y_test, "_test")
    return replace(measured("several-digits", single.classes, **parts), objective="labels")


def diabetes() -> Dataset:
    """Return ten measurements (442, 10) of people with diabetes and its progression in a year.

    The split is fixed, 80 % for training. The source is Efron et al. 2004, "Least Angle
    Regression", as in ``sklearn.datasets``; the target is 25 to 346.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ModuleNotFoundError as error:
        raise ValueError(missing(error)) from error
    found = load_diabetes(scaled=False)
    x, y = (torch.from_numpy(a.astype(np.float32)) for a in (found.data, found.target[:, None]))
    parts = halved({"x": x, "y": y}, "diabetes")
    account = Account(features=tuple(found.feature_names))
    dataset = measured("diabetes", ("progression",), **parts)
    return replace(dataset, objective="number", account=account)


def _table() -> np.ndarray:
    """Return an array (1797, 65) with 64 pixels and the label of each image.

    It reads scikit-learn's file directly, because the import takes each process a second. Images
    of clients have that file without the package. If the file has another location, it uses
    scikit-learn's loader.
    """
    package = importlib.util.find_spec("sklearn")
    folder = SYSTEM
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "datasets" / "data"
    if (path := folder / "digits.csv.gz").is_file():
        return np.loadtxt(path, delimiter=",", dtype=np.float64)
    try:
        from sklearn.datasets import load_digits as embedded
    except ModuleNotFoundError as error:
        raise ValueError(missing(error)) from error
    images, labels = embedded(return_X_y=True)
    return np.column_stack([images, labels])


def toy(
    *,
    classes: int = 3,
    shape: tuple[int, int, int] = (1, 8, 8),
    train: int = 360,
    test: int = 120,
) -> Dataset:
    """Return uint8 images with a random pattern per class plus noise; sizes are totals.

    A linear model separates them nearly perfectly. Labels alternate (0, 1, 2, 0, ..), so that the
    classes are balanced.
    """
    draw = rng(0, "toy", classes, *shape)
    pattern = draw.uniform(0, 255, (classes, *shape))

    def sample(n: int) -> tuple[Tensor, Tensor]:
        y = np.arange(n) % classes
        x = 0.6 * pattern[y] + 50 + draw.normal(0, 35, (n, *shape))
        return torch.from_numpy(x.clip(0, 255).astype(np.uint8)), torch.from_numpy(y)

    x, y = sample(train)
    x_test, y_test = sample(test)
    names = tuple(f"pattern {c}" for c in range(classes))
    return measured("toy", names, x=x, y=y, x_test=x_test, y_test=y_test)


def waves() -> Dataset:
    """Return signals (N, 3, 128) of three classes, which differ in frequency, of six owners.

    Each channel is a sine with a random phase and noise. Every owner has its own amplitude for each
    channel, as sensors of several people do. Labels alternate, so that the classes are balanced.
    """
    draw = rng(0, "waves")
    amplitude = draw.uniform(0.5, 2.0, (6, 3, 1))

    def sample(n: int, suffix: str) -> dict[str, Tensor]:
        y, owner = np.arange(n) % 3, np.arange(n) // 3 % 6
        periods = np.array([3.0, 5.0, 8.0])[y] * draw.uniform(0.8, 1.2, n)
        phase = draw.uniform(0, 2 * math.pi, (n, 3, 1))
        angle = 2 * math.pi * periods[:, None, None] * np.arange(128) / 128 + phase
        x = amplitude[owner] * np.sin(angle) + draw.normal(0, 0.5, (n, 3, 128))
        tensors = {"x": x.astype(np.float32), "y": y, "owner": owner}
        return {f"{name}{suffix}": torch.from_numpy(value) for name, value in tensors.items()}

    names = ("slow", "middle", "fast")
    return measured("waves", names, **sample(360, ""), **sample(126, "_test"))


def points() -> Dataset:
    """Return a table (N, 2) of points of three spiral arms, one per class, in [-1.2, 1.2]².

    FedORION, Figure 1, draws decision boundaries for two features and three classes as well.
    """
    draw = rng(0, "points")

    def sample(n: int) -> tuple[Tensor, Tensor]:
        y = np.arange(n) % 3
        radius = np.sqrt(draw.uniform(0.01, 1.0, n))
        angle = 2 * math.pi * (y / 3 + 0.6 * radius) + draw.normal(0, 0.12, n)
        x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)

    x, y = sample(600)
    x_test, y_test = sample(300)
    names = ("first arm", "second arm", "third arm")
    return Dataset("points", names, x, y, x_test, y_test, (0.0, 0.0), (1.0, 1.0))
