"""Stand-in for one of Flower's programs that delegates to the warm process (``warm.py``).

It is a script that uses only the standard library. It connects, sends the arguments, environment,
working directory and the two output files, and exits after the fork of a child. On any error, the
real program replaces this process, so that a run never depends on the warm process.

A task must not start twice, because Flower would then fail the first start. Therefore the warm
process forks only after it has sent READY and received AGREED. After AGREED this side starts the
real program only if the warm process closes the connection.
"""

import json
import os
import socket
import sys

READY, AGREED, FORKED = b"?", b"!", b"+"
PATIENCE = 30.0  #: timeout in seconds until the warm process, which may be busy, is ready


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
    if not hand_over(sys.argv[1], os.path.basename(sys.argv[2]), sys.argv[3:]):
        os.execv(sys.argv[2], sys.argv[2:])
