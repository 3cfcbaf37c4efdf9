"""Clients that are slow, that stop in the middle, that walk away."""

import os
import socket
import struct
import time

import pytest

from baton import (
    Background,
    Connection,
    Server,
    Wire,
    data_of,
    eventually,
    nobody_parked,
    parked,
    pop_path,
    request_bytes,
)

pytestmark = pytest.mark.usefixtures("unharmed")


def push_bytes(queue, payload=1):
    return request_bytes("POST", "/api/v1/push", b'{"items":[{"queue":"%s","payload":%d}]}' % (queue.encode(), payload))


def served_quickly(server, queue):
    started = time.monotonic()
    server.push(queue, "prompt")
    messages = server.pop(queue, wait=True, timeout=5000)
    assert data_of(messages) == ["prompt"]
    server.ack(messages)
    assert time.monotonic() - started < 10


def reset(wire):
    """Closes with a reset instead of a goodbye."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def test_a_request_that_comes_byte_by_byte_is_answered(server, queue):
    with Wire(server.port) as wire:
        for byte in push_bytes(queue, 7):
            wire.send(bytes([byte]))
            time.sleep(0.001)
        assert wire.answer().status == 201
    assert data_of(server.pop(queue)) == [7]


def test_many_clients_that_never_finish_their_headers_hold_nobody_up(server, queue):
    wires = [Wire(server.port) for _ in range(300)]
    for byte in b"POST /api/v1/push HTTP/1.1\r\nHost":
        for wire in wires:
            try:
                wire.send(bytes([byte]))
            except OSError:
                pass  # The server may lose its patience.
    served_quickly(server, queue)
    for wire in wires:
        wire.close()
    served_quickly(server, queue)


def test_many_clients_that_never_finish_their_body_hold_nobody_up(server, queue):
    wires = [Wire(server.port) for _ in range(200)]
    for wire in wires:
        wire.send(request_bytes("POST", "/api/v1/push", headers=["Content-Length: 1000000"]) + b'{"items":[')
    served_quickly(server, queue)
    for wire in wires:
        wire.close()
    served_quickly(server, queue)


def test_a_request_cut_short_is_not_carried_out(server, queue):
    request = push_bytes(queue)
    for cut in range(1, len(request), 7):
        with Wire(server.port) as wire:
            wire.send(request[:cut])
            if cut % 2:
                reset(wire)
    time.sleep(0.2)
    assert server.pop(queue) == []


def test_a_half_closed_client_still_gets_its_answer_or_changes_nothing_by_halves(server, queue):
    for i in range(20):
        with Wire(server.port) as wire:
            wire.send(push_bytes(queue, i))
            wire.socket.shutdown(socket.SHUT_WR)
            answer = wire.answer()
            assert answer is None or answer.status == 201
    seen = data_of(server.pop(queue, batch=100))
    assert seen == sorted(set(seen))


def test_a_half_closed_client_after_half_a_request_is_let_go(server, queue):
    with Wire(server.port, timeout=20) as wire:
        wire.send(push_bytes(queue)[:-5])
        wire.socket.shutdown(socket.SHUT_WR)
        answer = wire.answer()
        assert answer is None or answer.status in (400, 408)
    assert server.pop(queue) == []


def test_a_client_that_dawdles_is_let_go(server):
    """A head must be there within seconds, and a body must keep coming."""

    def dawdle(beginning):
        with Wire(server.port, timeout=60) as wire:
            wire.send(beginning)
            started = time.monotonic()
            wire.socket.settimeout(1)
            while time.monotonic() - started < 60:
                try:
                    wire.send(b"x")
                    if not wire.socket.recv(1000):
                        return time.monotonic() - started
                except TimeoutError:
                    continue
                except OSError:
                    return time.monotonic() - started
            return None

    head = Background(dawdle, b"GET /health HTTP/1.1\r\nX-Slow: ")
    body = Background(dawdle, request_bytes("POST", "/api/v1/push", headers=["Content-Length: 1000000"]))
    assert head.result(70) is not None, "an unfinished head was waited for without end"
    assert body.result(70) is not None, "an unfinished body was waited for without end"


def test_a_client_that_never_reads_its_answers_holds_nobody_up(server, queue):
    server.push(queue, *["x" * 100_000] * 50, partition="big")
    wires = []
    for i in range(20):
        wire = Wire(server.port)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(request_bytes("GET", pop_path(queue, batch=50, consumerGroup=f"g{i}")) * 3)
        wires.append(wire)
    served_quickly(server, f"{queue}-other")
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("goodbye", [Wire.close, reset], ids=["closed", "reset"])
def test_the_message_of_a_poll_that_went_away_goes_to_another_at_once(server, queue, goodbye):
    for i in range(10):
        leaving = [Wire(server.port) for _ in range(3)]
        for wire in leaving:
            wire.send(request_bytes("GET", pop_path(queue, wait=True, timeout=60000)))
        parked(server, 3)
        for wire in leaving:
            goodbye(wire)
        nobody_parked(server)
        server.push(queue, i)
        messages = server.pop(queue, wait=True, timeout=5000)
        assert data_of(messages) == [i], "the message is stuck with a client that is gone"
        server.ack(messages)


def test_polls_that_go_away_are_forgotten(server, queue):
    """Thousands of polls that were abandoned leave a server that still answers at once."""
    for _ in range(10):
        wires = [Wire(server.port) for _ in range(100)]
        for wire in wires:
            wire.send(request_bytes("GET", pop_path(queue, wait=True, timeout=60000)))
        parked(server, 100)
        for wire in wires:
            wire.close()
        nobody_parked(server)
    eventually(lambda: open_files(server) < 300, seconds=15)
    served_quickly(server, queue)


def open_files(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_a_stopped_reader_does_not_lose_messages(server, queue):
    """A client that dies while its answer is on the way gets its messages again after the lease."""
    server.configure(queue, leaseTime=1)
    server.push(queue, *["x" * 100_000] * 20)
    with Wire(server.port) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(request_bytes("GET", pop_path(queue, batch=20)))
        wire.socket.recv(1000)
        reset(wire)
    assert len(server.pop(queue, batch=20, wait=True, timeout=10000)) == 20


def test_connections_beyond_counting_do_not_end_the_server(server, queue):
    connections = []
    try:
        for _ in range(900):
            connections.append(socket.create_connection(("127.0.0.1", server.port), timeout=10))
    except OSError:
        pass  # This process has its limits too.
    assert len(connections) > 500
    for connection in connections:
        connection.close()
    eventually(lambda: Background(served_quickly, server, queue).result(10) is None)


def test_a_connection_too_many_is_told_so_and_the_others_stay(tmp_path, queue):
    with Server(tmp_path / "data", "--connections-max", "3") as server:
        idle = [Connection(server.port) for _ in range(3)]
        for connection in idle:
            assert connection.call("GET", "/health").status == 200
        for method, path, body in (("GET", "/health", b""), ("POST", "/api/v1/push", b"x" * 100_000)):
            refused = server.call(method, path, body)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.headers["connection"] == "close"
            assert "connections_max" in refused.error
        with Wire(server.port, timeout=10) as silent:
            answer = silent.answer()
            assert answer.status == 503, "who says nothing is told as well"
        # Whoever does not listen either cannot keep others from being told.
        crowd = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(200)]
        for connection in idle:
            assert connection.call("GET", "/health").status == 200
        for connection in crowd:
            connection.close()
        idle.pop().close()

        def is_served():
            with Wire(server.port, timeout=10) as wire:
                wire.send(request_bytes("GET", "/health"))
                answer = wire.answer()
            return answer is not None and answer.status == 200

        eventually(is_served)
        for connection in idle:
            connection.close()


def test_a_pop_too_many_is_told_to_come_again(tmp_path, queue):
    with Server(tmp_path / "data", "--pop-waiters-max", "2") as server:
        waiting = [Background(server.get, pop_path(queue, wait="true", timeout=20000)) for _ in range(2)]
        parked(server, 2)
        refused = server.get(pop_path(queue, wait="true", timeout=20000))
        assert (refused.status, refused.headers["retry-after"], refused.json["code"]) == (503, "1", "overloaded")
        assert server.get(pop_path(queue)).status == 204, "who does not wait is not one of them"
        server.push(queue, 1, partition="a")
        server.push(queue, 2, partition="b")
        assert [one.result(30).status for one in waiting] == [200, 200]


def test_a_long_poll_and_other_work_share_the_server(server, queue):
    with Connection(server.port) as polling:
        poll = Background(polling.call, "GET", pop_path(queue, wait=True, timeout=60000))
        for i in range(50):
            served_quickly(server, f"{queue}-other")
        assert not poll.done()
        server.push(queue, 1)
        assert data_of(poll.result().json["messages"]) == [1]
