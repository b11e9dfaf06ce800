"""The architectures of a federation: one for each client, and the server's."""

from __future__ import annotations

from functools import lru_cache

import torch

from common import models
from common.config import Config
from common.records import StateDict
from common.split import common_shapes
from common.submodel import check_nested


def global_spec(config: Config, shape: tuple[int, int, int], classes: int) -> str:
    """The server's architecture; ``smallest`` is the fleet's one with the fewest parameters."""
    if config.run.global_model != "smallest":
        return config.run.global_model
    return models.smallest(config.fleet, shape, classes, stem=config.run.stem)


def check_fleet(config: Config, shape: tuple[int, int, int], classes: int) -> None:
    """Raise a one-line ``ValueError`` if an architecture is unknown or cannot take the input."""
    for spec in config.fleet:
        models.check(spec, shape, classes, stem=config.run.stem)
    _check_sharing(config, shape, classes)
    if config.run.global_model != "smallest":
        models.check(config.run.global_model, shape, classes, stem=config.run.stem)


def _check_sharing(config: Config, shape: tuple[int, int, int], classes: int) -> None:
    """What a method that mixes the fleet's own architectures asks of them."""
    stem, method = config.run.stem, config.run.method
    if getattr(config.method, "needs_split", False):
        common_shapes(config.fleet, shape, classes, stem=stem)
    if getattr(config.method, "across", "none") == "layerwise":
        states = {spec: _layers(spec, shape, classes, stem) for spec in config.fleet}
        check_nested(states, f"{method}.across")


@lru_cache(maxsize=64)
def _layers(spec: str, shape: tuple[int, int, int], classes: int, stem: str) -> StateDict:
    """Names and shapes of an architecture's state dict; there are no values."""
    with torch.device("meta"):
        return dict(models.build(spec, shape, classes, seed=0, stem=stem).state_dict())
