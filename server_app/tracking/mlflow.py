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

BATCH = 100  #: the most parameters in one MLflow request
LONGEST = 500  #: the most characters of a parameter's value that all servers accept


@final
class MLflow(Tracker):
    """Tracker with scalars, the settings as parameters, and files as artifacts.

    MLflow has no histograms: the clients' scores are shown as minimum, median and maximum.
    """

    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        place = folder / PLACE
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        files = None if uri else (place / "mlflow-artifacts").as_uri()
        if known and files:
            _set_artifact_folder(place / "mlflow.db", files)
        self._client = MlflowClient(tracking_uri=uri or f"sqlite:///{place / 'mlflow.db'}")
        if known:
            self._client.update_run(known, status="RUNNING")
            self._run = known
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedmosaic")
        experiment = self._experiment(name, files)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        params = [Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
        for start in range(0, len(params), BATCH):
            self._client.log_batch(self._run, params=params[start : start + BATCH])
        return self._run

    def _experiment(self, name: str, files: str | None) -> str:
        try:
            created: str = self._client.create_experiment(name, artifact_location=files)
            return created
        except MlflowException:
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                raise
            existing: str = experiment.experiment_id
            return existing

    def entry(self, entry: Entry) -> None:
        shown = numbers.scalars(entry)
        for name, values in numbers.scores(entry).items():
            spread = {"min": min(values), "median": median(values), "max": max(values)}
            shown |= {f"{name}/{statistic}": value for statistic, value in spread.items()}
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, entry.round) for name, value in shown.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def add_file(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def finish(self, completed: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if completed else "FAILED")


def _set_artifact_folder(database: Path, files: str) -> None:
    """Set the URI of the artifact folder in the database, which has absolute paths."""
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute(
            "update runs set artifact_uri = ? || '/' || run_uuid || '/artifacts'", [files]
        )
