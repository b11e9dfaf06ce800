"""A run shown by programs for tracking experiments, while it goes on: ``track = "tensorboard"``.

A tracker only looks on. It changes no number, and whatever befalls it, the run goes on. What these
programs report to their makers about their use is off, unless the environment says otherwise.
"""

import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
