"""What a client's own settings may be on this machine, before its SuperNode starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.machines.node import check_here, command


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "nosuch"}, "no architecture 'nosuch'; there are "),
        ({"model": ""}, "no architecture ''; there are "),
        ({"model": "lenet5@0"}, "must be a number in"),
        ({"device": "gpu"}, 'device = "gpu" is not allowed; allowed: auto, cpu, cuda, cuda:N'),
        ({"device": "cuda:977"}, 'device = "cuda:977" is not here'),
        ({"data-dir": "/nowhere/at/all"}, "data-dir = '/nowhere/at/all'; it must be a folder"),
        ({"public-dir": __file__}, "it must be a folder that exists"),
        ({"state-dir": f"{__file__}/state"}, "Not a directory"),
        ({"state-dir": "/proc/nothing"}, "node config state-dir = '/proc/nothing'"),
    ],
)
def test_what_cannot_work_here_is_refused_before_anything_starts(
    settings: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError) as refused:
        command("h:9092", None, 0, 2, settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_what_works_is_let_through(tmp_path: Path) -> None:
    settings = {"model": "resnet8@0.5", "device": "cpu", "data-dir": str(tmp_path)}
    check_here({**settings, "state-dir": str(tmp_path / "a" / "b"), "threads": 2})
    assert (tmp_path / "a" / "b").is_dir()
