"""Data sets and partitions of plug-ins: what they give is checked, with one line for each fault."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common import models
from common.data import Dataset, kinds
from common.data.embedded import toy
from common.data.external import check, check_shares, guarded, loader
from common.data.kinds import TABLE, Kind, OfKind
from common.data.partition import rule
from common.parse import parse
from common.settings.config import Data
from common.training.task import Task
from tests.support.tiny import flat


def test_a_plugin_is_a_data_set_or_a_function_whose_own_refusal_is_passed_on() -> None:
    made, data = toy(), Data(alpha=0.25)
    asked = []

    def given(data: Data) -> Dataset:
        asked.append(data.alpha)
        return made

    assert loader("x", made)(data) is loader("x", lambda: made)(data) is loader("x", given)(data)
    assert asked == [0.25]

    def refuse() -> None:
        raise ValueError("data.dir = '' has no images\nand more")

    with pytest.raises(ValueError, match=r"^it cannot be made: data.dir = '' has no images$"):
        guarded("it", refuse)()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"x": toy().x.double()}, "x is float64 (360, 1, 8, 8); it should be uint8 or float32"),
        ({"x": toy().x[:, 0]}, "x is uint8 (360, 8, 8); it should be uint8 or float32 (N, C, H"),
        ({"x_test": toy().x_test[..., :4]}, "x_test is uint8 (120, 1, 8, 4); it should be"),
        (
            {"y": toy().y.float()},
            "y is float32 (360,); it should be int64 (360,); a data set of labels",
        ),
        (
            {"y": toy().y[:, None]},
            "y is int64 (360, 1); it should be int64 (360,); a data set of labels",
        ),
        ({"x": toy().x.long()[:, 0, 0]}, "x is int64 (360, 8); it should be uint8 or float32 (N"),
        ({"y": toy().y.int()}, "y is int32 (360,); it should be int64 (360,)"),
        ({"y": toy().y[1:]}, "y is int64 (359,); it should be int64 (360,)"),
        ({"y_test": toy().y_test + 1}, "y_test is 1 to 3; it should be 0 to 2"),
        ({"mean": (0.1, 0.2)}, "mean and std have 2 and 1 numbers; it should be one for each of 1"),
    ],
)
def test_what_is_not_as_a_data_set_promises_is_named(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as refused:
        check("own", replace(toy(), **change))
    assert str(refused.value).startswith(f"data set 'own': {line}")


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (lambda: check("own", 3), "data set 'own' cannot be made: data set 'own' gives a value"),
        (lambda: 1 / 0, "data set 'own' cannot be made: ZeroDivisionError: division by zero"),
        (lambda a, b: 1, "data set 'own' cannot be made: TypeError"),
        (lambda: torch.zeros(2).reshape(3), "data set 'own' cannot be made: RuntimeError"),
    ],
)
def test_a_function_that_makes_none_is_named(found: Any, line: str) -> None:
    with pytest.raises(ValueError) as refused:
        loader("own", found)(Data())
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        (3, "gives int; it should be a list of 2 index arrays"),
        ([np.arange(4)], "gives 1 shares; it should be a list of 2"),
        ([np.arange(4), np.arange(0)], "leaves client 1 without training samples"),
        ([np.arange(4), np.ones(3)], "client 1 has float64 (3,); it should be an array of indices"),
        ([np.arange(4), np.array([9, 10])], "client 1 has samples 9 to 10; there are 0 to 9"),
    ],
)
def test_a_partition_must_give_every_client_samples(shares: object, line: str) -> None:
    with pytest.raises(ValueError, match="^partition 'own'") as refused:
        check_shares("own", shares, 10, 2)
    assert line in str(refused.value)
    check_shares("own", [np.arange(4), [4, 5]], 10, 2)


def greedy(dataset: Dataset, clients: int, rng: np.random.Generator, *, beta: float) -> list[Any]:
    """A partition that asks for what [data] does not have."""
    raise AssertionError("it is never called")


def test_a_partition_that_asks_for_no_key_of_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"greedy': its option 'beta' is no key of \[data\]"):
        rule(f"{__name__}:greedy")


def test_a_declared_kind_goes_with_the_shape_to_the_task_and_the_census(tmp_path: Path) -> None:
    """A second kind of one axis, as rows of numbers are: nothing guesses it from the axes."""
    other = Kind("row", ("F",), (torch.float32,), "others of {}")
    shape, plain = OfKind((16,), other), OfKind((16,), TABLE)
    assert shape != plain == (16,) and plain != shape and pickle.loads(pickle.dumps(shape)) == shape
    assert kinds.of(shape) is other and kinds.describe(shape) == "others of 16"
    with pytest.raises(ValueError, match="takes tables, but the data are others of 16"):
        models.check("table-mlp2", shape, 3)
    with pytest.raises(ValueError, match="x is uint8 .*, of the declared kind 'signal'"):
        check("own", replace(toy(), declared="signal"))
    fingerprint = Task.of(parse(flat(tmp_path)), toy(), torch.device("cpu")).fingerprint
    assert fingerprint.startswith("image:1x8x8/3/")
