"""Runs over gRPC and in Ray, of a tiny Flower app that is written here, and what they stand on."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from flwr.common.config import parse_config_args

from common.settings.section import Value
from deploy.flower import warm, warm_client, watchdog
from deploy.flower.bundle import check_app, config_arguments, run_config_toml, stage_app
from deploy.flower.certificates import Certificates
from deploy.flower.control import RunStatus, run_id_from, superlink_command
from deploy.flower.processes import Processes, environment, executable, free_ports, tail
from deploy.run import doctor
from deploy.run.grpc import node_config, start_federation, supernode_command
from deploy.run.ray import _reason, run_simulation
from deploy.settings import app_folder
from server_app.stopped import Stopped
from tests.support import tiny_app
from tests.support.waiting import PATIENCE, until

AWKWARD = "line\nbreak \"double\" 'single' \\ ü 😀 \x7f"
LATE = "RuntimeError: Timed out waiting for file /tmp/r/gcs_server_port"
WARM = """
import json, os, signal, subprocess, sys, time
import psutil
sys.path.insert(0, os.environ["ROOT"])
from deploy.flower.supernode import client_app

def warm():
    try:
        children = psutil.Process(os.getppid()).children()
        return [child.pid for child in children if child.cmdline()[1:3] == ["-P", "-c"]]
    except psutil.Error:  # it has just ended
        return []

def until(state):
    while bool(warm()) is not state:
        time.sleep(0.1)

def request():
    subprocess.run([*client_app(), "--help"], check=True, stdout=subprocess.DEVNULL)
"""
TWICE = """
seen = []
for _ in range(2):
    request()
    until(True)
    seen += warm()
    until(False)
print(json.dumps(seen), flush=True)
"""
KILLED = """
until(True)
os.kill(*warm(), signal.SIGKILL)
until(False)
request()
assert not warm()
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return tiny_app.write(tmp_path / "tiny")


def running(marker: Path) -> list[str]:
    """Command lines of the living processes whose environment or arguments name ``marker``."""
    found = []
    for pid, _ in watchdog._processes():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            variables = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if pid != os.getpid() and str(marker).encode() in arguments + variables:
            found.append(arguments.replace(b"\0", b" ").decode())
    return found


def sleeper(processes: Processes, name: str, ignoring_sigterm: bool = False) -> None:
    """A process that starts a child of its own and would live for ten minutes."""
    trap = "trap '' TERM; " if ignoring_sigterm else ""
    processes.start(name, ["sh", "-c", f"{trap}sleep 600 & sleep 600; true"], dict(os.environ))


def test_a_run_config_survives_the_file_that_flower_reads(tmp_path: Path) -> None:
    config: dict[str, Value] = {"rounds": 3, "lr": 1e-05, "huge": 1e22, "seed": 2**63 - 1}
    config |= {"data.alpha": 0.5, "on": True, "off": False, "text": AWKWARD}
    file = tmp_path / "run.toml"
    file.write_text(run_config_toml(config), encoding="utf-8")
    read = parse_config_args([str(file)])
    assert read == config
    assert [type(read[key]) for key in config] == [type(value) for value in config.values()]


@pytest.mark.parametrize("text", ["resnet8", "", "two words", "a=b c='d'", 'say "hi"', "C:\\data"])
def test_a_node_config_survives_the_argument_that_flower_cuts_up(text: str) -> None:
    config: dict[str, Value] = {"model": text, "gpu": 0, "share": 0.25, "fast": True}
    assert parse_config_args([config_arguments(config)]) == config


@pytest.mark.parametrize(
    ("make", "config", "said"),
    [
        *(
            (config_arguments, {"model": text}, "config value model=")
            for text in ("'\"", "two\nlines", "it's \\n")
        ),
        *(
            (run_config_toml, {key: 1}, "config key")
            for key in ("", "two words", "a=b", "a..b", "ü")
        ),
        (run_config_toml, {"seed": 2**63}, "at most 64 bits"),
        (run_config_toml, {"fleet": ["a"]}, r"fleet=\['a'\]: allowed are bool, int, float and str"),
    ],
)
def test_what_flower_would_misread_is_refused(make: Any, config: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(config)


def test_only_known_keys_of_a_flower_app_are_taken(app: Path, tmp_path: Path) -> None:
    assert check_app(app, {"note.text": "x", "nodes": 2}) == app.resolve()
    for unknown in ("round", "note.texts"):
        known = rf"'{unknown}'.* has out, nodes, fail, wait, note\.text, method"
        with pytest.raises(ValueError, match=known):
            check_app(app, {unknown: 3})
    for text, said in (
        ("", r"has no pyproject\.toml"),
        ("[project]\n", r"no \[tool\.flwr\.app\] section"),
        ("[project\n", "not valid TOML"),
    ):
        if text:
            (tmp_path / "pyproject.toml").write_text(text)
        with pytest.raises(ValueError, match=said):
            check_app(tmp_path, {})


def test_only_the_bundled_files_of_an_app_are_staged(app: Path, tmp_path: Path) -> None:
    deep = app / "/".join("runs") / "a/b/c/d/e/f/g/h/i/j/k"
    deep.mkdir(parents=True)
    (deep / "journal.json").write_text("{}")
    (app / ".gitignore").write_text("*.log\n")
    staged = stage_app(app, tmp_path / "staged", {})
    names = sorted(path.name for path in staged.rglob("*"))
    assert names == [".gitignore", "pyproject.toml", "tiny_client.py", "tiny_server.py"]
    (app / "tiny_client.py").write_text("app = 1\n")
    assert (stage_app(app, tmp_path / "staged", {}) / "tiny_client.py").read_text() == "app = 1\n"
    for include in ("", 'fab-include = ["**/*.py"]'):
        text = re.sub("fab-include = .*", include, tiny_app.PROJECT)
        (app / "pyproject.toml").write_text(text)
        assert stage_app(app, tmp_path / "other", {}) == app


def test_whole_tables_that_an_app_lacks_are_added_to_its_copy(app: Path, tmp_path: Path) -> None:
    run_config = {"node.3.model": "a", "note.text": "x", "node.3.threads": 2, "mine.x": 0.5}
    staged = stage_app(check_app(app, run_config), tmp_path / "staged", run_config)
    config = tomllib.loads((staged / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    before = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config == before | {"node": {"3": {"model": "a", "threads": 2}}, "mine": {"x": 0.5}}


def test_a_node_knows_its_partition_and_what_is_set_beyond_it() -> None:
    assert node_config(1, 3, {}) == "partition-id=1 num-partitions=3"
    assert node_config(0, 2, {"model": "mlp"}) == "partition-id=0 num-partitions=2 model='mlp'"
    files = Certificates(Path("/c"))
    named = "partition-id=1 num-partitions=2 key='/c/clients/1.key' ca='/c/ca.crt'"
    assert node_config(1, 2, {}, files) == named
    with pytest.raises(ValueError, match="client 2 sets partition-id"):
        node_config(2, 3, {"partition-id": 0})


def test_every_address_of_the_federation_is_on_loopback() -> None:
    for command in (
        superlink_command("127.0.0.1:1", "127.0.0.1:2", simulation=False),
        superlink_command("127.0.0.1:1", "127.0.0.1:2", simulation=True),
        supernode_command("127.0.0.1:2", "partition-id=0"),
    ):
        options = [argument for argument in command if argument.endswith("-address")]
        assert options
        for option in [*options, *({"--superlink"} & set(command))]:
            assert command[list(command).index(option) + 1].startswith("127.0.0.1:")


def test_free_ports_are_different_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_the_environment_is_private_and_quiet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "/opt/modules"]))
    monkeypatch.setenv("MINE", "kept")
    env = environment({"OMP_NUM_THREADS": "1"}, tmp_path)
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["MINE"] == "kept"
    assert "RAY_ADDRESS" not in env
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["PYTHONPATH"].split(os.pathsep) == [str(Path.cwd()), "/opt/modules"]


def test_flwr_is_named_if_it_is_missing_and_its_answer_is_a_run_id_or_a_message() -> None:
    with pytest.raises(RuntimeError, match=r"flower-nothing was found neither .*install flwr"):
        executable("flower-nothing")
    assert run_id_from('{"success": true, "run-id": "12"}', "") == 12
    with pytest.raises(RuntimeError, match="no such app"):
        run_id_from('{"success": false, "error-message": "no such app"}', "")
    with pytest.raises(RuntimeError, match="flwr run started no run: Traceback"):
        run_id_from("", "Traceback")


def test_a_tail_has_the_last_lines_without_colours(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert tail(log) == "    (the log is empty)"
    log.write_text("one\n\x1b[92mtwo\x1b[0m\n\nthree\n")
    assert tail(log, lines=2) == "    two\n    three"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such port; exit 7", "node-3 ended with status 7"),
        ("echo no such port; kill -9 $$", "node-3 was killed by SIGKILL; its log is"),
    ],
)
def test_a_process_that_ends_is_reported(tmp_path: Path, script: str, said: str) -> None:
    with Processes(tmp_path) as processes:
        processes.start("node-3", ["sh", "-c", script], dict(os.environ))
        with pytest.raises(RuntimeError, match=said) as caught:
            until("its end", processes.check)
    assert "    no such port" in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("stubborn", [False, True])
def test_leaving_the_context_ends_children_of_children(
    tmp_path: Path, stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.flower.processes.GRACE", 0.3)
    monkeypatch.setenv("MARKER", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), Processes(tmp_path) as processes:
        for name in ("a", "b"):
            sleeper(processes, name, stubborn)
        begun = "sleep 600"  # a shell and two sleeps, each
        until("their start", lambda: sum(begun in each for each in running(tmp_path)) == 6)
        raise KeyboardInterrupt
    assert running(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_launchers_death_ends_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import os, time; from pathlib import Path; from deploy.flower.processes import Processes\n"
        f"with Processes(Path({str(tmp_path)!r})) as processes:\n"
        "    processes.start('a', ['sh', '-c', 'sleep 600 & sleep 600'], dict(os.environ))\n"
        "    print('started', flush=True); time.sleep(600)\n"
    )
    env = {**os.environ, "MARKER": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    line = [sys.executable, "-c", script]
    launcher = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=env)
    assert launcher.stdout is not None and launcher.stdout.readline() == "started\n"
    assert any("sleep 600" in each for each in running(tmp_path))
    launcher.send_signal(number)
    launcher.communicate()
    until("their end", lambda: running(tmp_path) == [])


def test_what_cannot_work_is_refused_before_anything_starts(app: Path, tmp_path: Path) -> None:
    federation = start_federation(app=tmp_path, clients=2, work=tmp_path / "work")
    with pytest.raises(ValueError, match="is not a Flower app"), federation:
        pass
    assert not (tmp_path / "work").exists()
    with pytest.raises(ValueError, match="unknown run config key 'typo'"):
        run_simulation(app=app, clients=1, run_config={"typo": 1}, work=tmp_path)


def test_a_superlink_that_is_slow_to_answer_is_waited_for(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        answers = [grpc.RpcError("Deadline Exceeded"), False, True]

        def ready() -> bool:
            answer = answers.pop(0)
            if isinstance(answer, grpc.RpcError):
                raise answer
            return answer

        processes.wait(ready, "2 SuperNodes", PATIENCE)
        assert answers == []
        answers += [grpc.RpcError("Deadline Exceeded")] * 10_000
        processes.log("superlink").write_text("the end\n")
        with pytest.raises(RuntimeError, match="waited 0 s in vain for 2 SuperNodes"):
            processes.wait(ready, "2 SuperNodes", 0.2)


def test_the_doctor_finds_the_runtimes_of_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.checks()
    assert [check for check in found["grpc"] if not check.good] == []
    monkeypatch.setattr("deploy.run.doctor.FLOWER_SERIES", "0.1.")
    assert not doctor.flower_version().good
    assert "wanted is 0.1.x" in doctor.flower_version().finding
    assert not doctor.program("flower-nothing").good


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_two_nodes_run_an_app_warm_and_without_the_warm_process_and_nothing_is_left(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [{"model": "mlp"}, {"model": "le net"}]

    def of_a_node(k: int, clients: int, *_: object) -> str:
        return node_config(k, clients, models[k])

    monkeypatch.setattr("deploy.run.grpc.node_config", of_a_node)
    work, env = tmp_path / "work", {"TINY_VARIABLE": "inherited"}
    start = start_federation(app=app, clients=2, work=work, env=env, warm_start=True)
    with pytest.raises(KeyboardInterrupt), start as federation:
        with pytest.raises(ValueError, match="unknown run config key"):
            federation.submit({"typo": 1})
        failed = federation.control.follow(federation.submit({"fail": True}))
        assert failed.status == "finished:failed"
        assert "the server was asked to fail" in failed.details
        for attempt in ("warm", "without"):
            out, lines = tmp_path / f"{attempt}.json", list[str]()
            run = federation.submit({"out": str(out), "nodes": 2, "note.text": AWKWARD})
            done = federation.control.follow(run, lines.append, out.exists)
            assert done.completed and done.bytes_sent > 0 and done.bytes_received > 0
            assert "all replies are here" in lines
            answer = json.loads(out.read_text())
            assert answer["note"] == AWKWARD
            assert sorted(answer["replies"], key=lambda reply: int(reply["k"])) == [
                {"k": 0, "n": 2, "model": "mlp", "y": 20, "seen": "inherited"},
                {"k": 1, "n": 2, "model": "le net", "y": 21, "seen": "inherited"},
            ]
            if attempt == "warm":
                assert warm_processes(work), "no process was forked"
                for pid in warm_processes(work):
                    os.kill(pid, signal.SIGKILL)
        endless = federation.submit({"out": str(tmp_path / "2"), "nodes": 2, "wait": 600.0})
        federation.control.stop(endless)
        assert federation.control.follow(endless).status == "finished:stopped"
        raise KeyboardInterrupt
    assert running(work) == []


def test_a_failed_simulation_names_the_exception_of_the_server_app() -> None:
    log = "INFO: x\nERROR :     ServerApp thread raised an exception: no such client\nTraceback"
    assert _reason(log) == "no such client"
    assert _reason(LATE) == f"Ray did not start in 3 attempts: {LATE}"
    assert _reason("INFO: nothing to see") == ""


@pytest.mark.parametrize(
    ("printed", "starts", "said"),
    [
        ([LATE, "fine"], 2, ""),
        ([LATE] * 9, 3, "Ray did not start in 3 attempts"),
        (["fine"], 1, "the ServerApp ended"),
    ],
    ids=["late-once", "always-late", "killed"],
)
def test_ray_that_starts_late_is_started_again_with_a_watch_that_knows_nothing_of_it(
    printed: list[str],
    starts: int,
    said: str,
    app: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    watches: list[Callable[[], bool]] = []

    class Fake(contextlib.nullcontext[None]):
        def __init__(self, _: object, __: object, env: dict[str, str], **___: object) -> None:
            super().__init__()
            assert env["GRPC_ENABLE_FORK_SUPPORT"] == "0"  # else children of its driver may crash
            self.logs = Path(env["RAY_TMPDIR"], "ray", "session_2_3", "logs")

        def submit(self, *_: object) -> int:
            self.logs.mkdir(parents=True)
            (self.logs / "gcs_server.err").write_text(f"start {len(watches)}")
            return 1

        def follow(self, _: int, on_log: Callable[[str], None], watch: object) -> RunStatus:
            assert watch is watches[-1] and len(watches) == len(set(map(id, watches)))
            on_log(printed[len(watches) - 1])
            if said or len(watches) < starts:
                raise Stopped("the ServerApp ended")
            return RunStatus(1, "finished:completed", "", 0, 0)

    def watch() -> Callable[[], bool]:
        watches.append(lambda: False)
        return watches[-1]

    monkeypatch.setattr("deploy.run.ray.start_superlink", lambda *a, **k: (Fake(*a, **k), ""))
    with pytest.raises(Stopped, match=said) if said else contextlib.nullcontext():
        run = run_simulation(app=app, clients=1, run_config={}, work=tmp_path / "w", watch=watch)
        assert run.completed
    assert len(watches) == starts
    kept = [path.read_text() for path in sorted(tmp_path.glob("w/logs/ray-*/gcs_server.err"))]
    assert kept == [f"start {k}" for k, line in enumerate(printed) if line == LATE and k < starts]


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_simulation_runs_the_same_app_and_tells_its_real_end(app: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out, work = tmp_path / "out.json", tmp_path / "work"
    config: dict[str, Value] = {"out": str(out), "nodes": 3, "note.text": "same"}
    env = {"TINY_VARIABLE": "inherited"}
    done = run_simulation(app=app, clients=3, run_config=config, work=work, env=env)
    assert done.completed, done.details
    replies = json.loads(out.read_text())["replies"]
    seen = sorted((r["k"], r["n"], r["y"], r["seen"]) for r in replies)
    assert seen == [(k, 3, 20 + k, "inherited") for k in range(3)]
    assert running(work) == []
    assert "all replies are here" in (work / "logs" / "simulation.log").read_text()
    assert tomllib.loads((work / "run.toml").read_text())["nodes"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stand_in_runs_the_real_program_when_nothing_is_warm() -> None:
    with warm.stand_ins() as folder:
        done = subprocess.run([folder / "flwr-serverapp", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: flwr-serverapp")
    line = warm_client.command(str(folder / "gone"), "flwr-clientapp", ["/bin/echo", "cold"])
    done = subprocess.run([*line, "a b", "--c"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "cold a b --c\n")


def warm_processes(work: Path) -> list[int]:
    """The process that waits for requests; its children bear its command line too."""
    found = []
    for pid, session in watchdog._processes():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            home = f"FLWR_HOME={work / 'home' / 'warm'}".encode()
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if b"flower import warm" in command and home in environ and pid == session:
                found.append(pid)
    return found


def supervised(node: str, home: Path, linger: float) -> str:
    """Run lines of Python as a SuperNode under ``warm.supervise``; return its output."""
    script = (
        "import sys; from pathlib import Path; from deploy.flower import warm; assert not "
        "{'torch', 'grpc', 'numpy'} & sys.modules.keys(); sys.exit(warm.supervise("
        "['python', '-c', sys.argv[1]], Path(sys.argv[2]), {}, float(sys.argv[3])))"
    )
    command = [sys.executable, "-c", script, WARM + node, str(home), str(linger)]
    env = {**os.environ, "ROOT": str(app_folder())}
    done = subprocess.run(command, capture_output=True, text=True, cwd=app_folder(), env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_nodes_warm_process_may_end_without_work_or_be_killed(tmp_path: Path) -> None:
    """The next request starts another one, or the real program."""
    first, second = json.loads(supervised(TWICE, tmp_path, 0.5).splitlines()[-1])
    assert first != second
    output = supervised(KILLED, tmp_path / "killed", 600)
    assert output.count("warning: the warm process was killed by SIGKILL\n") == 1
