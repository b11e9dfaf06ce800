"""A server half around one network: the global model w."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import ClassVar

from common import tree
from common.models.classifier import Classifier
from common.protocol import Down, Model
from common.records import Records, StateDict
from server_app.method import Client, Method, O, U


class Weights(Records):
    """What round t + 1 depends on where w is all there is."""

    w: StateDict


class GlobalModel(Method[O, U], ABC):
    """Holds w in the architecture ``global_spec``, first drawn for the server; sends and scores it.

    A method that keeps more names it in ``keeps``.
    """

    keeps: ClassVar[type[Records]] = Weights

    def prepare(self) -> None:
        super().prepare()
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    def down(self, t: int) -> Down | Callable[[Client], Down]:
        return Model(w=self.w)

    def model(self) -> Classifier | None:
        self.net.load_state_dict(self.w)
        return self.net
