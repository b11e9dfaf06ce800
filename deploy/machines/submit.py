"""Checks of an experiment before it is sent to a SuperLink, and a filter for its log."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.keys import places
from common.parse import parse
from common.settings.config import Value
from deploy.console import plain
from server_app.stopped import REMEDY

SILENT = "No heartbeat received"
"""Beginning of Flower's reason for a run whose ServerApp ended without a word."""


def prepared(flat: Mapping[str, Value], resume: bool, if_any: bool) -> dict[str, Value]:
    """Return the run config to send: complete, checked, and with a name for the run.

    ``clients = 0`` stays: the ServerApp takes the number that the connected nodes expect.
    ``if_any``: resume if ``out``, read on this machine, contains a checkpoint. Other folders belong
    to the server's and the clients' machines, so they are not checked here.

    Raises ``ValueError`` for settings that no machine can run.
    """
    from deploy.run.fit import fitted  # imports torch
    from deploy.run.preflight import check_names, name_of
    from server_app.storage import checkpoint

    flat = {**flat, "runtime": "grpc"}
    for key in ("out", *places(flat)):
        if flat[key] and not Path(str(flat[key])).is_absolute():
            raise ValueError(f"{key} = {flat[key]!r} is relative; other machines need a full path")
    if (resume or if_any) and not flat["out"]:
        option = "--resume-if-any" if if_any else "--resume"
        raise ValueError(f"{option} needs out, the folder of the results: -s out=/…")
    if if_any:
        resume = checkpoint.path_in(Path(str(flat["out"]))).exists()
    flat["resume"] = resume
    flat["experiment"] = flat["experiment"] or name_of(flat, alone=True)
    check_names(config := parse(flat, every=True))
    return fitted(flat, config, plain, here=False)


def done(flat: Mapping[str, Value]) -> bool:
    """Return whether ``out``, read on this machine, contains this run and the run is complete.

    Raises ``ValueError`` if it contains a checkpoint of another configuration.
    """
    from server_app.storage import checkpoint  # imports torch
    from server_app.storage.summary import complete

    folder = Path(str(flat["out"]))
    config = parse(flat)
    checkpoint.read(folder, config)
    return bool(complete(folder, config))


def stopped(reason: str, run: int, flat: Mapping[str, Value], again: Sequence[str]) -> str:
    """Return the line for a run that stopped: the reason, and the command that resumes the run.

    ``reason``: the SuperLink's reason; ``flat``: the run config as sent; ``again``: the command of
    the run without ``--resume``, ``out`` and ``from-round``. A reason without a checkpoint, for
    example a wrong setting, is returned unchanged.
    """
    from server_app.storage import checkpoint  # imports torch
    from server_app.storage.summary import place

    kept, killed = REMEDY.search(reason), reason.startswith(SILENT)
    if not kept and not killed:
        return reason
    folder = Path(kept[1]) if kept else place(str(flat["out"]), str(flat["experiment"]))
    reason = REMEDY.sub("", reason)
    if killed:
        reason = "the ServerApp ended in the middle of the run; was its process killed?"
    words, how = [*again, "-s", f"out={folder}"], "resume it with"
    if killed and folder.is_dir() and not checkpoint.path_in(folder).exists():
        how = "no round is saved, start it again with"
    else:
        words.append("--resume")
    return f"run {run} stopped: {reason}; {how}: {shlex.join(words)}"


def without_tracebacks(put: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap ``put`` to skip tracebacks; the last line of the log has the error in plain words."""
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
