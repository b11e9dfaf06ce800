"""Average networks of several widths (``average.across = "width"``), number by number.

Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients", ICLR 2021, section 3.1. The server holds the widest network w; client k has
a block of it (``common/techniques/widths.py``), by default the leading one. For every number e of w

    w[e] ← Σ_{k has e} p_k w_k[e] / Σ_{k has e} p_k

and a number that no selected client has stays unchanged. With one width it is the ordinary mean,
bit for bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from common import progress, seeds
from common.exchange import tree
from common.exchange.records import StateDict
from common.models.classifier import Classifier
from common.settings.options import Average
from common.techniques.widths import Places, Submodel, block, check_widths, cut, grid
from common.training.task import Task
from server_app.aggregation.matching import Joint, States, T
from server_app.aggregation.mean import clipped, combine
from server_app.method import Client, Models, Replies

HEAD = ("head.weight", "head.bias")


@final
@dataclass(frozen=True)
class Block:
    """One client's entries, their places in the widest network, and the client's weight p_k."""

    w: StateDict
    places: Mapping[str, Places]
    weight: float


@final
class Width(Joint):
    """The widest network, of which every client trains a block.

    ``submodel``: the block of a client in a round, by default the leading one of its architecture.
    ``counts``: function from w to the counts of updates by entry, which the mean of this round
    increases; entries that it lacks get the plain mean. ``by_width``: whether p_k of convolutions
    includes the client's channels. ``widest``: whether the widest network is the run's score.
    """

    def __init__(
        self,
        task: Task,
        submodel: Callable[[Client, int], Submodel] | None = None,
        counts: Callable[[StateDict], Mapping[str, Tensor]] | None = None,
        *,
        by_width: bool = False,
        widest: bool = False,
    ) -> None:
        super().__init__(task)
        self._submodel, self._counts = submodel or super().submodel, counts
        self._by_width, self._widest = by_width, widest

    def begin(self, specs: Iterable[str], build: Callable[[str], Classifier]) -> None:
        super().begin(specs, build)
        self.main = self.specs[-1] if self._widest else ""

    def submodel(self, client: Client, t: int) -> Submodel:
        return self._submodel(client, t)

    def measured_by(self, clients: Sequence[Client], name: str) -> Sequence[Client]:
        """Return all clients if all score the widest network, else those of ``name``."""
        return clients if self._widest else super().measured_by(clients, name)

    def model_specs(self, distinct: Mapping[str, StateDict]) -> list[str]:
        self.widest_spec = check_widths(distinct)
        return [self.widest_spec]

    def initial(self, weights: Callable[[str], StateDict]) -> Models:
        return {self.widest_spec: weights(self.widest_spec)}

    def by_architecture(self, models: Models) -> Models:
        return {spec: self.entries(models, Submodel(spec)) for spec in self.specs}

    def merged(self, models: Models) -> StateDict:
        return models[self.widest_spec]

    def entries(self, models: Models, submodel: Submodel) -> StateDict:
        widest = models[self.widest_spec]
        return cut(widest, block(widest, self.task.expected(submodel.spec), submodel.window))

    def aggregate(self, t: int, replies: Replies[T], previous: Models, states: States[T]) -> Models:
        options, before = self.options, previous[self.widest_spec]
        weights = options.shares(replies.sizes)
        blocks = [
            self._block(self.submodel(client, reply.t), reply.w, before, p)
            for (client, reply), p in zip(replies, weights, strict=True)
        ]
        counts = self._counts(before) if self._counts else {}
        if counts:  # the mean then depends on the order of the clients
            generator = seeds.stream(self.task.seed, "order", t)
            blocks = [blocks[i] for i in torch.randperm(len(blocks), generator=generator)]
        parameters = tree.parameters_only(self.nets[self.widest_spec])
        names = before.keys() if options.bn_buffers else parameters
        mean = average_blocks(
            blocks, before, options, names, by_width=self._by_width, counts=counts
        )
        return {self.widest_spec: mean}

    def _block(self, submodel: Submodel, w: StateDict, widest: StateDict, weight: float) -> Block:
        """Return the client's block; of the head it has the rows of the client's classes only."""
        places = block(widest, self.task.expected(submodel.spec), submodel.window)
        if submodel.classes is None:
            return Block(w, places, weight)
        rows = torch.tensor(submodel.classes)
        for name in HEAD:
            columns = places[name][1:] or tuple(torch.arange(n) for n in widest[name].shape[1:])
            places[name] = (rows, *columns)
        return Block({**w, **{name: w[name][rows] for name in HEAD}}, places, weight)


def average_blocks(
    blocks: Sequence[Block],
    previous: StateDict,
    options: Average,
    names: Iterable[str],
    *,
    by_width: bool = False,
    counts: Mapping[str, Tensor] | None = None,
) -> StateDict:
    """Return the widest network from its ``previous`` and the clients' blocks in order of k.

    Only the entries ``names`` are averaged; ``robust`` applies among the owners of each number.
    ``by_width``: multiply p_k in a convolution by the client's number of output channels.
    ``counts``: entries of ``counted`` means, whose counts are increased in place.
    """
    counts = counts or {}
    names = frozenset(names)
    states = [next(iter(clipped([b.w], cut(previous, b.places), options, names))) for b in blocks]
    result = dict(previous)
    for name in progress.steps(previous, "entry"):
        if name in names:
            sent = [(state[name], b.places[name]) for state, b in zip(states, blocks, strict=True)]
            if name in counts:
                result[name] = counted(previous[name], sent, counts[name])
                continue
            weights = [
                b.weight * (len(value) if by_width and value.dim() > 2 else 1)
                for b, (value, _) in zip(blocks, sent, strict=True)
            ]
            result[name] = _entry(previous[name], sent, weights, options)
    return result


def counted(before: Tensor, sent: Sequence[tuple[Tensor, Places]], counts: Tensor) -> Tensor:
    """Return the mean of one entry in which each client weighs the count of each number.

    A client increases the ``counts`` of its numbers by 1, in place, before the next client's turn.
    """
    sums, totals = (torch.zeros_like(before, dtype=torch.float64) for _ in range(2))
    for value, axes in sent:
        where = grid(axes) or ...
        sums[where] += counts[where].double() * value.double()
        totals[where] += counts[where].double()
        counts[where] += 1
    return torch.where(totals > 0, sums / totals, before.double()).to(before.dtype)


def _entry(
    before: Tensor,
    sent: Sequence[tuple[Tensor, Places]],
    weights: Sequence[float],
    options: Average,
) -> Tensor:
    if not any(axes for _, axes in sent):
        return combine([{"": value} for value, _ in sent], weights, options)[""]
    if options.robust in ("median", "trimmed"):
        return _by_owners(before, sent, options)
    sums = torch.zeros_like(before, dtype=torch.float64)
    totals = torch.zeros(before.shape[:2], dtype=torch.float64)
    for (value, axes), weight in zip(sent, weights, strict=True):
        where = grid(axes) or ...
        sums[where] += weight * value.to(torch.float64)
        totals[where] += weight
    totals = totals.view(*before.shape[:2], *[1] * (before.dim() - 2))
    return torch.where(totals > 0, sums / totals, before).to(before.dtype)


def _by_owners(before: Tensor, sent: Sequence[tuple[Tensor, Places]], options: Average) -> Tensor:
    """Return the robust mean of one entry, for each group of numbers with the same owners."""
    owned = torch.zeros(len(sent), *before.shape[:2], dtype=torch.bool)
    values = torch.zeros(len(sent), *before.shape, dtype=before.dtype)
    for (value, axes), mask, full in zip(sent, owned, values, strict=True):
        where = grid(axes) or ...
        mask[where], full[where] = True, value
    result = before.clone()
    groups, group = torch.unique(owned.flatten(1), dim=1, return_inverse=True)
    for i, owners in enumerate(groups.T):
        if owners.any():
            where = (group == i).view(owned.shape[1:])
            states = [{"": full[where]} for full in values[owners]]
            result[where] = combine(states, [1] * len(states), options)[""]
    return result
