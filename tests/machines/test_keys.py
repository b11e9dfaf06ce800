"""Keys that clients make themselves, keys that are revoked, and certificates that end soon."""

import json
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from common.exchange.seal import files
from common.exchange.seal.files import expiry_warnings, fingerprint, read_revoked, ssh_public_key
from common.settings.config import Value
from deploy.flower import certificates, control
from deploy.flower.certificates import Certificates, make, make_key, read_public_key, revoke
from deploy.run.grpc import node_config
from server_app.messaging.sealed import Trust
from server_app.stopped import Stopped
from tests.support.battery import Swapping
from tests.support.commandline import completed, error_of, typed
from tests.support.keys import Keyed, Registry
from tests.support.recorded_calls import refusal
from tests.support.tiny import TinyRun, flat, play

OPENSSH = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
ODD = {
    "a word": (b"2.pub\n", "line 1: '2.pub' is no OpenSSH public key; a line should be SHA256:"),
    "two words": (b"SHA256:" + 43 * b"A" + b" 2\n", "line 1: 'SHA256:AAA"),
    "too short": (b"#\n\nSHA256:" + 42 * b"A", "line 3: 'SHA256:AAA"),
    "no 32 bytes": (b"SHA256:" + 43 * b"B", "line 1: 'SHA256:BBB"),
    "another hash": (b"MD5:00:11", "line 1: 'MD5:00:11' is no OpenSSH public key"),
    "no text": (b"\xff\xfe", "byte 0 is no text in UTF-8"),
    "folder": (b"", "cannot be read: Is a directory"),
    "link": (b"", "cannot be read: No such file"),
}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def public_file(path: Path, key: Any) -> Path:
    path.write_bytes(key.public_key().public_bytes(*OPENSSH))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("made") / "certs", [], 3)


@pytest.fixture
def certs(made: Certificates, tmp_path: Path) -> Certificates:
    """A copy of its own for each test, and a folder for what a client sends."""
    (tmp_path / "sent").mkdir()
    return Certificates(Path(shutil.copytree(made.folder, tmp_path / "certs")))


def test_a_private_key_may_be_elsewhere_but_for_a_local_federation(certs: Certificates) -> None:
    certs.key(1).rename(certs.folder / "moved.key")
    before = contents(certs.clients)
    done = completed("certs", certs.folder, "--clients", 4)
    after = contents(certs.clients)
    assert after.keys() - before.keys() == {certs.key(3), certs.public(3)}
    assert {path: after[path] for path in before} == before
    assert "1.pub … 1.pub  (public, register them; the private keys are elsewhere)" in done.stdout
    said = "1.key is missing, but its public half exists: put it back, or delete 1.pub"
    assert said in error_of("local", "--work", certs.folder.parent, "--clients", 3)


def test_certs_takes_the_public_half_of_a_key(certs: Certificates, tmp_path: Path) -> None:
    done = typed("keygen", tmp_path / "own", "--k", 5)
    own = Certificates(tmp_path, tmp_path / "own")
    line = f"{own.public(5)} {fingerprint(ssh_public_key(own.public(5)))}: send this file to the "
    line += "server's operator, who runs: fedmosaic certs --client 5=5.pub\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, line, "")
    for k in ("-1", "100000"):
        error = error_of("keygen", tmp_path / "odd", "--k", k)
        assert f"'--k': {k} is not in the range" in error
        assert not (tmp_path / "odd").exists()
    assert stat.S_IMODE(own.key(5).stat().st_mode) == 0o600
    private = files.ssh_key(own.key(5))
    assert private.curve.name == files.ssh_key(certs.key(0)).curve.name == "secp384r1"
    before = contents(own.clients)
    assert "5.key exists already: move it away" in error_of("keygen", tmp_path / "own", "--k", 5)
    assert contents(own.clients) == before
    sent = Path(shutil.copy(own.public(5), tmp_path / "sent.pub"))
    for _ in range(2):  # the second time it changes nothing
        completed("certs", certs.folder, "--client", f"5={sent}")
        assert certs.public(5).read_bytes() == own.public(5).read_bytes()
        assert not certs.key(5).exists()
    assert Trust(certs.folder).client(5) == private.public_key()


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("5={sent}/5.key", "5.key is a private key, which stays with the client: pass its public"),
        ("5={certs}/serverapp.key", "serverapp.key is a private key"),
        ("5={sent}/256.pub", "256.pub is a key on secp256r1; it should be on secp384r1"),
        ("5={sent}/ed.pub", "ed.pub is no key on a NIST curve"),
        ("2={sent}/5.pub", "2.pub is another key of client 2: unregister it first, or pass --repl"),
        ("1={sent}/5.pub", "1.key does not belong to"),
        ("5={certs}/clients/2.pub", "2.pub is the key of client 2 too: each needs its own"),
        ("5={sent}/6.pub", "6.pub is revoked, see"),
        ("5=/nowhere/5.pub", "/nowhere/5.pub cannot be read: No such file"),
        ("5={certs}/ca.crt", "ca.crt is no OpenSSH public key"),
        ("100000={certs}/clients/0.pub", "/clients/0.pub' is not allowed; it should be K=FILE"),
        ("{certs}/clients/0.pub", "is not allowed; it should be K=FILE"),
        ("5=", "--client '5=' is not allowed; it should be K=FILE"),
    ],
)
def test_certs_refuses_a_public_key_that_cannot_be_a_clients(
    argument: str, said: str, certs: Certificates, tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    public_file(sent / "256.pub", ec.generate_private_key(ec.SECP256R1()))
    public_file(sent / "ed.pub", ed25519.Ed25519PrivateKey.generate())
    make_key(sent, 5)
    revoke(certs.revoked, [make_key(sent, 6)[0].public(6)])
    certs.key(2).unlink()
    before = contents(certs.folder)
    argument = argument.format(sent=sent, certs=certs.folder)
    done = typed("certs", certs.folder, "--client", argument)
    assert done.returncode == 1 and said in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout
    assert contents(certs.folder) == before


def test_one_key_for_two_clients_is_refused(certs: Certificates, tmp_path: Path) -> None:
    path = make_key(tmp_path, 5)[0].public(5)
    for words, said in (
        ((f"5={path}", f"6={path}"), "5.pub is the key of client 5 too: each needs its own"),
        ((f"5={path}", f"05={path}"), "client 5 has two files; give it one"),
    ):
        assert said in error_of("certs", certs.folder, "--client", words[0], "--client", words[1])
    assert not certs.public(5).exists()


@pytest.mark.parametrize("first", ["replace", "revoke"])
def test_a_public_key_is_replaced_if_that_is_said_or_the_old_one_is_revoked(
    first: str, certs: Certificates, tmp_path: Path
) -> None:
    certs.key(1).unlink()
    own, _ = make_key(tmp_path, 1)
    if first == "revoke":
        revoke(certs.revoked, [certs.public(1)])
    words = ["--replace"] if first == "replace" else []
    completed("certs", certs.folder, "--client", f"1={own.public(1)}", *words)
    assert certs.public(1).read_bytes() == own.public(1).read_bytes()


# The list of revoked keys.
def test_the_list_holds_fingerprints_keys_and_comments(made: Certificates, tmp_path: Path) -> None:
    keys = [fingerprint(ssh_public_key(made.public(k))) for k in range(2)]
    path = tmp_path / "revoked"
    assert read_revoked(path) == frozenset()
    key = made.public(1).read_text()
    path.write_text(f"# Änderungen: 2026\n\n{keys[0]}  # stolen\n  {key}")
    assert read_revoked(path) == frozenset(keys)
    assert revoke(path, [made.public(1), made.public(2), made.public(2)]) == 1
    assert path.read_text().startswith(f"# Änderungen: 2026\n\n{keys[0]}  # stolen\n  {key}")
    assert len(read_revoked(path)) == 3 and stat.S_IMODE(path.stat().st_mode) == 0o644
    if shutil.which("ssh-keygen") is not None:
        command = ["ssh-keygen", "-l", "-f", made.public(0)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        assert shown.stdout.split()[1] == keys[0]


@pytest.mark.parametrize("how", ODD)
def test_a_list_that_cannot_be_read_stops_everything_that_needs_it(
    how: str, certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = Trust(certs.folder)
    content, said = ODD[how]
    if how == "folder":
        certs.revoked.mkdir()
    elif how == "link":
        certs.revoked.symlink_to("nowhere")
    else:
        certs.revoked.write_bytes(content)
    with pytest.raises(Stopped) as stopped:
        trust.client(0)
    refused = refusal(Trust, certs.folder)
    monkeypatch.setattr(control, "Control", None)  # nothing may be asked
    done = typed("register", certs.clients, "--insecure")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    for line in (str(stopped.value), refused, done.stderr.strip()):
        assert said in line and str(certs.revoked) in line and "\n" not in line


def test_unregister_removes_the_node_and_lists_the_key_and_register_refuses_it(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry = Registry({read_public_key(certs.public(k)): "online" for k in range(3)})
    monkeypatch.setattr(control, "ControlStub", lambda _: registry)
    place = tmp_path / "no" / "list"
    unwritten = f"{place} cannot be written: {tmp_path / 'no'} is not a folder"
    assert unwritten in error_of("unregister", certs.public(1), "--insecure", "--revoked", place)
    assert list(registry.status.values()) == ["online"] * 3, "it is not even unregistered"
    done = completed("unregister", certs.public(1), "--insecure", "--json")
    answer = {"keys": 1, "unregistered": 1, "revoked": 1, "lists": [str(certs.revoked)]}
    assert json.loads(done.stdout) == answer
    assert list(registry.status.values()) == ["online", "unregistered", "online"]
    assert fingerprint(ssh_public_key(certs.public(1))) in certs.revoked.read_text()
    again = typed("unregister", certs.public(1), "--insecure")
    assert "0 of 1 keys unregistered, 1 were unknown\n0 keys added to" in again.stdout
    registry.status.clear()  # a SuperLink that has lost its database
    said = f"1.pub is revoked, see {certs.revoked}: the client needs a new key"
    error = error_of("register", certs.public(0), certs.public(1), "--insecure")
    assert said in error and not registry.status
    others = completed("register", certs.clients, "--insecure").stdout
    assert said in others and "2 of 3 keys registered, 0 were registered already" in others
    assert read_public_key(certs.public(1)) not in registry.status
    named = tmp_path / "list"
    typed("unregister", certs.public(0), "--insecure", "--revoked", named)
    error = error_of("register", certs.public(0), "--insecure", "--revoked", named)
    assert f"0.pub is revoked, see {named}" in error


class Reconnecting(Swapping, Keyed):
    """After round 1 client 1's key is revoked, its node leaves and returns as node 99."""

    leaving = 2

    def __init__(self, config: dict[str, Value], keys: Certificates) -> None:
        Keyed.__init__(self, config, keys)
        self._keys = keys

    def swap(self) -> None:
        revoke(self._keys.revoked, [self._keys.public(1)])
        super().swap()


def sealed(certs: Certificates, out: Path, grid: type[Keyed] = Keyed, **more: Any) -> TinyRun:
    small = {"method": "fedavg", "clients": 3, "fleet": "mlp@0.25", "train__epochs": 1}
    small |= {"data__samples": 60, "data__test_samples": 20, "min_replies": 0.5}
    config = flat(out, **{**small, **more})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMOSAIC_TRUST", str(certs.folder))
        return play(config, grid(config, certs))


@pytest.mark.full
@pytest.mark.parametrize("rebind", [True, False])
def test_a_key_that_is_revoked_during_a_run_is_refused_and_the_others_go_on(
    rebind: bool, certs: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = sealed(certs, tmp_path / "out", Reconnecting, rounds=3, rebind=rebind)
    assert [entry["replied"] for entry in run.journal[1:]] == [[0, 2]] * 3
    why = f"its key 1.pub is revoked, see {certs.revoked}"
    assert any(why in line for line in caplog.text.splitlines())
    reasons = {failure["reason"] for entry in run.journal for failure in entry["failures"]}
    claim = f"node 99 claims its place and is refused: it claims to be client 1: {why}"
    assert (claim in reasons) is not rebind


def test_new_and_resumed_runs_refuse_a_revoked_client(certs: Certificates, tmp_path: Path) -> None:
    sealed(certs, tmp_path / "out", rounds=1)
    revoke(certs.revoked, [certs.public(1)])
    for out, resume in ((tmp_path / "out", True), (tmp_path / "new", False)):
        with pytest.raises(Stopped) as stopped:
            sealed(certs, out, rounds=2, resume=resume)
        line = str(stopped.value)
        assert line.startswith("census: node 2 answered: ") and "\n" not in line
        assert f"it claims to be client 1: its key 1.pub is revoked, see {certs.revoked}" in line


# Certificates that end soon.
def expiring(folder: Path, monkeypatch: pytest.MonkeyPatch, days: int) -> Certificates:
    """Certificates that end ``days`` from now, an authority included; negative: have ended."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=min(days, 0) - 1, hours=1)

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "AUTHORITY_DAYS", 1)
        patch.setattr(certificates, "datetime", Clock)
        return make(folder, [], 1, max(days, 0) + 1)


@pytest.mark.parametrize(
    ("days", "state"), [(31, ""), (29, "expires on {}, in 29 days"), (-2, "expired on {}")]
)
def test_a_certificate_that_ends_soon_is_announced_with_file_date_and_command(
    days: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = expiring(tmp_path, monkeypatch, days)
    date = f"{datetime.now(UTC) + timedelta(days=days, hours=1):%Y-%m-%d}"
    renew = f"renew it with: fedmosaic certs {tmp_path}, and restart the server"
    new = "make a new authority with: fedmosaic certs NEW_FOLDER --host …, and copy its ca.crt to"
    places = [made.server, made.app, tmp_path / "nowhere.crt", made.ca_key]
    said = [f"{path} {state.format(date)}; {renew}" for path in places[:2]] if state else []
    assert expiry_warnings(places) == said
    announced = [line for line in expiry_warnings([made.ca]) if new in line]
    assert len(announced) == bool(state) and all("ca.crt exp" in line for line in announced)
    made.ca_key.unlink()
    assert all("fedmosaic certs FOLDER (with ca.key)" in line for line in expiry_warnings(places))


@pytest.mark.parametrize("command", ["node", "submit", "unregister"])
def test_commands_announce_the_certificates_that_they_use(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = expiring(tmp_path / "certs", monkeypatch, 5)
    words: dict[str, list[object]] = {"submit": ["--wait", 0]}
    words["unregister"] = [made.public(0), "--wait", 0]
    words["node"] = ["--superlink", "127.0.0.1:1", "--clients", 1, "--k", 0, "-s", "model=nosuch"]
    at = [] if command == "node" else ["--superlink", "127.0.0.1:1"]
    done = typed(command, *words[command], *at, "--ca", made.ca)
    assert done.returncode == 1
    *warnings, error = done.stderr.splitlines()
    assert error.startswith("error:")
    files = [line.removeprefix("warning: ").split(" expires on ")[0] for line in warnings]
    assert files == [str(path) for path in (made.ca, made.server, made.app)]
    Trust(made.folder)
    for path in (made.ca, made.server, made.app):
        assert f"{path} expires on " in caplog.text, "the ServerApp announces them too"
    made.key(0).unlink()  # ends a local federation before anything starts
    local = typed("local", "--work", tmp_path, "--clients", 1)
    assert local.returncode == 1 and f"warning: {made.ca} expires on " in local.stderr
    assert f"warning: {made.ca} expires on " in typed("certs", made.folder).stderr


def test_the_roster_has_all_public_keys_but_revoked_ones(tmp_path: Path) -> None:
    made = make(tmp_path / "certs", [], 11)
    assert made.roster == made.ca.with_name("roster.pub")
    keys = files.read_roster(made.roster)
    assert [*keys] == [*range(11)] and keys[10] == ssh_public_key(made.public(10))
    revoke(made.revoked, [made.public(3)])
    assert 3 not in files.read_roster(make(made.folder, [], 11).roster)
    assert not make(tmp_path / "none", [], 0).roster.exists()
    line = made.public(3).read_text()
    for text in (2 * line, line.replace("client-3", "somebody"), "client-3\n", f"x {line}"):
        made.roster.write_text(text)
        with pytest.raises(ValueError, match=r"roster.pub, line [12].* of fedmosaic certs"):
            files.read_roster(made.roster)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        files.read_roster(tmp_path / "missing")


def test_a_node_finds_the_roster_beside_the_authority(certs: Certificates) -> None:
    assert f"roster='{certs.roster}'" in node_config(0, 2, {}, certs)
    assert "roster='/x'" in node_config(0, 2, {"roster": "/x"}, certs)
    certs.roster.unlink()
    assert "roster.pub" not in node_config(0, 2, {}, certs)
