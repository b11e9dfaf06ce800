"""A client that runs one app bundle only, checked by code that the SuperLink did not send."""

from __future__ import annotations

import io
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp.client_app import LoadClientAppError
from flwr.supernode.runtime import run_clientapp as flower

from deploy.flower import pinned, processes, warm
from deploy.flower.arguments import stage_app
from deploy.flower.bundle import built, digest
from deploy.machines import commands, node
from deploy.run.settings import app_folder, resolve

PROJECT = """
[project]
name = "tiny"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "us"
fab-include = ["*.py"]
[tool.flwr.app.components]
serverapp = "of_tiny:server"
clientapp = "of_tiny:app"
"""
CODE = "from flwr.clientapp import ClientApp\nfrom flwr.serverapp import ServerApp\n"
CODE += "app, server = ClientApp(), ServerApp()\n"


@pytest.fixture
def fab(tmp_path: Path) -> bytes:
    app = tmp_path / "tiny"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "of_tiny.py").write_text(CODE)
    return built(app)


def rewritten(
    fab: bytes, change: Callable[[str, bytes], bytes] = lambda name, text: text, **how: Any
) -> bytes:
    new = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(fab)) as old, zipfile.ZipFile(new, "w", **how) as file:
        for name in old.namelist():
            file.writestr(name, change(name, old.read(name)))
    return new.getvalue()


def tampered(fab: bytes) -> bytes:
    return rewritten(fab, lambda name, text: text + b"#" if name.endswith(".py") else text)


def test_the_digest_is_of_names_and_contents_and_not_of_their_compression(fab: bytes) -> None:
    stored = rewritten(fab, compression=zipfile.ZIP_STORED)
    assert stored != fab and pinned.digest(stored) == pinned.digest(fab)
    assert pinned.digest(tampered(fab)) != pinned.digest(fab)
    more = io.BytesIO(fab)
    with zipfile.ZipFile(more, "a") as file:
        file.writestr("sitecustomize.py", b"")
    assert pinned.digest(more.getvalue()) != pinned.digest(fab)
    twice = io.BytesIO(fab)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(twice, "a") as file:
        file.writestr("of_tiny.py", CODE)
    assert pinned.digest(twice.getvalue()) != pinned.digest(fab)
    for odd in (b"", b"no archive", fab[: len(fab) // 2]):
        with pytest.raises(ValueError, match="the app bundle that came cannot be read"):
            pinned.digest(odd)


def test_the_digest_is_of_code_and_not_of_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.app_digest()
    told = capsys.readouterr().out.strip()
    assert told == digest({**resolve(None), "rounds": 77, "out": "/elsewhere"})
    assert told != digest({**resolve(None), "node.0.threads": 2}), "the bundle has another table"
    copy = shutil.copytree(stage_app(app_folder(), tmp_path / "a", {}), tmp_path / "b")
    for file in copy.rglob("*"):
        os.utime(file, (1, 1))
        file.chmod(0o700)
    assert pinned.digest(built(copy)) == told


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., object]:
    """What ``flwr-clientapp`` does with the bundle of a run, pinned to a digest."""
    for name in ("install_from_fab", "get_load_client_app_fn"):  # put back after the test
        monkeypatch.setattr(flower, name, getattr(flower, name))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "of_tiny", raising=False)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))

    def begun(
        fab: bytes, pin: str, version: str = "1.0.0", claimed: str = "", install: bool = True
    ) -> object:
        loaded: list[object] = []

        def real() -> None:  # as in Flower's run_clientapp
            if install:
                flower.install_from_fab(fab, skip_prompt=True)
            load = flower.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
            loaded.append(load("us/tiny", version, claimed))

        monkeypatch.setenv(pinned.PIN, pin)
        pinned.main(real)
        return loaded[0]

    return begun


def test_the_pinned_bundle_is_loaded_from_where_no_other_was(
    fab: bytes, program: Callable[..., object], tmp_path: Path
) -> None:
    pin = pinned.digest(fab)
    theirs = flower.install_from_fab(fab, skip_prompt=True)  # before anything was pinned
    (theirs / "of_tiny.py").write_text("raise SystemExit('not the pinned code')\n")
    assert type(program(fab, pin, claimed=theirs.name[-8:])).__name__ == "ClientApp"
    (place,) = (tmp_path / "home" / f"pinned-{pin}" / "apps").iterdir()
    assert sys.modules["of_tiny"].__file__ == str(place / "of_tiny.py")


def test_another_bundle_is_not_even_unpacked(
    fab: bytes, program: Callable[..., object], tmp_path: Path
) -> None:
    pin, other = pinned.digest(fab), tampered(fab)
    with pytest.raises(ValueError) as refused:
        program(other, pin)
    assert str(refused.value) == (
        f"the app bundle that came has the digest {pinned.digest(other)}, --app-digest is {pin}"
    )
    assert not (tmp_path / "home").exists() and "of_tiny" not in sys.modules


def test_a_bundle_under_another_versions_name_is_not_loaded(
    fab: bytes, program: Callable[..., object]
) -> None:
    with pytest.raises(LoadClientAppError, match="version mismatch"):
        program(fab, pinned.digest(fab), version="1.0.0/../../elsewhere")


def test_what_was_not_installed_here_is_not_loaded(
    fab: bytes, program: Callable[..., object]
) -> None:
    with pytest.raises(RuntimeError, match="nothing was checked"):
        program(fab, pinned.digest(fab), install=False)


def test_without_a_pin_flowers_own_program_runs(
    fab: bytes, program: Callable[..., object], tmp_path: Path
) -> None:
    assert program(fab, "", claimed=flower.install_from_fab(fab, skip_prompt=True).name[-8:])
    assert not [*(tmp_path / "home").glob("pinned-*")]


@pytest.mark.parametrize("text", ["12", "g" * 64, "a" * 63, "a" * 64 + "\n"])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--app-digest .* is not allowed; it should be 64 hex"):
        node.pin(text)
    assert node.pin("AB" * 32) == "ab" * 32 and node.pin("") == ""


def test_a_supernode_finds_the_pinning_program_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda path, line, env: seen.append(env))
    monkeypatch.setattr(os, "chdir", lambda path: None)
    monkeypatch.setenv(pinned.PIN, "of the shell")
    node.become(["flower-supernode"], tmp_path / "home", "ab" * 32)
    node.become(["flower-supernode"], tmp_path / "home")
    found = [shutil.which(pinned.PROGRAM, path=env["PATH"]) for env in seen]
    mine = str(tmp_path / "home" / "bin" / pinned.PROGRAM)
    assert found == [mine, processes.executable(pinned.PROGRAM)]
    assert [env.get(pinned.PIN) for env in seen] == ["ab" * 32, None]


def test_when_nothing_is_warm_the_stand_in_starts_the_pinning_program(tmp_path: Path) -> None:
    mine = pinned.stand_in(tmp_path / "bin")
    with warm.stand_ins({pinned.PROGRAM: mine}) as folder:
        assert str(mine) in (folder / pinned.PROGRAM).read_text()
        assert str(mine) not in (folder / "flower-superexec").read_text()
