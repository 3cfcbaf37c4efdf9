"""Connections of one address: they leave room for others."""

import contextlib
import socket

import pytest

from baton import Server, Wire, eventually, request_bytes
from ports import free_port

HELD = 3


def own_address():
    """An address of this machine that other machines could have: connections over loopback are not counted."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards_others:
        try:
            towards_others.connect(("192.0.2.254", 9))
        except OSError:
            return "127.0.0.1"
        return towards_others.getsockname()[0]


def ask(server, address, stack):
    """Asks over a connection of its own, which stays open."""
    wire = stack.enter_context(Wire(server.port, host=address))
    wire.send(request_bytes("GET", "/health"))
    return wire, wire.answer()


def refused(server):
    for line in server.get("/metrics/prometheus").body.decode().splitlines():
        if line.startswith('baton_connections_refused_total{limit="connections_per_address"} '):
            return int(line.split()[-1])
    raise AssertionError("no such metric")


def test_one_address_cannot_take_all_connections(tmp_path):
    address = own_address()
    if address.startswith("127."):
        pytest.skip("this machine has only a loopback address")
    listen = f"0.0.0.0:{free_port()}"
    with Server(tmp_path, "--connections-per-address", str(HELD), listen=listen) as server, contextlib.ExitStack() as stack:
        held = [ask(server, address, stack) for _ in range(HELD)]
        assert [answer.status for _, answer in held] == [200] * HELD
        _, answer = ask(server, address, stack)
        assert (answer.status, answer.json["code"]) == (503, "overloaded")
        assert "connections_per_address" in answer.json["error"]
        assert refused(server) == 1
        # Another address is served, and so is this one once it has let go of a connection.
        assert ask(server, "127.0.0.1", stack)[1].status == 200
        held[0][0].close()
        eventually(lambda: ask(server, address, stack)[1].status == 200)
