"""Round 0: collect information about every client, and refuse a federation that does not fit."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from common.exchange.protocol import ClientInfo, Reply
from common.journal import Entry, Member
from common.settings.config import Config, MethodOptions
from common.settings.names import check_brought, version_of
from common.training.task import Task
from server_app.aggregation import privacy
from server_app.global_model import Averaged
from server_app.messaging.messenger import Messenger
from server_app.method import Client, Method
from server_app.stopped import Stopped

POLL = 0.25  #: seconds between two looks at the list of nodes
FEWEST = 3  #: the fewest clients of which a median or a trimmed mean leaves one out
LIMITED = ("median", "trimmed", "geometric-median")  #: robust means that need so many clients
LEFT = "Node Unavailable"  #: Flower's message for a node that is not connected

log = logging.getLogger("flwr.fedmosaic")


def wait_for_nodes(grid: Grid, config: Config) -> list[int]:
    """Wait until ``clients`` nodes are online, and return their ids.

    With ``clients = 0`` return the nodes that are online once their list has not changed for two
    seconds. Raises ``Stopped`` after ``wait`` seconds, for more nodes than ``clients``, or for
    fewer than ``per-round``.
    """
    expected, start = config.run.clients, time.monotonic()
    online, since = sorted(grid.get_node_ids()), start
    while not online or (len(online) < expected if expected else time.monotonic() - since < 2.0):
        if time.monotonic() - start > config.run.wait:
            raise Stopped(
                f"{len(online)} of {expected or 'at least 1'} clients connected within "
                f"wait = {config.run.wait:g} s"
            )
        time.sleep(POLL)
        if (nodes := sorted(grid.get_node_ids())) != online:
            online, since = nodes, time.monotonic()
    if expected and len(online) > expected:
        raise Stopped(f"{len(online)} clients are connected, but clients = {expected}")
    if (size := config.run.per_round) > len(online):
        raise Stopped(f"per-round = {size} is more than the {len(online)} clients")
    return online


def take_census(grid: Grid, nodes: list[int], messenger: Messenger, task: Task) -> list[Client]:
    """Request the information of every node, and return the clients in order of k.

    Raises ``Stopped`` naming the client for: no valid reply, an id that two nodes claim or that is
    out of range, another code version, another task, impossible classes or counts.
    """
    clients: list[Client] = []
    for node, reply in _census_replies(grid, nodes, messenger).items():
        try:
            clients.append(Client(messenger.info(node, reply), node))
        except ValueError as error:
            raise Stopped(f"census: node {node}: {error}") from error
    infos = [client.info for client in clients]
    check_peers(infos, len(nodes), messenger.experiment, task, messenger.config.run.max_samples)
    check_kept(infos, messenger.kept, messenger.after)
    return sorted(clients, key=lambda client: client.k)


def _census_replies(grid: Grid, nodes: list[int], messenger: Messenger) -> dict[int, Message]:
    """Return the reply of every node, by node id.

    Wait again for a node that has just left, because a node may sign on and off while it starts.
    """
    start, received = time.monotonic(), dict[int, Message]()
    while True:
        missing = [node for node in nodes if node not in received]
        sent = messenger.census_messages(missing, len(nodes))
        replies, failures = messenger.channel.exchange(grid, sent, messenger.config.run.timeout, 0)
        received |= {missing[i]: reply for i, reply in replies.items()}
        failures = [failure for failure in failures if failure.k not in replies]
        if not failures:
            return {node: received[node] for node in nodes}
        first = next((failure for failure in failures if LEFT not in failure.reason), failures[0])
        if LEFT not in first.reason or time.monotonic() - start > messenger.config.run.wait:
            raise Stopped(f"census: node {missing[first.k]} answered: {first.reason}")
        size = len(nodes)
        nodes = wait_for_nodes(grid, messenger.config)
        if len(nodes) != size:  # only with clients = 0; the requests had another number of clients
            received = {}


def describe(entry: Entry, method: Method[MethodOptions, Reply]) -> None:
    """Write the clients, the classes and the warnings of the census into the journal entry."""
    entry.clients = [
        Member(
            parameters=method.task.parameters(client.architecture),
            **client.info.model_dump(include={*Member.model_fields}),
        )
        for client in method.clients
    ]
    entry.classes = list(method.task.classes)
    config, clients = method.config, len(method.clients)
    lines = unprotected(method), privacy.warning(config, clients), method.warning()
    if warnings := [*filter(None, lines)]:
        log.warning("; ".join(warnings))
        entry.notes = warnings
    if missing := method.uncovered():
        entry.uncovered = missing
    entry.failures, entry.bytes = [], {"down": 0, "up": 0}


def unprotected(method: Method[MethodOptions, Reply]) -> str:
    """Return a warning if ``average.robust`` averages some parameter over fewer than three clients.

    Otherwise return an empty string. Call it after the census.
    """
    average, run = method.config.average, method.config.run
    if not isinstance(method, Averaged) or average.robust not in LIMITED:
        return ""
    owners: Counter[object] = Counter()
    specs: dict[object, set[str]] = {}
    for client in method.clients:
        spec = method.trains(client)
        for name, value in method.task.expected(spec).items():
            entry = (spec if average.across == "same" else "", name, tuple(value.shape))
            owners[entry] += 1
            specs.setdefault(entry, set()).add(spec)
    most = min(run.per_round or len(method.clients), len(method.clients))
    weak = {spec for entry, n in owners.items() if min(n, most) < FEWEST for spec in specs[entry]}
    if not weak:
        return ""
    return (
        f'average.robust = "{average.robust}" protects nothing where the average is of one or two '
        f"clients: parameters of {', '.join(sorted(weak))}"
    )


def check_peers(
    infos: list[ClientInfo], size: int, experiment: str, task: Task, max_samples: int = 2**40
) -> None:
    """Raise ``Stopped`` unless ``infos`` are of clients 0 … size−1 of this experiment and task."""
    claimed, version = Counter(info.k for info in infos), version_of(task.config)
    for info in infos:
        if claimed[info.k] > 1:
            raise Stopped(f"census: {claimed[info.k]} nodes claim to be client {info.k}")
        if info.k >= size:
            raise Stopped(f"census: client {info.k} in a federation of {size}")
        for name, value, expected in (
            ("experiment", info.experiment, experiment),
            ("code version", info.version, version),
            ("task (shape/classes/names)", info.task, task.fingerprint),
        ):
            if value != expected:
                line = f"client {info.k} has {name} {value!r}, the server {expected!r}"
                raise Stopped(f"census: {line}")
        try:
            check_brought(info.model, task.config)
        except ValueError as error:
            raise Stopped(f"census: client {info.k}: {error}") from None
        if wrong := _wrong_numbers(info, task.num_classes, max_samples):
            raise Stopped(f"census: client {info.k} {wrong}")
    prints = Counter(info.public for info in infos)
    if len(prints) > 1:
        usual = prints.most_common(1)[0][0]
        odd = min(info.k for info in infos if info.public != usual)
        raise Stopped(f"census: client {odd} has another public set than the others")


def check_kept(infos: Sequence[ClientInfo], kept: Mapping[int, int], t: int) -> None:
    """Raise ``Stopped`` if a client has lost state that the checkpoint of round t needs.

    ``kept``: the round of each client's newest state at that checkpoint; newer state is allowed.
    """
    wrong = [info for info in infos if info.kept < kept.get(info.k, 0)]
    if wrong:
        info, more = wrong[0], f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        has = f"state of round {info.kept}" if info.kept else "no state"
        raise Stopped(
            f"census: client {info.k}{more} has {has} of experiment {info.experiment!r}, the "
            f"checkpoint of round {t} needs that of round {kept[info.k]}: start the client with "
            "its former state-dir, unchanged"
        )


def _wrong_numbers(info: ClientInfo, classes: int, max_samples: int) -> str:
    """Return what is impossible about a client's samples or classes; empty if nothing is."""
    for part, n in (("training", info.n), ("test", info.n_test)):
        if n > max_samples:
            return f"claims {n} {part} samples, max-samples = {max_samples}"
    if info.classes != sorted({c for c in info.classes if c < classes}) or not info.classes:
        shown = str(info.classes[:20])
        return f"claims classes {shown}, allowed are 0 to {classes - 1}, each once, ascending"
    if info.counts is not None and (
        len(info.counts) != classes
        or sum(info.counts) != info.n
        or [c for c, count in enumerate(info.counts) if count] != info.classes
    ):
        return f"claims class counts that are not those of its {info.n} samples"
    return ""
