"""Modules and packages of a user's own, made in a test under names that no other test has."""

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from common.settings.parse import to_toml
from tests.support.tiny import flat

_NUMBERS = itertools.count()


def importing_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python find the modules in ``folder`` until the test is over."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])


def new_name() -> str:
    return f"own{next(_NUMBERS)}"


def module(folder: Path, text: str) -> str:
    """A new module in ``folder``; its name."""
    name = new_name()
    (folder / f"{name}.py").write_text(text)
    return name


def package(folder: Path, files: Mapping[str, str]) -> str:
    """A new package in ``folder`` of the modules ``files``; its name, which is ``{root}`` there."""
    name = new_name()
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / f"{file}.py").write_text(text.replace("{root}", name))
    return name


def experiment(folder: Path, method: str) -> Path:
    """A tiny run of a method whose module lies in ``folder``."""
    settings = flat(folder / "unused") | {"out": "", "state-dir": "", "experiment": "", "rounds": 1}
    file = folder / "mine.toml"
    file.write_text(to_toml(settings).replace('method = "fedorion"', f'method = "{method}"'))
    return file


def distribution(folder: Path, name: str, entry_points: str) -> None:
    """What an installed package leaves in ``folder`` for others to find it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


ONE_MODULE = '''
"""A method in one module: FedAvg with a factor of the loss."""
from client_app.bases.global_copy import GlobalCopy
from common.methods.fedavg import Averaging, Request, Reply
from common.settings.section import Positive

SERVER = "fedavg"


class Options(Averaging):
    factor: Positive = 1.0
    """Of the loss."""


class Factor(GlobalCopy[Options, Request]):
    request_type, reply_type = Request, Reply

    def loss(self, request, net):
        plain = super().loss(request, net)
        return lambda x, y: self.options.factor * plain(x, y)
'''
"""A module that is a method, whose server half is FedAvg's."""
