"""Stands in for one of Flower's programs and hands its work to the warm process (``warm.py``).

Run as a script with the standard library only: connect, send the arguments, the environment, the
working directory and the two output files, and leave once a child has been forked. Whatever goes
wrong, the real program takes over in this process, so a run never depends on the warm process.

A task must not be started twice: Flower would fail the first start for the sake of the second. So
the warm process forks only after it has said that it is ready and this side has agreed, and this
side never turns to the real program after it has agreed, unless the warm process hangs up.
"""

import json
import os
import socket
import sys

READY, AGREED, FORKED = b"?", b"!", b"+"
PATIENCE = 30.0  #: seconds until the warm process, which may be busy, must be ready


def hand_over(address: str, program: str, arguments: list[str]) -> bool:
    """Whether the warm process at ``address`` has taken ``program`` over."""
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
