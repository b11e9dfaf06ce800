"""Nothing of a private run names a client that failed, or a number of a single update."""

import io
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from flwr.app import Message
from rich.console import Console

from common import progress
from common.journal import UNITS, ClockTime, Entry, Failure, Member, Unit, Use
from common.parse import parse
from common.settings.section import Value
from deploy.report.pages import write_report
from deploy.report.read import read
from deploy.run.loopback import Loopback
from deploy.run.progress import Progress, show_summary
from server_app.messaging.exchange import kind_of
from server_app.methods.fedavg import FedAvg
from server_app.release import RELEASED, Pace, released_logs, stop_line, withhold
from server_app.stopped import DivergedRound, Stopped
from server_app.strategy import MethodStrategy
from server_app.tracking import numbers, tracker
from server_app.tracking.tracker import Tracker
from tests.support.battery import changed_tensor, fail_client, failed, trained
from tests.support.tiny import TinyRun, flat, play

pytest.importorskip("dp_accounting")
pytest.importorskip("prometheus_client")
from deploy.report.metrics import Metrics

FIELDS = {
    *("version", "round", "clients", "classes", "selected", "metrics", "privacy", "notes"),
    *("events", "accuracy", "loss", "accuracies", "accuracy_bn", "reached", "stalled", "seconds"),
    *("measures", "by_output"),  # in place of the accuracy, of labels and numbers
    "clipped",  # of updates with noise
    "by_class",  # of the global model: under [privacy] no score is personal
    "clock",  # under [privacy] its times do not depend on samples
}
"""Journal fields without information about single clients or updates."""
CLIENTS = 6
LATE = "no reply within 3600 s; a missing reply counts as a zero update"
LEAKS = re.compile(
    r"client \d|node \d|diverged|mean loss|refused|not finite|lacks|3e\+?38|17\.25|sanity ="
    r"|median|times the|bytes|replied\b.*\d|\d+ failures|failed"
)
"""Words of unlisted reasons, of clients, and of numbers from single updates."""


class Faulty(Loopback):
    """Clients 1 to 5 fail, lie twice, are late, and send something else; client 0 is honest."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._changed(reply) for reply in super().pull_messages(list(message_ids))]

    def _changed(self, reply: Message) -> Message:
        if trained(reply, node=2):
            return failed(reply, 2, "FloatingPointError: training diverged: mean loss 17.25")
        if trained(reply, node=3):
            changed_tensor(reply.content, lambda x: torch.full_like(x, float("nan")))
        elif trained(reply, node=4):
            changed_tensor(reply.content, lambda x: torch.full_like(x, 3e38))
        elif trained(reply, node=5):
            return failed(reply, 3, "Error: Message Unavailable")
        elif trained(reply, node=6):
            changed_tensor(reply.content, lambda x: x[1:])
        return reply


class Written(Tracker):
    """Tracker that writes all its numbers to a file in the run's folder."""

    lines: ClassVar[list[str]] = []

    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        return "id"

    def entry(self, entry: Entry) -> None:
        self.lines.append(json.dumps([numbers.scalars(entry), numbers.scores(entry)]))

    def add_file(self, path: Path) -> None: ...

    def finish(self, completed: bool) -> None: ...


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracker.TRACKERS, "written", (f"{__name__}:Written", "pytest"))
    Written.lines.clear()


def faulty(folder: Path, **changes: Any) -> TinyRun:
    given = {"method": "fedavg", "fleet": "mlp@0.25", "clients": CLIENTS, "train__epochs": 1}
    given |= {"privacy__mode": "central", "privacy__clip": 0.01, "track": "written"}
    settings = flat(folder, **{**given, **changes})
    return play(settings, Faulty(CLIENTS, settings, workers=0))


def shown(folder: Path) -> str:
    """Return what the displays, the metrics and the console show of a run."""
    file = io.StringIO()
    console = Console(file=file, width=200)
    run = read(folder)
    with Progress(2, console) as display:
        for entry in run.entries:
            display.on_round(entry)
    show_summary(run, console)
    return file.getvalue() + Metrics(folder).route.body().decode()


def server_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines of the server's modules, with their tracebacks."""
    formatter = logging.Formatter("%(message)s")
    return [formatter.format(r) for r in caplog.records if "client_app" not in r.pathname]


@pytest.mark.parametrize("mode", ["central", pytest.param("local", marks=pytest.mark.full)])
def test_a_run_with_faulty_clients_goes_on_and_shows_only_what_is_listed(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = progress.Reporter(logging.getLogger("flwr.fedmosaic").info, 0.0)
    with caplog.at_level(logging.DEBUG), progress.reporting(every):
        run = faulty(tmp_path, privacy__mode=mode)
    assert run.summary["status"] == "completed" and len(run.journal) == 3
    for entry in run.journal[1:]:
        assert entry.keys() <= FIELDS | {"digest"}
        assert entry["notes"] == [LATE]
    assert run.summary["failures"] == [] and run.summary["bytes"] == {}
    lines = server_lines(caplog)
    assert any(line.endswith(LATE) for line in lines), "the log has the listed reason"
    assert not [line for line in lines if re.search(r"(repl|check).* \d+/\d+", line)]
    rounds = "\n".join((tmp_path / "journal.jsonl").read_text().splitlines()[1:])
    summary = re.sub(r'"(failures|bytes)": [\[{][\]}]', "", json.dumps(run.summary))
    texts = [rounds, summary, shown(tmp_path), *Written.lines, *lines]
    assert len(Written.lines) == 3
    for text in texts:
        assert not (leak := LEAKS.search(text)), f"{leak} in {text}"
    assert not (tmp_path / "errors.log").exists()


@pytest.mark.full
def test_the_page_of_a_faulty_run_names_no_client(tmp_path: Path) -> None:
    faulty(tmp_path)
    write_report([tmp_path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    text = re.sub(r"(?s)<style.*?</style>|<script.*?</script>|<[^>]*>|base64,[^\"]*", " ", page)
    rounds = text[text.index("Differential privacy") :]
    words = r"client \d|node \d|diverged|17\.25|3e\+?38|not finite|median of"
    assert not (leak := re.search(words, rounds)), leak
    assert "Not listed: a refused reply shows something of a single client" in text
    assert LATE in text


class Listening(Loopback):
    """Loopback that keeps the reasons of the clients' errors."""

    reasons: ClassVar[list[str]] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(list(message_ids)))
        self.reasons.extend(reply.error.reason or "" for reply in replies if reply.has_error())
        return replies


@pytest.mark.parametrize("mode", ["central", "local"])
def test_a_client_tells_a_server_that_it_does_not_trust_no_reason(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_client(monkeypatch, 1)
    Listening.reasons.clear()
    given = {"method": "fedavg", "fleet": "mlp@0.25", "clients": 2, "rounds": 1}
    run = play(flat(tmp_path, **given, privacy__mode=mode, privacy__clip=0.01), Listening)
    assert run.summary["status"] == "completed"
    hidden = "the client failed, its own log has the reason"
    assert Listening.reasons == ["OSError: disk full" if mode == "central" else hidden]


def test_secret_selection_lists_no_missing_reply_either(tmp_path: Path) -> None:
    run = faulty(tmp_path, privacy__sampling="secret", per_round=CLIENTS - 1, rounds=1)
    assert not run.journal[1].get("notes") and "selected" not in run.journal[1]


def test_secret_selection_shows_no_times(tmp_path: Path) -> None:
    """A round lasts as long as its slowest client, so its duration tells who was selected."""
    run = faulty(tmp_path, privacy__sampling="secret", per_round=2, rounds=3)
    assert not [entry for entry in run.journal if "seconds" in entry]
    assert run.summary["seconds"] is None and run.summary["seconds_by_phase"] == {}
    assert not [line for line in Written.lines if "seconds" in line] and len(Written.lines) == 4
    times = {path.name: path.stat().st_mtime for path in tmp_path.rglob("*.safetensors")}
    assert {name: times[f"{name}.safetensors"] for name in "012"} == {"0": 0, "1": 1, "2": 2}
    assert times["checkpoint.safetensors"] == 3
    stamps = [(tmp_path / name).stat().st_mtime for name in ("privacy.sums", "status.json")]
    assert stamps == [3, 0], "the replies of the last round, and its start"
    assert math.isnan(read(tmp_path).seconds())
    assert not re.search("seconds", shown(tmp_path)), "no metric of a time"
    phases = json.loads((tmp_path / "status.json").read_text())
    assert (phases["round"], phases["phase"]) == (3, "exchange"), "no phase within a round"


def test_public_selection_keeps_its_times(tmp_path: Path) -> None:
    run = faulty(tmp_path, rounds=1)
    assert run.journal[1]["seconds"]["total"] > 0 and run.summary["seconds"] > 0
    assert read(tmp_path).seconds() > 0 and "fedmosaic_round_seconds" in shown(tmp_path)


def test_trackers_get_rounds_with_secret_selection_after_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[int] = []
    monkeypatch.setattr(Written, "entry", lambda self, entry: lines.append(entry.round))
    seen: list[int] = []
    count = MethodStrategy.play_round

    def play_round(self: MethodStrategy, t: int) -> None:
        count(self, t)
        seen.append(len(lines))

    monkeypatch.setattr(MethodStrategy, "play_round", play_round)
    faulty(tmp_path, privacy__sampling="secret", per_round=2, rounds=3)
    assert seen == [0, 0, 0] and lines == [0, 1, 2, 3]


class Clock:
    """A clock that only waiting and ``now`` change."""

    now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_rounds_end_at_fixed_times(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    pace, ends, renewals = Pace(10.0, lambda: clock.now, clock.sleep), [], []
    with caplog.at_level(logging.INFO, "flwr.fedmosaic"), released_logs():
        for t, work in enumerate((3.0, 0.0, 9.5, 25.0, 1.0), start=1):
            pace.begin()
            clock.now += work
            pace.wait(t, lambda: renewals.append(clock.now))
            ends.append(clock.now)
            clock.now += 0.25  # the record of the round
    assert ends == [110.0, 120.0, 130.0, 160.0, 170.0]
    assert {later - before for before, later in pairwise(renewals[:7])} == {1.0}
    assert caplog.messages == ["round 4 lasted longer than privacy.round-seconds = 10"]


def test_without_a_duration_no_round_waits() -> None:
    pace = Pace(0.0, sleep=lambda seconds: pytest.fail("it waits"))
    pace.begin()
    pace.wait(1)


@pytest.mark.parametrize("sampling", ["secret", "public"])
def test_a_round_of_a_fixed_duration_waits_before_its_record(
    sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    def wait(self: Pace, t: int, renew: object) -> None:
        waits.append(len((tmp_path / "journal.jsonl").read_text().splitlines()))

    monkeypatch.setattr(Pace, "wait", wait)
    fixed = {"timeout": 5.0, "privacy__round_seconds": 6.0, "privacy__sampling": sampling}
    run = faulty(tmp_path, **fixed, per_round=2)
    assert waits == [1, 2] and not [entry for entry in run.journal if "seconds" in entry]


@pytest.mark.parametrize("seconds", [5.0, 4.9])
def test_a_round_must_last_longer_than_its_timeout(seconds: float, tmp_path: Path) -> None:
    given = {"method": "fedavg", "timeout": 5.0, "privacy__round_seconds": seconds}
    assert parse(flat(tmp_path, **given)).privacy.round_seconds == seconds, "privacy.mode is off"
    line = f"privacy.round-seconds = {seconds:g} is not allowed with timeout = 5: a late reply .*"
    with pytest.raises(ValueError, match=line + "allowed: 0, or above 5"):
        parse(flat(tmp_path, **given, privacy__mode="central"))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("client 3 sent 17.25"), "ValueError in .*, line .*its text is withheld; the "),
        (FloatingPointError("training diverged: mean loss 17.25"), "round 1: the server's "),
    ],
)
def test_the_line_of_a_stopped_run_is_listed(
    error: Exception, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> dict[str, float]:
        raise error

    monkeypatch.setattr(FedAvg, "step", step)
    with pytest.raises(Stopped, match=line) as stopped:
        faulty(tmp_path)
    assert stopped.value.__suppress_context__ and "17.25" not in str(stopped.value)
    summary = (tmp_path / "summary.json").read_text()
    assert "17.25" not in summary and "client 3" not in summary
    assert not (tmp_path / "errors.log").exists(), "a traceback would have the text"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("Error: Node Unavailable - the node is not online", "a node is not connected"),
        ("Error: Reply Message Unavailable", "a node is not connected"),
        ("the reply stopped halfway, without 3f", "the reply stopped halfway"),
        ("OSError: Node Unavailable", ""),
        ("no reply within 5 s", ""),  # the server's own text; from a client it is not believed
        ("reply refused: it has the number 3e+38, sanity = 720 allows 7.2e+06", ""),
        ("reply refused: 'w.head' has values that are not finite", ""),
        ("FloatingPointError: training diverged: mean loss 3.5 over 3 steps", ""),
        ("anything new", ""),
    ],
)
def test_a_reason_of_an_error_reply_is_released_or_withheld(reason: str, text: str) -> None:
    assert kind_of(reason)[1] == text


def test_a_line_of_a_stopped_run_is_withheld_unless_it_has_a_released_one() -> None:
    assert stop_line(Stopped("round 1: client 3 sent 17.25")).startswith("Stopped; ")
    assert stop_line(Stopped("round 1: full, node 9", released="round 1: full")) == "round 1: full"
    diverged = DivergedRound("client 3 stood out", 1, released="round 1: it diverged")
    assert stop_line(diverged.with_line("client 4 stood out")) == "round 1: it diverged"


def test_a_log_line_is_withheld_unless_it_is_marked_where_it_arises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("flwr.fedmosaic")
    server = {"pathname": str(Path("server_app").resolve() / "strategy.py")}
    with caplog.at_level(logging.INFO, "flwr.fedmosaic"), released_logs():
        lines: list[tuple[str, dict[str, Any]]] = [
            ("client 3: forged", {}),
            ("round 1/2: client 4", {}),  # a text alone releases nothing
            ("client 5: forged", {"released": "forged"}),
            ("round 2/2: accuracy 0.5", RELEASED),
        ]
        for line, more in lines:
            record = log.makeRecord(log.name, 30, server["pathname"], 1, line, (), None, extra=more)
            log.handle(record)
    assert caplog.messages == ["forged", "round 2/2: accuracy 0.5"]


def test_the_released_reason_is_not_in_the_journal() -> None:
    late = Failure(k=1, round=1, reason="no reply within 5 s", kind="late", released="no reply")
    assert "released" not in late.model_dump()
    assert "released" not in Entry(round=1, failures=[late]).line()


def test_a_journal_field_is_withheld_unless_it_is_listed(tmp_path: Path) -> None:
    """A field that somebody adds to the journal does not leave by itself."""
    config = parse(flat(tmp_path, method="fedavg", privacy__mode="central"))
    late = "no reply within 5 s"
    lost = [Failure(k=k, round=1, reason=late, released=late) for k in (1, 2)]
    lost.append(Failure(k=3, round=1, reason="reply refused: 17.25", kind="refused"))
    entry = Entry(round=1, drift=0.5, replied=[0], failures=lost, bytes={"up": 3}, accuracy=0.5)
    withhold(entry, config, 4)
    assert entry.model_fields_set <= FIELDS and entry.accuracy == 0.5
    assert entry.notes == ["no reply within 5 s; a missing reply counts as a zero update"]
    off = Entry(round=1, replied=[0], failures=lost)
    withhold(off, parse(flat(tmp_path, method="fedavg")), 4)
    assert off.replied == [0] and off.failures == lost and not off.notes


def test_the_marks_of_the_journal_release_these_fields_and_nothing_else() -> None:
    released_of = {
        kind: {n for n, field in kind.model_fields.items() if Use.RELEASED in field.metadata}
        for kind in (Entry, Member, ClockTime)
    }
    assert released_of == {
        Entry: FIELDS,
        Member: {"k", "model", "parameters", "tags"},
        ClockTime: {"start", "end"},
    }


def test_numbers_that_are_shown_beside_the_journal_have_a_unit() -> None:
    shown = {n for n, field in Entry.model_fields.items() if Use.TRACKED in field.metadata}
    own = {"metrics", "measures"}  # of a method, and of labels and numbers, in units of their own
    assert shown - UNITS.keys() == own
    assert {UNITS[name] for name in ("accuracy", "drift", "personal")} == {Unit.SHARE}
    assert (UNITS["seconds"], UNITS["memory"]) == (Unit.SECONDS, Unit.BYTES)
