"""Metrics of a run for Prometheus, read from the files in its folder at each scrape.

Their sources are the journal, which omits what a private run withholds (``server_app/release.py``),
and the list of connected nodes. For a private run, metrics without a value are left out instead of
0.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import final, get_args

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from common.exchange.seal.files import read_certificate
from common.journal import UNITS, Arrivals, Entry, FailureKind, Primary, Unit, present
from common.measures import MEASURES
from deploy.report.read import JOURNAL, Run, asked, read, total
from deploy.report.serve import Route
from server_app.storage.status_file import ServerStatus

PATH = "/metrics"
KIND = "text/plain; version=0.0.4; charset=utf-8"  #: Prometheus's text format
CERTIFICATES = ("ca.crt", "server.crt", "serverapp.crt")


def metric(
    name: str,
    text: str,
    values: float | Mapping[str, float] | None,
    label: str = "",
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
    field: str = "",
) -> Iterator[Metric]:
    """Yield the metric ``name`` with its value, or one for each ``label``; nothing for None.

    ``field``: field of the journal whose unit the metric has, if it is not ``name``. Prometheus
    wants seconds and bytes at the end of a name.
    """
    unit = UNITS.get(field or name)
    text += f" Unit: {unit.value}." if unit else ""
    suffix = unit.value if unit in (Unit.SECONDS, Unit.BYTES) else ""
    family = kind(f"fedmosaic_{name}", text, labels=[label] if label else [], unit=suffix)
    for key, value in values.items() if isinstance(values, Mapping) else [("", values)]:
        if value is not None:
            family.add_metric([key] if label else [], value)
    yield from [family] if family.samples else []


def of_run(run: Run) -> Iterator[Metric]:
    """Yield the metrics of a run with a journal."""
    names = {key: run.setting(key) or "" for key in ("method", "dataset", "runtime", "seed")}
    info = GaugeMetricFamily("fedmosaic_run_info", "Names of the run.", labels=["run", *names])
    info.add_metric([run.path.name, *names.values()], 1)
    yield info
    ended = _ended(run.path)
    completed = ended and run.summary is not None and run.summary.status == "completed"
    yield from metric("run_ended", "1 after the end of the run.", ended)
    yield from metric("run_completed", "1 if the run ended without an error.", completed)
    yield from metric("rounds", "Rounds of the run, from its settings.", run.rounds)
    yield from metric("round", "The last finished round; 0 is the census.", run.done)
    timed = not run.private or any(entry.seconds for entry in run.entries)
    written = (run.path / JOURNAL).stat().st_mtime if timed else None
    yield from metric("last_round_timestamp_seconds", "Time of the last finished round.", written)
    if (nodes := ServerStatus.read(run.path).nodes) and not ended:
        online = sum(nodes[k].online for k in present(run.entries) & nodes.keys())
        yield from metric("clients_online", "Clients that take part and are connected.", online)
    if run.entries:
        yield from _of_last(run, run.entries[-1])
    yield from _of_all(run)


def _of_last(run: Run, last: Entry) -> Iterator[Metric]:
    """Yield the metrics of the last round, and the newest scores."""
    duration = total(last) if last.seconds or not run.private else None
    yield from metric("round", "Duration of the last finished round.", duration, field="seconds")
    clock = run.over("clock")
    yield from metric("clock", "End of the last round on the virtual clock.", clock and clock.end)
    buffer: Arrivals | None = run.over("buffer")
    of = buffer.as_dict() if buffer else {}
    text = "Mean staleness of the last round's updates, in steps of the server."
    yield from metric("staleness", text, of.get("staleness"))
    yield from metric("largest_staleness", "Maximum of the same.", of.get("oldest"))
    yield from metric("jobs_in_flight", "Jobs that go on after the round.", of.get("in_flight"))
    kinds, spent = get_args(Primary), run.newest("privacy")
    scores = {k: a for e in run.entries for k in kinds if (a := e.score(k)) is not None}
    name, title = run.measure.name, run.measure.title
    yield from metric(name, f"Newest {title}.", scores, "score")
    best = run.best()[1] if run.accuracies() else None
    yield from metric(f"best_{name}", f"Best primary {title}.", best, field=name)
    further = run.last_scored()
    for name, value in further.others.items() if further else ():
        yield from metric(name, f"Newest {MEASURES[name].title}.", {run.primary: value}, "score")
    yield from metric("loss", "Newest loss of the server's model.", run.newest("loss"))
    yield from metric("privacy_epsilon", "Privacy loss ε of one client.", spent and spent.epsilon)
    yield from metric("clients", "Clients that take part.", len(present(run.entries)))
    text = "Selected clients in the last finished round."
    yield from metric("clients_selected", text, asked(last) or None)
    if last.round and not run.private:
        text = "Clients with a valid reply in the last finished round."
        yield from metric("clients_replied", text, len(last.replied))


def _of_all(run: Run) -> Iterator[Metric]:
    """Yield the counters: the sums over all rounds."""
    counter = partial(metric, kind=CounterMetricFamily)
    phases = {name: spent for name, spent in run.over("seconds").items() if name != "total"}
    yield from counter("seconds", "Time by phase of the rounds.", phases, "phase")
    if run.private:
        return
    sent = {way: run.cost(way) for way in ("down", "up")}
    yield from counter("bytes", "Bytes to (down) and from (up) the clients.", sent, "direction")
    failed = Counter(failure.kind for failure in run.over("failures"))
    zero = dict.fromkeys(get_args(FailureKind), 0)  # so that the first failure is an increase
    yield from counter("failures", "Clients without a valid reply.", zero | failed, "reason")


def _ended(folder: Path) -> bool:
    """Return whether the summary is newer than the journal, which a resumed run continues."""
    summary = folder / "summary.json"
    return summary.exists() and summary.stat().st_mtime_ns >= (folder / JOURNAL).stat().st_mtime_ns


def of_certificates(folder: Path) -> Iterator[Metric]:
    """Yield when each certificate in ``folder`` expires; files that are missing are left out."""
    until: dict[str, float] = {}
    for name in CERTIFICATES:
        with suppress(OSError, ValueError):
            until[name] = read_certificate(folder / name).not_valid_after_utc.timestamp()
    name, text = "certificate_expiry_timestamp_seconds", "Time at which a certificate expires."
    yield from metric(name, text, until, "certificate")


@final
class Metrics(Collector):
    """Metrics of the run in ``folder``, and of the certificates in ``trust`` (None: of none)."""

    def __init__(self, folder: Path, trust: Path | None = None) -> None:
        self._folder, self._trust = folder, trust
        self._registry = CollectorRegistry()
        self._registry.register(self)

    @property
    def route(self) -> Route:
        """The metrics as a route of a ``Server``."""
        return Route(KIND, lambda: generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; without a readable run only those of certificates."""
        metrics: list[Metric] = []
        with suppress(OSError, ValueError):
            metrics = list(of_run(read(self._folder)))
        yield from metric("run_found", "1 if the folder has a run.", bool(metrics))
        yield from metrics
        yield from of_certificates(self._trust) if self._trust is not None else ()
