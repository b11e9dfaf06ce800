"""The checks of a node's owner cannot be skipped: whatever happens to files, mounts and PATH.

A tiny app is sent to a SuperNode under hostile circumstances. It must be refused, by the digest or
by the policy, and an app and a run that are allowed must run.
"""

import contextlib
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.settings.version import ROOT
from deploy.flower import supernode, warm, warm_client, watchdog
from deploy.flower.bundle import built
from deploy.flower.control import Control, start_superlink
from deploy.flower.owner import pinned, policy, rules
from deploy.flower.processes import Processes, environment, own_program
from deploy.machines import node
from deploy.run.grpc import start_federation
from tests.support import tiny_app
from tests.support.commandline import command_line, error_of
from tests.support.faults import processes as running
from tests.support.namespaces import allowed
from tests.support.recorded_calls import refusal
from tests.support.waiting import PATIENCE, until

WRONG = "0" * 64  #: digest of no bundle
NODE = ["node", "--superlink", "h:1", "--clients", "2", "--insecure", "--k", "0"]
IMPOSTOR = '#!/bin/sh\necho "$0" >> {log}\nexec {real} "$@"\n'
NAMES = ("flwr-clientapp", "flower-superexec", "flower-supernode", "python", "python3", "sh")
COPY = "import sys; sys.path.insert(0, {!r}); from deploy.cli import main; main()"

linux = pytest.mark.skipif(sys.platform != "linux", reason="warm starts and mounts need Linux")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return tiny_app.write(tmp_path / "tiny")


def answered(out: Path) -> str:
    """Return why the client has refused the server's message, or ``trained``."""
    (reply,) = json.loads(out.read_text())["replies"]
    return str(reply.get("error", "trained"))


class Site:
    """A SuperLink, and the folders of one node with impostors of all programs first on PATH."""

    def __init__(self, work: Path, control: Control, fleet: str) -> None:
        self.work, self.control, self.fleet = work, control, fleet
        self.home, self.temporary, self.log = work / "n", work / "t", work / "node.log"
        self.impostors = work / "impostors"
        for folder in (self.home, self.temporary, self.impostors):
            folder.mkdir()

    def impostor(self, path: Path) -> None:
        """Write a program that notes its start and does what the real one does."""
        path.parent.mkdir(exist_ok=True)
        near = Path(sys.executable).with_name(path.name)
        real = near if near.exists() else shutil.which(path.name)
        path.write_text(IMPOSTOR.format(log=self.work / "started", real=real))
        path.chmod(0o755)

    @property
    def path(self) -> str:
        """PATH with an impostor of every program that a node could start."""
        for name in NAMES:
            self.impostor(self.impostors / name)
        return os.pathsep.join([str(self.impostors), os.environ["PATH"]])

    @contextlib.contextmanager
    def node(self, *options: str, mounts: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """Start client 0's node after the shell lines ``mounts``, in its own mount namespace."""
        line = command_line("node", "--superlink", self.fleet, "--insecure", "--clients", 1)
        line += ["--k", "0", "--home", str(self.home), *options]
        env = {**os.environ, "PATH": self.path, "TMPDIR": str(self.temporary)}
        if mounts:
            script = f"set -e\n{mounts}\nexec {shlex.join(line)}"
            line = ["unshare", "--mount", "--propagation=private", "/bin/sh", "-c", script]
        with (
            self.log.open("wb") as log,
            subprocess.Popen(line, stdout=log, stderr=log, env=env, start_new_session=True) as node,
        ):
            try:
                yield node
            finally:
                watchdog.end({node.pid, *self._sessions()}, 30.0)

    def _sessions(self) -> set[int]:
        return {os.getsid(pid) for pid in running(self.home, "deploy.flower")}

    def connected(self, process: subprocess.Popen[bytes]) -> None:
        def online() -> bool:
            assert process.poll() is None, self.log.read_text()
            return self.control.online() >= 1

        until(lambda: f"the node:\n{self.log.read_text()}", online)

    def answer(self, app: Path, **settings: str) -> str:
        """Return the reason of the client's refusal, or ``trained``."""
        out = self.work / f"answer-{len(list(self.work.glob('answer-*')))}"
        run = self.control.submit(app, {"out": str(out), **settings}, {})
        status = self.control.follow(run, patience=PATIENCE)
        assert status.completed, status.details
        return answered(out)

    @property
    def started(self) -> list[str]:
        """The impostors that were started."""
        path = self.work / "started"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    work = tmp_path / "site"
    work.mkdir()
    with Processes(work) as processes:
        control, fleet = start_superlink(processes, work, {}, simulation=False)
        with control:
            yield Site(work, control, fleet)


def tampered(app: Path) -> Path:
    """Return a copy of the app with other code."""
    copy = shutil.copytree(app, app.parent / "other" / "tiny")
    (copy / "tiny_client.py").write_text(tiny_app.CLIENT + "# other\n")
    return copy


@pytest.mark.full
@linux
@pytest.mark.skipif(bool(allowed()), reason=str(allowed()))
@pytest.mark.parametrize("start", ["--warm-start", "--cold-start"])
def test_a_guarded_node_refuses_on_noexec_mounts_without_its_files_and_behind_impostors(
    site: Site, app: Path, start: str
) -> None:
    policy = site.work / "policy.toml"
    policy.write_text('methods = ["fedprox"]\n')
    digest = pinned.digest(built(app))
    mount, places = "mount -t tmpfs -o noexec,nosuid,nodev none", (site.home, site.temporary)
    mounts = "\n".join(f"{mount} {folder}" for folder in places)
    options = ("--app-digest", digest, "--policy", str(policy), start)
    with site.node(*options, mounts=mounts) as process:
        site.connected(process)
        root = Path(f"/proc/{process.pid}/root")
        temporary = root / site.temporary.relative_to("/")
        for path in temporary.iterdir():  # what a cleaner of temporary files does
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        site.impostor(root / site.home.relative_to("/") / "bin" / "flwr-clientapp")
        refused = site.answer(app, method="fedavg")
        assert "method = 'fedavg' is not allowed on client 0; its policy (methods)" in refused
        refused = site.answer(tampered(app), method="fedprox")
        assert "the received app bundle has the digest" in refused
        assert f"--app-digest is {digest}" in refused
        assert site.answer(app, method="fedprox") == "trained"
        assert bool(running(site.home, "import warm")) is (start == "--warm-start")
    assert site.started == []
    log = site.log.read_text()
    assert log.count("refused: ") == 2 and "Traceback" not in log, log


@pytest.mark.full
@linux
def test_the_rules_of_a_node_without_a_digest_hold_behind_impostors(site: Site, app: Path) -> None:
    with site.node("--cold-start", "-s", f"state-dir={site.work}") as process:
        site.connected(process)
        refused = site.answer(app, weights="/etc/passwd")
        assert "weights = '/etc/passwd' is not allowed on client 0; a node without" in refused
        assert site.answer(app) == "trained"
    assert site.started == []


@pytest.mark.full
@linux
def test_a_node_whose_checks_are_gone_refuses_each_message_and_does_not_start_again(
    site: Site, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation that is damaged while its node runs, and then at its start."""
    copy = site.work / "copy"
    for name in ("common", "client_app", "server_app", "deploy"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("results"))
    shutil.copy(ROOT / "pyproject.toml", copy)

    def line(*arguments: object) -> list[str]:
        return [sys.executable, "-c", COPY.format(str(copy)), *map(str, arguments)]

    monkeypatch.setattr(f"{__name__}.command_line", line)
    digest = pinned.digest(built(app))
    checks = copy / "deploy" / "flower" / "owner" / "pinned.py"
    with site.node("--app-digest", digest, "--cold-start") as process:
        site.connected(process)
        checks.rename(checks.with_suffix(".away"))
        shutil.rmtree(checks.with_name("__pycache__"), ignore_errors=True)
        assert site.answer(app) == "the ClientApp ended with status 1 before it reported its start"
        said = site.log.read_text()
        assert "error: deploy.flower.owner.pinned: cannot import name 'pinned'" in said
        checks.with_suffix(".away").rename(checks)
        assert site.answer(app) == "trained"
        assert "Traceback" not in said
    checks.write_text(
        checks.read_text().replace("if (actual := digest(fab)) != pin and pin:", "if False:")
    )
    with site.node("--app-digest", digest, "--cold-start") as process:
        assert process.wait(PATIENCE) == 1
    said = site.log.read_text()
    why = "it ended with status 0 and did not refuse a wrong digest"
    line = f"error: the check of bundles and run configs does not work on this machine: {why}"
    assert said.splitlines()[-1] == line


@pytest.mark.full
@linux
@pytest.mark.parametrize("warm_start", [True, False])
def test_nodes_of_a_local_federation_refuse_although_their_stand_ins_are_gone(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_start: bool
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    answers = []
    for digest in (WRONG, pinned.digest(built(app))):
        work, guard = tmp_path / digest[:8], {pinned.PIN: digest}
        with start_federation(app, 1, work, guard, warm_start=warm_start) as federation:
            shutil.rmtree(temporary)
            temporary.mkdir()
            out = tmp_path / f"{digest[:8]}.txt"
            status = federation.control.follow(federation.submit({"out": str(out)}))
            assert status.completed, status.details
            answers.append(answered(out))
    assert f"--app-digest is {WRONG}" in answers[0] and answers[1] == "trained"


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home, why in ((tmp_path / "file", "File exists"), (Path("/proc/1"), "No such file")):
        assert refusal(node.check_home, home).startswith(f"--home {home}: {why}")
    error = error_of(*NODE, "--app-digest", WRONG, "--home", "/proc/1/node")
    assert "so it must be a folder that can be written" in error


@linux
@pytest.mark.skipif(bool(allowed()), reason=str(allowed()))
def test_a_read_only_home_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    script = f"mount -t tmpfs -o ro none {home} && exec {shlex.join(command_line(*NODE))}"
    inside = ["unshare", "--mount", "--propagation=private", "sh", "-c", f"{script} --home {home}"]
    done = subprocess.run(inside, capture_output=True, text=True)
    said = f"error: --home {home}: Read-only file system; this client's code is unpacked there, "
    assert done.returncode == 1 and done.stderr.startswith(said), done.stderr
    assert done.stderr.count("\n") == 1


def test_the_checks_are_a_program_of_this_installation_that_no_variable_of_the_shell_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = own_program("nosuch", "program()")
    assert Path(line[0]).is_absolute() and line[0] == sys.executable
    done = subprocess.run(line, capture_output=True, text=True, env={"PATH": ""})
    said = "error: deploy.flower.nosuch: cannot import name 'nosuch' from 'deploy.flower'"
    assert done.returncode == 1 and done.stderr.startswith(said), done.stderr
    assert done.stderr.count("\n") == 1
    names = {pinned.PIN, rules.RULES, warm_client.ADDRESS}
    for name in names:
        monkeypatch.setenv(name, "of the shell")
    assert names.isdisjoint(environment({}, tmp_path))
    assert environment({pinned.PIN: WRONG}, tmp_path)[pinned.PIN] == WRONG


def test_a_self_test_is_passed_only_by_what_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(warm_client.ADDRESS, raising=False)
    monkeypatch.setenv(rules.RULES, json.dumps(policy.rules(policy.Policy(), {})))
    assert pinned.fault(supernode.client_app()) == ""
    monkeypatch.setenv(rules.RULES, "{}")  # allows everything
    monkeypatch.setattr(pinned, "PATIENCE", 0.5)
    python = [sys.executable, "-c"]
    for command, why in (
        ([*python, ""], "it ended with status 0 and did not refuse a wrong digest"),
        ([*python, "exit(3)"], "it ended with status 3 and did not refuse a wrong digest"),
        ([*python, "exit('line of its own')"], "line of its own"),
        ([*python, "input(), input()"], "EOF"),
        ([*python, "import time; time.sleep(900)"], "it did not end within 0 s"),
        (["/nowhere/python"], "/nowhere/python: No such file or directory"),
    ):
        fault = pinned.fault(command)
        assert fault.startswith("the check of bundles and run configs does not work"), command
        assert why in fault, fault


@linux
def test_a_node_starts_its_checks_cold_or_through_the_warm_process_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(warm_client.ADDRESS, raising=False)
    cold = supernode.client_app()
    assert cold == [*own_program("owner.pinned", "program()"), "flwr-clientapp"]
    home = tmp_path / ("long" * 30)  # longer than the name of a socket
    home.mkdir()
    with warm._listening(home) as (listener, address):
        assert not any(home.iterdir())
        monkeypatch.setenv(warm_client.ADDRESS, address)
        line = supernode.client_app()
        assert line[0] == sys.executable and Path(line[3]).is_file()
        assert line[4:] == [address, "flwr-clientapp", json.dumps(cold)]
        with subprocess.Popen([*line, "--token", "x"]) as process:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as file:
                assert json.loads(file.readline()[1:])["argv"] == ["flwr-clientapp", "--token", "x"]
                for sent, received in ((b"?", b"!"), (b"+", b"")):
                    connection.sendall(sent)
                    assert file.read(1) == received
        assert process.returncode == 0


def test_a_clientapp_that_cannot_start_fails_its_message_at_once() -> None:
    ended: list[tuple[int, str]] = []
    task = SimpleNamespace(task_id=5, run_id=3)
    served = supernode.Node()
    served._program = ["/nowhere/python"]

    def tasks(statuses: Any) -> list[Any]:
        return [task] if "pending" in statuses and not ended else []

    state = SimpleNamespace(get_tasks=tasks, claim_task=lambda task: "token")
    state.finish_task = lambda task, status, why: ended.append((task, why))
    assert served._ended(state, supernode.Counter())
    assert ended == [(5, "/nowhere/python cannot be started: No such file or directory")]
    assert served._failure == ended[0][1]


def zipped(method: int, size: int) -> bytes:
    """Return a bundle with one file of ``size`` zeros."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as file, file.open("a.py", "w") as entry:
        for _ in range(size >> 20):
            entry.write(bytes(1 << 20))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("method", "size", "why"),
    [
        (zipfile.ZIP_BZIP2, 32 << 20, "a file that is not stored or deflated"),
        (zipfile.ZIP_LZMA, 1 << 20, "a file that is not stored or deflated"),
        (zipfile.ZIP_DEFLATED, pinned.MOST + (1 << 20), r"has 68,\d+,\d+ bytes, allowed are"),
    ],
)
@pytest.mark.parametrize("pin", ["", WRONG])
def test_a_bundle_is_measured_before_it_is_opened(
    method: int, size: int, why: str, pin: str
) -> None:
    bomb = zipped(method, size)
    tracemalloc.start()
    try:
        with pytest.raises(rules.Refused, match=why):
            pinned.check(bomb, pin)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_large_file_is_hashed_in_pieces_to_the_same_digest() -> None:
    bundle = zipped(zipfile.ZIP_DEFLATED, 16 << 20)
    line = hashlib.sha256(b"a.py").digest() + hashlib.sha256(bytes(16 << 20)).digest()
    tracemalloc.start()
    try:
        assert pinned.digest(bundle) == hashlib.sha256(line).hexdigest()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
