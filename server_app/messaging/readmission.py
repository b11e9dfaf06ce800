"""Nodes that appear during a run: clients that return under another node id, or other nodes.

A SuperNode without a registered key gets a new node id with every start. With ``rebind`` a new node
replaces a missing client if its census reply equals that client's. A registered key keeps its node
id: with ``rebind = false`` no new node id can be a client.
"""

import logging
import time
from typing import final

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import LONGEST, first_line
from common.exchange.protocol import ClientInfo
from common.journal import Failure
from server_app.messaging.exchange import pull, push
from server_app.messaging.messenger import Messenger
from server_app.messaging.reply_files import ReplyStore
from server_app.messaging.sealed import claimed
from server_app.method import Client

REMAINDER_TIMEOUT = 10.0  #: seconds for the rest of a reply of which a part has arrived

log = logging.getLogger("flwr.fedmosaic")


@final
class Readmission:
    """Search for the clients' nodes before a round."""

    def __init__(self, messenger: Messenger, grid: Grid) -> None:
        self.messenger, self.grid, self.run = messenger, grid, messenger.config.run
        self.timeout = min(self.run.timeout, self.run.wait)  #: seconds
        self.refused: set[int] = set()  #: nodes that get no further census request
        self._failures: list[Failure] = []
        self.pending: dict[str, Message] = {}  #: requests that no round waits for, by message id

    def renew(self, t: int, clients: list[Client]) -> tuple[list[Client], list[Failure]]:
        """Return the clients with their nodes before round t, and failures for the journal.

        If a client is missing, unknown nodes get a census request. A node that claims the place of
        a client and is refused is a failure, once. With ``rebind = false`` the round does not wait
        for the replies: they are for the journal only.
        """
        online = set(self.grid.get_node_ids())
        lost = {client.k: client for client in clients if client.node not in online}
        known = {client.node for client in clients} | self.refused
        known |= {message.metadata.dst_node_id for message in self.pending.values()}
        unknown = sorted(online - known) if lost else []
        requests = (
            self.messenger.census_messages(unknown, len(clients), self.timeout) if unknown else {}
        )
        self._failures = []
        replies = self._exchange(requests, t) if self.run.rebind else self._poll(requests, t)
        for node, reply in sorted(replies.items()):
            try:
                info = self.messenger.info(node, reply)
            except ValueError as error:
                log.warning("node %d: %s", node, error)
                self.refused.add(node)
                continue
            if why := self._why_not(info, clients):
                self._refuse(node, info.k, why, t)
            elif info.k in lost:  # otherwise its old node still counts as online
                lost[info.k] = Client(info, node)
        return [lost.get(client.k, client) for client in clients], self._failures

    def _refuse(self, node: int, k: int, why: str, t: int) -> None:
        self.refused.add(node)
        reason = f"node {node} claims its place and is refused: {why}"
        log.warning("client %d: %s", k, reason)
        shown = first_line(reason, LONGEST)
        released = "a node claims a client's place and is refused"
        self._failures.append(
            Failure(k=k, round=t, reason=shown, kind="not authentic", released=released)
        )

    def _why_not(self, info: ClientInfo, clients: list[Client]) -> str:
        """Return why a node must not become the client that it claims to be; empty if it may."""
        if info.k >= len(clients):
            return f"there are {len(clients)} clients"
        node = clients[info.k].node
        if not self.run.rebind:
            return f"it belongs to node {node} (rebind = false)"
        if not info.equals(clients[info.k].info):
            return f"its information differs from that of node {node} in the census"
        return ""

    def _exchange(self, requests: dict[int, Message], t: int) -> dict[int, Message]:
        """Send census requests, wait, and return the replies by node."""
        if not requests:
            return {}
        replies, _ = self.messenger.channel.exchange(self.grid, requests, self.timeout, t)
        return {reply.metadata.src_node_id: reply for reply in replies.values()}

    def _poll(self, requests: dict[int, Message], t: int) -> dict[int, Message]:
        """Send census requests; return by node the replies to all pending requests so far."""
        if requests:
            names = push(self.grid, requests.values(), t)
            sent = zip(names, requests.values(), strict=True)
            self.pending |= {name: message for name, message in sent if name}
        if not self.pending:
            return {}
        deadline = time.monotonic() + REMAINDER_TIMEOUT
        arrived, unreadable = pull(self.grid, list(self.pending), deadline, ReplyStore())
        self.refused |= {self.pending.pop(name).metadata.dst_node_id for name in unreadable}
        replies: dict[int, Message] = {}
        for reply in arrived:
            message = self.pending.pop(reply.metadata.reply_to_message_id, None)
            if message is None:
                continue
            node = message.metadata.dst_node_id
            if reply.has_error() or reply.metadata.src_node_id != node:
                self.refused.add(node)
                continue
            try:
                reply.content = self.messenger.channel.open_census_reply(node, reply.content)
                replies[node] = reply
            except ValueError as error:
                self._refuse(node, claimed(reply.content), str(error), t)
        return replies


def check_bound(clients: list[Client], nodes: dict[int, int], rebind: bool) -> None:
    """Raise ``ValueError`` if a client of a resumed run has another node than before.

    ``nodes``: node ids by client, from the checkpoint; empty if it has none.
    """
    for client in clients:
        before = nodes.get(client.k, client.node)
        if client.node != before and not rebind:
            raise ValueError(
                f"census: client {client.k} is node {client.node} now, in this run it was node "
                f"{before}; if its key was replaced, resume once with rebind = true"
            )
