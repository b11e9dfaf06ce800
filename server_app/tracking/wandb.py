"""Weights & Biases: offline in the run's folder, unless the environment sets ``WANDB_MODE``.

``wandb sync DIR/track/wandb/offline-run-*`` sends what was kept. A run that goes on, and its
report, are further folders with the same id, which that command joins.
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

PATIENCE = 20.0  #: seconds for an answer at the beginning, and for uploads at the end


@final
class WandB(Tracker):
    """Scalars, histograms, the settings as nested configuration, files of the run."""

    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode in ("online", "run", "shared") and not wandb.login(prompt=False):
            raise RuntimeError("there is no login: call wandb login, or set WANDB_API_KEY")
        name = known or secrets.token_hex(4)
        own: dict[str, Any] = {}
        for key, value in settings.items() if not known else ():
            table, _, leaf = key.rpartition(".")
            (own.setdefault(table, {}) if table else own)[leaf] = value
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedmosaic"),
            id=name,
            name=folder.name,
            config=own,
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
        drawn = {n: wandb.Histogram(values) for n, values in numbers.scores(entry).items()}
        self._run.log({**numbers.scalars(entry), **drawn}, step=entry.round)

    def add_file(self, path: Path) -> None:
        copied = shutil.copy(path, self._run.dir)  # of a file elsewhere it would keep a link
        self._run.save(copied, base_path=self._run.dir, policy="now")

    def finish(self, completed: bool) -> None:
        self._run.finish(exit_code=0 if completed else 1)
