"""The server's models where every client trains its own architecture.

Across depths (``layerwise``) there is one, the largest, of which each client's is a sub-model.
Otherwise (``same``) there is one for each architecture, averaged among its clients alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final

from common import tree
from common.methods.fedavg import Averaging
from common.models.classifier import Classifier
from common.records import StateDict
from common.submodel import check_nested, cut
from server_app.combine.averaging import average
from server_app.combine.layerwise import aggregate
from server_app.method import Method
from server_app.talk.census import Client


@final
class Architectures:
    """``models``: the server's weights by architecture; everything else follows from the census."""

    def __init__(self, method: Method[Any], across: Literal["layerwise", "same"]) -> None:
        self.method, self.across = method, across
        self.models: dict[str, StateDict] = {}
        self.specs: list[str] = []
        self.nets: dict[str, Classifier] = {}

    def begin(self, clients: Sequence[Client]) -> None:
        """Build what a checkpoint has not brought back.

        Raises ``ValueError`` if layers are to be shared by networks that do not share them, or if
        the checkpoint is of other architectures.
        """
        for client in clients:
            self.method.check_size(client)
        distinct = {client.model: self.method.expected(client.model) for client in clients}
        self.specs = sorted(distinct, key=lambda spec: (_size(distinct[spec]), spec))
        held = self.specs
        if self.across == "layerwise":
            held = [check_nested(distinct, f"{self.method.config.run.method}.across")]
        self.nets = {spec: self.method.build(spec) for spec in self.specs}
        if not self.models:
            self.models = {spec: tree.snapshot(self.nets[spec]) for spec in held}
        elif sorted(self.models) != sorted(held):
            raise ValueError(f"the checkpoint holds {sorted(self.models)}, the clients need {held}")

    def weights(self, spec: str) -> StateDict:
        """What a client of an architecture is sent."""
        if self.across == "same":
            return self.models[spec]
        (whole,) = self.models.values()
        return cut(whole, self.method.expected(spec))

    def check(self, client: Client, w: StateDict) -> None:
        """Raise ``ValueError`` unless w is a state of the client's architecture."""
        tree.check_like(w, self.method.expected(client.model), f"w ({client.model})")

    def step(self, ups: Sequence[tuple[Client, StateDict]], options: Averaging) -> None:
        """Average the clients' weights; an architecture without a client this round stays."""
        for spec, before in self.models.items():
            members = [
                (client, w)
                for client, w in ups
                if self.across == "layerwise" or client.model == spec
            ]
            states, sizes = [w for _, w in members], [client.n for client, _ in members]
            if self.across == "layerwise":
                parameters = tree.parameters_only(self.nets[spec])
                self.models[spec] = aggregate(states, sizes, before, options, parameters)
            elif members:
                self.models[spec] = average(states, sizes, before, options, self.nets[spec])

    def networks(self) -> dict[str, Classifier]:
        """The model of every architecture, smallest first, on the server's device."""
        for spec in self.specs:
            self.nets[spec].load_state_dict(self.weights(spec))
        return {spec: self.nets[spec] for spec in self.specs}

    def state_dict(self) -> StateDict:
        """All that is held: the largest network's entries, or each one's behind its name."""
        if self.across == "layerwise":
            return next(iter(self.models.values()))
        return {
            f"{spec}/{name}": value
            for spec, state in sorted(self.models.items())
            for name, value in state.items()
        }


def _size(state: StateDict) -> int:
    return sum(value.numel() for value in state.values())
