"""Trackers show what the journal says, once, and nothing that befalls them touches the run."""

import json
import logging
import sqlite3
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from common.journal import Entry
from common.parse import parse, to_toml
from common.settings.section import Value
from server_app.stopped import Stopped
from server_app.tracking import numbers, sink, tracker
from server_app.tracking.sink import Sink, TrackerProgress, progress_of
from server_app.tracking.tracker import Tracker
from tests.support.battery import fail_client
from tests.support.commandline import completed
from tests.support.run_folder import SCORES, census, entry
from tests.support.tiny import flat, play

ENTRIES = [census(), entry(1, 0.6, metrics={"kd loss@2": 0.5}), entry(2, 0.4, scores=SCORES)]


class Seen(Tracker):
    """Notes what it is told, for all objects of a test."""

    notes: ClassVar[list[object]] = []

    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        self.notes.append(("start", known))
        return known or "id-1"

    def entry(self, entry: Entry) -> None:
        self.notes.append(entry.round)

    def add_file(self, path: Path) -> None:
        self.notes.append(path.name)

    def finish(self, completed: bool) -> None:
        self.notes.append(completed)


class Broken(Seen):
    """Fails in the method that is named ``at``."""

    notes: ClassVar[list[object]] = []
    at: ClassVar[str] = "entry"

    def __getattribute__(self, name: str) -> Any:
        if name == type(self).at:
            raise SystemExit("no login\nand more")
        return super().__getattribute__(name)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """``seen`` and ``broken`` are trackers; what the first is told."""
    for name, kind in (("seen", Seen), ("broken", Broken)):
        monkeypatch.setitem(tracker.TRACKERS, name, (f"{__name__}:{kind.__name__}", "pytest"))
    Seen.notes.clear()
    yield Seen.notes


def show(folder: Path, track: str, entries: list[Entry]) -> None:
    """What the ServerApp does with the entries of a run."""
    folder.mkdir(exist_ok=True)
    (folder / "journal.jsonl").write_text("".join(one.line() + "\n" for one in entries))
    with Sink(folder, track, numbers.settings(parse(flat(folder)))):
        pass


def test_an_entry_becomes_numbers_by_path_and_settings_are_those_that_the_method_reads() -> None:
    found = numbers.scalars(ENTRIES[1])
    assert found["accuracy"] == 0.6 and found["seconds/clients"] == 1.0
    assert found["bytes/down"] == 1000 and found["replied"] == 2 and found["failures"] == 0
    assert found["metrics/kd_loss_2"] == 0.5, "names that a tracker would refuse are made plain"
    assert numbers.scores(ENTRIES[2]) == {"clients/own": [0.25, 0.75], "clients/global": [0.5, 0.5]}
    clock = {"start": 2.0, "end": 4.5, "clients": {0: 2.0}, "late": [0], "energy": 7.0}
    found = numbers.scalars(entry(1, 0.6, clock=clock, measured={0: 1.0}))
    assert (found["clock/end"], found["clock/energy"]) == (4.5, 7.0)
    times = [name for name in found if name.startswith(("clock", "measured"))]
    assert times == ["clock/end", "clock/energy"], "none of a single client"
    buffer = {"staleness": [2, 1], "in_flight": 4, "times": [3.0, 4.5], "arrived": [[0, 0], [1, 1]]}
    found = numbers.scalars(entry(3, 0.6, buffer=buffer))
    ages = {name: value for name, value in found.items() if name.startswith("buffer")}
    assert ages == {"buffer/staleness": 1.5, "buffer/oldest": 2, "buffer/in_flight": 4}
    odd = entry(3, float("nan"), metrics={"a": float("inf"), "../b": 1.0})
    assert "accuracy" not in numbers.scalars(odd) and "metrics/a" not in numbers.scalars(odd)
    assert numbers.scalars(odd)["metrics/___b"] == 1.0
    found = numbers.settings(parse(flat(Path("x"), method="fedavg")))
    assert found["train.lr"] == 0.05 and found["seed"] == 1
    assert found["average.weights"] == "samples", "auto is resolved"
    assert "noise.epochs" not in found, "fedavg distils nothing"


def test_a_run_is_told_and_no_number_changes(notes: list[object], tmp_path: Path) -> None:
    plain = play(flat(tmp_path / "plain", method="fedavg"))
    tracked = play(flat(tmp_path / "tracked", method="fedavg", track="broken,seen"))
    assert notes == [("start", ""), 0, 1, 2, True]
    assert progress_of(tmp_path / "tracked", "seen") == TrackerProgress(known="id-1", round=2)
    assert tracked.timeless == plain.timeless and tracked.weights == plain.weights


def test_a_resumed_run_goes_on_in_the_same_tracked_run(
    notes: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = flat(tmp_path, method="fedavg", rounds=3, track="seen")
    with monkeypatch.context() as patch:
        fail_client(patch, 0)
        with pytest.raises(Stopped):
            play(settings)
    assert notes == [("start", ""), 0, False]
    play({**settings, "resume": True})
    assert notes[3:] == [("start", "id-1"), 1, 2, 3, True], "no round comes twice"


@pytest.mark.parametrize("method", ["start", "entry", "finish"])
def test_a_broken_tracker_is_one_warning(
    method: str,
    notes: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Broken, "at", method)
    with caplog.at_level(logging.WARNING):
        show(tmp_path, "broken,seen", ENTRIES)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "broken fails" in line and "SystemExit: no login" in line
    assert line.endswith(str(tmp_path / "errors.log"))
    assert notes[-3:] == [1, 2, True], "the other one hears everything"
    (failure,) = sink.failures(tmp_path, "broken,seen")
    assert "broken failed" in failure and "no login" in failure


def test_a_tracker_that_hangs_is_left_behind(
    notes: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    released = threading.Event()
    monkeypatch.setattr(Seen, "entry", lambda *_: released.wait())
    monkeypatch.setattr(sink, "PATIENCE", 0.0)
    with caplog.at_level(logging.WARNING):
        show(tmp_path, "seen", ENTRIES)  # returns
    released.set()
    for thread in threading.enumerate():
        if thread.name == "trackers":
            thread.join()
    assert "seen fails" in caplog.text and "does not come to an end" in caplog.text
    assert progress_of(tmp_path, "seen").failed


def test_a_tracker_is_told_what_it_missed(notes: list[object], tmp_path: Path) -> None:
    show(tmp_path, "seen", ENTRIES[:1])
    show(tmp_path, "seen", ENTRIES)
    assert notes == [("start", ""), 0, True, ("start", "id-1"), 1, 2, True]
    notes.clear()
    sink.add_file(tmp_path, "seen,broken", tmp_path / "report.html")
    assert notes == [("start", "id-1"), "report.html", True], "and to none that shows nothing"


def test_the_command_adds_the_report_or_says_why(notes: list[object], tmp_path: Path) -> None:
    settings = flat(tmp_path / "run", method="fedavg", rounds=1, track="seen,broken")
    (tmp_path / "run.toml").write_text(to_toml(settings))
    done = completed("run", tmp_path / "run.toml", "--workers", "0")
    assert notes == [("start", ""), 0, 1, True, ("start", "id-1"), "report.html", True]
    assert done.stdout.count("track: broken failed") == 1


@pytest.mark.parametrize(
    ("track", "line"),
    [
        ("tensorbord", "track = 'tensorbord' is unknown: .* did you mean 'tensorboard'"),
        ("wandb,neptune", "track = 'neptune' is unknown: choose from tensorboard, wandb, mlflow"),
        ("gone", "track = 'gone': no module named 'nosuchpackage'"),
    ],
)
def test_what_is_no_tracker_here_is_refused_before_anything_starts(
    track: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tracker.TRACKERS, "gone", ("nosuchpackage:X", "nosuchpackage"))
    for refused in (tracker.check, lambda track: play(flat(tmp_path / "run", track=track))):
        with pytest.raises(ValueError, match=line):
            refused(track)
    assert not (tmp_path / "run/journal.jsonl").exists()
    monkeypatch.setitem(tracker.TRACKERS, "none", ("json:dumps", "json"))
    with pytest.raises(ValueError, match="track = 'none': json:dumps is no Tracker"):
        Sink(tmp_path, "none", {})
    own = f"{__name__}:Seen"
    assert issubclass(tracker.find(own), Seen), "a plug-in's"
    tracker.check(own)
    with pytest.raises(ValueError, match="SCORES is no Tracker"):
        tracker.check(f"{__name__}:SCORES")


# Each of ours, read back with the program's own reader.
@pytest.mark.full
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    show(tmp_path, "tensorboard", ENTRIES[:2])
    show(tmp_path, "tensorboard", ENTRIES)
    read = EventAccumulator(str(tmp_path / "track/tensorboard"))
    read.Reload()
    points = [(point.step, round(point.value, 6)) for point in read.Scalars("accuracy")]
    assert points == [(0, 0.1), (1, 0.6), (2, 0.4)]
    (drawn,) = read.Histograms("clients/own")
    assert (drawn.step, drawn.histogram_value.min, drawn.histogram_value.max) == (2, 0.25, 0.75)
    assert read.PluginTagToContent("hparams").keys() >= {"_hparams_/session_start_info"}


def stored(path: Path) -> Iterator[bytes]:
    """The records of a ``.wandb`` file: LevelDB's log format, after a header of seven bytes."""
    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # no record's header crosses a block
            at += left
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.full
def test_wandb_keeps_it_in_the_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.delenv("WANDB_MODE", raising=False)
    show(tmp_path, "wandb", ENTRIES[:2])
    show(tmp_path, "wandb", ENTRIES)
    (tmp_path / "report.html").write_text("a page")
    sink.add_file(tmp_path, "wandb", tmp_path / "report.html")
    (kept,) = (tmp_path / "track/wandb").glob("offline-run-*/files/report.html")
    assert kept.read_text() == "a page" and not kept.is_symlink()
    name = progress_of(tmp_path, "wandb").known
    steps = []
    for path in sorted((tmp_path / "track/wandb").glob(f"offline-run-*/run-{name}.wandb")):
        for record in map(Record.FromString, stored(path)):
            items = {i.key or i.nested_key[0]: i.value_json for i in record.history.item}
            if "accuracy" in items:
                steps.append((record.history.step.num, json.loads(items["accuracy"])))
    assert steps == [(0, 0.1), (1, 0.6), (2, 0.4)]


@pytest.mark.full
def test_wandb_without_a_login_is_a_warning_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    show(tmp_path, "wandb", ENTRIES[:1])
    assert "there is no login" in progress_of(tmp_path, "wandb").failed
    assert "choice" not in capsys.readouterr().err


@pytest.mark.full
def test_mlflow_keeps_it_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.telemetry import get_telemetry_client

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    show(tmp_path, "mlflow", ENTRIES[:2])
    show(tmp_path, "mlflow", ENTRIES)
    tmp_path = tmp_path.rename(tmp_path.with_name("moved"))
    (tmp_path / "report.html").write_text("a page")
    sink.add_file(tmp_path, "mlflow", tmp_path / "report.html")
    with sqlite3.connect(tmp_path / "track/mlflow.db") as database:
        ((name, status),) = database.execute("select run_uuid, status from runs")
        points = "select step, value from metrics where key = ? order by step"
        assert list(database.execute(points, ("accuracy",))) == [(0, 0.1), (1, 0.6), (2, 0.4)]
        assert list(database.execute(points, ("clients/own/median",))) == [(2, 0.5)]
        params = dict(database.execute("select key, value from params"))
    assert name == progress_of(tmp_path, "mlflow").known and status == "FINISHED"
    assert params["train.lr"] == "0.05" and params["data.name"] == "toy"
    assert get_telemetry_client() is None, "nobody else is told of it"
    (report,) = (tmp_path / "track/mlflow-artifacts").rglob("report.html")
    assert report.read_text() == "a page"
