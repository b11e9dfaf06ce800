"""Round 0: collect information about every client, and refuse a federation that does not fit."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import final

from flwr.app import Message
from flwr.serverapp import Grid

from common.exchange.protocol import NO_PLACE, ClientInfo, Reply
from common.journal import Entry, Member
from common.names import check_brought, version_of
from common.settings.config import Config, MethodOptions
from common.training.task import Task
from server_app.aggregation import privacy
from server_app.global_model import Averaged
from server_app.messaging.messenger import Messenger
from server_app.method import Client, Method
from server_app.secure import sums as secure
from server_app.stopped import Stopped

UNORDERED = (
    "without profiles updates count as they arrive: another run differs, unless its membership is "
    "the journal of this one"
)
POLL = 0.25  #: seconds between two looks at the list of nodes
SETTLED = 2.0  #: seconds without a change after which the list of nodes is complete
FEWEST = 3  #: the fewest clients of which a median or a trimmed mean leaves one out
LIMITED = ("median", "trimmed", "geometric-median")  #: robust means that need so many clients

log = logging.getLogger("flwr.fedmosaic")


@final
@dataclass(frozen=True)
class Census:
    """Result of the census: the ``clients`` in order of k, of a roster of ``size`` clients.

    ``strangers``: why the federation has no place for further nodes, by node.
    """

    clients: list[Client]
    size: int
    strangers: dict[int, str]


def wait_for_nodes(
    grid: Grid, config: Config, size: int, strangers: Mapping[int, str] | None = None
) -> list[int]:
    """Wait until enough nodes are online, and return the ids of all but the ``strangers``.

    Enough are ``size`` nodes. With ``min-clients``, or with ``size`` = 0 (unknown), enough are also
    fewer nodes, at least ``min-clients``, once their list has not changed for two seconds.

    Raises ``Stopped`` after ``wait`` seconds.
    """
    run, start, strangers = config.run, time.monotonic(), strangers or {}
    fewest = run.min_clients or size or 1
    online, since = sorted({*grid.get_node_ids()} - strangers.keys()), start
    while not 0 < size <= len(online):
        if len(online) >= fewest and time.monotonic() - since >= SETTLED:
            break
        if time.monotonic() - start > run.wait:
            others = "".join(f"; node {node}: {why}" for node, why in strangers.items())
            raise Stopped(
                f"{len(online)} of {run.min_clients or size or 'at least 1'} clients "
                f"connected within wait = {run.wait:g} s{others}"
            )
        time.sleep(POLL)
        if (nodes := sorted({*grid.get_node_ids()} - strangers.keys())) != online:
            online, since = nodes, time.monotonic()
    return online


def take_census(grid: Grid, messenger: Messenger, task: Task, size: int) -> Census:
    """Request the information of every node until enough clients have a valid reply.

    ``size``: number of clients of the roster; 0: the number that the connected nodes expect.
    Enough are ``min-clients``, or else all of the roster. Other nodes are strangers then: without
    a place, of another run, or with an error. Raises ``Stopped`` naming the client if there are not
    enough: without a valid reply, with another code version, another task, impossible classes or
    counts; also for an id that two nodes claim, and for nodes that expect different numbers.
    """
    run, strangers = messenger.config.run, dict[int, str]()
    while True:
        nodes = wait_for_nodes(grid, messenger.config, size, strangers)
        replies, failed = _census_replies(grid, nodes, messenger, size, strangers)
        infos = dict[int, ClientInfo]()
        for node, reply in replies.items():
            try:
                infos[node] = messenger.info(node, reply)
            except ValueError as error:
                failed[node] = str(error)
        if not size and infos:
            size = _expected_size([*infos.values()])
            if run.per_round > size:
                raise Stopped(f"per-round = {run.per_round} is more than the {size} clients")
            try:
                messenger.config.replies(size)
            except ValueError as error:
                raise Stopped(str(error), released=str(error)) from None
        limits = size, messenger.experiment, task, run.max_samples
        wrong = {node: why for node, info in infos.items() if (why := why_not(info, *limits))}
        good = {node: info for node, info in infos.items() if node not in wrong}
        check_together([*good.values()])
        if len(good) >= (run.min_clients or size or 1):
            break
        placeless = {n: wrong[n] for n, info in infos.items() if info.k >= size}
        placeless |= {node: why for node, why in failed.items() if NO_PLACE in why}
        for node, why in (wrong | failed).items():
            if node not in placeless:
                raise Stopped(f"census: {why if node in wrong else f'node {node} answered: {why}'}")
        strangers |= placeless
    strangers |= wrong | failed
    clients = [Client(info, node) for node, info in good.items()]
    return Census(sorted(clients, key=lambda client: client.k), size, strangers)


def _expected_size(infos: Sequence[ClientInfo]) -> int:
    """Return how many clients the nodes expect; raise ``Stopped`` if they do not agree."""
    first = infos[0]
    for other in infos:
        if other.clients != first.clients:
            raise Stopped(
                f"census: client {other.k} expects {other.clients} clients, client {first.k} "
                f"{first.clients}: start all nodes with the same --clients, or set clients"
            )
    return first.clients


def _census_replies(
    grid: Grid, nodes: list[int], messenger: Messenger, size: int, strangers: Mapping[int, str]
) -> tuple[dict[int, Message], dict[int, str]]:
    """Return the replies by node id, and by node id why another node has none.

    Wait again for a node that has just left, because a node may sign on and off while it starts.
    """
    config, start, received = messenger.config, time.monotonic(), dict[int, Message]()
    failed: dict[int, str] = {}
    while True:
        missing = [node for node in nodes if node not in received and node not in failed]
        sent = messenger.census_messages(missing, size)
        replies, failures = messenger.channel.exchange(grid, sent, config.run.timeout, 0)
        received |= {missing[i]: reply for i, reply in replies.items()}
        lost = {missing[f.k]: f for f in failures if f.k not in replies}
        late = time.monotonic() - start > config.run.wait
        final = {node: f for node, f in lost.items() if late or f.kind != "unreachable"}
        failed |= {node: failure.reason for node, failure in final.items()}
        if lost.keys() <= failed.keys():
            return {node: received[node] for node in nodes if node in received}, failed
        nodes = wait_for_nodes(grid, config, size, strangers)


def member(task: Task, client: Client) -> Member:
    """Return a client in the form of the journal."""
    fields = {*Member.model_fields} - (set() if client.info.tags else {"tags"})
    return Member(
        parameters=task.parameters(client.architecture), **client.info.model_dump(include=fields)
    )


def describe(
    entry: Entry, method: Method[MethodOptions, Reply], strangers: Mapping[int, str]
) -> None:
    """Write the clients, the classes and the warnings of the census into the journal entry.

    ``strangers``: why nodes are ignored, by node.
    """
    entry.clients = [member(method.task, client) for client in method.clients]
    if not method.task.objective.every:  # a vocabulary is long, and ``model.json`` has it
        entry.classes = list(method.task.classes)
    released = privacy.warning(method.config, method.roster_size)
    config = method.config
    unordered = config.buffered and not config.on_clock and not config.replays_jobs
    lines = [unprotected(method), released, method.warning(), UNORDERED if unordered else ""]
    lines += secure.notes(config, method.clients)
    ignored = (f"node {node} is ignored: {why}" for node, why in strangers.items())
    lines += () if method.config.privacy.on else ignored
    if warnings := [*filter(None, lines)]:
        log.warning("; ".join(warnings), extra={"released": released})
        entry.notes = warnings
    if missing := method.uncovered():
        entry.uncovered = missing
    entry.failures, entry.bytes = [], {"down": 0, "up": 0}


def unprotected(method: Method[MethodOptions, Reply]) -> str:
    """Return a warning if ``average.robust`` averages some parameter over fewer than three clients.

    Otherwise return an empty string. Call it after the census.
    """
    average = method.config.average
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
    most = min(method.config.replies(len(method.clients)), len(method.clients))
    weak = {spec for entry, n in owners.items() if min(n, most) < FEWEST for spec in specs[entry]}
    if not weak:
        return ""
    return (
        f'average.robust = "{average.robust}" protects nothing where the average is of one or two '
        f"clients: parameters of {', '.join(sorted(weak))}"
    )


def check_together(infos: Sequence[ClientInfo]) -> None:
    """Raise ``Stopped`` if two nodes claim to be one client, or for different public sets."""
    k, claims = max(Counter(info.k for info in infos).items(), key=itemgetter(1), default=(0, 0))
    if claims > 1:
        raise Stopped(f"census: {claims} nodes claim to be client {k}")
    prints = Counter(info.public for info in infos)
    if len(prints) > 1:
        usual = prints.most_common(1)[0][0]
        odd = min(info.k for info in infos if info.public != usual)
        raise Stopped(f"census: client {odd} has another public set than the others")


def why_not(
    info: ClientInfo, size: int, experiment: str, task: Task, max_samples: int = 2**40
) -> str:
    """Return why this is no client of a roster of ``size`` clients; empty if it may be one."""
    if info.k >= size:
        return f"client {info.k} in a federation of {size}"
    try:
        check_brought(info.model, task.config)
        of_task = task.fingerprint_with(info.model)
    except ValueError as error:
        return f"client {info.k}: {error}"
    for name, value, expected in (
        ("experiment", info.experiment, experiment),
        ("code version", info.version, version_of(task.config)),
        ("task (kind:shape/classes/names/objective/base)", info.task, of_task),
    ):
        if value != expected:
            return f"client {info.k} has {name} {value!r}, the server {expected!r}"
    if task.config.secure.on and not info.secure:
        return f'client {info.k} has no share of a key, which secure.mode = "on" needs'
    longest = task.shape[0] if task.objective.every else 1
    limits = task.num_classes, max_samples, longest
    wrong = _wrong_numbers(info, *limits, one_each=task.objective.one_each)
    return f"client {info.k} {wrong}" if wrong else ""


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


def _wrong_numbers(
    info: ClientInfo, classes: int, max_samples: int, longest: int, *, one_each: bool
) -> str:
    """Return what is impossible about a client's samples or classes; empty if nothing is.

    ``longest``: most tokens to learn of a sample. ``one_each``: whether each sample has exactly one
    class.
    """
    for part, n in (("training", info.n), ("test", info.n_test)):
        if n > max_samples:
            return f"claims {n} {part} samples, max-samples = {max_samples}"
    if info.targets and not info.n <= info.targets <= info.n * longest:
        return f"claims {info.targets} tokens to learn in {info.n} samples"
    held = {c for c in info.classes if c < classes}
    if info.classes != sorted(held) or (one_each and not held):
        shown = str(info.classes[:20])
        return f"claims classes {shown}, allowed are 0 to {classes - 1}, each once, ascending"
    if info.counts is not None and (
        len(info.counts) != classes
        or (sum(info.counts) != info.n if one_each else max(info.counts) > info.n)
        or [c for c, count in enumerate(info.counts) if count] != info.classes
    ):
        return f"claims class counts that are not those of its {info.n} samples"
    return ""
