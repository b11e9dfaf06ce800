"""A run watched while it goes on: a live line on a terminal, plain lines in a log.

The journal is the only source: ``follow`` tails the file that the server writes, wherever the
server runs, and hands each entry to ``Progress``. Reasons of failure come from clients and are
cleaned before they reach a terminal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deploy.report.amounts import NONE, duration, number, percent, size
from deploy.report.clean import clean

Entry = dict[str, Any]


@final
class Progress:
    """Shows rounds as they end: ``with Progress(rounds) as p: p.on_round(entry)``.

    ``rounds`` is the number asked for. A round that comes twice (a resumed run) counts once. On
    anything but a terminal it prints one plain line per round, phase and failure.
    """

    def __init__(
        self,
        rounds: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert rounds >= 0, rounds
        self._rounds = rounds
        self._console = console if console is not None else Console()
        self._clock = clock
        self._phase = ""
        self._entries: dict[int, Entry] = {}
        self._began = self._last = clock()
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        self._began = self._last = self._clock()
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
        """The best accuracy (0 to 1) so far, the census left out."""
        found = (_scalar(e.get("accuracy")) for t, e in self._entries.items() if t > 0)
        return max((a for a in found if a is not None), default=None)

    @property
    def failures(self) -> int:
        return sum(len(_list(e.get("failures"))) for e in self._entries.values())

    @property
    def left(self) -> float | None:
        """Seconds to go, from the last five rounds' times; None before the first round."""
        ended = max(self._entries, default=0)
        if ended == 0:
            return None
        told = [_scalar(_dict(e.get("seconds")).get("total")) for e in self._last_entries(5)]
        known = [s for s in told if s is not None]
        each = sum(known) / len(known) if known else (self._last - self._began) / ended
        return max(0.0, each * (self._rounds - ended) - (self._clock() - self._last))

    def on_phase(self, text: str) -> None:
        """Say what goes on between rounds: "starting 10 SuperNodes"."""
        text = clean(text)
        if text == self._phase:
            return
        self._phase = text
        if self._live is None and text:
            self._print(text)

    def on_round(self, entry: Entry) -> None:
        """Take in one journal entry; round 0 is the census."""
        t = int(entry["round"])
        self._entries[t] = entry
        self._last = self._clock()
        self._phase = ""
        for failure in map(_dict, _list(entry.get("failures"))):
            who, why = number(failure.get("k")), clean(failure.get("reason", "no reason given"))
            self._print(f"round {t}: client {who} failed: {why}", style="yellow")
        if self._live is None:
            self._print(self._line(t, entry))

    def _line(self, t: int, entry: Entry) -> str:
        accuracy = percent(_scalar(entry.get("accuracy")))
        if t == 0:
            clients = len(_list(entry.get("clients")))
            return f"census: {clients} clients, accuracy {accuracy} before training"
        parts = [f"round {t}/{self._rounds}", f"accuracy {accuracy}", f"best {percent(self.best)}"]
        if t < self._rounds and self.left is not None:
            parts.append(f"{duration(self.left)} left")
        if self.failures:
            parts.append(f"failures {self.failures}")
        return ", ".join(parts)

    def _view(self) -> Group:
        ended = max(self._entries, default=0)
        now = self._entries.get(ended, {})
        line = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self._rounds), completed=ended, width=28)
        cells: list[ProgressBar | Text] = [
            Text(f"round {ended}/{self._rounds}", style="bold"),
            bar,
            Text.assemble(("accuracy ", "dim"), percent(_scalar(now.get("accuracy")))),
            Text.assemble(("best ", "dim"), percent(self.best)),
        ]
        if ended < self._rounds:
            cells.append(Text.assemble(("left ", "dim"), _whole(self.left)))
        else:
            cells.append(Text.assemble(("took ", "dim"), duration(self._last - self._began)))
        if self.failures:
            cells.append(Text(f"failures {self.failures}", style="yellow"))
        line.add_row(*cells)
        if not self._phase:
            return Group(line)
        self._spinner.update(text=Text(self._phase, style="dim"))
        return Group(line, self._spinner)

    def _print(self, text: str, style: str = "") -> None:
        """One line, unwrapped in a log so that it can be searched."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _last_entries(self, n: int) -> list[Entry]:
        return [self._entries[t] for t in sorted(self._entries) if t > 0][-n:]


def show_summary(summary: Mapping[str, Any], console: Console) -> None:
    """The clients (own and global model's accuracy on their test shares), then the result."""
    clients = [_dict(c) for c in _list(summary.get("clients"))]
    if clients:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("client", justify="right")
        table.add_column("model")
        for name in ("samples", "own model", "global model"):
            table.add_column(name, justify="right")
        for c in sorted(clients, key=lambda c: int(c.get("k", -1))):
            table.add_row(
                number(c.get("k")),
                Text(clean(c.get("model", NONE), 40)),
                number(c.get("n")),
                percent(_scalar(c.get("accuracy"))),
                percent(_scalar(c.get("accuracy_global"))),
            )
        console.print(table)
    accuracy, sent = _dict(summary.get("accuracy")), _dict(summary.get("bytes"))
    failures = [_dict(f) for f in _list(summary.get("failures"))]
    what = f"{summary.get('method', '?')} on {summary.get('dataset', '?')}"
    result = Table.grid(padding=(0, 2))
    rows = [
        ("run", f"{what}, {number(summary.get('rounds'))} rounds, seed {summary.get('seed')}"),
        ("runtime", f"{summary.get('runtime', NONE)}, {duration(_scalar(summary.get('seconds')))}"),
        (
            "accuracy",
            f"final {percent(_scalar(accuracy.get('final')))}, "
            f"best {percent(_scalar(accuracy.get('best')))}, "
            f"mean of the last 10 rounds {percent(_scalar(accuracy.get('last10')))}",
        ),
        ("sent", f"{size(_scalar(sent.get('down')))} down, {size(_scalar(sent.get('up')))} up"),
        ("weights", f"SHA-256 {str(summary.get('weights_sha256', NONE))[:16]}"),
    ]
    if reached := _dict(summary.get("rounds_to_target")):
        first, mean5 = (_round(reached.get(name)) for name in ("first", "mean5"))
        target = percent(_scalar(reached.get("target")))
        rows.append((f"to {target}", f"first in round {first}, mean of 5 in round {mean5}"))
    for name, told in _dict(summary.get("fairness")).items():
        if isinstance(told, dict):
            amp, wlp = (percent(_scalar(told.get(key))) for key in ("amp", "wlp"))
            rows.append((f"on clients: {name}", f"mean {amp} (AMP), worst {wlp} (WLP)"))
    for name, text in rows:
        result.add_row(Text(clean(name), style="dim"), Text(clean(text)))
    for f in failures:
        reason = f"client {number(f.get('k'))}, round {number(f.get('round'))}: {f.get('reason')}"
        result.add_row(Text("failure", style="yellow"), Text(clean(reason, 300)))
    console.print(result)


def follow(
    journal_path: Path,
    stop: Callable[[], bool],
    on_round: Callable[[Entry], None],
    poll_s: float = 0.2,
) -> None:
    """Hand every entry of a growing journal to ``on_round`` until ``stop()`` says so.

    The file need not exist yet. Only whole lines are read; what is no entry is passed over (the
    report names it). A file that shrinks was written anew and is read from its start. After
    ``stop()`` turns true the file is read once more, so no last line is lost.
    """
    offset = 0
    while True:
        last = stop()
        offset = _read_on(journal_path, offset, on_round)
        if last:
            return
        time.sleep(poll_s)


def _read_on(path: Path, offset: int, on_round: Callable[[Entry], None]) -> int:
    """Read the whole lines behind ``offset``; return where they end."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) < offset:
                offset = 0
            file.seek(offset)
            new = file.read()
    except FileNotFoundError:
        return 0
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("round"), int):
            on_round(entry)
    return offset + len(whole)


def _round(t: object) -> str:
    return "none" if t is None else number(t)


def _whole(seconds: float | None) -> str:
    """Seconds of a countdown, without fractions that flicker."""
    return NONE if seconds is None else duration(seconds) if seconds >= 60 else f"{seconds:.0f} s"


def _scalar(value: object) -> float | None:
    number_ = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number_ else None  # type: ignore[arg-type]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
