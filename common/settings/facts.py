"""Typed facts about a method, from which its page, the tables of methods and the chooser are made.

A contract declares them once. What the code decides is tested against the code.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

NOT_STATED: Final = "not stated"

ASYNCHRONOUS = ("mean", "training", "models", "tables")
"""Values of ``Facts.asynchronous`` of methods that have asynchronous rounds."""

AS_SENT = ("models", "tables")
"""Those of methods without a mean of updates: a reply counts as it was sent, whatever its age."""

WAITS = {
    "turns": "the clients of a round train the same half of their adapters",
    "products": "the server computes one update from the factors of a round",
    "together": "all clients of a round work on the same samples, or there is one round",
    "nothing": "the clients send nothing that is combined",
    NOT_STATED: "its author does not say that updates of different versions can be combined",
}
"""Why a method has no asynchronous rounds, by ``Facts.asynchronous``."""


@final
@dataclass(frozen=True)
class Facts:
    """What travels, stays and is scored in a method. The defaults are those of a plug-in.

    Texts are Markdown without a full stop; symbols are those of the contract. θ_k is client k's
    network of its own architecture, w the global model.
    """

    down: str = NOT_STATED  #: what a client receives in a round, "nothing" if nothing
    up: str = NOT_STATED  #: what a client sends in a round
    kept: str = NOT_STATED  #: what a client keeps from round to round; empty: nothing
    sends: str = NOT_STATED  #: what leaves a client, in a few words
    leaves: str = NOT_STATED  #: the same in full, beside scalars
    infers: str = NOT_STATED  #: what the server can infer from it
    whole: str = NOT_STATED  #: models that are scored on the server's test set; empty: none
    own: str = NOT_STATED  #: models that clients score on their own samples; empty: none
    paper: str = NOT_STATED  #: the predictor that the paper scores, if the method has several
    part: Literal["whole", "part", "nothing", "not stated"] = NOT_STATED
    """How much of a trained model leaves a client."""
    rounds: Literal["one", "many", "not stated"] = NOT_STATED
    public: Literal["none", "server", "everybody", "not stated"] = NOT_STATED
    """Who has the public set."""
    networks: Literal["own", "parts", "equal", "not stated"] = NOT_STATED
    """Which networks clients train: of their own choice, parts or sizes of one, or one for all."""
    asynchronous: Literal[
        "mean",
        "training",
        "models",
        "tables",
        "turns",
        "products",
        "together",
        "nothing",
        "not stated",
    ] = NOT_STATED
    """What a step of asynchronous rounds takes. ``mean``: a mean of updates of several versions.
    ``training``: the same, and the server's model then learns from the clients' models.
    ``models``: it learns from them without a mean. ``tables``: the newest table of every client.
    For the others see ``WAITS``."""

    @property
    def answers(self) -> dict[str, list[str]]:
        """The answers that the method fits, by question of the chooser."""
        scored = {"global": self.whole, "personal": self.own}
        return {
            "public": [self.public],
            "rounds": [self.rounds],
            "leaves": [self.part],
            "networks": [self.networks],
            "models": [name for name, models in scored.items() if models],
        }

    def but(self, **changes: Any) -> "Facts":
        """Return these facts with some changed, for a method that is a variant of another."""
        return replace(self, **changes)
