"""Bodies that do not come: they cost their sender a connection and others nothing."""

import contextlib

import pytest

import tokens
from baton import Connection, Server, Wire, eventually
from watch import MIB

BODY_BYTES_MAX = 64 * MIB
SILENT = 40


def in_flight(server):
    for line in server.get("/metrics/prometheus").body.decode().splitlines():
        if line.startswith("baton_body_bytes_in_flight "):
            return int(line.split()[1])
    raise AssertionError("no such metric")


@contextlib.contextmanager
def silent(server, count, method, target, length=BODY_BYTES_MAX, sent=b""):
    """Peers that announce a body and send no more of it than `sent`."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            wire = stack.enter_context(Wire(server.port))
            head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
            wire.send(head.encode() + sent)
        yield


@pytest.mark.parametrize("method, target", [("POST", "/api/v1/push"), ("GET", "/health"), ("DELETE", "/api/v1/push")])
def test_bodies_that_do_not_come_take_no_room(server, queue, method, target):
    with silent(server, SILENT, method, target):
        for number in range(10):
            server.push(queue, number)
        assert in_flight(server) < 64 << 10
    assert len(server.pop(queue, batch=100)) == 10


def test_only_what_has_arrived_is_charged(server, queue):
    with silent(server, SILENT, "POST", "/api/v1/push", sent=b"x" * 1000):
        eventually(lambda: in_flight(server) >= SILENT * 1000)
        assert in_flight(server) < SILENT * 1000 + (64 << 10)
        server.push(queue, "served")
    eventually(lambda: in_flight(server) < 64 << 10)


def test_a_route_that_takes_no_body_ignores_a_small_one_and_refuses_a_large_one(server):
    with Connection(server.port) as connection:
        for _ in range(3):
            answer = connection.call("GET", "/health", b"{}" * 1000)
            assert answer.status == 200
        answer = connection.call("GET", "/health", b"x" * MIB)
        assert (answer.status, answer.json["code"]) == (413, "body_too_large")


def test_a_stranger_has_no_body_read(tmp_path, queue):
    settings = ["--jwt-enabled", "true", "--jwt-secret", tokens.SECRET]
    with Server(tmp_path, *settings) as server:
        bearer = tokens.bearer(tokens.hs256())
        with silent(server, SILENT, "POST", "/api/v1/push", sent=b"x" * 100_000):
            body = {"items": [{"queue": queue, "payload": 1}]}
            assert server.post("/api/v1/push", body, headers=bearer).status == 201
            assert in_flight(server) < 64 << 10


def test_one_address_has_a_share_of_the_room_only(server, queue):
    sent = b"x" * (60 * MIB)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in range(6)]
        for wire in wires:
            head = f"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES_MAX}\r\n\r\n"
            # One that is refused is not read to its end.
            with contextlib.suppress(ConnectionError):
                wire.send(head.encode() + sent)
        # Four such bodies fit into the share; those that do not are charged for no longer.
        eventually(lambda: 120 * MIB <= in_flight(server) <= 256 * MIB, seconds=60)
        server.push(queue, "served")
    eventually(lambda: in_flight(server) < 64 << 10, seconds=20)
