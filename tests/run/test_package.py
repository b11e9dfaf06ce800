"""What is packaged: every package, file and extra."""

import re
import tomllib

from common.settings.extras import EXTRAS, missing
from common.settings.version import ROOT, VERSION

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, SETUPTOOLS = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]


def test_every_package_of_the_app_is_in_the_wheel_below_one_name() -> None:
    found = {"fedmosaic", "fedmosaic.app"}
    for top in ("common", "server_app", "client_app", "deploy"):
        for path in (ROOT / top).rglob("__init__.py"):
            found.add("fedmosaic.app." + ".".join(path.parent.relative_to(ROOT).parts))
    assert sorted(SETUPTOOLS["packages"]) == sorted(found - {"fedmosaic.app.deploy.fedmosaic"})
    assert SETUPTOOLS["package-dir"] == {"fedmosaic": "deploy/fedmosaic", "fedmosaic.app": "."}


def test_every_file_that_the_program_reads_is_in_the_wheel() -> None:
    data = SETUPTOOLS["package-data"]
    patterns = [f"deploy/{each}" for each in data["fedmosaic.app.deploy"]] + data["fedmosaic.app"]
    packed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    beside = {".css", ".jinja", ".mplstyle", ".toml"}
    needed = [
        p for p in (ROOT / "deploy").rglob("*") if p.suffix in beside and "docker" not in p.parts
    ]
    needed = [p for p in needed if "results" not in p.parts]
    for name in ("cells.jsonl", "canaries.json"):  # for the claims
        needed += (ROOT / "deploy" / "experiments" / "results").glob(f"*/{name}")
    assert {ROOT / "pyproject.toml", *needed} <= packed


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS.values()) <= extras.keys()
    assert "all" in extras and "dev" in extras
    line = missing(ModuleNotFoundError("No module named 'sklearn'", name="sklearn.datasets"))
    assert line == "sklearn is not installed here, and this needs it: pip install 'fedmosaic[sim]'"
    assert missing(ModuleNotFoundError("No module named 'x'", name="x")) == "No module named 'x'"


def test_the_version_and_the_licence_are_the_projects() -> None:
    assert PROJECT["version"] == VERSION and re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert "Apache License" in (ROOT / PROJECT["license-files"][0]).read_text()
