"""A server half around one network: the global model w."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, TypeVar

from common import protocol, tree
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.method import Method

U = TypeVar("U", bound=protocol.Up)


class Weights(Records):
    """What round t + 1 depends on where w is all there is."""

    w: StateDict


class GlobalModel(Method[U], ABC):
    """Holds w in the architecture ``global_spec``, first drawn for the server; scores it, keeps it.

    A method that keeps more overrides ``keeps``, ``state`` and ``restore``.
    """

    keeps: ClassVar[type[Records]] = Weights

    def prepare(self) -> None:
        super().prepare()
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w)
        return self.net

    def state(self) -> Records:
        return Weights(w=self.w)

    def restore(self, state: Any) -> None:
        self.w = state.w
