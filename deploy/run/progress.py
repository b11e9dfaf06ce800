"""Display of a running run, on a terminal or in a log, and of its result.

Rounds come from the journal: ``follow`` (``server_app/storage/journal.py``) tails the file that the
server writes and hands each entry to ``Progress``. Reasons of failure come from clients and are
cleaned before they reach a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table as Lines
from rich.text import Text

from common.extras import missing
from common.files import read_json
from common.journal import ByClass, Entry, Personal, measure_of, over, primary_course
from common.measures import ACCURACY, MEASURES, Measure
from common.progress import LOG_PAUSE
from common.settings.section import Value
from deploy.report.read import Run, of_clients, over_classes, read
from deploy.report.table import (
    NONE,
    clean,
    duration,
    in_flight,
    number,
    size,
    staleness,
    terminal,
)
from server_app.storage.summary import place
from server_app.tracking import sink

SCORE = {"global": "", "personal": "personal "}
"""What the name of the primary score has before its measure's title."""
OTHER = {"global": "personal ", "personal": "global "}
"""The same for the other score."""
FEW = 20  #: most failures that are shown for a round, and for a run


@final
@dataclass(frozen=True)
class Left:
    """Estimated remaining seconds of a run; a lower bound unless ``sure``."""

    seconds: float
    sure: bool

    def __str__(self) -> str:
        # no fractions, because the number changes with every refresh
        shown = f"{self.seconds:.0f} s" if self.seconds < 59.5 else duration(self.seconds)
        return shown if self.sure else f"{shown} or more"


@final
class Progress:
    """Display of the rounds as they end: ``with Progress(rounds) as p: p.on_round(entry)``.

    ``rounds``: the number of rounds of the run. ``past``: the journal's entries before this process
    of a resumed run, ``start``: the round of its checkpoint; rounds up to ``start`` are not shown
    again. ``measure``: that of the scores to come. A round that comes twice counts once. Without a
    terminal, the display prints one plain line per round, phase and failure.
    """

    def __init__(
        self,
        rounds: int,
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
        past: Sequence[Entry] = (),
        start: int = -1,
        measure: Measure = ACCURACY,
    ) -> None:
        assert rounds >= 0, rounds
        self._rounds, self._start, self._usual = rounds, start, measure
        self._dropped = {entry.round: entry for entry in past if entry.round > start}
        self._console = console or Console()
        self._clock = clock
        self._phase = ""
        self._entries: list[Entry] = []  # by round, ascending
        self._shown: dict[int, Entry] = {}  # the printed entries, also of rounds that are repeated
        self._began = self._last = self._printed = clock()
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        self._began = self._last = self._printed = self._clock()
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._view, console=self._console, refresh_per_second=8
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._phase = ""
            self._live.stop()
            self._live = None

    @property
    def best(self) -> float | None:
        """The best primary score so far, without the census."""
        scores = [score for t, score in primary_course(self._entries) if t > 0]
        return self._measure.best(scores) if scores else None

    @property
    def _measure(self) -> Measure:
        known = measure_of(self._entries)
        return self._usual if known is ACCURACY else known

    @property
    def _newest(self) -> Entry:
        return self._entries[-1] if self._entries else Entry(round=0)

    @property
    def failures(self) -> int:
        return len(over(self._entries, "failures"))

    @property
    def left(self) -> Left | None:
        """Estimated remaining time, at least 0 s; None before this process's first round.

        Each further round takes as long as the last five rounds of this process on average, or as
        the newest if that took longer: with some methods later rounds cost more. If the running
        round already takes longer, its duration so far counts.
        """
        first, ended = max(self._start, 0), self._newest.round
        if not first < ended < self._rounds or self._newest.end:
            return None
        last = [entry for entry in self._entries if entry.round > first][-5:]
        known = [e.seconds["total"] for e in last if "total" in e.seconds]
        known = known or [(self._last - self._began) / (ended - first)]
        expected, running = max(sum(known) / len(known), known[-1]), self._clock() - self._last
        sure = len(last) > 1 and running <= max(known)
        return Left(max(expected, running) * (self._rounds - ended) - running, sure)

    def on_phase(self, text: str) -> None:
        """Show the work between rounds: "starting 10 SuperNodes"."""
        known, self._phase = self._phase, clean(text)
        if self._live is None and self._phase not in ("", known):
            self._printed = self._clock()
            say(self._console, self._phase)

    def on_step(self, text: str) -> None:
        """Show the progress within a round; in a log at most every ``LOG_PAUSE`` seconds."""
        self._phase = clean(text)
        if self._live is None and self._clock() >= self._printed + LOG_PAUSE:
            self._printed = self._clock()
            say(self._console, self._phase)

    def on_round(self, entry: Entry) -> None:
        """Show one journal entry; round 0 is the census.

        A rewound journal is read again from its start: later rounds no longer count, and printed
        lines are not repeated. A resumed run drops its ``past`` rounds after ``start``.
        """
        t = entry.round
        if self._dropped.get(t) == entry:
            return
        # A rewound journal ends with the checkpoint's entry, which lacks the checkpoint's seconds.
        shown = t in self._shown and self._shown[t].model_copy(update={"seconds": entry.seconds})
        again = t <= self._start or shown == entry
        self._entries = [past for past in self._entries if past.round < t] + [entry]
        self._shown[t] = entry
        self._last = self._printed = self._clock()
        self._phase = ""
        if again:
            return
        for note in entry.notes:
            self.warn(note)
        for event in entry.events[:FEW]:
            self.warn(f"round {t}: client {event.k} {event.kind}: {clean(event.cause)}")
        for failure in entry.failures[:FEW]:
            self.warn(f"round {t}: client {failure.k} failed: {clean(failure.reason)}")
        if (more := len(entry.failures) - FEW) > 0:
            self.warn(f"round {t}: {more} more failed; the journal has the reasons")
        if self._live is None:
            say(self._console, self._line(t, entry))

    def warn(self, text: str) -> None:
        """Print one line that stays above the live display."""
        say(self._console, clean(text, 400), "yellow")

    def _line(self, t: int, entry: Entry) -> str:
        measure, whole = self._measure, entry.score("global")
        if t == 0:
            scored = f", {measure.title} {measure.text(whole)} before training"
            return f"census: {len(entry.clients)} clients{'' if whole is None else scored}"
        score = f"{SCORE[entry.primary]}{measure.title} {measure.text(entry.primary_score)}"
        texts = [f"round {t}/{self._rounds}", score, f"best {measure.text(self.best)}"]
        texts += [" ".join(pair) for pair in further(entry)]
        if (other := entry.other_score) is not None:
            texts.append(f"{OTHER[entry.primary]}{measure.title} {measure.text(other)}")
        if entry.clock:
            texts.append(f"{duration(entry.clock.end)} on the clock")
        if entry.buffer:
            texts.append(in_flight(entry.buffer.as_dict()))
        if t < self._rounds and self.left is not None:
            texts.append(f"{self.left} left")
        if self.failures:
            texts.append(f"failures {self.failures}")
        if entry.end:
            texts.append(f"the run ends: {entry.end}")
        return ", ".join(texts)

    def _view(self) -> Group:
        now, ended, measure = self._newest, self._newest.round, self._measure
        left = ended < self._rounds and not now.end
        title = f"{SCORE[now.primary]}{measure.title}"
        shown = str(self.left or NONE) if left else duration(self._last - self._began)
        cells: list[ProgressBar | Text] = [
            Text(f"round {ended}/{self._rounds}", style="bold"),
            ProgressBar(total=max(1, self._rounds if left else ended), completed=ended, width=28),
            Text.assemble((f"{title} ", "dim"), measure.text(now.primary_score)),
            Text.assemble(("best ", "dim"), measure.text(self.best)),
            Text.assemble(("left " if left else "took ", "dim"), shown),
        ]
        if now.clock:
            cells.append(Text.assemble(("clock ", "dim"), duration(now.clock.end)))
        if now.buffer:
            cells.append(Text(in_flight(now.buffer.as_dict())))
        if self.failures:
            cells.append(Text(f"failures {self.failures}", style="yellow"))
        if now.end:
            cells.append(Text(now.end))
        line = Lines.grid(padding=(0, 2))
        line.add_row(*cells)
        self._spinner.update(text=Text(self._phase, style="dim"))
        return Group(line, self._spinner) if self._phase else Group(line)


def say(console: Console, text: str, style: str = "") -> None:
    """Print one line, unwrapped in a log so that it can be searched."""
    console.print(Text(text, style=style), soft_wrap=True)


def further(entry: Entry | None) -> list[tuple[str, str]]:
    """Return title and value of each measure beside the primary one; none of classes."""
    measured = entry.others.items() if entry else ()
    return [(MEASURES[name].title, MEASURES[name].text(value)) for name, value in measured]


def show_summary(run: Run, console: Console) -> None:
    """Print each client's scores (own and global model, on its test share) and the result."""
    if run.scores():
        console.print(*terminal(of_clients(run, parameters=False)))
    scores, summary = run.headline(), run.summary
    title = f"{run.setting('method') or '?'} on {run.setting('dataset') or '?'}"
    scored = f"final {run.text(scores['final'])}, best {run.text(scores['best'])}"
    mean = f"mean of last {run.last()} scored {run.text(scores['last10'])}"
    limits = f" ({run.measure.meaning})" if run.measure.meaning else ""
    sent = f"{size(run.cost('down'))} down, {size(run.cost('up'))} up"
    lines = [
        ("run", f"{title}, {run.done} rounds, seed {run.setting('seed')}"),
        ("runtime", f"{run.setting('runtime') or NONE}, {duration(run.seconds())}"),
        (f"{SCORE[run.primary]}{run.measure.title}", f"{scored}, {mean}{limits}"),
        *_other_scores(run),
        *([] if run.private else [("sent", sent)]),
        ("weights", f"SHA-256 {((summary and summary.weights_sha256) or NONE)[:16]}"),
    ]
    if clock := run.over("clock"):
        lines.append(("clock", f"{duration(clock.end)} on the clients' devices"))
    if arrivals := run.arrivals():
        count = number(len(arrivals.staleness))
        lines.append(("staleness", f"{staleness(arrivals.as_dict())} over {count} updates"))
    if run.end:
        lines.append(("ended", f"round {run.reached}: {run.end}"))
    if summary and (reached := summary.rounds_to_target):
        first, mean5 = ("none" if t is None else t for t in (reached.first, reached.mean5))
        line = f"first in round {first}, mean of 5 in round {mean5}"
        if (reached_at := summary.time_to_target) and reached_at.seconds is not None:
            line += f", after {duration(reached_at.seconds)} on the clock"
        lines.append((f"to {run.text(reached.target)}", line))
    fairness = run.newest("fairness")
    for name, spread in fairness.models.items() if fairness else ():
        line = f"mean {run.text(spread.amp)} (AMP), worst {run.text(spread.wlp)} (WLP)"
        lines.append((f"on clients: {name}", line))
    failures = run.over("failures")
    for f in failures[:FEW]:
        lines.append(("failure", clean(f"client {f.k}, round {f.round}: {f.reason}", 300)))
    if (more := len(failures) - FEW) > 0:
        lines.append(("failure", f"and {more} more, in the journal"))
    result = Lines.grid(padding=(0, 2))
    for name, text in lines:
        result.add_row(Text(name, style="yellow" if name == "failure" else "dim"), Text(text))
    console.print(result)


def _other_scores(run: Run) -> Iterator[tuple[str, str]]:
    """Yield a line for the newest score that is not primary, the clients, and the classes."""
    for title, value in further(run.last_scored()):
        yield f"{SCORE[run.primary]}{title}", f"final {value}"
    if (other := run.newest("other_score")) is not None:
        yield f"{OTHER[run.primary]}{run.measure.title}", f"newest {run.text(other)}"
    personal: Personal | None = run.newest("personal")
    if personal is not None and personal.clients:
        mean = f"mean unweighted {run.text(personal.unweighted)}"
        deviation = f"standard deviation {run.text(personal.std)}"
        yield f"over {personal.clients} clients", f"{mean}, {deviation}"
        worst, tenth = run.text(personal.worst), run.text(personal.worst_tenth)
        yield "worst clients", f"worst {worst}, mean of the worst tenth {tenth}"
    by_class: ByClass | None = run.newest("by_class")
    if by_class is not None:
        yield "over classes", over_classes(by_class, 1)


def summary_since(folder: Path, started: float) -> dict[str, object] | None:
    """Return ``summary.json`` if it was written after ``started``, in seconds since the epoch."""
    path = folder / "summary.json"
    if not path.exists() or path.stat().st_mtime < started - 0.01:
        return None
    summary: dict[str, object] = read_json(path)
    return summary


def show(folder: Path, console: Console) -> dict[str, object]:
    """Print the run's clients and result, and write its report if the extra is installed.

    Return ``folder``, ``report`` (None: not written) and the content of ``summary.json``.
    """
    show_summary(read(folder), console)
    page: Path | None = folder / "report.html"
    try:
        report([folder], folder / "report.html", console)
    except ModuleNotFoundError as error:
        say(console, f"no report: {missing(error)}")
        page = None
    return {"folder": folder, "report": page, **(summary_since(folder, 0.0) or {})}


def report(folders: list[Path], page: Path, console: Console) -> None:
    """Write a page and print its path; add the page of a single run to the run's trackers.

    Raises ``ValueError`` for a folder without a run, ``ModuleNotFoundError`` without the extra
    ``report``.
    """
    from deploy.report.pages import write_report

    write_report(folders, page)
    if len(folders) == 1:
        for line in _added(folders[0], page.resolve()):
            say(console, clean(line, 400), "yellow")
    say(console, f"report: {page.resolve()}")


def _added(folder: Path, page: Path) -> list[str]:
    """Add the page to the run's trackers; return a line for each one that failed, ever."""
    track = str(read(folder).config.get("track", ""))
    try:
        sink.add_file(folder, track, page)
    except ValueError as error:  # only the server's machine has the tracker
        return [f"the report is not added: {error}"]
    return sink.failures(folder, track)


def show_if_here(flat: Mapping[str, Value], started: float, console: Console) -> dict[str, object]:
    """Show a run as ``show`` does, or print one line if its server is another machine.

    ``flat``: its run config; ``started``: a time before its start, in seconds since the epoch.
    """
    out, experiment = str(flat["out"]), str(flat["experiment"])
    folder, why = place(out, experiment), "on the server's machine"
    try:
        if summary_since(folder, started) is not None:
            return show(folder, console)
    except OSError as error:
        why = f"but {error.filename or folder} cannot be used here: {error.strerror}"
    where = out or f"~/{folder.relative_to(Path.home())}"
    say(console, f"the results are in {where}, {why}; there: fedmosaic report {where}")
    return {"folder": where}
