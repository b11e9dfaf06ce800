"""The architectures of a federation: one for each client, and the server's."""

from __future__ import annotations

from common import models
from common.config import Config
from common.task import Task


def global_spec(task: Task) -> str:
    """The server's architecture; ``smallest`` is the fleet's one with the fewest parameters."""
    config = task.config
    if config.run.global_model != "smallest":
        return config.run.global_model
    return models.smallest(config.fleet, task.shape, task.num_classes, stem=task.stem)


def check_names(config: Config) -> None:
    """Raise a one-line ``ValueError`` for an architecture that does not exist."""
    own = config.run.global_model
    for spec in (*config.fleet, *(() if own == "smallest" else (own,))):
        models.parse(spec)


def check_fleet(task: Task) -> None:
    """Raise a one-line ``ValueError`` if an architecture is unknown or cannot take the input, or if
    the method asks something of the fleet that it does not have.
    """
    config = task.config
    for spec in config.fleet:
        models.check(spec, task.shape, task.num_classes, stem=task.stem)
    config.method.check_fleet(task, config.fleet)
    if config.run.global_model != "smallest":
        models.check(config.run.global_model, task.shape, task.num_classes, stem=task.stem)
