"""Replies of clients with heads of their own: checked, mapped, masked, combined (Algorithm 4).

Contract: common/methods/dl_mh.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from common import communication, quantise
from common.ensemble.schema import check_schema, scatter
from common.ensemble.uhc import by_cross_entropy, by_factorisation
from common.methods.dl_mh import Masking, Schemed
from server_app.distil.public_set import Distillation


def check_schemed(method: Distillation[Any], up: Schemed) -> None:
    """Raise a one-line ``ValueError`` if predictions, confidences or schema are not to be used."""
    check_schema(up.d, method.classes)
    dtype = method.config.wire.dtype
    quantise.check_dtype(up.theta, (method.samples, len(up.d)), dtype, "theta")
    quantise.check_rows(up.theta, dtype, "theta")
    method.check_confidence(up.w)


def targets(method: Distillation[Any], ups: Sequence[Schemed]) -> Tensor:
    """Y_g [N, C]."""
    o: Masking = method.config.method
    predictions = [
        scatter(quantise.decode_probabilities(up.theta), up.d, method.classes) for up in ups
    ]
    if not o.aggregation.startswith("uhc"):
        return method.ensemble(predictions, [up.w for up in ups], o.aggregation)
    held = torch.zeros(len(ups), method.classes, dtype=torch.bool)
    for row, up in zip(held, ups, strict=True):
        row[torch.tensor(up.d)] = True
    p = torch.stack(predictions)
    if o.aggregation == "uhc-ce":
        return by_cross_entropy(p, held, o.uhc_steps, o.uhc_lr)
    return by_factorisation(p, held, o.uhc_steps)


def upload_numbers(method: Distillation[Any], ups: Sequence[Schemed]) -> int:
    """Equation 10, each client with its own |d|."""
    N = method.samples
    return sum(communication.dl_mh(N, len(up.d), 0 if up.w is None else N, len(up.d)) for up in ups)
