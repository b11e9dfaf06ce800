"""Runs of the code before its classes and modules were renamed go on as if nothing had happened.

``runs_with_old_names.tar.xz`` holds runs of two rounds of that code: each client's state, the
server's state, and kinds of payloads that are named after classes which have other names today.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from deploy.run.preflight import resumed
from tests.support.battery import tiers
from tests.support.tiny import play

ARCHIVE = Path(__file__).with_name("runs_with_old_names.tar.xz")
METHODS = ("fedkf", "fedmd", "i-dl-mh", "scaffold")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def losses(folder: Path) -> list[Any]:
    """Return what training gave in each round, which shows whether this CPU rounds alike."""
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines[1:]]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of the clients' states after round 3, and of the model."""
    files = sorted([*folder.rglob("state/*/*/3/*.safetensors"), *folder.glob("model.safetensors")])
    return {
        f"{path.relative_to(folder)}/{name}": value
        for path in files
        for name, value in load_file(path).items()
    }


@pytest.mark.parametrize("method", tiers(METHODS, ("i-dl-mh", "scaffold")))
def test_a_run_of_the_code_with_old_names_is_resumed(
    method: str, old: Path, tmp_path: Path
) -> None:
    run, whole = old / method / "run", tmp_path / "whole"
    before = losses(run)
    continued = resumed(run, {"rounds": 3}, "")[0]  # with defaults for settings that came later
    play(continued)
    fresh = continued | {"out": str(whole), "state-dir": str(whole / "state"), "resume": False}
    play(fresh)
    ours, theirs = tensors(whole), tensors(run)
    assert ours.keys() == theirs.keys() and ours
    alike = losses(whole)[:2] == before
    for name, value in ours.items():
        if alike:
            assert torch.equal(value, theirs[name]), name
        else:  # another CPU may round differently, which changes the last bits
            torch.testing.assert_close(value, theirs[name], rtol=1e-2, atol=1e-3)
