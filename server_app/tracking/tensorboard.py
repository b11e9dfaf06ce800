"""TensorBoard: event files in the run's folder, for ``tensorboard --logdir runs``."""

from collections.abc import Mapping
from pathlib import Path
from typing import final

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from common.journal import Entry
from common.settings.section import Value
from server_app.tracking import numbers
from server_app.tracking.tracker import PLACE, Tracker


@final
class TensorBoard(Tracker):
    """Tracker with scalars, histograms, and the settings as hyper-parameters."""

    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        self._writer = SummaryWriter(str(folder / PLACE / "tensorboard"))
        if not known:
            for summary in hparams(dict(settings), {"accuracy": 0.0}):
                self._writer._get_file_writer().add_summary(summary)
            self._writer.flush()
        return folder.name

    def entry(self, entry: Entry) -> None:
        for name, value in numbers.scalars(entry).items():
            self._writer.add_scalar(name, value, entry.round)
        for name, values in numbers.scores(entry).items():
            self._writer.add_histogram(name, np.array(values), entry.round)
        self._writer.flush()

    def add_file(self, path: Path) -> None:
        self._writer.add_text("files", str(path))  # event files hold no files

    def finish(self, completed: bool) -> None:
        self._writer.close()
