"""Scores of models: the server's on its test set, and those of clients on their own data."""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from statistics import fmean
from typing import final

import torch
from torch import Tensor, nn

from common import seeds
from common.data.dataset import Dataset
from common.data.tokens import continued, tokenizer_with
from common.exchange import tree
from common.exchange.protocol import FINE_TUNED, Reply, ScoreReply, ScoreRequest
from common.exchange.records import StateDict
from common.journal import ByClass, ClientScore, Entry, Fairness, Personal, Primary, Spread
from common.measures import MEASURES
from common.metrics import (
    Confusion,
    fairness,
    mean_of_known,
    over_classes,
    over_clients,
    pooled,
)
from common.models.batchnorm import norms
from common.models.classifier import Classifier
from common.objectives import Summed, macro_auc
from common.settings.config import MethodOptions, not_allowed
from common.techniques.completion import completed
from common.training.task import Result, evaluate
from server_app.method import Client, Method
from server_app.scoring.recalibrate import ScoredModels
from server_app.stopped import DivergedRound

DIVERGED = 1e4
"""Largest loss of a model, in units of ``Scorer.guess``."""
DRAWN, NUMBERS = 2000, 200_000  #: most test samples, and predictions, in predictions.json
TEXTS, TOKENS = 3, 200  #: texts in predictions.json, and the tokens that a model adds to each
RANKED = 100  #: most classes of which every round has the macro AUC, which sorts for each class
SAMPLE = 64  #: test images for the loss of a round without a score


@final
class Scorer:
    """Scorer of ``method``'s models on the test part of ``dataset``."""

    def __init__(self, method: Method[MethodOptions, Reply], dataset: Dataset) -> None:
        self.method, self.task, self.scored = method, method.task, ScoredModels(method)
        self.x, self.y = dataset.x_test, dataset.y_test
        self.newest: dict[int, tuple[int, ClientScore]] = {}  #: with its round, by client
        self.confusion: Confusion = []  #: of the run's primary score in the current round
        self.newest_result: tuple[int, Result] | None = None  #: with its round, not of classes

    @cached_property
    def primary(self) -> Primary:
        """Score that counts for the run; known when the method has its clients.

        Raises ``ValueError`` if ``score.primary`` wants a global model and the method has none.
        """
        config, has_model = self.task.config, bool(self.scored.raw())
        chosen = config.score.primary
        if chosen == "global" and not has_model:
            why = f'method = "{config.run.method}", which has no global model'
            raise not_allowed("score.primary", chosen, why, "auto", "personal")
        if config.score.keep_best and not has_model:
            why = f'method = "{config.run.method}", which has no global model'
            raise not_allowed("score.keep-best", True, why, False)
        if chosen == "auto":
            return "global" if has_model else "personal"
        return chosen

    def begin(self, entry: Entry) -> Entry:
        """Mark the entry of a new round if the primary score is personal, and return it."""
        self.confusion = []
        if self.primary == "personal":
            entry.primary = self.primary
        return entry

    def score(self, entry: Entry) -> None:
        """Write score and loss of the server's model, or the mean of several, to the entry.

        If this is the primary score, also write the metrics by class, over all these models.
        """
        method, nets = self.method, self.scored.nets()
        if not nets:
            entry.accuracy = entry.loss = None
            return
        results = {net: self._result(net) for net in nets}
        main = [results[net] for net in self.main(nets)]
        entry.loss = fmean(result.loss for result in main)
        if self.task.objective.one_each:
            self._write_accuracy(entry, nets, main)
        else:
            self._write_measures(entry, main)
        several = method.networks().keys()
        every = zip(several, results.values(), strict=False)
        named = {spec: result.score for spec, result in every}
        further, ensembles = self.scored.further(), method.ensembles(nets)
        if (further or ensembles) and not named:
            named[method.name] = entry.score("global")
        within = {} if several else {n: inner for net in nets for n, inner in net.within().items()}
        for name, one in (*within.items(), *ensembles.items()):
            named[name] = self._result(one).score
        for name, models in further.items():
            kept = [method.main] if method.main else models
            scores = [self._result(method.build(spec, models[spec])).score for spec in kept]
            known = [score for score in scores if score is not None]
            named[name] = fmean(known) if known else None
        if named:
            field, values = self.task.objective.by_model(named)
            setattr(entry, field, {**getattr(entry, field), **values})

    def _result(self, net: nn.Module) -> Result:
        return evaluate(net, self.x, self.y, self.task)

    def _write_accuracy(
        self, entry: Entry, nets: Sequence[Classifier], main: Sequence[Result]
    ) -> None:
        """Write the mean accuracy of the run's models and, if it is primary, metrics by class."""
        entry.accuracy = fmean(result.accuracy for result in main)
        if self.primary == "global":
            ranked = main if self.task.num_classes <= RANKED else []
            area = mean_of_known([macro_auc(result.outputs, result.y) for result in ranked])
            counts = [self.task.objective.sums(r.outputs, r.y).tolist() for r in main]
            self._write_classes(entry, counts, area)
        if any(norms(net) for net in nets):
            entry.accuracy_bn = self._by_statistics(entry.accuracy)
        if (covered := self._covered(self.main(nets))) is not None:
            entry.accuracy_covered = covered

    def _write_measures(self, entry: Entry, main: Sequence[Result]) -> None:
        """Write the mean measures of the run's models of labels or numbers."""
        names, columns = main[0].measures, main[0].by_output
        self.newest_result = entry.round, main[0]
        entry.measures = {n: mean_of_known([result.measures[n] for result in main]) for n in names}
        entry.by_output = {
            n: [mean_of_known(of) for of in zip(*(r.by_output[n] for r in main), strict=True)]
            for n in columns
        }

    def predictions(self) -> Mapping[str, object] | None:
        """Return the round, the predictions and the true values of at most ``DRAWN`` test samples.

        They are of the server's newest scored model, of several the first. Of next tokens it is how
        the model continues ``TEXTS`` test samples. None: of classes, under [privacy], or if the
        primary score is personal.
        """
        private = self.task.config.privacy.on
        if self.newest_result is None or private or self.primary == "personal":
            return None
        t, result = self.newest_result
        if self.task.objective.every:
            texts = self._texts()
            return {"round": t, "texts": texts} if texts else None
        n = min(len(result.y), DRAWN, max(NUMBERS // result.y.shape[1], 1))
        draw = seeds.rng(self.task.seed, "predictions").permutation(len(result.y))[:n]
        predicted = self.task.objective.predicted(result.outputs)
        rows = {
            name: [[float(f"{v:.6g}") for v in row] for row in values[draw].tolist()]
            for name, values in (("predicted", predicted), ("true", result.y))
        }
        return {"round": t, **rows}

    def _texts(self) -> list[tuple[str, str]]:
        """Return the first halves of ``TEXTS`` test samples, each with the model's continuation.

        Empty if the data set's own tokenizer is not one of the settings.
        """
        task = self.task
        if (tokenizer := tokenizer_with(task.tokenizer, task.config.data)) is None:
            return []
        net, length = self.main(self.scored.nets())[0].eval(), task.shape[0]
        rows = self.x[seeds.rng(task.seed, "texts").permutation(len(self.x))[:TEXTS]]
        prompts = [row[row > 0][: max(length // 2, 1)].tolist() for row in rows]
        further = completed(net, prompts, length, TOKENS, seeds.stream(task.seed, "texts"))
        pairs = zip(prompts, further, strict=True)
        return [(tokenizer.decode(p), continued(tokenizer, p, more)) for p, more in pairs]

    def remember(self, entry: Entry) -> None:
        """Keep each client's newest score, which counts as long as the client is busy."""
        self.newest |= {s.k: (entry.round - s.age, s) for s in entry.scores}

    def add_scores(
        self, replies: Sequence[ScoreReply], entry: Entry, busy: Set[int] = frozenset()
    ) -> None:
        """Write clients' scores, their fairness and the personal score to the entry.

        Of ``busy`` clients it is the newest score, with its age. If that is the primary score, also
        write the metrics by class, over all the clients' samples if every client has sent its
        confusion.
        """
        old = [(entry.round - t, s) for t, s in (self.newest[k] for k in busy & {*self.newest})]
        scores = client_scores(replies) + [s.model_copy(update={"age": age}) for age, s in old]
        entry.scores = sorted(scores, key=lambda score: score.k)
        self.remember(entry)
        tested = [(score, score.own) for score in entry.scores if score.own is not None]
        measured = [score for score in entry.scores if score.measures]
        if not tested and not measured:
            return
        primary, numbers = self.task.objective.primary, dict[str, float]()
        if tested:
            scored, sizes = [s for s, _ in tested], [s.n or 0 for s, _ in tested]
            entry.fairness = _fairness(scored, self.method.name, primary.higher)
            numbers = over_clients([a for _, a in tested], sizes, higher=primary.higher)
        entry.personal = Personal.model_validate({**numbers, "clients": len(tested)})
        if isinstance(self.task.objective, Summed):
            entry.personal.accuracy = None
            entry.personal.measures = _combined(measured)
            self._pool(self.task.objective, entry, [reply.sums for reply in replies if reply.n])
        counted = [score.confusion.tolist() for score in replies if score.confusion is not None]
        if self.primary == "personal" and counted and len(counted) == len(tested):
            self._write_classes(entry, counted)

    def _pool(self, learnt: Summed, entry: Entry, sums: Sequence[Tensor | None]) -> None:
        """Write the scores of the samples of all clients with a reply, if these have their sums."""
        known = [each for each in sums if each is not None]
        if not known or len(known) < len(sums):
            return
        assert entry.personal is not None
        found = learnt.pooled(torch.stack(known).sum(0))
        entry.personal.measures = {**entry.personal.measures, **found.measures}
        entry.personal.pooled = True
        if self.primary == "personal":
            entry.by_output = {name: list(values) for name, values in found.by_output.items()}

    def _write_classes(
        self, entry: Entry, confusions: Sequence[Confusion], macro_auc: float | None = None
    ) -> None:
        self.confusion = pooled(confusions)
        numbers = over_classes(self.confusion, self.task.num_classes)
        known = {} if macro_auc is None else {"macro_auc": macro_auc}
        entry.by_class = ByClass.model_validate({**numbers, **known})

    @property
    def counts(self) -> bool:
        """Whether clients that score send the confusion of their models, or their sums.

        The confusion is of the primary score only; sums give every personal score of labels and
        numbers, so that it means the same for every method.
        """
        needed = self.primary == "personal" or not self.task.objective.one_each
        return needed and self.task.config.run.share_counts

    def main(self, nets: Sequence[Classifier]) -> list[Classifier]:
        """Return the networks whose mean is the run's score."""
        return [net for net in nets if self.method.main in ("", net.spec)]

    def _by_statistics(self, accuracy: float) -> dict[str, float]:
        """Return the run's accuracy with running, batch and, if measured, recalibrated statistics.

        ``accuracy``: with the statistics that ``score.bn`` names.
        """
        chosen = self.task.config.score.bn
        if chosen == "recalibrated" and not self.scored.statistics:
            chosen = "running"  # before round 1
        accuracies = {"running": 0.0, "batch": 0.0, chosen: accuracy}
        for bn in accuracies.keys() - {chosen}:
            nets = self.main(list(self.scored.raw().values()))
            results = [evaluate(net, self.x, self.y, self.task, bn=bn) for net in nets]
            accuracies[bn] = fmean(result.accuracy for result in results)
        return accuracies

    def _covered(self, nets: list[Classifier]) -> float | None:
        """Return the accuracy on the clients' classes; None if they are all classes or none."""
        missing = self.method.uncovered()
        if not missing or len(missing) == self.task.num_classes:
            return None
        kept = ~torch.isin(self.y, torch.tensor(missing))
        if not bool(kept.any()):
            return None
        x, y = self.x[kept], self.y[kept]
        return fmean(evaluate(net, x, y, self.task).accuracy for net in nets)

    def guess(self, first: Entry) -> float:
        """Return the loss of an untrained model: a guess, or the first model if that is worse.

        ``first``: the journal's entry of round 0.
        """
        return max(first.loss or 0.0, self.task.objective.guess)

    def check_sound(self, entry: Entry, guess: float) -> None:
        """Raise ``DivergedRound`` for an infinite or too large loss, relative to ``guess``.

        Finite but enormous weights of one client can make an average useless. No client can train
        from it, so the round is not kept, and resuming starts before it.
        """
        loss = entry.loss if "loss" in entry.model_fields_set else self._loss_on_sample()
        if loss is not None and not loss <= DIVERGED * guess:
            why = f"the loss of the server's model is {loss:.3g}, so the round is not kept"
            line = f"round {entry.round}: {why}"
            raise DivergedRound(line, entry.round, released=line)

    def _loss_on_sample(self) -> float | None:
        """Return the loss on a few test images; None if the server has no model."""
        networks: list[Classifier | None] = [*self.method.networks().values()]
        x, y = self.x[:SAMPLE], self.y[:SAMPLE]
        nets = [net for net in networks or [self.method.model()] if net is not None]
        losses = [evaluate(net, x, y, self.task).loss for net in nets]
        return fmean(losses) if losses else None


def score_requests(
    scored: ScoredModels, clients: Sequence[Client], confusion: bool
) -> list[tuple[Client, ScoreRequest]]:
    """Return the score request of each client of ``score.clients``.

    ``confusion``: whether the replies shall have the confusions.
    """
    networks, further, own = scored.networks(), scored.further(), scored.method.global_spec

    def request(spec: str, w: StateDict | None) -> ScoreRequest:
        models = {name: of[spec or own] for name, of in further.items()}
        return ScoreRequest(spec=spec, w=w, models=models, confusion=confusion)

    by_name = {name: request(net.spec, tree.snapshot(net)) for name, net in networks.items()}
    by_name |= {spec: request(spec, part) for spec, part in scored.method.parts_to_score().items()}
    one = None if by_name else request("", scored.weights_to_score())
    scoring = _sample(scored, clients)
    return [(client, one or by_name[scored.method.scored_by(client)]) for client in scoring]


def _sample(scored: ScoredModels, clients: Sequence[Client]) -> Sequence[Client]:
    """Return the clients that score, in order of k, the same in every round with these members."""
    size, seed = scored.method.config.score.clients, scored.method.task.seed
    if not 0 < size < len(clients):
        return clients
    members = {client.k: client for client in clients}
    order = seeds.rng(seed, "score-clients").permutation(scored.method.roster_size).tolist()
    return [members[k] for k in sorted([k for k in order if k in members][:size])]


def score_check(
    method: Method[MethodOptions, Reply], confusion: bool
) -> Callable[[Client, ScoreReply], None]:
    """Return a function that raises ``ValueError`` for a score reply that is not valid.

    A score must cover the test samples of the census and the requested models. ``confusion``:
    whether the confusions were requested.
    """
    classes, learnt = method.task.num_classes, method.task.objective
    further = [*method.further(), *([FINE_TUNED] if method.config.fine_tunes else [])]
    names = [m.name for m in learnt.measures]
    named = [f"{learnt.primary.name}:{name}" for name in further]
    shared = method.weights_to_score() is not None and not method.parts_to_score()

    def check(client: Client, score: ScoreReply) -> None:
        n = client.info.n_test
        if score.n != n:
            raise ValueError(f"it is over {score.n} test samples, in the census the client had {n}")
        one = learnt.one_each
        for what, got, expected in (
            ("accuracy of the own model", score.accuracy, one and n > 0),
            ("accuracy of the global model", score.accuracy_global, one and n > 0 and shared),
            ("confusion", score.confusion, one and n > 0 and confusion),
            ("sums", score.sums, not one and n > 0 and confusion),
        ):
            if (got is not None) != expected:
                why = "is missing" if expected else "was not asked for"
                raise ValueError(f"the {what} {why}")
        if score.confusion is not None:
            _check_confusion(score.confusion.tolist(), classes, n, score.accuracy)
        if score.sums is not None and isinstance(learnt, Summed):
            learnt.check_sums(score.sums, n)
        for values, models in (
            (score.accuracies, further if one else []),
            (score.measures, [] if one else [*names, *named]),
            (score.measures_global, names if shared and not one else []),
        ):
            if sorted(values) != (wanted := sorted(models) if n else []):
                raise ValueError(f"it scores the models {sorted(values)}, expected {wanted}")
        for name, value in (*score.measures.items(), *score.measures_global.items()):
            if value is not None:
                MEASURES[name.partition(":")[0]].check(name, value)

    return check


def _check_confusion(
    counts: Sequence[tuple[int, int, int]], classes: int, n: int, accuracy: float | None
) -> None:
    """Raise ``ValueError`` unless the counts are of n samples with this accuracy."""
    pairs = [(label, predicted) for label, predicted, _ in counts]
    if pairs != sorted(set(pairs)):
        raise ValueError("the confusion's pairs of classes are not ascending")
    if not all(0 <= c < classes for pair in pairs for c in pair):
        raise ValueError(f"the confusion has a class that is not among the {classes} classes")
    if any(count < 1 for *_, count in counts) or sum(count for *_, count in counts) != n:
        raise ValueError(f"the confusion does not count {n} samples")
    if sum(count for label, predicted, count in counts if label == predicted) / n != accuracy:
        raise ValueError(f"the confusion contradicts the accuracy {accuracy:g}")


def client_scores(scores: Sequence[ScoreReply]) -> list[ClientScore]:
    """Return the scores of the replies as fields of the journal."""
    always = {"k", "n", "accuracy", "accuracy_global"}
    some = ("accuracies", "measures", "measures_global")
    return [
        ClientScore(**s.model_dump(include=always | {name for name in some if getattr(s, name)}))
        for s in scores
    ]


def _combined(scores: Sequence[ClientScore]) -> dict[str, float | None]:
    """Return every measure over the clients in whose samples it is defined."""
    combined = dict[str, float | None]()
    for name in scores[0].measures:
        known = [(v, s.n or 0) for s in scores if (v := s.measures.get(name)) is not None]
        measure = MEASURES[name.partition(":")[0]]
        combined[name] = measure.combined(*zip(*known, strict=True)) if known else None
    return combined


def _fairness(tested: Sequence[ClientScore], name: str, higher: bool) -> Fairness:
    """Return AMP, FM and WLP of the global model, else of the clients' own, and of each model.

    ``name``: that of the run's own model.
    """
    sizes = [score.n or 0 for score in tested]
    named: dict[str, list[float | None]] = {
        name: [score.shared for score in tested],
        "own": [score.own for score in tested],
        **{model: [s.further.get(model) for s in tested] for model in tested[0].further},
    }
    known = {
        model: Spread(**fairness([v for v in values if v is not None], sizes, higher=higher))
        for model, values in named.items()
        if None not in values
    }
    main = known.get(name) or known["own"]
    if known.get("own") == known.get(name):
        known.pop("own", None)
    return Fairness(main=main, models=known)
