"""The command line: what a newcomer types, and the mistakes they make."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from client_app.seal import ClientSession
from common import parse
from common.data import DATASETS
from common.data.partition import PARTITIONS
from common.exchange.seal import files as seal_files
from common.files import Damaged
from common.methods import names
from common.models import MODELS
from common.parse import to_toml
from common.settings.version import ROOT, code_version
from deploy import settings
from deploy.flower.owner import policy
from deploy.report.listing import LISTINGS
from deploy.report.table import terminal
from deploy.run import preflight
from deploy.settings import resolve
from server_app.messaging.schedule import Schedule
from tests.support.commandline import completed, error_of, fedmosaic, interruptible, typed
from tests.support.own_modules import ONE_MODULE, package
from tests.support.tiny import flat
from tests.support.waiting import PATIENCE, until


def test_the_version_is_what_the_census_compares() -> None:
    done = fedmosaic("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, code_version() + "\n", "")


def test_a_command_that_was_called_leaves_this_process_its_signals() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    assert typed("--version").stdout == code_version() + "\n"
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert sys.unraisablehook == hook


def test_a_shell_can_complete_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    # typer's own switch: the shell is named, not looked for among this process's parents
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_FEDMOSAIC_COMPLETE=complete_bash" in typed("--show-completion", "bash").stdout
    for name, value in (("COMP_WORDS", "fedmosaic re"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_FEDMOSAIC_COMPLETE", "complete_bash")
    assert typed().stdout.split() == ["report", "register", "remove"]


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    given = flat(tmp_path / "x", method="fedorion")
    path = tmp_path / "toy.toml"
    path.write_text(to_toml(given | {"out": "", "state-dir": "", "experiment": ""}))
    return path


def test_a_run_leaves_everything_it_should(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = completed("run", toy, "--out", out, "--workers", "0", "-s", "seed=5")
    assert "round 2/2" in done.stdout and "cnn2@0.5" in done.stdout
    left = {"config.toml", "journal.jsonl", "summary.json", "model.safetensors", "report.html"}
    assert {path.name for path in out.iterdir()} >= left
    summary = json.loads((out / "summary.json").read_text())
    assert summary["seed"] == 5 and summary["dataset"] == "toy" and summary["runtime"] == "loopback"
    assert summary["accuracy"].keys() == {"final", "best", "last10"}
    assert summary["clients"][0].keys() >= {"k", "model", "n", "accuracy", "accuracy_global"}
    assert summary["bytes"]["up"] > 0 and summary["failures"] == []
    assert len(summary["weights_sha256"]) == 64
    assert "holds a run already" in error_of("run", toy, "--out", out)
    page = tmp_path / "page.html"
    told = typed("report", out, "--out", page, "--json")
    assert json.loads(told.stdout) == {"report": str(page)} and page.exists()


@pytest.mark.parametrize("plugin", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_experiment_file_is_read_once_and_the_run_config_is_parsed_once(
    plugin: bool, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    read, files = settings.read_toml, list[Path]()
    monkeypatch.setattr(settings, "read_toml", lambda path: files.append(path) or read(path))
    parse._parsed.cache_clear()
    name = package(tmp_path, {"factor": ONE_MODULE})
    more = ("-s", f"method={name}:factor") if plugin else ()
    completed("run", toy, "--out", tmp_path / "out", "--workers", 0, *more)
    assert files == [toy] and parse._parsed.cache_info().misses == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "nosuchfile"], "experiment file nosuchfile does not exist"),
        (["run", "-s", "epochs=3"], "key 'epochs' is unknown; did you mean 'train.epochs'"),
        (["run", "-s", "track=tensorbord"], "track = 'tensorbord' is unknown: choose from"),
        (["run", "-s", "data.name=cifar10", "-s", "data.dir=/nowhere"], "not found in /nowhere"),
        (["run", "--runtime", "mpi"], "--runtime mpi is unknown; allowed: loopback, ray, grpc"),
        (["run", "--workers", "-2"], "-2 is not in the range 0<=x<=1024"),
        (
            ["table", "averaging_small", "--workers", "-2"],
            "-2 is not in the range 0<=x<=1024",
        ),
        (["run", "-s", "out=/dev/null/x"], "out = '/dev/null/x' cannot be a folder for results"),
        (["run", "--resume", "/nonexistent"], "--resume /nonexistent: no config.toml there"),
        (["run", "-s", "data.image-size=2", "-s", "fleet=resnet8"], "input 2×2 is too small"),
        (["list", "cats"], "list cats is unknown; allowed: methods, models"),
        (["report", "/nonexistent"], "/nonexistent"),
        (["table", "/nosuch.toml"], "table file /nosuch.toml does not exist"),
        (["sweep", "/nosuch.toml"], "sweep file /nosuch.toml does not exist"),
        (["run", "-s", "callbacks=nosuch:A"], "it should be beside the experiment file, on PYTH"),
        (["table", "default"], "default.toml has no [[row]], so it is no table"),
    ],
)
def test_a_mistake_is_one_line_and_a_failing_exit_status(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in error_of(*arguments)
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


@pytest.mark.parametrize(
    ("what", "names"),
    [("methods", names()), ("models", MODELS), ("datasets", DATASETS), ("partitions", PARTITIONS)],
)
def test_a_list_names_everything_there_is(what: str, names: Iterable[str]) -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(*terminal(LISTINGS[what](), ruled=False))
    first_words = {line.split()[0] for line in console.file.getvalue().splitlines() if line.strip()}
    assert set(names) <= first_words


def test_a_result_as_json_stands_alone_on_standard_output(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = typed("run", toy, "--out", out, "--workers", "0", "--json")
    result = json.loads(run.stdout)
    assert result.pop("folder") == str(out) and result.pop("report") == str(out / "report.html")
    assert result == json.loads((out / "summary.json").read_text())
    assert "round 2/2" in run.stderr
    assert "round 2/2" not in typed("list", "methods").stdout, "the next command prints as usual"
    listed = json.loads(typed("list", "settings", "fedprox", "--json").stdout)
    mu = next(each for each in listed if each["key"] == "fedprox.mu")
    assert mu["default"] == 0.01 and mu.keys() == {"key", "default", "allowed", "meaning"}
    models = json.loads(typed("list", "models", "--json").stdout)
    assert {model["model"] for model in models} >= set(MODELS)
    wrong = typed("list", "nothing", "--json")
    assert (wrong.returncode, wrong.stdout) == (1, "") and "allowed: methods" in wrong.stderr


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_ends_with_one_line_that_says_how_to_go_on(
    number: signal.Signals, toy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = interruptible("run", toy, "-s", "rounds=100000", "--out", out)
    begun = out / "checkpoint.safetensors"
    try:
        until("the first round", lambda: begun.exists() or process.poll() is not None)
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == f"interrupted; go on with: fedmosaic run --resume {out}\n"


DROPPED = """
class Late:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
Late()
while True: time.sleep(0.05)
"""
LOCKED = """
console.InterruptHandler.PATIENCE = 1.0
threading.Thread(target=threading.Event().wait).start()
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize("work", [DROPPED, LOCKED], ids=["in a finalizer", "a thread goes on"])
def test_no_signal_is_lost_and_no_thread_keeps_a_command_that_ends(work: str) -> None:
    script = "import signal, sys, threading, time, typer\nfrom deploy import cli, console\n"
    script += f"def work():\n  with console.interruptible('x'): exec({work!r})\n"
    script += "app = typer.Typer(); app.command()(work); sys.argv = ['x']; cli.main(app)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (130, "interrupted; go on with: x\n")


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        (["method=fedavg"], "set average.across to one of layerwise, same, depth, width"),
        (["method=fedkf"], "choose another method, such as fedorion"),
        (["method=fiarse"], "choose another method, such as fedorion"),
        (["method=fedavg", "average.across=same"], ""),
        (["method=fedavg", "fleet=mlp@0.25"], ""),
        (["method=fedavg", "fleet=mlp@0.25", "global-model=cnn2"], "set average.across to one of"),
        (["method=fedorion"], ""),
        (["method=depthfl", "fleet=cnn4-exits1,cnn4-exits2"], ""),
    ],
)
def test_a_line_says_that_all_train_one_architecture(settings: list[str], remedy: str) -> None:
    config = parse.parse(resolve(None, settings))
    lines = preflight.unused_fleet(config)
    assert len(lines) == bool(remedy)
    for line in lines:
        assert f'"{config.run.method}": every client trains the global architecture' in line
        assert remedy in line and "\n" not in line


@pytest.mark.full
def test_a_run_prints_that_line_before_it_starts(toy: Path, tmp_path: Path) -> None:
    done = typed("run", toy, "--out", tmp_path / "out", "-s", "method=fedavg", "--workers", 0)
    assert done.stdout.startswith('method = "fedavg": every client trains the global architecture')
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"round": 1', b'"round": 7', 1))
    page = tmp_path / "page.html"
    error = error_of("report", tmp_path / "out", "--out", page)
    assert "journal.jsonl, line 2 is damaged: its digest does not match" in error
    assert not page.exists()


def test_an_extra_that_is_not_installed_is_named_before_a_run_starts(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    out = tmp_path / "out"
    error = error_of("run", toy, "--out", out, "-s", "method=fedavg", "-s", "privacy.mode=central")
    assert not out.exists() and "pip install 'fedmosaic[privacy]'" in error


def test_places_and_runtime_may_be_settings(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    for option in ("--warm-start", "--cold-start"):
        error = error_of("run", toy, "-s", f"out={out}", "-s", "runtime=ray", option)
        assert f"{option} is for --runtime grpc, not ray" in error
    more = ("--workers", "0", "-s", "runtime=loopback")
    completed("run", toy, "-s", f"out={out}", *more)
    assert (out / "summary.json").exists()
    for change, line in (
        (f"out={tmp_path / 'other'}", f"the run goes on in {out}"),
        ("method=fedkf", f"error: method = 'fedkf' is not allowed: the run in {out} has method"),
    ):
        assert line in error_of("run", "--resume", out, "-s", change)


WITHOUT_NAME = """
import os, pwd
def unknown(user): raise KeyError(user)
pwd.getpwuid = unknown
del os.environ["HOME"]
from common import errors
print(errors.HOME)
"""


def test_a_user_without_a_name_and_a_home_has_a_folder() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NAME], cwd=ROOT, capture_output=True, text=True
    )
    folder = f"home-{os.getuid()}/.fedmosaic"
    assert done.returncode == 0 and done.stdout.strip().endswith(folder), done.stderr


def test_sockets_of_workers_have_short_paths_under_a_long_temporary_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    script = "from deploy.run import preload; preload.begin()\n"
    script += "from multiprocessing import util; print(util.get_temp_dir())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.startswith("/tmp/pymp-"), done.stderr


def test_output_in_another_encoding_lacks_only_its_characters() -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "list", "settings", "privacy"],
        cwd=ROOT,
        env={**os.environ, **locale},
        capture_output=True,
    )
    assert done.returncode == 0 and b"?, standard" not in done.stderr and b"?" in done.stdout


def test_a_byte_order_mark_begins_any_text_file_of_a_user(tmp_path: Path) -> None:
    def marked(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        return tmp_path / name

    assert settings.load(marked("e.toml", "rounds = 7\n")) == {"rounds": 7}
    assert policy.read(marked("p.toml", "max-rounds = 3\n")).max_rounds == 3
    keys = marked("revoked", f"SHA256:{'A' * 43}\n")
    assert seal_files.read_revoked(keys)


def test_deep_nesting_in_a_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text("rounds = " + "[" * 20_000 + "]" * 20_000 + "\n")
    for read in (settings.load, policy.read, lambda path: Schedule(path, 3)):
        with pytest.raises(ValueError, match="nested too deeply") as refused:
            read(file)
        assert "\n" not in str(refused.value)
    file.write_text('{"at": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(Damaged, match="is damaged: delete it"):
        ClientSession.read(file)
