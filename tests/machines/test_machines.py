"""The commands for separate machines: what they refuse, and one federation made of them."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from client_app.node import check
from deploy.flower import certificates, control, supernode
from deploy.flower.certificates import make, read_public_key
from deploy.flower.control import superlink_command
from deploy.flower.processes import environment, free_ports
from deploy.machines import commands as machines
from deploy.machines import node, submit
from deploy.machines.node import check_here, command
from deploy.settings import load, resolve
from server_app.storage.lock import hold
from tests.support.commandline import command_line, completed, error_of, fedmosaic, typed
from tests.support.data_files import paint
from tests.support.keys import Registry
from tests.support.recorded_calls import refusal
from tests.support.tiny import flat
from tests.support.waiting import PATIENCE, listening, reachable, until

NODE = ["node", "--superlink", "h:1", "--clients", "2", "--insecure"]
ENDED = "SuperNode terminated gracefully."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["register", "nowhere", "--insecure"], "nowhere does not exist"),
        (["submit"], "either --ca FILE (TLS) or --insecure"),
        (["submit", "--ca", "nowhere.crt"], "--ca nowhere.crt: No such file"),
        (["submit", "--ca", __file__], "it is not a certificate; it should be ca.crt"),
        (["submit", "--ca", str(Path(__file__).parent)], "Is a directory; it should be ca.crt"),
        (["submit", "--insecure", "--superlink", "here"], "--superlink 'here' is not allowed"),
        (["submit", "--insecure", "--superlink", "h\n:1"], r"--superlink 'h\n:1' is not allowed"),
        (["submit", "--insecure", "--wait", "nan"], "--wait nan is not allowed"),
        (["stop", "--insecure", "--wait", "inf"], "--wait inf is not allowed"),
        (["submit", "--insecure", "-s", "out=runs/a"], "out = 'runs/a' is relative"),
        (["submit", "--insecure", "--resume-if-any"], "--resume-if-any needs out"),
        (["submit", "--insecure", "--resume"], "--resume needs out"),
        (["submit", "--insecure", "-s", "fleet=nosuch"], "no architecture 'nosuch'; there are"),
        (["submit", "--insecure", "-s", "data.name=x"], "unknown data.name 'x': choose from"),
        (["run", "-s", "data.name=['a']"], """unknown data.name "['a']": choose from"""),
        (["run", "-s", "fleet="], 'fleet = "" is not allowed; it should be a name'),
        (["run", "."], ". is a folder; name a file in it"),
        (["certs", ""], "certs '' is not allowed; it should be a folder"),
        (["certs", __file__], "test_machines.py is not a folder"),
        (["local", "--work", f"{__file__}/below"], "test_machines.py is not a folder"),
        ([*NODE, "--replicas", __file__], f"--replicas {__file__} is not allowed"),
        ([*NODE, "--seats", __file__], f"--replicas {__file__} is not allowed"),
        ([*NODE, "--k", "0", "--home", __file__], f"--home {__file__} is not allowed"),
        (["register", __file__, "--insecure"], "test_machines.py is no OpenSSH public key"),
        (NODE, "--k K or --replicas"),
        ([*NODE, "--k", "2"], "--k 2 is not allowed; with --clients 2 it is 0 to 1"),
        ([*NODE, "--k", "0", "-s", "modle=resnet8"], "node config 'modle' is unknown; allowed"),
        (
            [*NODE, "--k", "0", "-s", "tags=a b"],
            'node config tags = "a b" is not allowed; it should be',
        ),
        (
            [*NODE, "--k", "0", "-s", "device=tpu"],
            'node config device = "tpu" is not allowed; it should be',
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_1(arguments: list[str], said: str) -> None:
    assert said in error_of(*arguments)


@pytest.mark.parametrize(
    "text",
    [
        *("h", "h:", ":1", "h:0", "h:65536", f"h:{'9' * 5000}", "127.0.0.1:٣", "h:1/x", "h\n:1"),
        *("a b:1", " h:1", "h,i:1", "*:1", "dns:h:1", "::1:1", "[h]:1", "[::1:1", "[fe80::1%e]:1"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--health .* is not allowed; it should be HOST:PORT"):
        certificates.address(text, "--health")
    for good in ("fed.example.org:9092", "a_b-c:1", "192.0.2.7:65535", "[::1]:1"):
        assert certificates.address(good) == good


@pytest.mark.parametrize("command", ["register", "unregister"])
def test_all_keys_are_read_before_the_first_is_sent(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make(tmp_path, [], 1)
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (tmp_path / "other.pub").write_bytes(other.public_bytes(*openssh))
    (tmp_path / "folder" / "x.pub").mkdir(parents=True)
    monkeypatch.setattr(control, "Control", None)  # nothing may be asked
    for bad, said in (
        (files.key(0), "0.key is no OpenSSH public key; it should be a K.pub"),
        (files.ca, "ca.crt is no OpenSSH public key; it should be a K.pub"),
        (tmp_path / "other.pub", "other.pub is no key on a NIST curve"),
        (tmp_path / "folder", f"error: {tmp_path}/folder/x.pub cannot be read: Is a directory"),
    ):
        assert said in error_of(command, files.public(0), bad, "--insecure")
    (tmp_path / "begun.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    error = error_of(command, files.public(0), "--ca", tmp_path / "begun.crt")
    assert "begun.crt: it is not a certificate" in error


def test_an_unregistered_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make(tmp_path, [], 3)
    keys = [read_public_key(files.public(k)) for k in range(3)]
    registry = Registry({keys[0]: "online", keys[1]: "unregistered"})
    monkeypatch.setattr(control, "ControlStub", lambda _: registry)
    final = "1.pub was unregistered and cannot come back: delete it and 1.key, make a new key"
    assert final in error_of("register", files.public(1), "--insecure")
    done = typed("register", files.clients, "--insecure")
    assert "1 of 3 keys registered, 1 were registered already" in done.stdout
    assert done.returncode == 0 and final in done.stdout
    assert registry.status[keys[2]] == "registered"


class Server:
    """A Control API whose runs complete, or fail for a reason."""

    def __init__(self, reason: str = "") -> None:
        self.reason, self.sent = reason, list[Mapping[str, object]]()

    def submit(self, app: Path, flat: Mapping[str, object], settings: object) -> int:
        self.sent.append(flat)
        return 7

    def follow(self, run: int, *_: object, **__: object) -> control.RunStatus:
        end = "failed" if self.reason else "completed"
        details = f"ServerApp failed with exception: {self.reason}" if self.reason else ""
        return control.RunStatus(run, f"finished:{end}", details, 0, 0)


@pytest.mark.full
def test_a_resumed_run_has_no_name_of_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr(machines, "_control", lambda *_: contextlib.nullcontext(server))
    arguments = ["submit", "--insecure", "-s", "out=/srv/out"]
    said = typed(*arguments).stdout
    assert f"run 7: {server.sent[0]['experiment']}\n" in said
    there = "the results are in /srv/out, on the server's machine; there: fedmosaic report /srv/out"
    assert said.endswith(f"{there}\n")
    assert server.sent[0]["clients"] == 0, "the connected nodes have the number"
    elsewhere = typed(*arguments, "-s", "out=").stdout
    assert f"fedmosaic report ~/.fedmosaic/runs/{server.sent[-1]['experiment']}\n" in elsewhere
    resumed = completed(*arguments, "--resume").stdout
    assert "run 7: resumes from its checkpoint\n" in resumed


@pytest.mark.parametrize(
    ("reason", "folder", "line"),
    [
        (
            "No heartbeat received from the task",
            "{out}",
            "run 7 stopped: the ServerApp ended in the middle of the run; was its process killed?; "
            "resume it with: {command} -s out={out} --resume",
        ),
        (
            "round 2: 0 of 2 replies; the checkpoint is kept, go on with --resume /srv/a b; log: x",
            "",
            "run 7 stopped: round 2: 0 of 2 replies; log: x; "
            "resume it with: {command} -s 'out=/srv/a b' --resume",
        ),
        ("census: client 1 has another task", "{out}", "census: client 1 has another task"),
    ],
)
def test_a_run_that_stopped_is_one_line_with_the_command_that_resumes_it(
    reason: str, folder: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "_control", lambda *_: contextlib.nullcontext(Server(reason)))
    out, own = tmp_path / "out", ["-s", "rounds=3", "-s", "fleet=mlp, cnn2"]
    place = ["-s", f"out={folder.format(out=out)}", "-s", "from-round=-1"]
    to = ["--superlink", "127.0.0.1:9093", "--insecure"]
    command = shlex.join(["fedmosaic", "submit", *own, *to])
    error = error_of("submit", *own, *place, *to)
    assert error == f"error: {line.format(out=out, command=command)}\n"
    if reason.startswith("No"):  # its folder is on this machine, and has no checkpoint
        out.mkdir()
        again = typed("submit", *own, *place, *to).stderr
        assert again.endswith(f"no round is saved, start it again with: {command} -s out={out}\n")
        (out / "checkpoint.safetensors").touch()
        words = shlex.split(typed("submit", *own, *place, *to).stderr.rpartition(": ")[2])
        assert words[-1] == "--resume" and typed(*words[1:]).stderr.startswith("error: run 7 stop")


def test_two_federations_share_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "HOLD_PATIENCE", 0.1)
    with machines._alone(tmp_path):
        said = f"--work {tmp_path} is taken: another run (process {os.getpid()})"
        assert said in error_of("local", "--work", tmp_path)
    with hold(tmp_path), machines._alone(tmp_path):
        assert not (tmp_path / "certs").exists()


def test_a_superlink_that_does_not_answer_and_another_api_are_named() -> None:
    (port,) = free_ports(1)
    error = error_of("submit", "--insecure", "--superlink", f"127.0.0.1:{port}", "--wait", "0.5")
    assert f"no SuperLink answers at 127.0.0.1:{port}" in error
    server = grpc.server(futures.ThreadPoolExecutor(1))  # with no service at all
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    done = typed("stop", "--insecure", "--superlink", f"127.0.0.1:{port}")
    server.stop(None).wait()
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port} is not a SuperLink's Control API (port 9093" in done.stderr


def test_a_node_takes_typed_settings_and_refuses_others() -> None:
    given = node.settings(["model=resnet8", "threads=2", "incentive=false", "data-dir='/a b'"])
    assert given == {"model": "resnet8", "threads": 2, "incentive": False, "data-dir": "/a b"}
    assert node.settings(["state-dir=x/y"]) == {"state-dir": str(Path.cwd() / "x" / "y")}
    for text, said in (
        ("model", "is not key=value"),
        ("threads=two", 'threads = "two" is not allowed; it should be integer'),
        (
            "memory-mb=10",
            "memory-mb = 10 is not allowed; it should be .* equal to 200",
        ),
        ("incentive=maybe", 'incentive = "maybe" is not allowed; it should be boolean'),
    ):
        with pytest.raises(ValueError, match=said):
            node.settings([text])
    check({"partition-id": 0, "of-another-app": 1}, strict=False)


def test_a_node_needs_its_key_and_says_which(tmp_path: Path) -> None:
    files = make(tmp_path, [], 1)
    line = node.command("h:9092", files, 0, 2, {"model": "mlp"}, health="127.0.0.1:9")
    program = supernode.command([])
    assert line[: len(program)] == program
    del line[: len(program)]
    assert line[:2] == ["--root-certificates", str(files.ca)]
    assert line[2:4] == ["--auth-supernode-private-key", str(files.key(0))]
    trust = f"key='{files.key(0)}' ca='{files.ca}' roster='{files.roster}'"
    own = f"partition-id=0 num-partitions=2 {trust} model='mlp'"
    assert line[-4:-2] == ["--node-config", own]
    with pytest.raises(ValueError, match=r"1\.key is missing; client 1 needs it"):
        node.command("h:9092", files, 1, 2, {})


def test_replicas_that_share_a_folder_are_different_clients(tmp_path: Path) -> None:
    taken = [node.lowest_free(tmp_path / "replicas", 3) for _ in range(3)]
    assert [k for k, _ in taken] == [0, 1, 2]
    with pytest.raises(ValueError, match="all 3 clients in .* are taken"):
        node.lowest_free(tmp_path / "replicas", 3)
    os.close(taken[1][1])
    k, held = node.lowest_free(tmp_path / "replicas", 3)
    assert k == 1
    assert os.get_inheritable(held), "the program that the replica becomes must hold it too"
    for descriptor in (taken[0][1], taken[2][1], held):
        os.close(descriptor)


def test_a_submitted_run_is_complete_and_resumes_if_there_is_something(tmp_path: Path) -> None:
    given = {**resolve(None), "out": str(tmp_path)}
    sent = submit.prepared(given, resume=False, if_any=True)
    assert sent["clients"] == 0 and sent["runtime"] == "grpc" and sent["resume"] is False
    other = submit.prepared(given, True, False)["experiment"]
    assert sent["experiment"] != other, "clients keep their models under it"
    assert str(sent["experiment"]).rpartition("-")[0] == str(other).rpartition("-")[0]
    (tmp_path / "checkpoint.safetensors").touch()
    assert submit.prepared(given, resume=False, if_any=True)["resume"] is True


def test_what_flower_logs_of_a_failure_is_shown_without_its_traceback() -> None:
    shown: list[str] = []
    put = submit.without_tracebacks(shown.append)
    for line in ("round 1", "Traceback (most recent call last):", '  File "x"', "    y()"):
        put(line)
    for line in ("ValueError: bad", "", "round 2"):
        put(line)
    assert shown == ["round 1", "", "round 2"]


@contextlib.contextmanager
def started(
    command: list[str], log: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        output = {"stdout": file, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, env=env, cwd=log.parent, **output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        end = f"the end of {command}"
        until(end, lambda: process.poll() is not None or ENDED in log.read_text())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)  # a SuperNode that has ended may hang in gRPC's own end
        process.kill()
        process.wait()


@pytest.mark.full
def test_a_local_federation_listens_on_this_machine_alone(tmp_path: Path) -> None:
    log = tmp_path / "local.log"
    line = command_line("local", "--clients", 1, "--work", tmp_path / "local")
    with started(line, log, dict(os.environ)) as process:

        def connected() -> bool:
            assert process.poll() is None, log.read_text()
            return "1 clients are connected" in log.read_text()

        until("the client", connected)
        sockets = listening(process.pid)
    assert len(sockets) > 1 and reachable(sockets) == []


@pytest.mark.full
def test_certs_register_nodes_and_submit_make_a_federation_over_tls(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    completed("certs", certs, "--host", "fed.example.org", "--clients", 2)
    files = make(certs, [], 2)
    control, fleet = (f"127.0.0.1:{port}" for port in free_ports(2))
    env = environment({"FEDMOSAIC_TRUST": str(certs)}, tmp_path / "home")

    def painted(name: str, seed: int, count: int) -> Path:
        return paint(tmp_path / name, seed, dark=count, light=count)

    with contextlib.ExitStack() as stack:
        command = list(superlink_command(control, fleet, False, files))
        command[0] = str(Path(sys.executable).with_name(command[0]))
        stack.enter_context(started(command, tmp_path / "superlink.log", env))
        to = ("--superlink", control, "--ca", files.ca)
        first = typed("register", files.clients, *to)
        assert "2 of 2 keys registered" in first.stdout, first.stderr
        again = typed("register", files.public(0), files.public(1), *to).stdout
        assert "0 of 2 keys registered, 2 were registered already" in again
        pin = typed("app-digest").stdout.strip()
        policy = tmp_path / "policy.toml"
        text = f'methods = ["fedorion"]\nserver-keys = ["{files.app}"]\nmax-rounds = 1\n'
        policy.write_text(text)
        nodes = []
        for i, own in enumerate((["model=mlp", "memory-mb=4000"], ["model=cnn2", "device=cpu"])):
            line = command_line("node", "--superlink", fleet, "--ca", files.ca, "--clients", 2)
            line += ["--replicas", str(tmp_path / "replicas"), "--home", str(tmp_path / f"node{i}")]
            line += ["--app-digest", ["installed", pin][i], *([] if i else ["--cold-start"])]
            line += ["--policy", str(policy)]
            own += [f"data-dir={painted(f'images{i}', i, 12 + i)}"]
            own += [f"state-dir={tmp_path / f'state{i}'}", f"ledger={tmp_path / 'ledger'}"]
            line += [part for setting in own for part in ("-s", setting)]
            log = tmp_path / f"node{i}.log"
            nodes.append(stack.enter_context(started(line, log, dict(os.environ))))
            until(f"replica {i}", (tmp_path / "replicas" / f"{i}.lock").exists)
        out = tmp_path / "out"
        values = flat(out, method="fedorion", clients=0, rounds=1, **{"state-dir": ""})
        values |= {"data.name": "folder", "data.dir": str(painted("images", 7, 12))}
        values |= {"data.partition": "own", "fleet": "mlp,cnn2", "data.samples": 0}
        values["data.test-samples"] = 0
        changed = {k: v for k, v in values.items() if v != resolve(None)[k] and k != "runtime"}
        sets = [part for k, v in changed.items() for part in ("-s", f"{k}={v}")]
        done = completed("submit", *sets, *to)
        assert "completed;" in done.stdout
        # this machine sees the folder, so the clients and the report are shown as after a run here
        assert "own model" in done.stdout and (out / "report.html").exists()
        assert done.stdout.endswith(f"report: {out / 'report.html'}\n")
        assert f"app digest {pin}\n" in done.stdout
        assert load(out / "config.toml")["clients"] == 2, "the nodes expect so many"
        for i in range(2):
            # each once: a census that is repeated describes the data again; gRPC's own lines, such
            # as of a machine without a free thread, begin with a letter and the date
            log = (tmp_path / f"node{i}.log").read_text().splitlines()
            lines = {line for line in log if not re.match(r"[IWEF]\d{4} ", line)}
            assert len(lines) <= 10 and any("first message" in line for line in lines), lines
        # a bundle with other contents is not run: this one has a table more
        more = ("-s", "node.0.threads=1", "-s", f"out={tmp_path / 'other'}")
        other = typed("submit", *sets, *more, *to)
        assert other.returncode == 1, other.stdout
        (line,) = [line for line in other.stderr.splitlines() if "--app-digest is" in line]
        assert "the received app bundle has the digest" in line and pin in line, line
        for i in range(2):
            log = (tmp_path / f"node{i}.log").read_text()
            assert "refused: " in log and "Traceback" not in log, log
        # a run that fails says why, and its status is not 0
        assert "holds a run already" in error_of("submit", *sets, *to)
        # the clients have answered the only round that their owner allows, of whatever run
        another = ("-s", "experiment=third", "-s", f"out={tmp_path / 'third'}")
        third = error_of("submit", *sets, *another, *to)
        assert "max-rounds = 1 of this client's owner: it has answered 1 rounds, over all" in third
        assert typed("stop", *to).stdout == "active runs: none\n"
        assert f"run 7 is not active at {control}" in error_of("stop", "7", *to)
        sets += ["-s", "rounds=100000", "-s", f"out={tmp_path / 'endless'}"]
        sets += ["-s", "experiment=endless"]
        line = command_line("submit", *sets, *to)
        with started(line, tmp_path / "submit.log", dict(os.environ)) as endless:

            def runs() -> list[str]:
                assert endless.poll() is None
                return re.findall(r"(\d+) \(endless\)", typed("stop", *to).stdout)

            (run,) = until("the run", runs)
            assert typed("stop", run, *to).stdout == f"run {run} (endless) is stopped\n"
            assert endless.wait(PATIENCE) == 1
        # without its key a client is let in no more
        for said in ("1 of 1 keys unregistered, 0", "0 of 1 keys unregistered, 1"):
            assert said in typed("unregister", files.public(1), *to).stdout
        assert "1.pub is revoked, see" in error_of("register", files.public(1), *to)
        nodes[1].send_signal(signal.SIGTERM)
        nodes[1].wait(PATIENCE)
        own = ("--superlink", fleet, "--ca", files.ca, "--clients", 2, "--k", 1)
        refused = fedmosaic("node", *own, "--home", tmp_path / "refused")
        assert refused.returncode == 1
        assert "the key of client 1 is not registered: register 1.pub" in refused.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "completed"
    census = json.loads((out / "journal.jsonl").read_text().splitlines()[0])["clients"]
    # of its own 24 and 26 training images, a fifth is each client's local test set
    assert [(c["k"], c["model"], c["n"]) for c in census] == [(0, "mlp", 19), (1, "cnn2", 20)]
    assert [any((tmp_path / f"state{i}").iterdir()) for i in range(2)] == [True, True]
    assert nodes[0].returncode == 0 or ENDED in (tmp_path / "node0.log").read_text()


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
    settings: dict[str, str], said: str, tmp_path: Path
) -> None:
    assert said in refusal(command, "h:9092", None, 0, 2, settings)
    good = {"model": "resnet8@0.5", "device": "cpu", "data-dir": str(tmp_path)}
    check_here({**good, "state-dir": str(tmp_path / "a" / "b"), "threads": 2})
    assert (tmp_path / "a" / "b").is_dir()
