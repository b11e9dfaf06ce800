"""Conditions on the features and heads of clients' networks, for methods that exchange either."""

from collections.abc import Iterable

from common import models
from common.training.task import Task


def check_heads(task: Task, specs: Iterable[str]) -> None:
    """Raise ``ValueError``, one line, for an architecture with several heads."""
    for spec in specs:
        if models.exits(spec)[1]:
            name = task.config.run.method
            raise ValueError(f'method = "{name}" needs one head; {spec} has several exits')


def check_untied(task: Task, specs: Iterable[str]) -> None:
    """Raise ``ValueError``, one line, for a head with the weights of the input layer."""
    for spec in specs:
        if task.without_values(spec).tied:
            raise ValueError(
                f'method = "{task.config.run.method}" cuts heads off, but that of {spec} has the '
                "weights of its input layer; allowed: networks such as char-lstm"
            )


def feature_width(task: Task, specs: Iterable[str]) -> int:
    """Return K, the number of features that all these architectures have.

    Raises ``ValueError``, one line, if their numbers differ.
    """
    widths = {spec: task.without_values(spec).head.in_features for spec in specs}
    first, K = next(iter(widths.items()))
    for spec, width in widths.items():
        if width != K:
            raise ValueError(
                f'method = "{task.config.run.method}" needs a common number of features, but '
                f"{first} has {K} and {spec} has {width}: set feature-dim"
            )
    return K
