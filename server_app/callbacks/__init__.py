"""What a run does beside its rounds: drift, statistics, end, collapse; and a user's callbacks.

Each is a class of its own. A user's own are named by the setting ``callbacks``:

    class Best(Callback):
        best = None

        def after_round(self, entry):
            score = entry.primary_score
            if score is not None and (self.best is None or entry.measure.better(score, self.best)):
                self.best = score

        def state(self):
            return {"best": self.best}

        def load(self, state):
            self.best = state["best"]
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from common.exchange.protocol import ScoreReply
from common.journal import Entry
from common.settings import plugins
from server_app.method import Client
from server_app.run import Run

NONE: Mapping[str, str] = {}


class Callback:
    """Hooks of a run on the server; all do nothing. One object serves one run.

    A hook sees journal entries, never replies. Under [privacy] an entry has its released fields
    only. An error in a hook ends the run with one line; the checkpoint is kept. The class is called
    without arguments, anew when a run resumes or a round is undone.
    """

    def begin(self, entries: Sequence[Entry]) -> None:
        """Begin a run, or go on after ``entries``: after a resume, or when rounds are undone.

        ``entries``: the journal's, in order; none for a new run.
        """

    def after_round(self, entry: Entry) -> None:
        """Use the complete entry of a round, before it is stored; the census is round 0."""

    def end(self) -> None:
        """End a run that is complete, after its last round."""

    def state(self) -> Mapping[str, Any]:
        """Return what the checkpoint keeps after each round, as values of JSON."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint; ``begin`` follows. Not called if there is none."""


class RunCallback(Callback):
    """A built-in callback, with further hooks and access to the run.

    ``run``: the run, whose ``entry`` is that of the current round.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def after_replies(self) -> None:
        """Use the valid replies of a round, before the method's step."""

    def before_score(self) -> None:
        """Prepare the score of the server's models."""

    def after_score(self) -> None:
        """Use the score of the server's model, if the round has one."""

    def after_client_scores(self, good: Sequence[tuple[Client, ScoreReply]]) -> None:
        """Use the valid scores of the clients."""


def named(callbacks: str) -> dict[str, type[Callback]]:
    """Return the user's callback classes by name, of a comma-separated list, each once.

    Raises ``ValueError``, one line: a class does not exist, cannot be imported, or is no callback.
    """
    kinds: dict[str, type[Callback]] = {}
    for name in filter(None, map(str.strip, callbacks.split(","))):
        what = f"callbacks = {name!r} is unknown"
        kind = plugins.required("callbacks", name, ("module:attribute",), what)
        if not (isinstance(kind, type) and issubclass(kind, Callback)):
            raise ValueError(f"callbacks = {name!r} is no Callback of server_app.callbacks")
        kinds[name] = plugins.checked(kind)
    return kinds


def make(callbacks: str, saved: Mapping[str, str] = NONE) -> dict[str, Callback]:
    """Return new objects of the user's callbacks by name, with their states in a checkpoint.

    ``saved``: as ``states`` returned it. Raises ``ValueError`` as ``named``.
    """
    users = {name: kind() for name, kind in named(callbacks).items()}
    for name in users.keys() & saved.keys():
        users[name].load(json.loads(saved[name]))
    return users


def states(users: Mapping[str, Callback]) -> dict[str, str]:
    """Return the state of each user's callback that has one, as JSON by name.

    Raises ``ValueError``, one line, for a state that is not JSON.
    """
    found = {name: callback.state() for name, callback in users.items()}
    try:
        return {name: json.dumps(state) for name, state in found.items() if state}
    except (TypeError, ValueError) as error:
        raise ValueError(f"callbacks: a state is not JSON: {error}") from error
