"""LEAF's JSON files, by user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config import Data
from common.data import load

Options = Callable[..., Data]


def users(path: Path, sizes: dict[str, int], *, first: int = 0, **changes: Any) -> Path:
    """A file of users with so many FEMNIST images each, of three classes in turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {
        user: {"x": [[(first + i) / 1000] * 784 for i in range(n)], "y": [i % 3 for i in range(n)]}
        for user, n in sizes.items()
    }
    whole = {"users": list(sizes), "num_samples": [*sizes.values()], "user_data": held}
    path.write_text(json.dumps(whole | changes))
    return path


def leaf(options: Options, folder: Path) -> Any:
    return load(options(name="leaf", dir=str(folder)))


def test_users_are_owners_in_the_order_of_their_names(options: Options, tmp_path: Path) -> None:
    users(tmp_path / "train" / "a.json", {"f10": 3, "f9": 4})
    users(tmp_path / "train" / "b.json", {"f2": 5}, first=100)
    users(tmp_path / "test" / "a.json", {"f9": 2, "f10": 0, "f2": 1})
    data = leaf(options, tmp_path)
    assert data.shape == (1, 28, 28) and data.x.dtype == torch.float32
    assert torch.bincount(data.owner).tolist() == [5, 4, 3]  # f2, f9, f10
    assert data.x[data.owner == 0][:, 0, 0, 0].tolist() == pytest.approx(
        [0.1, 0.101, 0.102, 0.103, 0.104]
    )
    assert data.owner_test.tolist() == [1, 1, 0] and data.y_test.tolist() == [0, 1, 0]


def test_a_test_of_users_who_do_not_train_is_nobodys_own(options: Options, tmp_path: Path) -> None:
    users(tmp_path / "train" / "a.json", {"a": 3, "b": 3})
    users(tmp_path / "test" / "a.json", {"b": 2, "stranger": 2})
    data = leaf(options, tmp_path)
    assert data.owners == 2 and data.owner_test is None and len(data.y_test) == 4


def test_nested_lists_say_their_own_shape(options: Options, tmp_path: Path) -> None:
    image = [[[i, 2, 3] for i in range(4)]] * 5  # 5 × 4, three channels
    for part in ("train", "test"):
        held = {"u": {"x": [image, image], "y": [0, 1]}}
        users(tmp_path / part / "a.json", {"u": 2}, user_data=held)
    data = leaf(options, tmp_path)
    assert data.shape == (3, 5, 4) and data.x.dtype == torch.uint8


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"user_data": [1]}, "there is no 'user_data' by user in it"),
        ({"user_data": {"a": {"x": []}}}, "user 'a': there are no 'x' and 'y', but 'x'"),
        (
            {"users": ["a", "c"], "num_samples": [3, 3]},
            "user 'c': there are no 'x' and 'y', but NoneType",
        ),
        ({"num_samples": [4]}, "user 'a': not 4 samples, as num_samples says"),
        ({"num_samples": [3, 3]}, "num_samples has 2 entries for 1 users"),
        (
            {"user_data": {"a": {"x": ["to be", "or not", "to"], "y": [0, 1, 2]}}},
            "user 'a': it hold",
        ),
        (
            {"user_data": {"a": {"x": [[1.0] * 60] * 3, "y": [0, 1, 2]}}},
            "60 numbers, which make no",
        ),
        (
            {"user_data": {"a": {"x": [[1.0] * 49] * 3, "y": [0, 1, 2]}}},
            r"images are float32 \(1, 7",
        ),
    ],
)
def test_a_file_that_is_wrong_is_one_line_with_its_path(
    options: Options, tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    users(tmp_path / "train" / "a.json", {"u": 3})
    path = users(tmp_path / "test" / "a.json", {"a": 3}, **changes)
    with pytest.raises(ValueError, match=line) as refused:
        leaf(options, tmp_path)
    assert str(refused.value).startswith(f"{path}") and "\n" not in str(refused.value)


def test_a_file_that_is_cut_off_or_missing_is_named(options: Options, tmp_path: Path) -> None:
    path = users(tmp_path / "train" / "a.json", {"u": 3})
    with pytest.raises(ValueError, match=r"test: no \*.json files"):
        leaf(options, tmp_path)
    users(tmp_path / "test" / "a.json", {"u": 3})
    path.write_text(path.read_text()[:-40])
    with pytest.raises(ValueError, match=r"train/a.json: damaged or no JSON") as refused:
        leaf(options, tmp_path)
    assert "\n" not in str(refused.value)
