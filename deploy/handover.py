"""Stands in for one of Flower's programs and hands its work to the warm process (``warm.py``).

Run as a script with the standard library only: connect, send the arguments, the environment, the
working directory and the two output files, wait for one byte, leave. Whatever goes wrong, the real
program takes over in this process, so a run never depends on the warm process.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def hand_over(address: str, program: str, arguments: list[str]) -> bool:
    """Whether the warm process at ``address`` has taken ``program`` over."""
    request = {"argv": [program, *arguments], "env": dict(os.environ), "cwd": os.getcwd()}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            connection.connect(address)
            socket.send_fds(connection, [b"."], [1, 2])
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1) == b"+"
    except OSError:
        return False


if __name__ == "__main__":
    if not hand_over(sys.argv[1], os.path.basename(sys.argv[2]), sys.argv[3:]):
        os.execv(sys.argv[2], sys.argv[2:])
