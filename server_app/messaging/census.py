"""Round 0: who is there? The server refuses a federation that does not fit, naming the client."""

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
from server_app.global_model import Averaged
from server_app.messaging.messenger import Messenger
from server_app.method import Client, Method
from server_app.stopped import Stopped

ASK_AGAIN = 0.25
FROM = 3  #: clients, of whom a median or a trimmed mean leaves one out
LEFT = "Node Unavailable"  #: Flower's words for a node that is not connected

log = logging.getLogger("flwr.fedmosaic")


def wait_for_nodes(grid: Grid, config: Config) -> list[int]:
    """Node ids of the federation, as soon as ``clients`` of them are online.

    With ``clients = 0`` whoever is online once the number has not changed for two seconds.
    Raises ``Stopped`` after ``wait`` seconds, or if there are more than there should be, or fewer
    than are to be selected.
    """
    expected, start = config.run.clients, time.monotonic()
    online, since = sorted(grid.get_node_ids()), start
    while not online or (len(online) < expected if expected else time.monotonic() - since < 2.0):
        if time.monotonic() - start > config.run.wait:
            raise Stopped(
                f"{len(online)} of {expected or 'at least 1'} clients connected within "
                f"wait = {config.run.wait:g} s"
            )
        time.sleep(ASK_AGAIN)
        if (found := sorted(grid.get_node_ids())) != online:
            online, since = found, time.monotonic()
    if expected and len(online) > expected:
        raise Stopped(f"{len(online)} clients are connected, but clients = {expected}")
    if (size := config.run.per_round) > len(online):
        raise Stopped(f"per-round = {size} is more than the {len(online)} clients")
    return online


def take_census(grid: Grid, nodes: list[int], messenger: Messenger, task: Task) -> list[Client]:
    """Ask every node who it is; clients in order of k.

    Raises ``Stopped`` naming the client for: no good answer, an id that two nodes claim or that is
    out of range, another code version, another task, classes or counts that cannot be.
    """
    clients: list[Client] = []
    for node, reply in _hello(grid, nodes, messenger).items():
        try:
            clients.append(Client(messenger.info(node, reply), node))
        except ValueError as error:
            raise Stopped(f"census: node {node}: {error}") from error
    infos = [client.info for client in clients]
    check_peers(infos, len(nodes), messenger.experiment, task, messenger.config.run.max_samples)
    check_kept(infos, messenger.kept, messenger.after)
    return sorted(clients, key=lambda client: client.k)


def _hello(grid: Grid, nodes: list[int], messenger: Messenger) -> dict[int, Message]:
    """Everybody's answer, by node. A node that has just left is waited for, as before the census:
    it may be one that signs on and off while it starts.
    """
    start, answers = time.monotonic(), dict[int, Message]()
    while True:
        missing = [node for node in nodes if node not in answers]
        asked = messenger.census_messages(missing, len(nodes))
        replies, failures = messenger.channel.exchange(grid, asked, messenger.config.run.timeout, 0)
        answers |= {missing[i]: reply for i, reply in replies.items()}
        failures = [failure for failure in failures if failure.k not in replies]
        if not failures:
            return {node: answers[node] for node in nodes}
        first = next((each for each in failures if LEFT not in each.reason), failures[0])
        if LEFT not in first.reason or time.monotonic() - start > messenger.config.run.wait:
            raise Stopped(f"census: node {missing[first.k]} answered: {first.reason}")
        size = len(nodes)
        nodes = wait_for_nodes(grid, messenger.config)
        if len(nodes) != size:  # only with clients = 0; everybody was told another number
            answers = {}


def describe(entry: Entry, method: Method[MethodOptions, Reply]) -> None:
    """Write down the clients that were found, and what is learnt."""
    entry.clients = [
        Member(
            parameters=method.task.parameters(client.model),
            **client.info.model_dump(include={*Member.model_fields}),
        )
        for client in method.clients
    ]
    entry.classes = list(method.task.classes)
    if said := unprotected(method):
        log.warning(said)
        entry.notes = [said]
    if missing := method.uncovered():
        entry.uncovered = missing
    entry.failures, entry.bytes = [], {"down": 0, "up": 0}


def unprotected(method: Method[MethodOptions, Reply]) -> str:
    """A line for whoever counts on ``average.robust``, if some entry of a model is averaged over
    one or two clients alone; else nothing. After the census.
    """
    average, run = method.config.average, method.config.run
    if not isinstance(method, Averaged) or average.robust not in ("median", "trimmed"):
        return ""
    owners: Counter[object] = Counter()
    having: dict[object, set[str]] = {}
    for client in method.clients:
        spec = method.trains(client)
        for name, value in method.task.expected(spec).items():
            entry = (spec if average.across == "same" else "", name, tuple(value.shape))
            owners[entry] += 1
            having.setdefault(entry, set()).add(spec)
    few = min(run.per_round or len(method.clients), len(method.clients))
    alone = {spec for entry, n in owners.items() if min(n, few) < FROM for spec in having[entry]}
    if not alone:
        return ""
    return (
        f'average.robust = "{average.robust}" protects nothing where the average is of one or two '
        f"clients: parameters of {', '.join(sorted(alone))}"
    )


def check_peers(
    infos: list[ClientInfo], size: int, experiment: str, task: Task, max_samples: int = 2**40
) -> None:
    """Raise ``Stopped`` unless the peers are clients 0 … size−1 of this experiment and task."""
    claimed, version = Counter(info.k for info in infos), version_of(task.config)
    for info in infos:
        if claimed[info.k] > 1:
            raise Stopped(f"census: {claimed[info.k]} nodes claim to be client {info.k}")
        if info.k >= size:
            raise Stopped(f"census: client {info.k} in a federation of {size}")
        for what, theirs, ours in (
            ("experiment", info.experiment, experiment),
            ("code version", info.version, version),
            ("task (shape/classes/names)", info.task, task.fingerprint),
        ):
            if theirs != ours:
                raise Stopped(f"census: client {info.k} has {what} {theirs!r}, the server {ours!r}")
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
    """Raise ``Stopped`` if a client has lost state on which the checkpoint of round t counts.

    ``kept``: the round of each client's newest state then; newer state is fine.
    """
    wrong = [info for info in infos if info.kept < kept.get(info.k, 0)]
    if wrong:
        info, more = wrong[0], f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        has = f"state of round {info.kept}" if info.kept else "no state"
        raise Stopped(
            f"census: client {info.k}{more} has {has} of experiment {info.experiment!r}, the "
            f"checkpoint of round {t} needs that of round {kept[info.k]}: give it the state-dir "
            "that it had, as it was"
        )


def _wrong_numbers(info: ClientInfo, classes: int, max_samples: int) -> str:
    """What cannot be of a client's samples and classes; empty if all can."""
    for what, n in (("training", info.n), ("test", info.n_test)):
        if n > max_samples:
            return f"claims {n} {what} samples, max-samples = {max_samples}"
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
