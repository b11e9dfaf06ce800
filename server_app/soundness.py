"""A round that broke the server's model is not kept, so that resuming starts before it.

One client's finite but enormous weights are enough to make an average useless (robust averaging
is the defence). Were that average in the checkpoint, no client could ever train from it again.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from common.models.classifier import Classifier
from common.records import Records, tensors
from common.scoring import evaluate
from server_app.keep.journal import Entry
from server_app.method import Method
from server_app.stopped import Stopped
from server_app.talk.census import Client

IMAGES = 64  #: enough to see whether a model computes numbers at all


def check_sound(
    method: Method[Any], t: int, entry: Entry, good: list[tuple[Client, Records]]
) -> None:
    """Raise ``Stopped`` if the loss after round t is no finite number, naming whom to look at.

    ``entry``: its score, where the round has one; else a few test images tell.
    """
    loss = entry["loss"] if "loss" in entry else _glance(method)
    if loss is None or math.isfinite(loss):
        return
    size, k = max((_largest(up), client.k) for client, up in good)
    raise Stopped(
        f"round {t}: the loss of the server's model is {loss}, so the round is not kept; the "
        f"largest number that a client sent is {size:.3g}, from client {k}"
    )


def _glance(method: Method[Any]) -> float | None:
    """The loss on a few test images; None where the server has no model."""
    data, networks = method.dataset, method.networks()
    found: list[Classifier | None] = [*networks.values()] or [method.model()]
    x, y = data.x_test[:IMAGES], data.y_test[:IMAGES]
    losses = [
        evaluate(net, x, y, data, method.config, bn=method.eval_bn).loss
        for net in found
        if net is not None
    ]
    return fmean(losses) if losses else None


def _largest(up: Records) -> float:
    return max((float(x.abs().max()) for _, x in tensors(up) if x.numel()), default=0.0)
