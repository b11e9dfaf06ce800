"""Script in place of ``flwr-clientapp`` on one SuperNode: a client that sends the largest numbers.

It calls Flower's own program. The client trains honestly, with its own key, and replaces the
numbers of its reply in round 2.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

honest = ClientApp.__call__
patched: list[bool] = []


def lie(self: ClientApp, message: Any, context: Any) -> Any:
    if not patched:
        patched.append(True)
        protocol = importlib.import_module("common.exchange.protocol")  # of the bundle
        stamp = protocol.ToServer.stamped

        def stamped(payload: Any, request: Any, *rest: Any) -> Any:
            from tests.support.adversary import ROUND, Largest, mapped

            if isinstance(payload, protocol.Reply) and request.t == ROUND:
                payload = mapped(payload, Largest.change)
            return stamp(payload, request, *rest)

        protocol.ToServer.stamped = stamped
    return honest(self, message, context)


if __name__ == "__main__":
    ClientApp.__call__ = lie
    sys.argv[0] = "flwr-clientapp"
    sys.path.append(str(Path(__file__).parents[2]))  # for tests.support; the bundle comes first
    importlib.import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp()
