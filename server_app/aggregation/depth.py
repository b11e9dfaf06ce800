"""Average networks of several depths, each a part of the largest (``average.across``).

``layerwise``: every entry is averaged over all clients that have it (``mean.py``).

``depth``: Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous
Devices", KDD 2022. Sizes s_1 < … < s_m by their number of entries. The entries that ``average.own``
lists belong to a size, and are averaged among its clients. Every other entry is averaged over the
clients whose size does not own it. Weights are normalised over the clients that share an entry; an
entry that no client shares in this round stays unchanged.

Before that, momentum distillation: let Δ^(i) be the mean change of the clients of size s_i. In each
stage let L_i be the last block of s_i. The change of the clients of s_i in that block becomes

    Δ_{L_i} ← (1 − β) Δ_{L_i} + β mean(Δ^(i+1)_{L_i}, …, Δ^(i+1)_{L_{i+1}})

for the parameters that have one shape in all these blocks, without shortcuts. Nothing changes if no
client of size s_{i+1} replied. The Δ of the larger size are those before its own distillation.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise
from typing import final

import torch

from common.exchange import tree
from common.exchange.records import StateDict
from common.exchange.tree import check_nested, cut
from common.models.blocks import check_blocks, onward, own_entries
from server_app.aggregation.matching import Joint, States, T
from server_app.aggregation.mean import average_layers, bounded, combine
from server_app.method import Models, Replies

Uploads = Sequence[tuple[str, StateDict]]
"""Architecture and weights of each client, in order of k."""


@final
class Depth(Joint):
    """Server's models for clients whose networks have several depths.

    ``models`` has all entries of the largest architecture, and under ``depth`` the own entries of
    each other architecture (``self.own``, by architecture). ``self.layers`` are state dicts with
    the shapes of every architecture.
    """

    def model_specs(self, distinct: Mapping[str, StateDict]) -> list[str]:
        average = self.options
        self.layers = {spec: distinct[spec] for spec in self.specs}
        self.largest = check_nested(self.layers, average.across)
        check_blocks(self.layers, average)
        owned = average.own if average.across == "depth" else "none"
        self.own = {spec: own_entries(self.layers[spec], owned) for spec in self.specs}
        smaller = [spec for spec in self.specs if spec != self.largest and self.own[spec]]
        return [*smaller, self.largest]

    def initial(self, weights: Callable[[str], StateDict]) -> Models:
        return self.split(weights(self.largest))

    def split(self, w: StateDict) -> Models:
        """Return the models that the largest network's weights ``w`` give."""
        return {**{spec: cut(w, self.own[spec]) for spec in self.global_specs}, self.largest: w}

    def by_architecture(self, models: Models) -> Models:
        largest = models[self.largest]
        return {
            spec: cut({**largest, **models.get(spec, {})}, layers)
            for spec, layers in self.layers.items()
        }

    def merged(self, models: Models) -> StateDict:
        """Return one state dict; own entries of smaller sizes have keys ``architecture/entry``."""
        smaller = [(spec, own) for spec, own in models.items() if spec != self.largest]
        named = {f"{spec}/{name}": v for spec, own in smaller for name, v in own.items()}
        return {**models[self.largest], **named}

    def aggregate(self, t: int, replies: Replies[T], previous: Models, states: States[T]) -> Models:
        parameters = tree.parameters_only(self.nets[self.largest])
        of_clients = states(replies, previous[self.largest], parameters)
        uploads = [(c.architecture, w) for c, w in zip(replies.clients, of_clients, strict=True)]
        return self.average(uploads, replies.sizes, previous, parameters)

    def average(
        self, uploads: Uploads, sizes: Sequence[int], previous: Models, parameters: Set[str]
    ) -> Models:
        """Return the new models from the uploads in order of k.

        ``sizes``: training samples of these clients; ``previous``: the models before the round;
        ``parameters``: names of the entries that are not buffers.
        """
        options, before = self.options, self.by_architecture(previous)
        # Clip whole uploads first: distillation carries a client's change into those of others, and
        # each mean below has only some of its entries.
        if options.across == "depth":
            if options.robust == "clip":  # each upload as a whole
                names = previous[self.largest].keys() if options.bn_buffers else parameters
                most = options.clip_norm
                uploads = [(spec, bounded(w, before[spec], most, names)) for spec, w in uploads]
                options = options.model_copy(update={"robust": "none"})
            uploads = self._distilled(uploads, sizes, before, parameters)
        # Own entries: average each smaller size among its clients.
        smaller: Models = {}
        for spec in self.global_specs[:-1]:
            members = [i for i, (architecture, _) in enumerate(uploads) if architecture == spec]
            own = [cut(uploads[i][1], self.own[spec]) for i in members]
            n = [sizes[i] for i in members]
            smaller[spec] = average_layers(own, n, previous[spec], options, parameters)
        # All other entries: average over every client that has them and does not own them. This
        # mean covers the largest size's own entries too, because no smaller client shares them.
        unshared = {**self.own, self.largest: ()}
        shared = [{n: v for n, v in w.items() if n not in unshared[spec]} for spec, w in uploads]
        largest = average_layers(shared, sizes, previous[self.largest], options, parameters)
        return {**smaller, self.largest: largest}

    def _distilled(
        self, uploads: Uploads, sizes: Sequence[int], before: Models, parameters: Set[str]
    ) -> Uploads:
        """Return the uploads after momentum distillation of all sizes but the largest.

        The clients of the next larger size are the teachers, those of the smaller the students.
        ``before``: models before the round, by architecture. Teachers come from ``uploads``, not
        from ``distilled``: their changes are those before their own distillation.
        """
        options, distilled = self.options, [(spec, dict(w)) for spec, w in uploads]
        if options.beta == 0:
            return distilled
        for small, large in pairwise(self.specs):
            teachers = [i for i, (spec, _) in enumerate(uploads) if spec == large]
            students = [w for spec, w in distilled if spec == small]
            if not teachers or not students:
                continue
            # Mean model of the teachers; its change is Δ^(i+1).
            weights = options.shares([sizes[i] for i in teachers])
            mean = combine([uploads[i][1] for i in teachers], weights, options)
            # ``name``: an entry of the students' last blocks; ``taught_by``: the same entry in the
            # teachers' blocks from there on, whose mean change is ``taught``.
            for name, taught_by in onward(before[small], before[large], options.stages).items():
                if name not in parameters:
                    continue
                steps = [mean[n].double() - before[large][n].double() for n in taught_by]
                taught, start = torch.stack(steps).mean(0), before[small][name].double()
                for w in students:
                    step = w[name].double() - start
                    w[name] = (start + step + options.beta * (taught - step)).to(w[name].dtype)
        return distilled
