"""How good the server's models are on its test set."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import final

import torch

from common.config import MethodOptions
from common.data.dataset import Dataset
from common.journal import Entry
from common.models.batchnorm import norms
from common.models.classifier import Classifier
from common.protocol import Up
from common.task import evaluate
from server_app.method import Method
from server_app.recalibrate import Shown
from server_app.stopped import Absurd
from server_app.talk.sanity import suspects

ABSURD = 1e4
"""Times the loss of the first model, or that of a guess: above it a model has learnt nothing."""
GLANCE = 64  #: images that are enough to see whether a model computes numbers at all


@final
class Scorer:
    """Scores ``method``'s models on the test part of ``dataset``."""

    def __init__(self, method: Method[MethodOptions, Up], dataset: Dataset) -> None:
        self.method, self.task, self.shown = method, method.task, Shown(method)
        self.x, self.y = dataset.x_test, dataset.y_test

    def score(self, entry: Entry) -> None:
        """Write accuracy and loss of the server's model, the mean where there are several."""
        method, nets = self.method, self.shown.nets()
        if not nets:
            entry.accuracy = entry.loss = None
            return
        results = {net: evaluate(net, self.x, self.y, self.task) for net in nets}
        main = self.main(nets)
        entry.accuracy = fmean(results[net].accuracy for net in main)
        entry.loss = fmean(results[net].loss for net in main)
        if any(norms(net) for net in nets):
            entry.accuracy_bn = self._by_statistics(entry.accuracy)
        if (covered := self._covered(main)) is not None:
            entry.accuracy_covered = covered
        several = method.networks().keys()
        every = zip(several, results.values(), strict=False)
        named = {spec: result.accuracy for spec, result in every}
        further, ensembles = self.shown.further(), method.ensembles(nets)
        if (further or ensembles) and not named:
            named[method.name] = entry.accuracy
        within = {} if several else {n: part for net in nets for n, part in net.within().items()}
        for name, one in (*within.items(), *ensembles.items()):
            named[name] = evaluate(one, self.x, self.y, self.task).accuracy
        for name, models in further.items():
            kept = [method.main] if method.main else models
            scored = [method.build(spec, models[spec]) for spec in kept]
            named[name] = fmean(evaluate(n, self.x, self.y, self.task).accuracy for n in scored)
        if named:
            entry.accuracies = named

    def main(self, nets: Sequence[Classifier]) -> list[Classifier]:
        """Those whose mean is the run's score."""
        return [net for net in nets if self.method.main in ("", net.spec)]

    def _by_statistics(self, accuracy: float) -> dict[str, float]:
        """The run's accuracy by what BatchNorm normalises with: as ``score.bn`` says, which
        is ``accuracy``, and by the method's own running statistics and by the test batch's.
        """
        ours = self.task.config.score.bn
        if ours == "recalibrated" and not self.shown.statistics:
            ours = "running"  # before round 1
        found = {"running": 0.0, "batch": 0.0, ours: accuracy}
        for bn in found.keys() - {ours}:
            nets = self.main(list(self.shown.raw().values()))
            results = [evaluate(net, self.x, self.y, self.task, bn=bn) for net in nets]
            found[bn] = fmean(result.accuracy for result in results)
        return found

    def _covered(self, nets: list[Classifier]) -> float | None:
        """Accuracy on the classes that can be learnt; None if all can, or none."""
        missing = self.method.uncovered()
        if not missing or len(missing) == self.task.num_classes:
            return None
        kept = ~torch.isin(self.y, torch.tensor(missing))
        if not bool(kept.any()):
            return None
        x, y = self.x[kept], self.y[kept]
        return fmean(evaluate(net, x, y, self.task).accuracy for net in nets)

    def check_sound(self, entry: Entry, first: float | None) -> None:
        """Raise ``Absurd`` if the loss after a round is no finite number, or one that no model has
        that was only just drawn, naming whom to look at. ``first``: the loss before round 1.

        One client's finite but enormous weights are enough to make an average useless (robust
        averaging is the defence). Were that average in the checkpoint, no client could ever train
        from it again; so the round is not kept, and resuming starts before it.
        """
        loss = entry.loss if "loss" in entry.model_fields_set else self._glance()
        most = ABSURD * max(first or 0.0, math.log(self.task.num_classes))
        if loss is None or loss <= most:
            return
        line = f"round {entry.round}: the loss of the server's model is {loss:.3g}, so the round "
        line += "is not kept"
        if entry.magnitudes and not self.task.config.privacy.on:
            size, k = max((told.largest, k) for k, told in entry.magnitudes.items())
            line += f"; the largest number that a client sent is {size:.3g}, from client {k}"
        raise Absurd(line, entry.round, suspects(entry.magnitudes))

    def _glance(self) -> float | None:
        """The loss on a few test images; None where the server has no model."""
        found: list[Classifier | None] = [*self.method.networks().values()]
        x, y = self.x[:GLANCE], self.y[:GLANCE]
        nets = [net for net in found or [self.method.model()] if net is not None]
        losses = [evaluate(net, x, y, self.task).loss for net in nets]
        return fmean(losses) if losses else None
