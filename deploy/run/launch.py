"""One run on this machine, whichever runtime serves its clients."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from common.config import Config, Value
from common.files import write_atomically
from common.parse import parse
from common.presets import entries
from deploy.run.preflight import check_names, preflight
from deploy.run.progress import Progress, follow
from deploy.run.settings import app_folder, load, to_toml
from server_app.keep import checkpoint
from server_app.keep.lock import held
from server_app.stopped import Stopped

RUNTIMES = ("loopback", "ray", "grpc")
GONE = 5.0  #: seconds without a sign of a ServerApp after which it counts as killed
PLACES = ("data.dir", "data.public-dir", "state-dir")
"""Folders: made absolute, because Flower's processes work in another folder than the user."""


def fresh(
    flat: Mapping[str, Value], runtime: str, out: Path | None
) -> tuple[dict[str, Value], Path]:
    """The whole run config of a new run, and its folder: ``out``, or the config's, or a new one.

    ``runtime``: empty: the config's, or loopback.

    Raises ``ValueError`` if the folder holds a run already.
    """
    resolved = dict(flat)
    if not resolved["clients"]:
        resolved["clients"] = len(entries(str(resolved["fleet"])))
    check_names(parse(resolved, every=True))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{resolved['method']}-{resolved['data.name']}-{stamp}"
    said = Path(str(resolved["out"])).expanduser() if resolved["out"] else None
    folder = (out or said or _unused(Path("runs") / name)).expanduser().resolve()
    if said and folder != said.resolve() and resolved["state-dir"] == str(said / "state"):
        resolved["state-dir"] = ""  # a copied config.toml: the clients' state is the other run's
    if checkpoint.path_in(folder).exists() or (folder / "journal.jsonl").exists():
        raise ValueError(f"{folder} holds a run already; go on with --resume or name another --out")
    resolved["out"] = str(folder)
    for key in PLACES:
        if resolved.get(key):
            resolved[key] = str(Path(str(resolved[key])).expanduser().resolve())
    naming = named_alone if resolved["state-dir"] else named
    resolved["experiment"] = resolved["experiment"] or naming(resolved)
    resolved["state-dir"] = resolved["state-dir"] or str(folder / "state")
    resolved["runtime"] = runtime or str(resolved["runtime"]) or RUNTIMES[0]
    return resolved, folder


def resumed(
    folder: Path, overrides: Mapping[str, Value], runtime: str
) -> tuple[dict[str, Value], Path]:
    """The run config of the run in ``folder``, going on; only free keys may differ.

    ``runtime``: empty: the one that it was on.

    Raises ``ValueError`` if ``folder`` holds no run that can be resumed, or ``out`` is another.
    """
    folder = folder.expanduser().resolve()
    if "out" in overrides and Path(str(overrides["out"])).expanduser().resolve() != folder:
        raise ValueError(f"out = {overrides['out']!r} is not allowed; the run goes on in {folder}")
    if not (folder / "config.toml").exists():
        raise ValueError(f"--resume {folder}: no config.toml there, so no run to go on with")
    flat = load(folder / "config.toml") | dict(overrides)
    runtime = runtime or str(flat.get("runtime") or RUNTIMES[0])
    flat |= {"resume": True, "runtime": runtime, "out": str(folder)}
    return flat, folder


def launch(
    flat: Mapping[str, Value],
    folder: Path,
    *,
    runtime: str,
    workers: int,
    console: Console,
    warm_start: bool = False,
) -> dict[str, Any]:
    """Run, with progress on ``console``; returns the summary.

    Raises ``ValueError`` before anything starts, ``Stopped`` or ``RuntimeError`` if the run could
    not go on; each with one line.
    """
    config = preflight(flat)
    if flat["resume"]:
        checkpoint.read(folder, config)
    title = f"[bold]{config.run.method}[/] on {config.data.name}: results go to {folder}"
    console.print(title, soft_wrap=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"out = {str(folder)!r} cannot be a folder for results: {error.strerror}"
        ) from None
    write_atomically(folder / "config.toml", to_toml({**flat, "resume": False}).encode())
    started = time.time()
    with _told_how_to_go_on(folder), Watch(config, folder, console) as watch:
        watch.progress.on_phase(f"starting {config.run.clients} clients on {runtime}")
        if runtime == "loopback":
            _loopback(flat, config, workers)
        elif runtime == "ray":
            _ray(flat, config, folder, started)
        else:
            _grpc(flat, config, folder, started, warm_start)
    summary = _summary_since(folder, started)
    if summary is None:
        raise Stopped(f"the run left no summary; see the logs in {folder}")
    if summary["status"] != "completed":
        raise Stopped(summary["error"])
    return summary


def cell(flat: Mapping[str, Value], folder: Path, workers: int, console: Console) -> None:
    """One run of a table on loopback; a run that was cut off goes on from its checkpoint."""
    if checkpoint.path_in(folder).exists() and (folder / "config.toml").exists():
        resolved, folder = resumed(folder, {}, "loopback")
    else:
        resolved, folder = fresh(flat, "loopback", folder)
    launch(resolved, folder, runtime="loopback", workers=workers, console=console)


class Watch:
    """Shows the journal's new lines while a run goes on elsewhere."""

    def __init__(self, config: Config, folder: Path, console: Console) -> None:
        self.progress = Progress(config.run.rounds, console)
        self._journal = folder / "journal.jsonl"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def _follow(self) -> None:
        follow(self._journal, self._stop.is_set, self.progress.on_round, self.progress.warn)

    def __enter__(self) -> Watch:
        self.progress.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self.progress.__exit__(*error)


def _loopback(flat: Mapping[str, Value], config: Config, workers: int) -> None:
    from flwr.app import Context, RecordDict

    from deploy.run.loopback import RUN_ID, Loopback
    from server_app.app import app

    workers = min(workers, config.run.per_round or config.run.clients)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # the progress display says it better
    with Loopback(config.run.clients, flat, workers=workers) as grid:
        app(grid, Context(RUN_ID, 0, {}, RecordDict(), dict(flat)))


def _ray(flat: Mapping[str, Value], config: Config, folder: Path, started: float) -> None:
    from deploy.run.ray import run_simulation

    with _run_log(folder) as log:
        status = run_simulation(
            app=app_folder(),
            clients=config.run.clients,
            run_config=flat,
            work=folder / "flower",
            env=_environment(config),
            on_log=log,
            watch=lambda: _finished(folder, started),
        )
    _judge(folder, started, status.completed, status.details)


def _grpc(
    flat: Mapping[str, Value], config: Config, folder: Path, started: float, warm_start: bool
) -> None:
    from deploy.run.grpc import Federation

    with Federation(
        app=app_folder(),
        clients=config.run.clients,
        work=folder / "flower",
        env=_environment(config),
        warm_start=warm_start,
        spare_nodes=True,  # whether a run can do without a lost client is the server's decision
    ) as federation:
        run_id = federation.submit(flat)
        with _run_log(folder) as log:
            status = federation.control.follow(run_id, log, _finished(folder, started))
    _judge(folder, started, status.completed, status.details)


@contextmanager
def _run_log(folder: Path) -> Iterator[Callable[[str], None]]:
    """What the ServerApp prints, kept in ``flower/logs/run.log``."""
    path = folder / "flower" / "logs" / "run.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        yield lambda line: print(line.rstrip("\n"), file=file, flush=True)


def _environment(config: Config) -> dict[str, str]:
    threads = str(config.run.threads)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def _finished(folder: Path, started: float) -> Callable[[], bool]:
    """Whether the run has left its summary, to be asked again and again.

    Raises ``Stopped`` once the ServerApp has let go of the folder without a summary and nothing
    else has been heard of it for ``GONE`` seconds: the SuperLink would take a minute to miss it.
    """
    seen, since = False, 0.0

    def finished() -> bool:
        nonlocal seen, since
        if _summary_since(folder, started) is not None:
            return True
        if held(folder):
            seen, since = True, time.monotonic()
        elif seen and time.monotonic() - since > GONE:
            raise Stopped("the ServerApp ended in the middle of the run; was its process killed?")
        return False

    return finished


@contextmanager
def _told_how_to_go_on(folder: Path) -> Iterator[None]:
    """What ends a run before its time also says how it goes on, if it has got anywhere."""
    try:
        yield
    except RuntimeError as error:
        line, newline, more = str(error).partition("\n")
        if "--resume" in line or not checkpoint.path_in(folder).exists():
            raise
        line += f"; the checkpoint is kept, go on with --resume {folder}"
        raise type(error)(line + newline + more) from error


def _judge(folder: Path, started: float, completed: bool, details: str) -> None:
    """Flower's status against the summary: the ServerApp's own word is the better reason."""
    summary = _summary_since(folder, started)
    if summary is None and not completed:
        line = details.strip().partition("\n")[0]
        raise Stopped(f"{line or 'the run failed'}; see the logs in {folder / 'flower' / 'logs'}")


def _summary_since(folder: Path, started: float) -> dict[str, Any] | None:
    """The summary, if this run wrote it."""
    path = folder / "summary.json"
    if not path.exists() or path.stat().st_mtime < started - 0.01:
        return None
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary


def named(flat: Mapping[str, Value]) -> str:
    """A name of the experiment that depends on what decides its numbers and on nothing else."""
    free = {key.replace("_", "-") for key in checkpoint.FREE["run"]}
    text = json.dumps({key: value for key, value in sorted(flat.items()) if key not in free})
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{flat['method']}-{flat['data.name']}-{digest}"


def named_alone(flat: Mapping[str, Value]) -> str:
    """The same with a part of this run's own, which a resumed run finds in its checkpoint.

    Clients keep their private models under it: where their folder outlives the run, another run
    with the same settings must not find them.
    """
    return f"{named(flat)}-{secrets.token_hex(4)}"


def _unused(path: Path) -> Path:
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def default_workers() -> int:
    """As many processes as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
