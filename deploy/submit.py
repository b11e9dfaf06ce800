"""Send an experiment to a SuperLink that runs elsewhere, and follow it to its real end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from common.config import Value, parse
from common.presets import entries
from deploy.control import Control, RunStatus
from deploy.launch import named_alone
from deploy.settings import app_folder
from server_app import checkpoint
from server_app.summary import complete

HOST_PORT = "HOST:PORT, such as fed.example.org:9092, with a port of 1 to 65535"


def address(text: str, option: str = "--superlink") -> str:
    """``text`` if it is ``host:port``; raises ``ValueError`` otherwise."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in text:
        raise ValueError(f"{option} {text} is not allowed; it should be {HOST_PORT}")
    return text


def prepared(flat: Mapping[str, Value], resume: bool, if_any: bool) -> dict[str, Value]:
    """The run config to send: complete, checked and named.

    ``if_any``: resume if ``out``, as a folder that this machine sees too, holds a checkpoint.
    Folders are those of the server's and the clients' machines, so nothing is looked for here.

    Raises ``ValueError`` for what no machine could run.
    """
    flat = dict(flat)
    flat["clients"] = flat["clients"] or len(entries(str(flat["fleet"])))
    flat["runtime"] = "grpc"
    for key in ("out", "state-dir", "data.dir", "data.public-dir"):
        folder = Path(str(flat[key]))
        if flat[key] and not folder.is_absolute():
            raise ValueError(f"{key} = {flat[key]!r} is relative; other machines need it absolute")
    if if_any:
        if not flat["out"]:
            raise ValueError("--resume-if-any needs out, the folder of the results: -s out=/…")
        resume = checkpoint.path_in(Path(str(flat["out"]))).exists()
    flat["resume"] = resume
    flat["experiment"] = flat["experiment"] or named_alone(flat)
    parse(flat)
    return flat


def done(flat: Mapping[str, Value]) -> bool:
    """Whether ``out``, which this machine sees too, holds this very run and it is complete.

    Raises ``ValueError`` if it holds a checkpoint of another configuration.
    """
    folder = Path(str(flat["out"]))
    checkpoint.read(folder, parse(flat))
    return complete(folder, int(flat["rounds"]))


def submit(
    flat: Mapping[str, Value],
    superlink: str,
    ca: Path | None,
    wait: float,
    on_log: Callable[[str], None],
    on_start: Callable[[int], None],
) -> RunStatus:
    """Start the run and wait for its end; leaving early does not stop it.

    ``wait``: seconds that the SuperLink may take to answer, at first and whenever it falls silent.

    Raises ``RuntimeError`` if it stays silent or refuses the run.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fedmosaic-") as work,
        Control(superlink, ca, Path(work)) as control,
    ):
        control.await_answer(wait)
        run_id = control.submit(app_folder(), flat, {})
        on_start(run_id)
        return control.follow(run_id, on_log, patience=wait)


def without_tracebacks(put: Callable[[str], None]) -> Callable[[str], None]:
    """``put`` for the lines that are no part of a traceback: the last line says it better."""
    inside = False

    def filtered(line: str) -> None:
        nonlocal inside
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif not inside:
            put(line)
        elif not line.startswith(" "):
            inside = False  # this was the exception itself

    return filtered
