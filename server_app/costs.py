"""Record the costs of a round: operations and memory of server and clients."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from common.exchange.protocol import FineTunedScoreReply, Reply
from common.journal import Entry, PeakMemory
from common.settings.config import Run
from common.training import costs
from server_app.method import Client


@contextmanager
def of_server(entry: Entry, run: Run) -> Iterator[None]:
    """Add the costs of the ``with`` block to the server's, if the run measures them."""
    with costs.counting(run.flops) as operations, costs.following(run.memory) as memory:
        yield
    _add(entry, run, "server", operations.total, PeakMemory(server=memory.most))


def of_clients(
    entry: Entry,
    run: Run,
    replies: Iterable[tuple[Client, Reply | FineTunedScoreReply]],
    side: str = "clients",
) -> None:
    """Add the costs that the clients report to those of ``side``, if the run measures them."""
    metrics = {client.k: reply.metrics for client, reply in replies}
    operations = sum(int(values.get(costs.FLOPS, 0.0)) for values in metrics.values())
    most = {k: values.get(costs.MEMORY, 0.0) for k, values in metrics.items()}
    _add(entry, run, side, operations, PeakMemory(clients=most))


def _add(entry: Entry, run: Run, side: str, operations: int, memory: PeakMemory) -> None:
    """Add operations to the entry's sum, and include memory in its maximum."""
    if run.flops:
        entry.flops = {**entry.flops, side: entry.flops.get(side, 0) + operations}
    if run.memory:
        entry.memory = PeakMemory.most([entry.memory, memory]) if entry.memory else memory
