"""What strangers send: the server says what is wrong, or cuts them off, and goes on for everybody else."""

import contextlib
import json
import os
import socket
import time

import pytest
import zmq
from baton import Refused, Server, eventually
from workers import BEAT_SECONDS, CONTEXT, TIMEOUT_SECONDS, Worker, address, shard_server, spread


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    with shard_server(tmp_path_factory.mktemp("shards") / "data", "--shards-max", "1000") as server:
        yield server
        assert server.running(), server.text()
        assert server.stop() == 0, server.text()
    assert "panicked" not in server.text(), server.text()


def dealer(place, **options):
    peer = CONTEXT.socket(zmq.DEALER)
    peer.linger = 0
    peer.rcvtimeo = 20_000
    for name, value in options.items():
        setattr(peer, name, value)
    peer.connect(place)
    return peer


def error_of(peer):
    message = json.loads(peer.recv())
    assert message["type"] == "error", message
    return message["data"]


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (b"nonsense", "INVALID_MESSAGE", "not a message"),
        (b"\xff\xfe", "INVALID_MESSAGE", "not a message"),
        (b"[" * 100_000, "INVALID_MESSAGE", "not a message"),
        (b'{"type":"register"}', "INVALID_MESSAGE", "data is missing"),
        (b'{"type":"dance","data":{"serviceName":"s","workerId":"w"}}', "INVALID_MESSAGE", "not known"),
        (b'{"type":"register","data":{"serviceName":"","workerId":"w"}}', "INVALID_MESSAGE", "serviceName is empty"),
        (b'{"type":"register","data":{"serviceName":"s","workerId":"w","maxShardCount":-1}}', "INVALID_MESSAGE", "-1"),
        (b'{"type":"register","data":{"serviceName":"s","workerId":"w","maxShardCount":1001}}', "LIMIT", "1000"),
        (b'{"type":"register","data":{"serviceName":"s","workerId":"w","maxShardCount":1e99}}', "INVALID_MESSAGE", "whole"),
        (b'{"type":"drain","data":{"serviceName":"s","workerId":"nobody"}}', "UNKNOWN_WORKER", "nobody"),
    ],
    ids=range(10),
)
def test_what_is_wrong_is_said(shards, message, code, words):
    peer = dealer(address(shards))
    peer.send(message)
    error = error_of(peer)
    assert error["code"] == code and words in error["message"], error
    peer.close()


def test_a_delimiter_in_front_does_no_harm(shards, queue):
    peer = dealer(address(shards))
    said = {"type": "register", "data": {"serviceName": queue, "workerId": "w", "maxShardCount": 2}}
    peer.send_multipart([b"", json.dumps(said).encode()])
    assert json.loads(peer.recv())["data"]["assignedShards"] == [0, 1]
    peer.close()


def test_large_messages_and_raw_bytes_cut_off_only_their_sender(shards, queue, rng):
    place = address(shards)
    host, port = place.removeprefix("tcp://").rsplit(":", 1)
    with Worker(place, queue, "w", 4) as worker:
        worker.awaits(range(4))
        large = dealer(place)
        large.send(b"x" * (4 << 20))
        many = dealer(place)
        many.send_multipart([b"x"] * 100_000, copy=True)
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
        raw = []
        for bytes_ in [
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(4096),
            greeting,
            greeting + b"\x02\xff\xff\xff\xff\xff\xff\xff\xff",
            greeting + rng.randbytes(2000),
            b"",
        ] * 20:
            peer = socket.create_connection((host, int(port)))
            peer.sendall(bytes_)
            raw.append(peer)
        seen = len(worker.assignments)
        eventually(lambda: len(worker.assignments) > seen + 2, seconds=30)
        # A newcomer finds its way among the silent.
        with Worker(place, queue, "x", 4) as other:
            other.awaits([2, 3])
        for peer in [*raw, large, many]:
            peer.close()


def greeted(host, port):
    """A peer that has greeted as a DEALER and says nothing more."""
    peer = socket.create_connection((host, port), timeout=20)
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
    ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4) + b"DEALER"
    peer.sendall(bytes([4, len(ready)]) + ready)
    return peer


def is_cut(peer):
    """Whether the server has closed the connection, after what it had sent before."""
    peer.setblocking(False)
    try:
        while peer.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_worker_that_never_reads_is_heard_all_the_same(tmp_path, queue):
    """As the original protocol's example: it reads its first assignment, and from then on only beats."""
    with shard_server(tmp_path / "data") as server:
        peer = dealer(address(server), rcvhwm=1, rcvbuf=4096)
        # Answers so long that a few hundred of them fill all buffers on the way.
        said = {"serviceName": queue, "workerId": "w", "maxShardCount": 20_000}
        peer.send_json({"type": "register", "data": said})
        assert len(json.loads(peer.recv())["data"]["assignedShards"]) == 20_000
        for _ in range(500):
            peer.send_json({"type": "heartbeat", "data": said})
        until = time.monotonic() + 3 * TIMEOUT_SECONDS
        while time.monotonic() < until:
            peer.send_json({"type": "heartbeat", "data": said})
            assert list(spread(server, queue)) == ["w"]
            time.sleep(BEAT_SECONDS)
        # When it reads again, it is answered again.
        said["maxShardCount"] = 1
        peer.send_json({"type": "heartbeat", "data": said})
        eventually(lambda: spread(server, queue) == {"w": [0]})

        def told():
            peer.send_json({"type": "heartbeat", "data": said})
            return len(json.loads(peer.recv())["data"]["assignedShards"])

        eventually(lambda: told() == 1, seconds=60)
        peer.close()


def test_a_flood_cuts_off_its_sender_whether_it_reads_or_not(shards, queue):
    place = address(shards)
    host, port = place.removeprefix("tcp://").rsplit(":", 1)
    with Worker(place, queue, "w", 4) as worker:
        worker.awaits(range(4))
        flooding = [greeted(host, int(port)) for _ in range(3)]
        for peer in flooding:
            with contextlib.suppress(OSError):
                peer.sendall(bytes([0, 1, ord("x")]) * 200_000)
        eventually(lambda: all(map(is_cut, flooding)), seconds=60)
        seen = len(worker.assignments)
        eventually(lambda: len(worker.assignments) > seen + 2, seconds=30)


def test_a_peer_that_asks_whether_the_server_is_there_is_told(shards):
    host, port = address(shards).removeprefix("tcp://").rsplit(":", 1)
    peer = greeted(host, int(port))
    ping, pong = b"\x04PING" + (10).to_bytes(2) + b"context", b"\x04PONGcontext"
    peer.sendall(bytes([4, len(ping)]) + ping)
    said = b""
    while pong not in said:
        said += peer.recv(4096) or pytest.fail(f"cut off after {said}")
    peer.close()


def test_of_too_many_silent_connections_those_that_speak_stay(tmp_path, queue):
    with shard_server(tmp_path / "data", "--shards-connections-max", "20") as server:
        place = address(server)
        host, port = place.removeprefix("tcp://").rsplit(":", 1)
        with Worker(place, queue, "w", 4) as worker:
            worker.awaits(range(4))
            silent = [greeted(host, int(port)) for _ in range(300)]
            eventually(lambda: sum(map(is_cut, silent)) >= 281, seconds=60)
            seen = len(worker.assignments)
            eventually(lambda: len(worker.assignments) > seen + 2, seconds=30)
            # One that comes late and speaks at once is heard.
            with Worker(place, queue, "x", 4) as other:
                other.awaits([2, 3])
            for peer in silent:
                peer.close()
        assert "are closed" in server.text()
    assert "panicked" not in server.text(), server.text()


def test_one_identity_from_two_sockets_and_one_worker_from_two_sockets(shards, queue):
    place = address(shards)
    said = {"type": "register", "data": {"serviceName": queue, "workerId": "w", "maxShardCount": 2}}
    first, second = dealer(place, identity=b"same"), dealer(place, identity=b"other")
    for peer in (first, second):
        peer.send_json(said)
        assert json.loads(peer.recv())["data"]["assignedShards"] == [0, 1]
    twin = dealer(place, identity=b"same")
    twin.send_json(said)
    # Whichever of the two the name belongs to now, the server goes on.
    second.send_json(said)
    assert json.loads(second.recv())["data"]["assignedShards"] == [0, 1]
    for peer in (first, second, twin):
        peer.close()


def test_curve(tmp_path, queue):
    server_public, server_secret = zmq.curve_keypair()
    known_public, known_secret = zmq.curve_keypair()
    stranger_public, stranger_secret = zmq.curve_keypair()
    keys = tmp_path / "keys"
    keys.write_text(known_public.decode() + "\n")
    arguments = ["--shards-curve-secret-key", server_secret.decode(), "--shards-curve-clients", f"@{keys}"]
    said = {"type": "register", "data": {"serviceName": queue, "workerId": "w", "maxShardCount": 2}}
    with shard_server(tmp_path / "data", *arguments) as server:
        place = address(server)

        def asked(**keys):
            peer = dealer(place, **keys)
            peer.rcvtimeo = 1500
            peer.send_json(said)
            try:
                return json.loads(peer.recv())["data"]["assignedShards"]
            except zmq.Again:
                return None
            finally:
                peer.close()

        known = {"curve_publickey": known_public, "curve_secretkey": known_secret}
        stranger = {"curve_publickey": stranger_public, "curve_secretkey": stranger_secret}
        eventually(lambda: asked(**known, curve_serverkey=server_public) == [0, 1], seconds=30)
        assert asked() is None, "without keys"
        assert asked(**stranger, curve_serverkey=server_public) is None, "a key that is not listed"
        assert asked(**known, curve_serverkey=stranger_public) is None, "another server's key"
    assert server_secret.decode() not in server.text()


def test_a_live_worker_belongs_to_its_curve_key(tmp_path, queue):
    server_public, server_secret = zmq.curve_keypair()
    with shard_server(tmp_path / "data", "--shards-curve-secret-key", server_secret.decode()) as server:

        def keys():
            public, secret = zmq.curve_keypair()
            return {"curve_publickey": public, "curve_secretkey": secret, "curve_serverkey": server_public}

        own = keys()
        path = f"/api/v1/shards/{queue}"
        with Worker(address(server), queue, "w", 2, session="one", keys=own) as worker:
            worker.awaits([0, 1])
            [shown] = server.get(path).json["assignments"]
            assert shown["owner"] == f"curve:{own['curve_publickey'].decode()}"
            peer = dealer(address(server), **keys())
            for kind in ("register", "heartbeat", "leave"):
                for session in ("one", "two"):
                    said = {"serviceName": queue, "workerId": "w", "maxShardCount": 9, "sessionId": session}
                    peer.send_json({"type": kind, "data": said | {"takeOver": True}})
                    expected = "FENCED_SESSION" if (kind, session) == ("leave", "two") else "NOT_OWNER"
                    assert error_of(peer)["code"] == expected, (kind, session)
            peer.close()
            refused = server.post(path, {"action": "release", "workerId": "w", "sessionId": "one"})
            assert (refused.status, refused.json["code"]) == (403, "not_owner"), refused
            # Its own key may come from another connection, and what the stranger said has changed nothing.
            with Worker(address(server), queue, "w", 2, session="one", keys=own) as again:
                again.awaits([0, 1])
            assert server.get(path).json["maxShardCount"] == 2
        # Once it is gone, the id is free.
        eventually(lambda: spread(server, queue) == {}, seconds=30)
        with Worker(address(server), queue, "w", 2, session="one", keys=keys()) as other:
            other.awaits([0, 1])


def test_keys_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(Refused, match="Z85"):
        shard_server(tmp_path / "a", "--shards-curve-secret-key", "short").start()
    public, _ = zmq.curve_keypair()
    for key in (public.decode(), "-" + public.decode()[1:], "@" + public.decode()[1:]):
        with pytest.raises(Refused, match="shards_curve_secret_key"):
            shard_server(tmp_path / "b", "--shards-curve-clients", key).start()
    with pytest.raises(Refused, match="shards_listen"):
        Server(tmp_path / "c", "--shards-listen", "ipc:///tmp/x").start()
