"""Conditions on the clients' networks for methods that exchange low-rank adapters."""

from collections.abc import Iterable

from common import models
from common.settings.config import not_allowed
from common.training.task import Task, global_spec


def check_adapters(task: Task, specs: Iterable[str], *, mixed: bool = False) -> None:
    """Raise ``ValueError``, one line, unless all networks have adapters of the same base.

    ``mixed``: whether their ranks may differ.
    """
    method, own = f'method = "{task.config.run.method}"', global_spec(task)
    for spec in specs if task.config.method.dense else (own, *specs):
        if not models.rank(spec):
            raise ValueError(
                f"{method} averages adapters, but {spec} has none: write its rank behind its "
                f"name, as in {models.with_rank(models.frozen(spec) or spec, 4)}"
            )
        if models.frozen(spec) != models.frozen(own):
            raise ValueError(
                f"{method} averages adapters of one network, but {spec} and {own} have others"
            )
        if not mixed and models.rank(spec) != models.rank(own):
            raise ValueError(
                f"{method} averages adapters of one rank, but {spec} and {own} have others; "
                "methods of several ranks: hetlora, flora, flexlora"
            )


def check_scales(task: Task, specs: Iterable[str]) -> None:
    """Raise ``ValueError``, one line, if factors of adapters with several s would be averaged."""
    if (alpha := task.config.adapter.alpha) and len({models.rank(spec) for spec in specs}) > 1:
        why = "networks of several ranks, whose factors are averaged: s = alpha / r differs"
        raise not_allowed("adapter.alpha", alpha, why, 0)


def check_one_base(task: Task, specs: Iterable[str]) -> None:
    """Raise ``ValueError``, one line, if adapters of layers of several networks are averaged."""
    if len(bases := sorted({base for spec in specs if (base := models.frozen(spec))})) > 1:
        across = task.config.average.across
        why = f"adapters of several networks ({', '.join(bases)}), whose frozen layers differ"
        raise not_allowed("average.across", across, why, "none", "same")
