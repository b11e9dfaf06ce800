"""Nodes that appear during a run: clients that came back under another id, or somebody else.

A SuperNode without a registered key gets a new node id with every start, so with ``rebind`` a new
node takes the place of a client that is gone if it gives exactly that client's answer to the
census. A registered key keeps its node id: ``rebind = false``, and no new id can be a client.
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

REMAINDER_TIMEOUT = 10.0  #: seconds for the rest of an answer of which a part is there

log = logging.getLogger("flwr.fedmosaic")


@final
class Readmission:
    """Says at which nodes the clients are now."""

    def __init__(self, messenger: Messenger, grid: Grid) -> None:
        self.messenger, self.grid, self.run = messenger, grid, messenger.config.run
        self.patience = min(self.run.timeout, self.run.wait)
        self.refused: set[int] = set()  #: nodes that will not be asked again
        self._failures: list[Failure] = []
        self.asked: dict[str, Message] = {}  #: whose answers no round waits for, by name

    def renew(self, t: int, clients: list[Client]) -> tuple[list[Client], list[Failure]]:
        """The clients before round t, and what the journal hears of strangers.

        If a client is gone, unknown nodes are asked. One that claims a client's place and must not
        have it is a failure, once. With ``rebind = false`` the round does not wait for answers:
        they are for the journal only.
        """
        online = set(self.grid.get_node_ids())
        lost = {client.k: client for client in clients if client.node not in online}
        known = {client.node for client in clients} | self.refused
        known |= {message.metadata.dst_node_id for message in self.asked.values()}
        strangers = sorted(online - known) if lost else []
        hello = (
            self.messenger.census_messages(strangers, len(clients), self.patience)
            if strangers
            else {}
        )
        self._failures = []
        answers = self._ask(hello, t) if self.run.rebind else self._overhear(hello, t)
        for node, reply in sorted(answers.items()):
            try:
                info = self.messenger.info(node, reply)
            except ValueError as error:
                log.warning("node %d: %s", node, error)
                self.refused.add(node)
                continue
            if why := self._why_not(info, clients):
                self._refuse(node, info.k, why, t)
            elif info.k in lost:  # otherwise its old node is not known to be gone yet
                lost[info.k] = Client(info, node)
        return [lost.get(client.k, client) for client in clients], self._failures

    def _refuse(self, node: int, k: int, why: str, t: int) -> None:
        self.refused.add(node)
        reason = f"node {node} claims its place and is refused: {why}"
        log.warning("client %d: %s", k, reason)
        self._failures.append(Failure(k=k, round=t, reason=first_line(reason, LONGEST)))

    def _why_not(self, info: ClientInfo, clients: list[Client]) -> str:
        """Why a node must not have the place it claims; empty if it may."""
        if info.k >= len(clients):
            return f"there are {len(clients)} clients"
        node = clients[info.k].node
        if not self.run.rebind:
            return f"it belongs to node {node} (rebind = false)"
        known = clients[info.k].info
        if info != known.model_copy(update={"kept": info.kept}):
            return f"it is not what node {node} said in the census"
        return ""

    def _ask(self, hello: dict[int, Message], t: int) -> dict[int, Message]:
        """The answers of nodes one of which may be a lost client."""
        if not hello:
            return {}
        replies, _ = self.messenger.channel.exchange(self.grid, hello, self.patience, t)
        return {reply.metadata.src_node_id: reply for reply in replies.values()}

    def _overhear(self, hello: dict[int, Message], t: int) -> dict[int, Message]:
        """The answers that are there now, of these nodes and of those asked earlier."""
        if hello:
            names = push(self.grid, hello.values(), t)
            sent = zip(names, hello.values(), strict=True)
            self.asked |= {name: message for name, message in sent if name}
        if not self.asked:
            return {}
        deadline = time.monotonic() + REMAINDER_TIMEOUT
        arrived, unreadable = pull(self.grid, list(self.asked), deadline, ReplyStore())
        self.refused |= {self.asked.pop(name).metadata.dst_node_id for name in unreadable}
        found: dict[int, Message] = {}
        for reply in arrived:
            message = self.asked.pop(reply.metadata.reply_to_message_id, None)
            if message is None:
                continue
            node = message.metadata.dst_node_id
            if reply.has_error() or reply.metadata.src_node_id != node:
                self.refused.add(node)
                continue
            try:
                reply.content = self.messenger.channel.open_hello(node, reply.content)
                found[node] = reply
            except ValueError as error:
                self._refuse(node, claimed(reply.content), str(error), t)
        return found


def check_bound(clients: list[Client], nodes: dict[int, int], rebind: bool) -> None:
    """Raise ``ValueError`` if a client of a resumed run is another node than before.

    ``nodes``: node ids by client, from the checkpoint; empty if it does not say.
    """
    for client in clients:
        before = nodes.get(client.k, client.node)
        if client.node != before and not rebind:
            raise ValueError(
                f"census: client {client.k} is node {client.node} now, in this run it was node "
                f"{before}; if its key was replaced, resume once with rebind = true"
            )
