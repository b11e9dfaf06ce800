"""Certificates and keys, and clients that run one app bundle only."""

import errno
import io
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address as ip
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.clientapp.client_app import LoadClientAppError
from flwr.supernode.runtime import run_clientapp as flower

from deploy.flower import certificates
from deploy.flower.bundle import built, digest, stage_app
from deploy.flower.certificates import Certificates, make
from deploy.flower.owner import pinned
from deploy.machines import commands, node
from deploy.settings import app_folder, resolve
from tests.support.recorded_calls import refusal

HERE = ip("127.0.0.1")
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
Program = Callable[..., object]


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(files: Certificates) -> list[object]:
    """Return the server's names in its certificate; an address is no text."""
    server = certificate(files.server).extensions
    return [one.value for one in server.get_extension_for_class(x509.SubjectAlternativeName).value]


def test_the_server_is_certified_for_its_hosts_and_for_this_machine(tmp_path: Path) -> None:
    hosts = ["fed.example.org", "192.0.2.7", "::1"]
    files = make(tmp_path / "new" / "certs", hosts, 2, days=10)
    server, authority = certificate(files.server), certificate(files.ca)
    server.verify_directly_issued_by(authority)
    assert names(files) == ["fed.example.org", ip("192.0.2.7"), ip("::1"), "localhost", HERE]
    left = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=9, hours=23) < left < timedelta(days=10)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value.ca
    key = serialization.load_pem_private_key(files.server_key.read_bytes(), None)
    assert key.public_key() == server.public_key()
    own = serialization.load_ssh_private_key(files.key(0).read_bytes(), None)
    assert isinstance(own, ec.EllipticCurvePrivateKey) and own.curve.name == "secp384r1"
    assert own.public_key() == serialization.load_ssh_public_key(files.public(0).read_bytes())
    for secret in (files.ca_key, files.server_key, files.app_key, files.key(0), files.key(1)):
        assert mode(secret) == 0o600, secret
    for public in (files.ca, files.server, files.app, files.public(0), files.public(1)):
        assert mode(public) == 0o644, public
    command = ["openssl", "verify", "-CAfile", files.ca, "-verify_hostname", hosts[0], files.server]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_making_again_keeps_all_but_the_servers_certificate(tmp_path: Path) -> None:
    files = make(tmp_path, ["old.example.org"], 2)
    kept = {p: p.read_bytes() for p in (files.ca, files.ca_key, files.key(0), files.public(1))}
    before = files.server.read_bytes()
    make(tmp_path, [], 3)
    assert names(files) == ["old.example.org", "localhost", HERE]
    assert files.server.read_bytes() != before and files.key(2).exists()
    make(tmp_path, ["192.0.2.7"], 3)
    assert names(files) == [ip("192.0.2.7"), "localhost", HERE], "named hosts replace others"
    assert {p: p.read_bytes() for p in kept} == kept
    certificate(files.server).verify_directly_issued_by(certificate(files.ca))


def test_the_authority_outlives_the_servers_certificate_and_is_refused_once_it_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make(tmp_path / "a", [], 0, days=30)
    left = certificate(files.ca).not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=3649) < left < timedelta(days=3650)
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 1)
    files = make(tmp_path / "b", [], 0, days=1)
    make(tmp_path / "b", [], 0, days=30)
    ends = [certificate(path).not_valid_after_utc for path in (files.ca, files.server)]
    assert timedelta(0) <= ends[0] - ends[1] < timedelta(seconds=2)
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 0)
    with pytest.raises(ValueError, match=r"ca\.crt expired on \d{4}-\d\d-\d\d: make a new"):
        make(tmp_path / "c", [], 0, days=0)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("https://a.b", "--host 'https://a.b' is neither"),
        ("a.b:9092", "--host 'a.b:9092' is neither"),
        ("", "--host '' is neither"),
        ("1.2.3.999", "--host '1.2.3.999' is not a valid address"),
        ("fe80::1%eth0", "--host 'fe80::1%eth0' is neither .* port, scheme or scope"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_anything_is_written(
    tmp_path: Path, host: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make(tmp_path / "certs", [host], 1)
    assert not (tmp_path / "certs").exists()


def test_an_authority_without_key_is_not_replaced_and_damage_is_named(tmp_path: Path) -> None:
    files = make(tmp_path, [], 2)
    before = files.server.read_bytes()
    authority = {path: path.read_bytes() for path in (files.ca, files.ca_key)}
    files.ca_key.unlink()
    with pytest.raises(ValueError, match=r"ca\.crt exists without .*ca\.key"):
        make(tmp_path, [], 1)
    files.ca_key.write_bytes(make(tmp_path / "other", [], 0).ca_key.read_bytes())
    with pytest.raises(ValueError, match="is not the key of"):
        make(tmp_path, [], 1)
    for damaged in authority:
        for path, content in authority.items():
            path.write_bytes(b"nonsense" if path == damaged else content)
        line = refusal(make, tmp_path, [], 0)
        assert line.startswith(f"{damaged} cannot be read: it holds no ") and "http" not in line
    assert files.server.read_bytes() == before
    files.ca_key.write_bytes(authority[files.ca_key])
    public, private = files.public(1).read_bytes(), files.key(1).read_bytes()
    files.public(1).unlink()
    make(tmp_path, [], 0)
    assert (files.public(1).read_bytes(), files.key(1).read_bytes()) == (public, private)
    assert mode(files.public(1)) == 0o644
    files.public(1).unlink()
    files.key(1).write_text("nonsense")
    with pytest.raises(ValueError, match=r"1\.key cannot be read: .*; delete it to have a new one"):
        make(tmp_path, [], 0)


def test_a_full_disk_leaves_a_fitting_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make(tmp_path, [], 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def write(path: Path, content: bytes, private: bool) -> None:
        if "crt" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        path.write_bytes(content)

    monkeypatch.setattr(certificates, "write_atomically", write)
    with pytest.raises(OSError, match="No space left"):
        make(tmp_path, ["other.example.org"], 1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert files.server_key in before


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
        with pytest.raises(ValueError, match="the received app bundle cannot be read"):
            pinned.digest(odd)


def test_the_digest_is_of_code_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
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


def test_the_pinned_bundle_has_its_place(fab: bytes, program: Program, tmp_path: Path) -> None:
    pin = pinned.digest(fab)
    theirs = flower.install_from_fab(fab, skip_prompt=True)  # before anything was pinned
    (theirs / "of_tiny.py").write_text("raise SystemExit('not the pinned code')\n")
    assert type(program(fab, pin, claimed=theirs.name[-8:])).__name__ == "ClientApp"
    (place,) = (tmp_path / "home" / f"pinned-{pin}" / "apps").iterdir()
    assert sys.modules["of_tiny"].__file__ == str(place / "of_tiny.py")


def test_another_bundle_is_not_even_unpacked_and_nothing_unchecked_is_loaded(
    fab: bytes, program: Program, tmp_path: Path
) -> None:
    pin, other = pinned.digest(fab), tampered(fab)
    digest = pinned.digest(other)
    line = f"the received app bundle has the digest {digest}, --app-digest is {pin}"
    assert refusal(program, other, pin) == line
    assert not (tmp_path / "home").exists() and "of_tiny" not in sys.modules
    with pytest.raises(RuntimeError, match="its digest was not checked"):
        program(fab, pin, install=False)
    with pytest.raises(LoadClientAppError, match="version mismatch"):
        program(fab, pin, version="1.0.0/../../elsewhere")


def test_without_a_pin_flower_runs(fab: bytes, program: Program, tmp_path: Path) -> None:
    assert program(fab, "", claimed=flower.install_from_fab(fab, skip_prompt=True).name[-8:])
    assert not [*(tmp_path / "home").glob("pinned-*")]


@pytest.mark.parametrize("text", ["12", "g" * 64, "a" * 63, "a" * 64 + "\n"])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--app-digest .* is not allowed; it should be 64 hex"):
        node.pin(text)
    assert node.pin("AB" * 32) == "ab" * 32 and node.pin("") == ""


def test_the_pinning_program_has_flowers_process_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", pinned.PROGRAM, "--token", "x"])
    seen: list[list[str]] = []
    monkeypatch.setattr(pinned, "main", lambda real: seen.append(list(sys.argv)))
    pinned.program()
    assert seen == [["flwr-clientapp", "--token", "x"]]
