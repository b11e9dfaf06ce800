"""Client of the warm process (``warm.py``), started in the place of one of Flower's programs.

It is a script that uses only the standard library. It connects, sends the arguments, environment,
working directory and the two output files, and exits after the fork of a child. On any error, the
command of a cold start replaces this process, so that a run never depends on the warm process. For
a SuperNode, both ways run the same checks (``pinned.py``).

A task must not start twice, because Flower would then fail the first start. Therefore the warm
process forks only after it has sent READY and received AGREED. After AGREED this side starts the
cold process only if the warm process closes the connection.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence

ADDRESS = "FEDMOSAIC_WARM"  #: environment variable of a SuperNode with the warm process's address
READY, AGREED, FORKED = b"?", b"!", b"+"
PATIENCE = 30.0  #: timeout in seconds until the warm process, which may be busy, is ready


def command(address: str, program: str, cold: Sequence[str]) -> list[str]:
    """Return the command of ``program`` in the warm process at ``address``, else of ``cold``."""
    script = os.path.abspath(__file__)
    return [sys.executable, "-I", "-S", script, address, program, json.dumps(cold)]


def hand_over(address: str, program: str, arguments: list[str]) -> bool:
    """Return whether the warm process at ``address`` has started ``program``."""
    request = {"argv": [program, *arguments], "env": dict(os.environ), "cwd": os.getcwd()}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(address)
            socket.send_fds(connection, [b"."], [1, 2])
            connection.sendall(json.dumps(request).encode() + b"\n")
            if connection.recv(1) != READY:
                return False
            connection.settimeout(None)
            connection.sendall(AGREED)
            return connection.recv(1) == FORKED
    except OSError:
        return False


if __name__ == "__main__":
    _, at, program, cold, *arguments = sys.argv
    if not hand_over(at, program, arguments):
        line = [*json.loads(cold), *arguments]
        os.execv(line[0], line)
