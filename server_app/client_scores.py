"""Scoring at the clients: what they are asked, which answers count, and how even the scores are."""

from collections.abc import Callable, Sequence

from common import seeds
from common.config import MethodOptions
from common.journal import ClientScore, Entry, Fairness, Spread
from common.metrics import fairness
from common.protocol import Ask, Score, Up
from common.records import StateDict
from common.tree import snapshot
from server_app.method import Client, Method
from server_app.recalibrate import Shown


def asks(shown: Shown, clients: Sequence[Client]) -> list[tuple[Client, Ask]]:
    """What the clients of ``score.clients`` are asked to score."""
    networks, further, own = shown.networks(), shown.further(), shown.method.global_spec

    def ask(spec: str, w: StateDict | None) -> Ask:
        return Ask(spec=spec, w=w, models={name: of[spec or own] for name, of in further.items()})

    each = {name: ask(net.spec, snapshot(net)) for name, net in networks.items()}
    if not each:
        one = ask("", shown.ask())
        return [(client, one) for client in _sample(shown, clients)]
    return [(client, each[shown.method.scored_by(client)]) for client in _sample(shown, clients)]


def _sample(shown: Shown, clients: Sequence[Client]) -> Sequence[Client]:
    """Those that score, in order of k: the same ones every time."""
    size, seed = shown.method.config.score.clients, shown.method.task.seed
    if not 0 < size < len(clients):
        return clients
    drawn = seeds.rng(seed, "score-clients").permutation(len(clients))[:size]
    return [clients[k] for k in sorted(drawn.tolist())]


def checking(method: Method[MethodOptions, Up]) -> Callable[[Client, Score], None]:
    """Raises ``ValueError`` unless a client's score is over its test samples of the census, and of
    the models that were asked for.
    """
    further, shared = sorted(method.further()), method.ask() is not None

    def check(client: Client, score: Score) -> None:
        n = client.peer.n_test
        if score.n != n:
            raise ValueError(f"it is over {score.n} test samples, in the census the client had {n}")
        for what, got, expected in (
            ("own", score.accuracy, n > 0),
            ("global", score.accuracy_global, n > 0 and shared),
        ):
            if (got is not None) != expected:
                there = "is missing" if expected else "was not asked for"
                raise ValueError(f"the accuracy of the {what} model {there}")
        if sorted(score.accuracies) != (names := further if n else []):
            raise ValueError(f"it scores the models {sorted(score.accuracies)}, expected {names}")

    return check


def write(scores: Sequence[Score], name: str, entry: Entry) -> None:
    """Write down what clients scored and how even it is; ``name``: of the run's own model."""
    always = {"k", "n", "accuracy", "accuracy_global"}
    entry.scores = [
        ClientScore(**s.model_dump(include=always | ({"accuracies"} if s.accuracies else set())))
        for s in scores
    ]
    if tested := [score for score in scores if score.n > 0]:
        entry.fairness = _fairness(tested, name)


def _fairness(tested: Sequence[Score], name: str) -> Fairness:
    """AMP, FM and WLP: of the global model, or of the clients' own where there is none; then of
    every model by its name.
    """
    sizes = [score.n for score in tested]
    named: dict[str, list[float | None]] = {
        name: [score.accuracy_global for score in tested],
        "own": [score.accuracy for score in tested],
        **{each: [s.accuracies.get(each) for s in tested] for each in tested[0].accuracies},
    }
    known = {
        each: Spread(**fairness([value for value in values if value is not None], sizes))
        for each, values in named.items()
        if None not in values
    }
    main = known.get(name) or known["own"]
    if known.get("own") == known.get(name):
        known.pop("own", None)
    return Fairness(main=main, models=known)
