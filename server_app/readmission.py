"""Nodes that appear during a run: clients that came back under another id, or somebody else.

A SuperNode without a registered key gets a new node id with every start, so with ``rebind`` a new
node takes the place of a client that is gone if it says of itself exactly what that client said in
the census. Anybody who knows that much could say it. A registered key keeps its node id: then
``rebind = false``, and no new id can be a client of this run.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, final

from flwr.app import Message
from flwr.serverapp import Grid

from common.protocol import Hello, Peer
from server_app.census import Client
from server_app.exchange import Failure, exchange
from server_app.method import Method
from server_app.replies import open_reply

CURIOSITY = 10.0  #: seconds to wait for the word of a node that cannot be a client
ASKED = 3  #: times it is asked: a slow machine needs longer for the first message of a run

log = logging.getLogger("flwr.fedmosaic")


@final
class Readmission:
    """Keeps ``method.clients`` at the nodes where the clients are now."""

    def __init__(self, method: Method[Any], grid: Grid) -> None:
        self.method, self.grid = method, grid
        self.refused: set[int] = set()  #: nodes that will not be asked again
        self.silent = Counter[int]()  #: how often a node that cannot be a client said nothing

    def renew(self, t: int) -> list[Failure]:
        """Before round t: ask the nodes that nobody knows, if a client is gone. Whoever claims a
        client's place and must not have it is a failure for the journal, once.
        """
        clients, online = self.method.clients, set(self.grid.get_node_ids())
        lost = {client.k: client for client in clients if client.node not in online}
        strangers = sorted(online - {client.node for client in clients} - self.refused)
        if not lost or not strangers:
            return []
        failures: list[Failure] = []
        for node, peer in self._ask(strangers).items():
            if why := self._why_not(peer):
                self.refused.add(node)
                reason = f"node {node} claims its place and is refused: {why}"
                log.warning("client %d: %s", peer.k, reason)
                failures.append(Failure(peer.k, t, reason))
            elif peer.k in lost:  # otherwise its old node is not known to be gone yet
                lost[peer.k] = Client(peer, node)
        self.method.clients = [lost.get(client.k, client) for client in clients]
        return failures

    def _why_not(self, peer: Peer) -> str:
        """Why a node must not have the place it claims; empty if it may."""
        clients = self.method.clients
        if peer.k >= len(clients):
            return f"there are {len(clients)} clients"
        node = clients[peer.k].node
        if not self.method.config.run.rebind:
            return f"it belongs to node {node} (rebind = false)"
        if peer != clients[peer.k].peer:
            return f"it is not what node {node} said in the census"
        return ""

    def _ask(self, nodes: list[int]) -> dict[int, Peer]:
        """What the nodes say of themselves; a node that says nothing readable is left out."""
        config = self.method.config
        patience = min(config.run.timeout, config.run.wait)
        if not config.run.rebind:  # none of them will be let in: they are asked for the journal
            patience = min(patience, CURIOSITY)
        hello = Hello(experiment=self.method.experiment, clients=len(self.method.clients)).pack()
        asked = {
            i: Message(hello, node, "query.hello", ttl=patience) for i, node in enumerate(nodes)
        }
        replies, silent = exchange(self.grid, asked, patience, 0)
        if not config.run.rebind:
            self.silent.update(nodes[failure.k] for failure in silent)
            self.refused |= {node for node, times in self.silent.items() if times >= ASKED}
        answers: dict[int, Peer] = {}
        for i, reply in replies.items():
            try:
                answers[nodes[i]] = open_reply(reply, Peer, config)
            except ValueError as error:
                log.warning("node %d: %s", nodes[i], error)
                self.refused.add(nodes[i])
        return answers


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
