"""Weights & Biases: offline in the run's folder, unless the environment sets ``WANDB_MODE``.

``wandb sync DIR/track/wandb/offline-run-*`` uploads these files. A resumed run and a report make
further folders with the same id, which that command joins.
"""

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import wandb

from common.journal import Entry
from common.settings.section import Value
from server_app.tracking import numbers
from server_app.tracking.tracker import PLACE, Tracker

PATIENCE = 20.0  #: seconds to wait for the server at the beginning, and for uploads at the end


@final
class WandB(Tracker):
    """Tracker with scalars, histograms, the settings as nested configuration, and files."""

    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode in ("online", "run", "shared") and not wandb.login(prompt=False):
            raise RuntimeError("there is no login: call wandb login, or set WANDB_API_KEY")
        name = known or secrets.token_hex(4)
        nested: dict[str, Any] = {}
        for key, value in settings.items() if not known else ():
            table, _, leaf = key.rpartition(".")
            (nested.setdefault(table, {}) if table else nested)[leaf] = value
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedmosaic"),
            id=name,
            name=folder.name,
            config=nested,
            resume="allow" if known else None,
            settings=wandb.Settings(
                mode=mode,
                root_dir=str(folder / PLACE),
                silent=True,
                console="off",
                init_timeout=PATIENCE,
                finish_timeout=PATIENCE,
            ),
        )
        return name

    def entry(self, entry: Entry) -> None:
        histograms = {n: wandb.Histogram(values) for n, values in numbers.scores(entry).items()}
        self._run.log({**numbers.scalars(entry), **histograms}, step=entry.round)

    def add_file(self, path: Path) -> None:
        copied = shutil.copy(path, self._run.dir)  # wandb only links files outside its folder
        self._run.save(copied, base_path=self._run.dir, policy="now")

    def finish(self, completed: bool) -> None:
        self._run.finish(exit_code=0 if completed else 1)
