"""Stands in for ``flwr-clientapp`` on one SuperNode: its answers to training have other numbers.

Run as a script, by the name of the program that it stands in for. It is Flower's own program; the
client works honestly, with its own key, and what it is about to send in round 2 gets the largest
numbers that there are.
"""

import importlib
import sys
from typing import Any

from flwr.clientapp import ClientApp

honest = ClientApp.__call__
patched: list[bool] = []


def lie(self: ClientApp, message: Any, context: Any) -> Any:
    if not patched:
        patched.append(True)
        protocol = importlib.import_module("common.exchange.protocol")  # of the bundle
        stamp = protocol.ToServer.stamped

        def stamped(payload: Any, question: Any, *rest: Any) -> Any:
            from tests.support.adversary import ROUND, Largest, mapped

            if isinstance(payload, protocol.Up) and question.t == ROUND:
                payload = mapped(payload, Largest.change)
            return stamp(payload, question, *rest)

        protocol.ToServer.stamped = stamped
    return honest(self, message, context)


if __name__ == "__main__":
    ClientApp.__call__ = lie
    sys.argv[0] = "flwr-clientapp"
    importlib.import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp()
