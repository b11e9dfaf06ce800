"""User modules and packages, made in a test under unique names."""

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from common.parse import reads, to_toml
from tests.support.tiny import flat

_NUMBERS = itertools.count()
ONE_MODULE = '''
"""A method in one module: FedAvg with a factor of the loss."""
from client_app.bases.global_copy import GlobalCopy
from common.methods.fedavg import Averaging, Request, Reply
from common.settings.section import Positive

SERVER = "fedavg"


class Options(Averaging):
    factor: Positive = 1.0
    """Factor of the loss."""


class Factor(GlobalCopy[Options, Request]):
    request_type, reply_type = Request, Reply

    def loss(self, request, net):
        plain = super().loss(request, net)
        return lambda x, y: self.options.factor * plain(x, y)
'''
"""A method in one module, with the server half of FedAvg."""


def importing_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add ``folder`` to Python's search path until the test ends."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])


def new_name() -> str:
    return f"own{next(_NUMBERS)}"


def module(folder: Path, text: str) -> str:
    """Write a new module into ``folder``; return its name."""
    name = new_name()
    (folder / f"{name}.py").write_text(text)
    return name


def package(folder: Path, files: Mapping[str, str]) -> str:
    """Write a package of the modules ``files``; return its name, which replaces ``{root}``."""
    name = new_name()
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / f"{file}.py").write_text(text.replace("{root}", name))
    return name


def experiment(folder: Path, method: str) -> Path:
    """Write the experiment file of a tiny run of a method whose module is in ``folder``."""
    tiny = {key: v for key, v in flat(folder / "unused").items() if reads("fedavg", key)}
    settings = tiny | {"out": "", "state-dir": "", "experiment": "", "rounds": 1}
    file = folder / "mine.toml"
    file.write_text(to_toml(settings).replace('method = "fedorion"', f'method = "{method}"'))
    return file


def distribution(folder: Path, name: str, entry_points: str) -> None:
    """Write the metadata of an installed package with ``entry_points`` into ``folder``."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
