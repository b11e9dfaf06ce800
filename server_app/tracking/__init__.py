"""Experiment trackers that show a run while it goes on: ``track = "tensorboard"``.

A tracker changes no result, and its errors do not stop the run. The usage statistics that these
programs send to their makers are off, unless the environment turns them on.
"""

import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
