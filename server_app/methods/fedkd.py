"""FedKD, server half: average the mentees' updates and compress their mean."""

from collections.abc import Callable, Iterator
from typing import final

from torch import Tensor

from common.exchange import protocol, tree
from common.exchange.records import Records, StateDict
from common.methods.fedkd import Options, Reply, Request
from common.techniques import low_rank
from common.techniques.low_rank import Compressed
from server_app.aggregation.mean import average
from server_app.aggregation.staleness import Discount
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Replies


@final
class State(Records, kind="fedkd.State"):
    w: StateDict
    update: Compressed
    since: int
    holders: list[int]


@final
class FedKD(GlobalModel[Options, Reply]):
    """Server with w ← w + C(1/|S_t| Σ_k C(w_k − w))."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.update: Compressed = {}  #: the last change of w
        self.since = 0  #: its round
        self.holders: list[int] = []  #: clients that have stored w before this change

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:
            self.holders = [k for k in self.holders if k != client.k]

    def request(self, t: int) -> Callable[[Client], Request]:
        whole = Request(w=self.w, update=None, since=0)
        if self.config.buffered or not self.holders:
            return lambda client: whole
        change = Request(w=None, update=self.update, since=self.since)
        return lambda client: change if client.k in self.holders else whole

    def check(self, client: Client, reply: Reply) -> None:
        expected = self.task.expected(self.global_spec)
        low_rank.check(reply.update, expected, "update")
        trained = low_rank.apply(self._base(self.sent[client.k]), reply.update)
        tree.check_like(trained, expected, "w")

    def _base(self, sent: protocol.Request) -> StateDict:
        """Return the w that the client of a request trains."""
        assert isinstance(sent, Request)
        return self.w if sent.w is None else sent.w

    def change(self, sent: protocol.Request, reply: Reply) -> Iterator[tuple[str, Tensor]]:
        base = self._base(sent)
        moved = tree.steps(base, low_rank.apply(base, reply.update))
        yield from ((n, x) for n, x in moved if n in self.parameter_names)

    def rebased(self, client: Client, reply: Reply, discount: Discount) -> Reply:
        sent = self._base(self.sent[client.k])
        w = discount(self.w, sent, low_rank.apply(sent, reply.update))
        update = {name: [value - self.w[name]] for name, value in w.items()}
        return reply.model_copy(update={"update": update})

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        states = [low_rank.apply(self.w, reply.update) for _, reply in replies]
        options, parameters = self.config.average, self.parameter_names
        p = options.shares(replies.sizes)
        mean = average(states, p, self.w, options, parameters)
        change = {name: value - self.w[name] for name, value in mean.items()}
        energy = self.options.energy(t, self.config.run.rounds)
        self.update, self.since = low_rank.compress(change, energy), t
        self.w = low_rank.apply(self.w, self.update)
        self.holders = [client.k for client in replies.clients]
        return {}
