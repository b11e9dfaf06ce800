"""Run an experiment on this machine, on any runtime."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from common.data.overview import write
from common.errors import LOG
from common.extras import check_installed
from common.journal import Entry
from common.objectives import OBJECTIVES
from common.parse import parse
from common.progress import MARK, Reporter, reporting
from common.settings.config import Config, Value
from deploy.flower.bundle import plugin_notes
from deploy.flower.certificates import address
from deploy.run import data, preload
from deploy.run.fit import fitted
from deploy.run.preflight import fresh, preflight, resumed, unused_fleet
from deploy.run.progress import Progress, summary_since
from deploy.settings import app_folder
from deploy.user_modules import COPIES, UserModules
from server_app.stopped import Stopped
from server_app.storage import checkpoint
from server_app.storage.journal import Journal, follow
from server_app.storage.lock import held
from server_app.storage.summary import check_incomplete

GONE = 5.0  #: seconds without a lock by the ServerApp after which it counts as killed
TRACEBACKS = "; tracebacks: "  #: before the path of a log, at the end of an error's line


def launch(
    flat: Mapping[str, Value],
    folder: Path,
    workers: int | None,
    console: Console,
    warm_start: bool | None = None,
    ray_address: str = "",
    learnt: Path | None = None,
    notes: bool = True,
) -> None:
    """Run an experiment with progress on ``console``, and leave the results in ``folder``.

    ``workers``: processes that serve clients on loopback; None: one for each core. ``warm_start``:
    argument of ``start_federation`` for the grpc runtime. ``ray_address``: HOST:PORT of a Ray
    cluster that serves the clients with the ray runtime. ``learnt``: folder of local training that
    several runs on loopback share (``client_app/reuse.py``). ``notes``: whether to print a note if
    clients do not train their fleet entries, and what was read.

    Raises ``ValueError`` before anything starts, ``Stopped`` or ``RuntimeError`` if the run cannot
    continue. Each has one line.
    """
    if flat["runtime"] == "loopback" and workers != 0:
        preload.begin()
    if ray_address:
        if flat["runtime"] != "ray":
            raise ValueError(f"--ray-address is for --runtime ray, not {flat['runtime']}")
        address(ray_address, "--ray-address")
    modules, copies = UserModules.of(flat), folder / COPIES
    sent = {**flat, "plugins": str(copies)} if modules else flat
    config, runtime = preflight(sent), flat["runtime"]

    def show(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    config = parse(sent := fitted(sent, config, show, here=True))
    if runtime == "ray":
        check_installed("ray")
    start, past, later = -1, list[Entry](), ""
    if flat["resume"]:
        start = checkpoint.read(folder, config).t
        check_incomplete(folder, config)
        past, later = Journal(folder).entries(), f", from round {start + 1} on"
    bundled = runtime != "loopback" and not ray_address
    for line in (
        *plugin_notes(flat, modules, bundled=bundled),
        *(unused_fleet(config) if notes else ()),
    ):
        show(line)
    title = f"[bold]{config.run.method}[/] on {config.data.name}{later}: results go to {folder}"
    console.print(title, soft_wrap=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"out = {str(folder)!r} cannot be a folder for results: {error.strerror}"
        ) from None
    modules.copy(copies)
    flat = sent
    found = data.of_run(config)
    if not config.privacy.on:  # the report may leave this machine, and the counts are exact
        write(folder, found)
    if notes and start < 0:
        data.show(found, console)
        data.warn(found, console)
    started = time.time()
    measure = OBJECTIVES[found.objective].primary
    display = Progress(config.run.rounds, console, past=past, start=start, measure=measure)
    with with_remedy(folder, started), _watched(display, folder):
        display.on_phase(f"starting {config.run.clients} clients on {runtime}")
        failure, logs = "", folder / "flower" / "logs"
        if runtime == "loopback":
            _loopback(flat, config, workers, learnt)
        elif ray_address:
            _cluster(flat, config, [folder] if modules else [], ray_address)
        else:
            failure = _flower(flat, config, folder, started, warm_start, display.on_step)
        summary = summary_since(folder, started)
        if summary is None:  # otherwise the ServerApp's message is the better reason
            where = logs if logs.exists() else folder
            raise Stopped(f"{failure or 'the run left no summary'}; see the logs in {where}")
        if summary["status"] != "completed":
            raise Stopped(str(summary["error"]))


def cell(
    flat: Mapping[str, Value],
    folder: Path,
    workers: int | None,
    console: Console,
    learnt: Path | None = None,
) -> None:
    """Run one cell of a table on loopback, or resume it from its checkpoint."""
    if checkpoint.path_in(folder).exists() and (folder / "config.toml").exists():
        resolved, folder = resumed(folder, "loopback")
    else:
        resolved, folder = fresh(flat, "loopback", folder)
    launch(resolved, folder, workers=workers, console=console, learnt=learnt, notes=False)


@contextmanager
def _watched(display: Progress, folder: Path) -> Iterator[None]:
    """Display new lines of the journal in ``folder``, and the steps of this thread."""
    over = threading.Event()
    with display, reporting(Reporter(display.on_step)):
        arguments = (folder / "journal.jsonl", over.is_set, display.on_round, display.warn)
        thread = threading.Thread(target=follow, args=arguments, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=5)


def _loopback(
    flat: Mapping[str, Value], config: Config, workers: int | None, learnt: Path | None
) -> None:
    from deploy.run.gpu import share  # here and below: import only the runtime that is used
    from deploy.run.loopback import Loopback, play

    asked, most = workers is not None, default_workers() if workers is None else workers
    at_once = config.buffer.concurrency if config.buffered else 0
    workers = min(most, at_once or config.run.per_round or config.run.clients)
    workers, shares = share(config, workers, asked=asked)
    clients = config.run.clients
    nodes = {k: {"learnt-dir": str(learnt)} for k in range(clients) if learnt is not None}
    grid = Loopback(clients, flat, workers=workers, shares=shares, node_configs=nodes)
    play(flat, grid)


def _cluster(
    flat: Mapping[str, Value], config: Config, copies: Sequence[Path], address: str
) -> None:
    from deploy.run.cluster import Cluster
    from deploy.run.loopback import play

    shared = {Path(str(flat["state-dir"])), *copies}
    gpu = config.run.device.startswith("cuda")
    play(flat, Cluster(config.run.clients, flat, address, shared=sorted(shared), gpu=gpu))


def _flower(
    flat: Mapping[str, Value],
    config: Config,
    folder: Path,
    started: float,
    warm_start: bool | None,
    on_step: Callable[[str], None],
) -> str:
    """Run with Flower's programs, in Ray or over gRPC; return the reason of a failure, or "".

    The ServerApp's output goes to ``flower/logs/run.log``. ``on_step`` is called with its progress
    lines.
    """
    from deploy.run.grpc import start_federation
    from deploy.run.ray import run_simulation

    app, clients, work = app_folder(), config.run.clients, folder / "flower"
    env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(config.run.threads))
    path = work / "logs" / "run.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:

        def log(line: str) -> None:
            print(line.rstrip("\n"), file=file, flush=True)
            if step := line.rstrip().partition(MARK)[2]:
                on_step(step)

        def watch() -> Callable[[], bool]:
            return finished(folder, started)

        if flat["runtime"] == "ray":
            return run_simulation(app, clients, flat, work, env, log, watch).failure
        with start_federation(app, clients, work, env, warm_start) as federation:
            return federation.control.follow(federation.submit(flat), log, watch()).failure


def finished(folder: Path, started: float) -> Callable[[], bool]:
    """Return a function that returns whether the run has written its summary.

    The function raises ``Stopped`` if the ServerApp has released the lock of the folder for more
    than ``GONE`` seconds without a summary. The SuperLink notices its end only after a minute.
    """
    started_up, since = False, 0.0

    def over() -> bool:
        nonlocal started_up, since
        if summary_since(folder, started) is not None:
            return True
        if held(folder):
            started_up, since = True, time.monotonic()
        elif started_up and time.monotonic() - since > GONE:
            raise Stopped("the ServerApp ended in the middle of the run; was its process killed?")
        return False

    return over


@contextmanager
def with_remedy(folder: Path, started: float) -> Iterator[None]:
    """Add the command that resumes the run and the path of tracebacks to errors of the block."""
    try:
        yield
    except RuntimeError as error:
        line, newline, more = str(error).partition("\n")
        if line.endswith(":"):  # as in ``errors.first_line``, which shows it with the next line
            reason, newline, more = more.partition("\n")
            line += f" {reason.strip()}"
        if "--resume" not in line and checkpoint.path_in(folder).exists():
            line += f"; the checkpoint is kept, go on with --resume {folder}"
        logs = (folder / LOG, folder / "flower" / "logs")
        new = [p for p in logs if p.exists() and p.stat().st_mtime >= started - 1]
        if new and LOG not in line and "the logs in" not in line:
            line += f"{TRACEBACKS}{new[0]}"
        raise type(error)(line + newline + more) from error


def default_workers() -> int:
    """Return one process for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
