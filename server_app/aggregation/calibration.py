"""Cached update calibration (CA2FL): what a step of asynchronous rounds adds to the updates.

Wang et al., "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration", ICLR 2024. Δ_k = w_k − w_v is client k's change of the version that it was sent, h_k
its change before, 0 at first, and N the number of clients in the roster. A step has

    u = H + 1/K Σ_k (Δ_k − h_k) over the K clients in the buffer,   H = 1/N Σ_k h_k over the roster
    w ← w + η_g u,   then h_k ← Δ_k for these clients

so that client k's model counts as w + H + Δ_k − h_k in the mean. η_g is ``average.server-lr`` of
the optimizer ``sgd``. A client that left has h_k = 0. No update is weighted by its age.

Each h_k is a file; Σ_k h_k is in the checkpoint, in float64, and a step changes it by the clients
of the buffer, because reading N files at each step would take too long.
"""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import final

from torch import Tensor

from common.exchange import tree
from common.exchange.records import Records, StateDict
from server_app.aggregation.cached import State, Uploads


@final
class Update(Records, kind="ca2fl.Update"):
    """A client's newest change h_k, by entry; an entry that is missing is 0."""

    h: StateDict


@final
class Cache:
    """The newest change of every client, in the folder of a run, and their sum.

    ``keep``: number of checkpoints whose changes stay on the disk.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._updates = Uploads(Update, folder, limit=0, keep=keep)
        self._total: StateDict = {}  #: Σ_k h_k, float64
        self._left = set[int]()  #: clients without an empty file yet, of which h_k is 0

    def _change(self, k: int) -> StateDict:
        """Return h_k."""
        known = k in self._updates and k not in self._left
        return self._updates.get(k).h if known else {}

    def retain(self, members: Set[int]) -> None:
        """Set h_k to 0 for all clients but ``members``."""
        for k in sorted(self._updates.rounds.keys() - members):
            if h := self._change(k):
                self._add({}, h)
                self._left.add(k)

    def correction(self, k: int, roster: int) -> StateDict:
        """Return H − h_k by entry, float64, for a roster of N clients."""
        h = self._change(k)
        return {
            name: total / roster - (h[name].double() if name in h else 0.0)
            for name, total in self._total.items()
        }

    def put(self, t: int, trained: Mapping[int, tuple[StateDict, StateDict]]) -> None:
        """Set h_k ← w_k − w_v for the clients of step t; by client the weights w_v and w_k.

        BatchNorm's statistics and integers have no change.
        """
        updates = {}
        for k, (sent, w) in trained.items():
            names = [name for name, value in w.items() if value.is_floating_point()]
            names = [name for name in names if not name.endswith(tree.STATISTICS)]
            change = {n: (w[n].double() - sent[n].double()).to(w[n].dtype) for n in names}
            self._add(change, self._change(k))
            updates[k] = Update(h=change)
        gone = {k: Update(h={}) for k in self._left - trained.keys()}
        self._updates.put(t, [*gone.items(), *updates.items()])
        self._left = set()

    def _add(self, change: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
        """Add ``change`` in place of ``before`` to the sum."""
        for name in {**change, **before}:
            for sign, h in ((1, change), (-1, before)):
                if name in h:
                    moved = sign * h[name].double()
                    self._total[name] = self._total[name] + moved if name in self._total else moved

    def state(self, inner: Mapping[str, object]) -> State:
        """Return a method's state (``inner``) with the changes and their sum."""
        return self._updates.state(dict(inner), {"sum": dict(self._total)})

    def restore(self, state: Mapping[str, object]) -> dict[str, object]:
        """Restore the changes from a checkpoint; return the method's own state.

        Raises ``ValueError`` if a file is missing.
        """
        inner, kept = self._updates.restore(state)
        self._total, self._left = dict(kept["sum"]), set()
        return inner
