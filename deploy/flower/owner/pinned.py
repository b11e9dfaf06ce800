"""``flwr-clientapp`` for a client that accepts only one app bundle, and only allowed run configs.

It runs in a process of its own or in the warm process (``warm.py``). Both belong to this machine's
installation, so that the SuperLink's bundle cannot replace them. A SuperNode (``supernode.py``)
starts no other program for a message. This file must not import ``common`` or ``client_app``, which
come from the bundle after the checks. Without a pinned digest and rules (``rules.py``), Flower's
own program runs unchanged.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import logging
import os
import secrets
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from deploy.flower.owner import rules
from deploy.flower.owner.rules import Refused

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp

PIN = "FEDMOSAIC_APP_DIGEST"  #: environment variable of a SuperNode with the digest, 64 hex digits
PROGRAM = "flwr-clientapp"
MOST = 1 << 26  #: bytes of all files in a bundle, unpacked; Flower's own are a tenth of it
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  #: whose size in memory is bounded
PIECE = 1 << 20  #: bytes of a file that are read at a time
LONGEST = 200  #: characters of an error's text
PATIENCE = 600.0  #: longest time in seconds for a self-test, on a slow machine with much to import
FLOWER = "flwr.supernode.runtime.run_clientapp"  #: module whose functions are replaced
SELF_TEST = "--self-test"  #: argument for ``self_test`` in the place of a message
UNKNOWN = "self-test"  #: relative path of ``weights``, which rules without exception refuse


def digest(fab: bytes) -> str:
    """Return the SHA-256 of the names and contents of all files in a bundle, 64 hex digits.

    A digest of the bundle's bytes would depend on the zlib version that compressed it. Nothing in
    ``fab`` is trusted: its files are read in pieces, up to ``MOST`` bytes in all.

    Raises ``Refused`` if ``fab`` is not a bundle, or is too large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as file:
            entries = file.infolist()
            if (size := sum(entry.file_size for entry in entries)) > MOST:
                raise Refused(f"the received app bundle has {size:,} bytes, allowed are {MOST:,}")
            if any(entry.compress_type not in METHODS for entry in entries):
                raise Refused("the received app bundle has a file that is not stored or deflated")
            lines = [_line(file, entry) for entry in entries]
    except Refused:
        raise
    except Exception as error:  # the reader of zip files has many, and what sent it is not known
        text = " ".join(str(error).split())[:LONGEST]
        raise Refused(f"the received app bundle cannot be read: {text}") from None
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def _line(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the digests of an entry's name and content, without its content in memory."""
    content = hashlib.sha256()
    with file.open(entry) as stream:
        while piece := stream.read(PIECE):
            content.update(piece)
    return hashlib.sha256(entry.filename.encode()).digest() + content.digest()


def check(fab: bytes, pin: str) -> None:
    """Raise ``Refused`` for what is no bundle; with ``pin``, for one with another digest."""
    if (actual := digest(fab)) != pin and pin:
        raise Refused(f"the received app bundle has the digest {actual}, --app-digest is {pin}")


def run(pin: str, allowed: str, real: Callable[[], None]) -> None:
    """Run Flower's program ``real`` with replaced functions for installing and loading a bundle.

    ``pin``: the digest of the only bundle to install, or empty. That bundle is installed into a
    folder of its own, and the ClientApp is loaded from there, whatever folder the run's metadata
    name. ``allowed``: the rules for the run config, as JSON, or empty. The checked run config is
    the object that the ClientApp receives. If Flower loads an app without installing it, the client
    replies with an error.
    """
    flower: Any = importlib.import_module(FLOWER)
    pull, install = flower.pull_task_input, flower.install_from_fab
    loader = flower.get_load_client_app_fn
    contexts: list[Context] = []
    installed: list[Path] = []

    def pulled(stub: Any) -> Any:
        message, context, *more = pull(stub)
        contexts.append(context)
        return message, context, *more

    def checked(fab: bytes, **options: Any) -> Path:
        check(fab, pin)
        if allowed:
            (context,) = contexts
            rules.check(json.loads(allowed), context.run_config, context.node_config)
        if pin:
            options["install_dir"] = Path(os.environ["FLWR_HOME"]) / f"pinned-{pin}"
        installed.append(install(fab, **options))
        return installed[-1]

    def checked_loader(**options: Any) -> Callable[[str, str, str], ClientApp]:
        if not installed:
            raise RuntimeError(
                "this Flower loads an app without installing it: its digest was not checked"
            )
        own = {"default_app_ref": "", "app_path": str(installed[-1]), "multi_app": True}
        load: Callable[[str, str, str], ClientApp] = loader(**(own if pin else options))
        return load

    flower.pull_task_input, flower.install_from_fab = pulled, checked
    flower.get_load_client_app_fn = checked_loader
    logging.getLogger("flwr").addFilter(_in_one_line)
    real()


def _in_one_line(record: logging.LogRecord) -> bool:
    """Replace the traceback of a refusal in Flower's log by its message."""
    if record.exc_info and isinstance(record.exc_info[1], Refused):
        record.msg, record.args, record.exc_info = f"refused: {record.exc_info[1]}", (), None
    return True


def self_test(pin: str, allowed: str) -> None:
    """Print the refusals of an empty bundle and of a run config that no rules allow, one per line.

    Both arrive as in Flower's program. A line is missing if that check does not work.
    """
    flower: Any = importlib.import_module(FLOWER)
    context = SimpleNamespace(run_config={"weights": UNKNOWN}, node_config={})
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()

    def message() -> None:
        flower.pull_task_input(None)
        flower.install_from_fab(empty.getvalue())

    for checks in ((pin, ""), ("", allowed)):
        flower.pull_task_input = lambda stub: (None, context)
        flower.install_from_fab = lambda fab, **options: Path()
        try:
            run(*checks, message)
        except Refused as refusal:
            print(refusal, flush=True)


def fault(command: Sequence[str]) -> str:
    """Return why ``command``, which starts this program, fails in a self-test; empty if it refuses.

    It gets a random digest as the only one that is allowed, and this process's rules.
    """
    pin = secrets.token_hex(32)
    env = {**os.environ, PIN: pin}
    needed = [f"--app-digest is {pin}"]
    if rules.RULES in env:
        needed.append(f"weights = {UNKNOWN!r} is not allowed")
    try:
        done = subprocess.run(
            [*command, SELF_TEST], env=env, capture_output=True, text=True, timeout=PATIENCE
        )
        ended = f"it ended with status {done.returncode} and did not refuse a wrong digest"
        why = "".join(done.stderr.strip().splitlines()[-1:]) or ended
    except OSError as error:
        why = f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        why = f"it did not end within {PATIENCE:.0f} s"
    else:
        if all(text in done.stdout for text in needed):
            return ""
    return f"the check of bundles and run configs does not work on this machine: {why}"


def without_colours() -> None:
    """Leave out the colour codes of Flower's log lines unless they go to a terminal."""
    from flwr.common.logger import update_console_handler

    update_console_handler(colored=sys.stderr.isatty())


def main(real: Callable[[], None]) -> None:
    """Run as ``flwr-clientapp``; ``real``: Flower's own entry point."""
    without_colours()
    pin, allowed = os.environ.get(PIN, ""), os.environ.get(rules.RULES, "")
    if sys.argv[1:] == [SELF_TEST]:
        self_test(pin, allowed)
    elif pin or allowed:
        run(pin, allowed, real)
    else:
        real()


def program() -> None:
    """Run as ``flwr-clientapp`` in a process of its own."""
    from flwr.supernode.cli import flwr_clientapp

    del sys.argv[0]  # the interpreter's -c; the program's name follows
    main(flwr_clientapp)
