"""Ports for servers that must be told theirs before they start, or that keep it over a restart.

A port that the system chose and that nobody holds for a moment can become anybody's: each connection on the machine
needs one. So these are from below the range that the system chooses from, and each process of a test run has ports
that no other one hands out. Start at `free_port`.
"""

import itertools
import os
import socket

FIRST = 12_000
EACH = 1000
PROCESSES = 20

_mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % PROCESSES
# Runs that happen at the same time begin at different ones.
_turn = itertools.count(os.getpid())


def free_port():
    """A port of loopback on which nobody listens, neither for connections nor for datagrams."""
    for _ in range(EACH):
        port = FIRST + EACH * _mine + next(_turn) % EACH
        if _is_free(port):
            return port
    raise OSError(f"all ports from {FIRST + EACH * _mine} on are taken")


def _is_free(port):
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        # A port of which only closed connections are left is free.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stream.bind(("127.0.0.1", port))
            stream.listen()
            datagrams.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
