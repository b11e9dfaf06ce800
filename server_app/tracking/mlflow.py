"""MLflow: a database in the run's folder, unless the environment sets ``MLFLOW_TRACKING_URI``."""

import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from common.journal import Entry
from common.settings.section import Value
from server_app.tracking import numbers
from server_app.tracking.tracker import PLACE, Tracker

BATCH = 100  #: parameters that MLflow takes at a time
LONGEST = 500  #: characters of a parameter's value that every server takes


@final
class MLflow(Tracker):
    """Scalars, the settings as parameters, files as artifacts.

    It has no histograms: of the clients' scores it shows the least, the median and the greatest.
    """

    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        place = folder / PLACE
        own = os.environ.get("MLFLOW_TRACKING_URI")
        files = None if own else (place / "mlflow-artifacts").as_uri()
        if known and files:
            _moved(place / "mlflow.db", files)
        self._client = MlflowClient(tracking_uri=own or f"sqlite:///{place / 'mlflow.db'}")
        if known:
            self._client.update_run(known, status="RUNNING")
            self._run = known
            return known
        called = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedmosaic")
        experiment = self._experiment(called, files)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        params = [Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
        for start in range(0, len(params), BATCH):
            self._client.log_batch(self._run, params=params[start : start + BATCH])
        return self._run

    def _experiment(self, name: str, files: str | None) -> str:
        try:
            made: str = self._client.create_experiment(name, artifact_location=files)
            return made
        except MlflowException:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            known: str = found.experiment_id
            return known

    def entry(self, entry: Entry) -> None:
        shown = numbers.scalars(entry)
        for name, values in numbers.scores(entry).items():
            spread = {"min": min(values), "median": median(values), "max": max(values)}
            shown |= {f"{name}/{what}": value for what, value in spread.items()}
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, entry.round) for name, value in shown.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def add_file(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def finish(self, completed: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if completed else "FAILED")


def _moved(database: Path, files: str) -> None:
    """Write where the folder ``files`` lies now into the database, which has absolute paths."""
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute(
            "update runs set artifact_uri = ? || '/' || run_uuid || '/artifacts'", [files]
        )
