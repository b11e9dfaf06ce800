"""Time stamps from inside a federation's processes, for ``tests.bench.timeline``.

Python imports a module of this name in every process whose PYTHONPATH leads here. With
FEDMOSAIC_TIMELINE set to a file, a few functions of Flower's and of ours append a line to it when
they begin or end: seconds, process, mark, processor seconds. Functions that no longer exist are
passed over. For measurements only.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from types import ModuleType
from typing import Any

FILE = os.environ.get("FEDMOSAIC_TIMELINE", "")

#: module -> (function, or method as Class.name, or "" for the import itself; mark before; after)
PLACES: dict[str, list[tuple[str, str, str]]] = {
    "server_app.messaging.exchange": [("exchange", "pushed", "collected")],
    "flwr.supernode.start_client_internal": [
        ("pull_objects", "", "pulled"),
        ("_push_messages", "", "sent"),
    ],
    "flwr.supernode.runtime.run_clientapp": [
        ("run_clientapp", "started", ""),
        ("push_task_output", "", "ended"),
    ],
    "client_app.app": [("", "called", "")],
    "client_app.participant": [
        ("Participant.__init__", "imported", ""),
        ("Participant.train", "ready", "trained"),
    ],
}


def mark(name: str) -> None:
    if name:
        line = f"{time.time():.5f} {os.getpid()} {name} {time.process_time():.4f}\n"
        with open(FILE, "a", encoding="ascii") as file:
            file.write(line)


def tap(module: ModuleType) -> None:
    """Wrap the functions of ``module`` that are listed."""
    for path, before, after in PLACES[module.__name__]:
        if not path:
            mark(before)
            continue
        owner: Any = module
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part, None)
        if (real := getattr(owner, name, None)) is not None:
            setattr(owner, name, _wrapped(real, before, after))


def _wrapped(real: Any, before: str, after: str) -> Any:
    @functools.wraps(real)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        mark(before)
        result = real(*args, **kwargs)
        mark(after)
        return result

    return wrapper


class Finder(importlib.abc.MetaPathFinder):
    """Taps the listed modules once they have been imported as ever."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PLACES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            tap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FILE:
    sys.meta_path.insert(0, Finder())
