"""Workers in Python and Node: they join, leave, crash, change the number of shards, and outlive the server."""

import signal

import pytest
import zmq
from baton import Background, Server, eventually
from ports import free_port
from workers import CONTEXT, Program, Worker, address, shard_server, spread


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    with shard_server(tmp_path_factory.mktemp("shards") / "data") as server:
        yield server
        assert server.running(), server.text()
        assert server.stop() == 0, server.text()
    assert "panicked" not in server.text(), server.text()


def test_ten_shards_over_three_workers(shards, queue):
    place = address(shards)
    with Worker(place, queue, "b", 10) as b:
        b.awaits(range(10))
        # The answer has what the protocol knows, and nothing else.
        assert b.assignments[0] == {"type": "assignment", "data": {"assignedShards": list(range(10))}}
        with Worker(place, queue, "a", 10) as a, Worker(place, queue, "c", 10) as c:
            a.awaits([0, 1, 2, 3])
            b.awaits([4, 5, 6])
            c.awaits([7, 8, 9])
        # Both fall silent.
        b.awaits(range(10))


def test_a_beat_is_answered_and_an_unknown_one_registers(shards, queue):
    with Worker(address(shards), queue, "w", 3, beats=False) as worker:
        worker.awaits([0, 1, 2])
        worker.send("heartbeat", assignedShards=[0, 99])
        eventually(lambda: len(worker.assignments) >= 2)
        worker.awaits([0, 1, 2])
        other = Worker(address(shards), queue, "x", 3, beats=False)
        with other:
            other.awaits([2])
    with Worker(address(shards), f"{queue}-late", "w", 4, beats=False) as worker:
        eventually(lambda: worker.assignments)
        worker.name = "unknown"
        worker.send("heartbeat")
        # The worker it was before hears of its own shards on the same socket.
        eventually(lambda: [m["data"]["assignedShards"] for m in worker.assignments][1:] in ([[0, 1], [2, 3]], [[2, 3], [0, 1]]))


def test_the_last_count_wins(shards, queue):
    place = address(shards)
    with Worker(place, queue, "a", 4) as a, Worker(place, queue, "b", 4) as b:
        a.awaits([0, 1])
        b.awaits([2, 3])
        b.count = 8
        a.awaits([0, 1, 2, 3])
        b.awaits([4, 5, 6, 7])
        # What the other one goes on saying is no news.
        seen = len(a.assignments)
        eventually(lambda: len(a.assignments) > seen + 2)
        a.awaits([0, 1, 2, 3])
        a.count = 2
        a.awaits([0])
        b.awaits([1])


@pytest.mark.parametrize("kind", ["node", "python"])
def test_the_simplest_worker_says_what_existing_ones_say_to_the_byte(kind):
    """So that what is shown with it holds for every worker of that protocol."""
    router = CONTEXT.socket(zmq.ROUTER)
    router.linger, router.rcvtimeo = 0, 30_000
    port = router.bind_to_random_port("tcp://127.0.0.1")
    starting = Background(Program, kind, f"tcp://127.0.0.1:{port}", "orders", "w1", 6)
    says = b'"serviceName":"orders","workerId":"w1","maxShardCount":6'
    peer, *message = router.recv_multipart()
    assert message == [b'{"type":"register","data":{' + says + b"}}"]
    router.send_multipart([peer, b'{"type":"assignment","data":{"assignedShards":[0,2]}}'])
    with starting.result() as worker:
        assert worker.shards == [0, 2]
        assert router.recv_multipart() == [peer, b'{"type":"heartbeat","data":{' + says + b',"assignedShards":[0,2]}}']
    router.close()


def test_the_answer_to_it_is_the_protocols_to_the_byte(shards, queue):
    peer = CONTEXT.socket(zmq.DEALER)
    peer.linger, peer.rcvtimeo = 0, 30_000
    peer.connect(address(shards))
    says = f'"serviceName":"{queue}","workerId":"w1","maxShardCount":3'
    peer.send(b'{"type":"register","data":{' + says.encode() + b"}}")
    answer = b'{"type":"assignment","data":{"assignedShards":[0,1,2]}}'
    assert peer.recv_multipart() == [answer]
    peer.send(b'{"type":"heartbeat","data":{' + says.encode() + b',"assignedShards":[0,1,2]}}')
    assert peer.recv_multipart() == [answer]
    peer.close()


@pytest.mark.parametrize("kind", ["node", "python"])
def test_the_simplest_worker_runs_as_it_is(shards, queue, kind):
    with Program(kind, address(shards), queue, "w1", 6) as first, Program(kind, address(shards), queue, "w2", 6) as second:
        assert first.shards == [0, 1, 2, 3, 4, 5] and second.shards == [3, 4, 5]
        expected = {"w1": [0, 1, 2], "w2": [3, 4, 5]}
        assert spread(shards, queue) == expected
        second.end(signal.SIGKILL)
        eventually(lambda: spread(shards, queue) == {"w1": [0, 1, 2, 3, 4, 5]}, seconds=30)
        first.end(signal.SIGINT)
        assert first.process.returncode == 0
        eventually(lambda: spread(shards, queue) == {}, seconds=30)


def test_a_restarted_server_goes_on(tmp_path, queue):
    port = free_port()
    server = shard_server(tmp_path / "data", port=port)
    with server:
        place = address(server)
        with (
            Worker(place, queue, "a", 6) as a,
            Worker(place, queue, "b", 6, session="one") as b,
            Program("node", place, queue, "c", 6) as c,
        ):
            eventually(lambda: spread(server, queue) == {"a": [0, 1], "b": [2, 3], "c": [4, 5]}, seconds=30)
            generation = server.get(f"/api/v1/shards/{queue}").json["generation"]
            server.kill()
            server.start()
            eventually(lambda: spread(server, queue) == {"a": [0, 1], "b": [2, 3], "c": [4, 5]}, seconds=30)
            seen = len(a.assignments), len(b.assignments)
            eventually(lambda: len(a.assignments) > seen[0] and len(b.assignments) > seen[1], seconds=30)
            assert server.get(f"/api/v1/shards/{queue}").json["generation"] == generation, "nothing has moved"
            # The restarted one still notices who is gone.
            c.end(signal.SIGKILL)
            a.awaits([0, 1, 2])
            b.awaits([3, 4, 5])
        assert "panicked" not in server.text(), server.text()


def test_the_names_of_older_coordinators_are_understood(tmp_path, queue):
    port = free_port()
    names = {
        "SHARD_COORDINATOR_BIND_HOST": "tcp://127.0.0.1",
        "SHARD_COORDINATOR_BIND_PORT": str(port),
        "HEARTBEAT_TIMEOUT_SECONDS": "1",
        "HEARTBEAT_CHECK_INTERVAL_SECONDS": "0.2",
    }
    with Server(tmp_path / "data", environment=names) as server:
        assert address(server) == f"tcp://127.0.0.1:{port}"
        health = server.get("/health").json
        assert health["status"] == "healthy"
        assert health["checks"] == [{"component": "Coordinator", "isHealthy": True}]
        with Worker(f"tcp://127.0.0.1:{port}", queue, "w", 2) as worker:
            worker.awaits([0, 1])
        eventually(lambda: spread(server, queue) == {}, seconds=30)


def test_nothing_listens_unless_asked(tmp_path):
    with Server(tmp_path / "data") as server:
        assert server.get("/api/v1/shards").json == {"services": []}
        assert "workers of shards" not in server.text()
