"""An error of a plug-in is one line with its hook, file and line; its traceback is in a file."""

import sys
from pathlib import Path

import pytest

from common import errors
from tests.support.commandline import Done, completed, fedmosaic, typed
from tests.support.own_modules import experiment, module, package
from tests.support.tiny import TinyRun

METHOD = """
import sys
from client_app.bases.global_copy import GlobalCopy
from common.methods.fedavg import Averaging, Request, Reply
from server_app.global_model import Averaged

class Options(Averaging):
    uses = ("average",)

class Server(Averaged[Options, Reply]):
    reply_type = Reply
    {server}

class Client(GlobalCopy[Options, Request]):
    request_type, reply_type = Request, Reply
    {client}
"""
TRACKER = """
from server_app.tracking.tracker import Tracker

class T(Tracker):
    def start(self, folder, settings, known): return "x"
    def entry(self, entry): 1 / 0
    def add_file(self, path): pass
    def finish(self, completed): pass
"""
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        if len(x) > 2: raise KeyError("late")
        return self.head(x.flatten(1))
"""


@pytest.fixture(autouse=True)
def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(errors, "HOME", tmp_path / "home")


def method(folder: Path, half: str, hook: str) -> tuple[Path, str]:
    """An experiment with a method that has this hook in one half, and the place of the hook."""
    halves = {"Server": "pass", "Client": "pass"} | {half: hook}
    text = METHOD.format(server=halves["Server"], client=halves["Client"])
    name = package(folder, {"__init__": "", "far": text})
    number = text.splitlines().index(f"    {hook}") + 1
    where = f"in {half}.{hook[4:].partition('(')[0]}: {folder / name / 'far.py'}, line {number}"
    return experiment(folder, f"{name}:far"), where


def check(done: Done, *said: str, log: Path | None) -> None:
    """Check that a command has failed with one line, and that the traceback is in ``log``."""
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ") and all(each in done.stderr for each in said), done
    if log is not None:
        assert str(log) in done.stderr and "Traceback (most recent call last)" in log.read_text()


@pytest.mark.parametrize(
    ("half", "hook", "said"),
    [
        ("Client", "def loss(self, request, net): return lambda x, y: 1 / 0", "ZeroDivisionErr"),
        ("Client", "def loss(self, request, net): raise ValueError('odd')", "ValueError: odd"),
        ("Client", "def loss(self, request, net): return lambda x, y: 3", "gives int; it should"),
        ("Client", "def train(self, request): return Reply(w={'a': 3})", "ModelReply: field 'w.a'"),
        ("Client", "def train(self, request): return {'w': {}}", "dict; it should be ModelReply"),
        ("Server", "def prepare(self): 1 / 0", "ZeroDivisionError: division by zero"),
        ("Server", "def begin(self, clients): {}['x']", "KeyError: 'x'"),
        ("Server", "def combine(self, replies, previous): raise ValueError('odd')", "error: odd"),
        ("Server", "def request(self, t): sys.exit('away')", "SystemExit: away"),
        ("Server", "def request(self, t): return Request(w=3)", "field 'w': Input should be a val"),
        ("Server", "def check(self, client, reply): 1 / 0", "refused: ZeroDivisionError: division"),
    ],
)
def test_a_hooks_exception_is_one_line(half: str, hook: str, said: str, tmp_path: Path) -> None:
    file, where = method(tmp_path, half, hook)
    done = typed("run", file, "--out", tmp_path / "out", "--workers", 0)
    log = (errors.HOME if "exit" in hook else tmp_path / "out") / errors.LOG
    check(done, said, where, log=log)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("def request(self, t): return {'w': 1}", "is of type dict; it should be Request | Calla"),
        ("def select(self, t): return None", "is of type NoneType; it should be list[Client]"),
        ("def step(self, t, replies): return {'a': 'b'}", "has the field 'a' that is of type str"),
        (
            "def combine(self, replies, previous): return {'a': 1}",
            "has the field 'a' that is of type int; it should be Te",
        ),
        ("def model(self): return 3", "is of type int; it should be Classifier | None"),
    ],
)
def test_a_hooks_bad_reply_is_one_line_with_its_field(hook: str, said: str, tmp_path: Path) -> None:
    file, where = method(tmp_path, "Server", hook)
    done = typed("run", file, "--out", tmp_path / "out", "--workers", 0)
    check(done, f"error: the reply {said}", where, log=None)


@pytest.mark.parametrize(
    ("keys", "text", "said"),
    [
        (["data.name"], "def x(): 1 / 0", "in x: {file}, line 1); traceback: {home}"),
        (["data.name"], "def x(): return 3", "of type int; it should be a Dataset (in x: {file}"),
        (["data.partition"], "def x(*_): 1 / 0", "in x: {file}, line 1); traceback: {home}"),
        (["data.partition"], "def x(*_): return [3]", "index arrays (in x: {file}, line 1)"),
        (["fleet", "global-model"], "def x(shape): 1 / 0", "x: {file}, line 1); traceback: {home}"),
        (["fleet", "global-model"], "def x(shape): return 3", "nn.Module (in x: {file}, line 1)"),
        (["fleet", "global-model"], f"{NET}\nx = Net", "in Net.forward: {file}, line 10); traceb"),
        (["method"], "def f(:", "cannot be imported: SyntaxError: invalid syntax ({file}, line 1)"),
    ],
)
def test_a_mistake_in_a_plugin_is_one_line(
    keys: list[str], text: str, said: str, tmp_path: Path
) -> None:
    name = module(tmp_path, text)
    given = [word for key in keys for word in ("-s", f"{key}={name}:x")]
    file = experiment(tmp_path, "fedavg")
    done = typed("run", file, "--out", tmp_path / "out", "--workers", 0, *given)
    check(done, said.format(file=tmp_path / f"{name}.py", home=errors.HOME), log=None)


def test_the_run_goes_on_without_a_tracker_that_raises(tmp_path: Path) -> None:
    name = module(tmp_path, TRACKER)
    file, out = experiment(tmp_path, "fedavg"), tmp_path / "out"
    done = typed("run", file, "--out", out, "--workers", 0, "-s", f"track={name}:T")
    line = f"ZeroDivisionError: division by zero (in T.entry: {tmp_path / name}.py, line 6)"
    assert done.returncode == 0 and f"{line}; traceback: {out / errors.LOG}" in done.stdout


@pytest.mark.full
def test_a_neighbour_that_is_no_python_stops_no_run(tmp_path: Path) -> None:
    file, _ = method(tmp_path, "Client", "pass")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "broken.py").write_text("def f(:\n")
    completed("run", file, "--out", tmp_path / "out", "--workers", 0)
    assert (tmp_path / "out" / "plugins" / folder.name / "broken.py").exists()


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["loopback", "grpc"])
def test_a_clients_error_comes_through_other_processes(runtime: str, tmp_path: Path) -> None:
    hook = "def loss(self, request, net): return lambda x, y: 1 / 0"
    file, where = method(tmp_path, "Client", hook)
    more = ("-s", "clients=2", "-s", "min-replies=0.5", "--runtime", runtime)
    done = fedmosaic("run", file, "--out", tmp_path / "out", *more)
    ended = where.partition(": ")[0] if runtime == "grpc" else where  # Flower unpacks it elsewhere
    log = tmp_path / "out" / (errors.LOG if runtime == "loopback" else "flower/logs")
    check(done, "ZeroDivisionError: division by zero", ended, f"tracebacks: {log}", log=None)
    assert where[-8:] in done.stderr and TinyRun(tmp_path / "out").summary["status"] == "stopped"


def test_a_line_is_the_first_that_says_something(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError) as raised:
        tmp_path.mkdir()
    assert errors.first_line(raised.value) == f"{tmp_path} cannot be used: File exists"
    assert errors.first_line("\n a\x1b[2J\nb") == "a?[2J" and errors.first_line("abc", 2) == "ab"
    assert errors.first_line(KeyError()) == "KeyError" and errors.first_line("") == ""
    assert errors.first_line(RuntimeError("in MLP:\n\tno key 'a'\nmore")) == "in MLP: no key 'a'"
    assert errors.line(ValueError("x")) == "x" and errors.line(TypeError("x")) == "TypeError: x"
