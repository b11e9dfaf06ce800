"""``precision = "bf16"``: every forward pass of training obeys it, and no other does."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.bases.class_table import TableSender
from client_app.methods.fedgkt import FedGKT as Speaker
from common.models.batchnorm import measure
from common.models.split import feature_shape
from common.models.stylegan import StyleGAN
from common.techniques.ensemble import odin_score
from common.training.task import Task, evaluate
from server_app.methods.fedgkt import FedGKT as Answerer
from server_app.methods.fedktl import FedKTL
from server_app.methods.fedtgp import FedTGP
from tests.support.battery import METHODS, config, tiers
from tests.support.tiny import play

EXACT = {
    getattr(function, "__wrapped__", function).__code__
    for function in (
        *(evaluate, measure, feature_shape, odin_score, Task.logits, StyleGAN.pixels),
        *(Speaker._features_and_logits, Answerer._logits, TableSender._collected),
        *(FedKTL._means, FedTGP._prototypes),
    )
}
"""What scores, measures or says something about images; all else that asks a network trains."""
OFTEN = ("fedavg", "fedkf", "fedftg", "fedgkt", "fedgen", "co-boosting")
"""Each trains in another way: a loss, images between two steps, a loop in a loop, features, a
generator of features, an ensemble."""
SHORT = {"train__epochs": 1, "dafl__server_steps": 2, "noise__batches": 2}
SHORT |= {f"{name}__epochs": 2 for name in ("dense", "co_boosting")}
SHORT |= {"confidence__epochs": 1, "ensemble__epochs": 1}


class Watch:
    """The precisions in which linear layers and convolutions answer."""

    def __init__(self) -> None:
        self.trained: dict[torch.dtype, str] = {}  #: with an example of each
        self.exact: dict[torch.dtype, str] = {}

    def __call__(self, layer: nn.Module, _: Any, answer: Any) -> None:
        if not isinstance(layer, nn.Linear | nn.Conv2d) or answer.device.type == "meta":
            return
        assert isinstance(answer, Tensor)
        frame, path = sys._getframe(1), []
        while frame is not None and frame.f_code not in EXACT:
            path.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            frame = frame.f_back  # type: ignore[assignment]
        seen = self.trained if frame is None else self.exact
        if answer.dtype not in seen:
            own = [place for place in path if "/site-packages/" not in place]
            seen[answer.dtype] = " < ".join(own[:6])


def shorter(method: str) -> dict[str, int]:
    """Of the changes in ``SHORT``, those that the method knows or that are not a method's."""
    return {
        key: value
        for key, value in SHORT.items()
        if (table := key.partition("__")[0].replace("_", "-")) == method or table not in METHODS
    }


@pytest.mark.parametrize(
    "method",
    [
        *tiers(OFTEN, ("fedavg", "fedgkt")),
        *(pytest.param(n, marks=pytest.mark.exhaustive) for n in METHODS if n not in OFTEN),
    ],
)
def test_every_forward_pass_of_training_obeys_it(method: str, tmp_path: Path) -> None:
    watch = Watch()
    hook = nn.modules.module.register_module_forward_hook(watch)
    try:
        result = play(config(method, tmp_path, rounds=2, precision="bf16", **shorter(method)))
    finally:
        hook.remove()
    assert result.summary["failures"] == []
    assert set(watch.trained) == {torch.bfloat16}, watch.trained
    assert set(watch.exact) <= {torch.float32}, watch.exact
