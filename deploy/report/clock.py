"""Section of a report about the virtual clock: scores by time, and the clients' jobs.

An asynchronous round is a step of the server. Its jobs may begin before the step before, and no
client waits for its end.
"""

from collections.abc import Mapping
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from common.journal import Arrivals, ClockTime
from common.metrics import MANY, quantiles
from common.settings.config import listed
from deploy.report.charts import HALF, against, draw_line, hover_bars, legend_above
from deploy.report.groups import Groups, named
from deploy.report.plots import CLOCK
from deploy.report.read import Run
from deploy.report.style import MUTED, PAPER, Card, Section, frame, series, style
from deploy.report.table import (
    NONE,
    Table,
    clean,
    duration,
    joules,
    number,
    percent,
    size,
    staleness,
)

SINGLE = 50  #: most clients of a round that all have a bar
SLOWEST = 25  #: clients with a bar in a round with more, beside quantiles
COUNTED = "Times on the clients' devices, from counted operations and bytes."
UNUSED = "late or not needed"
COLUMNS = {
    "time": "",
    "slowest client": "",
    "idle": "Idle: mean share of a round in which a client's device waits for its end.",
    "staleness": "Staleness: steps of the server from sending a model to its update's arrival.",
    UNUSED: "",
    "dropped": "Dropped: updates that were lost, refused or too old, and jobs that outlast a run.",
    "energy": "The energy is for ranking only.",
}
"""Columns of the table of runs, of which a run has some, and what they mean."""
FROM_START = "seconds since the start of the round; dashed: its end"


def profile_of(run: Run, k: int) -> str:
    """Return the name of client k's device profile; empty if it has none."""
    node = run.table("node").get(str(k))
    own = node.get("profile") if isinstance(node, dict) else ""
    names = listed(str(run.config.get("profiles", "")))
    return clean(own or (names[k % len(names)] if names else ""), 40)


def section(groups: Groups) -> Section | None:
    """Return the times of the runs, and of a single run its course and its last round.

    Without a clock: the staleness of asynchronous rounds; None if there are none.
    """
    runs = [(label, _cells(run)) for label, run in named(groups) if CLOCK.known(run)]
    if not runs:
        return _by_arrival(groups)
    columns = [name for name in COLUMNS if any(name in cells for _, cells in runs)]
    rows = [(label, *(cells.get(name, NONE) for name in columns)) for label, cells in runs]
    cards = [Card("", table=Table(("run", *columns), rows), span=12)]
    if len(groups) == 1 and not groups[0].several:
        cards = [*_pictures(groups), *cards]
    lead = " ".join(filter(None, (COUNTED, *map(COLUMNS.get, columns))))
    return Section("Time on the virtual clock", cards, lead)


def _by_arrival(groups: Groups) -> Section | None:
    """Return the staleness of asynchronous rounds whose updates counted as they arrived."""
    runs = [(label, run, arrivals) for label, run in named(groups) if (arrivals := run.arrivals())]
    if not runs:
        return None
    rows = [(label, staleness(arrivals.as_dict()), _lost(run)) for label, run, arrivals in runs]
    cards = [Card("", table=Table(("run", "staleness", "lost"), rows), span=12)]
    if len(groups) == 1 and not groups[0].several:
        cards = [_staleness(*runs[0][1:], "time"), *cards]
    lead = f"Updates counted in the order in which they arrived. {COLUMNS['staleness']}"
    return Section("Asynchronous rounds", cards, f"{lead} Lost: jobs without an update.")


def _lost(run: Run) -> str:
    """Return how many jobs of a run were lost, of all that were sent."""
    kinds = [kind for e in run.entries if e.buffer for kind, *_ in e.buffer.events]
    return f"{number(kinds.count('lost'))} of {number(kinds.count('sent'))}"


def _staleness(run: Run, arrivals: Arrivals, time: str) -> Card:
    title = f"Staleness by {time}"
    alt = f"Line: mean of each round, band: up to its maximum; {staleness(arrivals.as_dict())}."
    return Card(title, staleness_by_time(run), alt)


def _cells(run: Run) -> Mapping[str, str]:
    """Return the texts of a run in the table of runs, by column."""
    rounds = [entry.clock for entry in run.entries if entry.clock]
    jobs: dict[int, list[float]] = {}
    for k, seconds in ((k, s) for clock in rounds for k, s in clock.clients.items()):
        jobs.setdefault(k, []).append(seconds)
    means = {k: fmean(of_client) for k, of_client in jobs.items()}
    slowest = max(means, key=lambda k: means[k], default=None)
    idle, arrivals = [share for clock in rounds for share in _idle(clock)], run.arrivals()
    energies = [clock.energy for clock in rounds if clock.energy is not None]
    late, count = sum(len(clock.late) for clock in rounds), sum(map(len, jobs.values()))
    if arrivals:  # a lost job has no time, and a client may have several jobs in one step
        count = late + len(arrivals.staleness)
    client = NONE if slowest is None else f"{_name(run, slowest)}: {duration(means[slowest])} a job"
    energy = joules(sum(energies) if energies else None)
    cells = {"time": duration(rounds[-1].end), "slowest client": client, "energy": energy}
    unused = f"{number(late)} of {number(count)}" if jobs else NONE
    if run.buffered:
        old = staleness(arrivals.as_dict()) if arrivals else NONE
        return {**cells, "staleness": old, "dropped": unused}
    return {**cells, "idle": percent(fmean(idle)) if idle else NONE, UNUSED: unused}


def _idle(clock: ClockTime) -> list[float]:
    """Return the share of a round that each client waits for its end, in [0, 1]."""
    spent = clock.end - clock.start
    return [max(1 - seconds / spent, 0.0) for seconds in clock.clients.values() if spent > 0]


def _name(run: Run, k: int) -> str:
    """Return a client's number and the profile of its device."""
    return ", ".join(filter(None, (f"client {k}", profile_of(run, k))))


def _pictures(groups: Groups) -> list[Card]:
    """Return the score and staleness by time and the jobs of the last round of a single run."""
    run = groups[0].runs[0]
    title = f"{run.measure.heading} by {CLOCK.name}"
    alt = f"{title}: {run.done} rounds."
    cards = [Card(title, against(groups, CLOCK), alt, behind=_rounds(run))]
    if arrivals := run.arrivals():
        cards.append(_staleness(run, arrivals, CLOCK.name))
    last = next((e for e in reversed(run.entries) if e.clock and e.clock.clients), None)
    if last is not None and last.clock is not None:
        drawn = _ends(last.clock, last.buffer)
        longest = duration(max((last.clock.clients[k] for k in drawn), default=0.0))
        alt = f"Bars: time of {len(drawn)} jobs in round {last.round}, up to {longest}."
        behind = _jobs(run, last.clock, last.buffer)
        picture = jobs(run, last.clock, last.buffer)
        cards.append(Card(f"Jobs of round {last.round}", picture, alt, behind=behind))
    return cards


@style()
def staleness_by_time(run: Run) -> Figure:
    """Plot the mean staleness of each asynchronous round by time; a band reaches to its maximum.

    The time is that of the clock, or without one that of the last update's arrival.
    """
    of_run = [(e, e.buffer) for e in run.entries if e.buffer and e.buffer.times]
    rounds = [(e, e.clock.end if e.clock else b.times[-1], b.as_dict()) for e, b in of_run]
    points = [
        (x, of["staleness"], f"round {e.round}, {duration(x)}: staleness {staleness(of)}")
        for e, x, of in rounds
    ]
    figure, axes = frame(HALF)
    xs, means = [x for x, _, _ in points], [mean for _, mean, _ in points]
    oldest = [of["oldest"] for *_, of in rounds]
    axes.fill_between(xs, means, oldest, color=series(0), alpha=0.18, linewidth=0)
    draw_line(axes, points, "", 0)
    label = CLOCK.label if CLOCK.known(run) else "seconds since the run began"
    axes.set(xlabel=label, ylabel="steps of the server")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return figure


@style()
def jobs(run: Run, clock: ClockTime, buffer: Arrivals | None) -> Figure:
    """Plot a bar for each job of a round, from its start; the round's end is a dashed line.

    With more than ``SINGLE`` clients only the slowest have a bar, and quantiles stand for all. In
    an asynchronous round a bar ends when its update arrived. A dropped job has no bar, because the
    journal does not have its end.
    """
    replies, ends = _replies(clock, buffer), _ends(clock, buffer)
    slowest = sorted(ends, key=lambda k: (-clock.clients[k], k))
    slowest = slowest if len(ends) <= SINGLE else slowest[:SLOWEST]
    kinds = ["staleness 0", "staleness above 0"] if buffer else ["in time", UNUSED]
    kinds.append(f"quantiles of {number(len(ends))} clients")
    bars = []
    for k in slowest:
        text = f"{_name(run, k)}: {duration(clock.clients[k])}, {replies[k]}"
        kind = int(replies[k] != kinds[0])
        bars.append((_label(run, k), ends[k], clock.clients[k], kind, text))
    if len(ends) > SINGLE and not buffer:
        for name, seconds in (quantiles(clock.clients.values()) or {}).items():
            text = f"{name} of {number(len(ends))} clients: {duration(seconds)}"
            bars.append((name, seconds, seconds, 2, text))
    looks = ((series(0), ""), (series(1), "////"), (series(7), "...."))
    figure, axes = frame((HALF[0], max(HALF[1], 1.0 + 0.16 * len(bars))))
    for y, (_, end, seconds, kind, text) in enumerate(bars):
        colour, hatch = looks[kind]
        bar = axes.barh(
            y, seconds, 0.72, end - seconds, color=colour, hatch=hatch, edgecolor=PAPER,
            linewidth=0.6,
        )  # fmt: skip
        hover_bars(bar, [text])
    end = clock.end if buffer else clock.end - clock.start
    axes.axvline(end, color=MUTED, linestyle=(0, (4, 2)), linewidth=1.5)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axis = f"{CLOCK.label}; dashed: the step" if buffer else FROM_START
    axes.set_xlabel(axis, color=MUTED)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    shown = sorted({kind for _, _, _, kind, _ in bars})
    handles = {
        kinds[i]: Patch(facecolor=looks[i][0], hatch=looks[i][1], edgecolor=PAPER) for i in shown
    }
    legend_above(figure, handles)
    return figure


def _ends(clock: ClockTime, buffer: Arrivals | None) -> Mapping[int, float]:
    """Return when each client's job ended, in seconds since the start of the round.

    In an asynchronous round: when each client's update arrived, in seconds on the clock. A client
    with a dropped job is left out, because its time is that of both jobs.
    """
    if buffer is None:
        return clock.clients
    known = clock.clients.keys() - clock.late
    ends = zip(buffer.arrived, buffer.times, strict=False)
    return {k: time for (k, _), time in ends if k in known}


def _replies(clock: ClockTime, buffer: Arrivals | None) -> Mapping[int, str]:
    """Return what became of each client's reply, or the staleness of its update, in words."""
    if buffer is None:
        late = set(clock.late)
        return {k: UNUSED if k in late else "in time" for k in clock.clients}
    ages = {k: age for (k, _), age in zip(buffer.arrived, buffer.staleness, strict=False)}
    return {k: f"staleness {ages[k]}" if k in ages else "dropped" for k in clock.clients}


def _label(run: Run, k: int) -> str:
    """Return the text beside a client's bar."""
    return ", ".join(filter(None, (str(k), profile_of(run, k))))


def _rounds(run: Run) -> Table:
    """Return a row for each round: score, times, slowest client, and staleness if it has it."""
    rows = []
    for entry, clock in ((e, e.clock) for e in run.entries if e.clock):
        of_round = clock.clients
        slowest = max(of_round, key=lambda k: of_round[k], default=None)
        times = (duration(clock.start), duration(clock.end))
        texts = (NONE if slowest is None else _name(run, slowest), number(len(clock.late)))
        of = entry.buffer and entry.buffer.as_dict()
        ages = (staleness(of), number(of["in_flight"])) if of else (NONE, NONE)
        row = (str(entry.round), run.text(entry.primary_score, 2), *times, *texts)
        rows.append((*row, *ages) if run.buffered else row)
    header = ["round", run.measure.title, "start", "end", "slowest client"]
    header += ["dropped", "staleness", "in flight"] if run.buffered else [UNUSED]
    return Table(header, rows)


def _jobs(run: Run, clock: ClockTime, buffer: Arrivals | None) -> Table:
    """Return the jobs of a round, the longest first; at most ``MANY``."""
    models = {member.k: member.model for member in run.members}
    rows, replies = [], _replies(clock, buffer)
    for k in sorted(clock.clients, key=lambda k: (-clock.clients[k], k))[:MANY]:
        moved = map(size, clock.jobs.get(k, (None, None))[:2])
        texts = (str(k), profile_of(run, k) or NONE, models.get(k, "?"))
        rows.append((*texts, replies[k], duration(clock.clients[k]), *moved))
    return Table(("client", "device", "model", "reply", "time", "down", "up"), rows, "llllr")
