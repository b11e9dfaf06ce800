"""What a round costs: operations and memory of server and clients."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from common.exchange.protocol import Reply
from common.journal import Entry, PeakMemory
from common.settings.config import Run
from common.training import costs
from server_app.method import Client


@contextmanager
def of_server(entry: Entry, run: Run) -> Iterator[None]:
    """Add what the block costs to what the round costs the server, where the run asks for it."""
    with costs.counting(run.flops) as spent, costs.following(run.memory) as held:
        yield
    _note(entry, run, "server", spent.total, PeakMemory(server=held.most))


def of_clients(entry: Entry, run: Run, replies: Iterable[tuple[Client, Reply]]) -> None:
    """Add what the clients say that their work cost, where the run asks for it."""
    metrics = {client.k: reply.metrics for client, reply in replies}
    spent = sum(int(told.get(costs.FLOPS, 0.0)) for told in metrics.values())
    most = {k: told.get(costs.MEMORY, 0.0) for k, told in metrics.items()}
    _note(entry, run, "clients", spent, PeakMemory(clients=most))


def _note(entry: Entry, run: Run, whose: str, spent: int, memory: PeakMemory) -> None:
    """Operations add up; of memory the most counts that tensors took at once."""
    if run.flops:
        entry.flops = {**entry.flops, whose: entry.flops.get(whose, 0) + spent}
    if run.memory:
        entry.memory = PeakMemory.most([entry.memory, memory]) if entry.memory else memory
