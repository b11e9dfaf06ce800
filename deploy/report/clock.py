"""Section of a report about the virtual clock: accuracy by time, and the clients' jobs."""

from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from common.journal import ClockTime
from common.metrics import MANY, quantiles
from common.settings.config import listed
from deploy.report.charts import HALF, against, hover_bars, legend_above
from deploy.report.groups import Groups, named
from deploy.report.plots import CLOCK
from deploy.report.read import Run
from deploy.report.style import MUTED, PAPER, Card, Section, frame, series, style
from deploy.report.table import NONE, Table, clean, duration, joules, number, percent, size

SINGLE = 50  #: most clients of a round that all have a bar
SLOWEST = 25  #: clients with a bar in a round with more, beside quantiles
COUNTED = (
    "Times on the clients' devices, from counted operations and bytes. Idle: mean share of a round "
    "in which a client's device waits for its end. The energy is for ranking only."
)


def profile_of(run: Run, k: int) -> str:
    """Return the name of client k's device profile; empty if it has none."""
    node = run.table("node").get(str(k))
    own = node.get("profile") if isinstance(node, dict) else ""
    names = listed(str(run.config.get("profiles", "")))
    return clean(own or (names[k % len(names)] if names else ""), 40)


def section(groups: Groups) -> Section | None:
    """Return the times of the runs, and of a single run its course and its last round.

    None if no run has a clock.
    """
    rows = [(label, *_cells(run)) for label, run in named(groups) if CLOCK.known(run)]
    if not rows:
        return None
    header = ("run", "time", "slowest client", "idle", "late or not needed", "energy")
    cards = [Card("", table=Table(header, rows), span=12)]
    if len(groups) == 1 and not groups[0].several:
        cards = [*_pictures(groups), *cards]
    return Section("Time on the virtual clock", cards, COUNTED)


def _cells(run: Run) -> list[str]:
    """Return the end, the slowest client, the idle share, late replies and energy of a run."""
    rounds = [entry.clock for entry in run.entries if entry.clock]
    jobs: dict[int, list[float]] = {}
    for k, seconds in ((k, s) for clock in rounds for k, s in clock.clients.items()):
        jobs.setdefault(k, []).append(seconds)
    means = {k: fmean(of_client) for k, of_client in jobs.items()}
    slowest = max(means, key=lambda k: means[k], default=None)
    idle = [share for clock in rounds for share in _idle(clock)]
    energies = [clock.energy for clock in rounds if clock.energy is not None]
    late, count = sum(len(clock.late) for clock in rounds), sum(map(len, jobs.values()))
    return [
        duration(rounds[-1].end),
        NONE if slowest is None else f"{_name(run, slowest)}: {duration(means[slowest])} a job",
        percent(fmean(idle)) if idle else NONE,
        f"{number(late)} of {number(count)}" if jobs else NONE,
        joules(sum(energies) if energies else None),
    ]


def _idle(clock: ClockTime) -> list[float]:
    """Return the share of a round that each client waits for its end, in [0, 1]."""
    spent = clock.end - clock.start
    return [max(1 - seconds / spent, 0.0) for seconds in clock.clients.values() if spent > 0]


def _name(run: Run, k: int) -> str:
    """Return a client's number and the profile of its device."""
    return ", ".join(filter(None, (f"client {k}", profile_of(run, k))))


def _pictures(groups: Groups) -> list[Card]:
    """Return the accuracy by time and the jobs of the last round of a single run."""
    run = groups[0].runs[0]
    title = f"Accuracy by {CLOCK.name}"
    alt = f"{title}: {run.done} rounds."
    cards = [Card(title, against(groups, CLOCK), alt, behind=_rounds(run))]
    last = next((e for e in reversed(run.entries) if e.clock and e.clock.clients), None)
    if last is not None and last.clock is not None:
        longest = duration(max(last.clock.clients.values()))
        alt = (
            f"Bars: time of {len(last.clock.clients)} jobs in round {last.round}, up to {longest}."
        )
        behind = _jobs(run, last.clock)
        cards.append(Card(f"Jobs of round {last.round}", jobs(run, last.clock), alt, behind=behind))
    return cards


@style()
def jobs(run: Run, clock: ClockTime) -> Figure:
    """Plot a bar for each job of a round, from its start; the round's end is a dashed line.

    With more than ``SINGLE`` clients only the slowest have a bar, and quantiles stand for all.
    """
    late, count = set(clock.late), len(clock.clients)
    slowest = sorted(clock.clients, key=lambda k: (-clock.clients[k], k))
    slowest = slowest if count <= SINGLE else slowest[:SLOWEST]
    bars = [
        (_label(run, k), clock.clients[k], int(k in late), f"{_name(run, k)}: ") for k in slowest
    ]
    if count > SINGLE:
        for name, seconds in (quantiles(clock.clients.values()) or {}).items():
            bars.append((name, seconds, 2, f"{name} of {number(count)} clients: "))
    kinds = ("in time", "late or not needed", f"quantiles of {number(count)} clients")
    looks = ((series(0), ""), (series(1), "////"), (series(7), "...."))
    figure, axes = frame((HALF[0], max(HALF[1], 1.0 + 0.16 * len(bars))))
    for y, (_, seconds, kind, told) in enumerate(bars):
        colour, hatch = looks[kind]
        bar = axes.barh(y, seconds, 0.72, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0.6)
        hover_bars(bar, [told + duration(seconds) + (", late or not needed" if kind == 1 else "")])
    axes.axvline(clock.end - clock.start, color=MUTED, linestyle=(0, (4, 2)), linewidth=1.5)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.set_xlabel("seconds since the start of the round; dashed: its end", color=MUTED)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    shown = sorted({kind for _, _, kind, _ in bars})
    handles = {
        kinds[i]: Patch(facecolor=looks[i][0], hatch=looks[i][1], edgecolor=PAPER) for i in shown
    }
    legend_above(figure, handles)
    return figure


def _label(run: Run, k: int) -> str:
    """Return the text beside a client's bar."""
    return ", ".join(filter(None, (str(k), profile_of(run, k))))


def _rounds(run: Run) -> Table:
    """Return a row for each round: accuracy, times, and the slowest client."""
    rows = []
    for entry, clock in ((e, e.clock) for e in run.entries if e.clock):
        of_round = clock.clients
        slowest = max(of_round, key=lambda k: of_round[k], default=None)
        times = (duration(clock.start), duration(clock.end))
        texts = (NONE if slowest is None else _name(run, slowest), number(len(clock.late)))
        rows.append((str(entry.round), percent(entry.primary_accuracy, 2), *times, *texts))
    header = ("round", "accuracy", "start", "end", "slowest client", "late or not needed")
    return Table(header, rows)


def _jobs(run: Run, clock: ClockTime) -> Table:
    """Return the jobs of a round, the longest first; at most ``MANY``."""
    models, late = {member.k: member.model for member in run.members}, set(clock.late)
    rows = []
    for k in sorted(clock.clients, key=lambda k: (-clock.clients[k], k))[:MANY]:
        moved = map(size, clock.jobs.get(k, (None, None))[:2])
        texts = (str(k), profile_of(run, k) or NONE, models.get(k, "?"))
        in_time = "late or not needed" if k in late else "in time"
        rows.append((*texts, in_time, duration(clock.clients[k]), *moved))
    return Table(("client", "device", "model", "reply", "time", "down", "up"), rows, "llllr")
