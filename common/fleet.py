"""The architectures of a federation: one for each client, and the server's."""

from __future__ import annotations

from common import models
from common.config import Config


def global_spec(config: Config, shape: tuple[int, int, int], classes: int) -> str:
    """The server's architecture; ``smallest`` is the fleet's one with the fewest parameters."""
    if config.run.global_model != "smallest":
        return config.run.global_model
    return models.smallest(config.fleet, shape, classes, stem=config.run.stem)


def check_fleet(config: Config, shape: tuple[int, int, int], classes: int) -> None:
    """Raise a one-line ``ValueError`` if an architecture does not exist or cannot take the input."""
    for spec in config.fleet:
        models.check(spec, shape, classes, stem=config.run.stem)
    if config.run.global_model != "smallest":
        models.check(config.run.global_model, shape, classes, stem=config.run.stem)
