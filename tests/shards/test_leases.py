"""Workers with a session: a shard is given up before somebody else gets it, under a token that only rises."""

import time

import pytest
from baton import eventually
from workers import BEAT_SECONDS, Worker, address, shard_server, spread


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    data = tmp_path_factory.mktemp("shards") / "data"
    with shard_server(data, "--shards-allocation", "sticky") as server:
        yield server
        assert server.running(), server.text()
    assert "panicked" not in server.text(), server.text()


def test_a_shard_moves_only_after_its_owner_has_stopped(shards, queue):
    place = address(shards)
    with Worker(place, queue, "a", 4, session="s1") as a:
        a.awaits(range(4))
        a.stop_slowly()
        with Worker(place, queue, "b", 4, session="s2") as b:
            a.awaits([0, 1])
            eventually(lambda: a.assignments[-1]["data"]["revoking"] == [[2, 3]])
            # The old owner beats and says that it still uses them.
            seen = len(b.assignments)
            eventually(lambda: len(b.assignments) >= seen + 3)
            assert b.shards == []
            old = dict(a.held)
            a.finish()
            b.awaits([2, 3])
            assert all(b.held[shard] > old[shard] for shard in (2, 3)), (old, b.held)


def test_an_answer_tells_lease_and_sequence_and_a_push_does_not(shards, queue):
    place = address(shards)
    with Worker(place, queue, "a", 4, session="s1") as a:
        a.awaits(range(4))
        data = a.assignments[0]["data"]
        assert 0 < data["leaseMs"] < 3000 and data["heartbeatMs"] == 1000 and data["maxShardCount"] == 4
        a.send("heartbeat", sequence=77)
        eventually(lambda: a.assignments[-1]["data"].get("sequence") == 77 or any(
            m["data"].get("sequence") == 77 for m in a.assignments))


def test_leaving_gives_everything_back_at_once(shards, queue):
    place = address(shards)
    with Worker(place, queue, "a", 4, session="s1") as a, Worker(place, queue, "b", 4, session="s2") as b:
        eventually(lambda: sorted(map(len, spread(shards, queue).values())) == [2, 2])
        a.beats = False
        a.send("leave")
        b.awaits(range(4), seconds=30)
        eventually(lambda: a.assignments[-1]["type"] == "left")


def test_a_second_life_waits_for_the_lease_of_the_first(shards, queue):
    place = address(shards)
    with Worker(place, queue, "a", 4, session="first") as first:
        first.awaits(range(4))
        begun = time.monotonic()
        with Worker(place, queue, "a", 4, session="second") as second:
            eventually(lambda: second.assignments)
            assert second.shards == []
            # The first hears that it is not the one any more, and what it says counts for nothing.
            eventually(lambda: first.errors and first.errors[-1]["code"] == "FENCED_SESSION")
            second.awaits(range(4))
            assert time.monotonic() - begun > 1, "before the lease had run out"
            assert min(second.held.values()) > max(first.held.values())


def test_a_worker_that_swears_to_be_the_only_one_takes_over_at_once(shards, queue):
    place = address(shards)
    with Worker(place, queue, "a", 4, session="first") as first:
        first.awaits(range(4))
        first.beats = False
        with Worker(place, queue, "a", 4, session="second", takeOver=True) as second:
            second.awaits(range(4), seconds=2.5)
            assert min(second.held.values()) > max(first.held.values())


def test_weights_capacity_and_drain(shards, queue):
    place = address(shards)
    with Worker(place, queue, "a", 12, session="s1", weight=3) as a, Worker(place, queue, "b", 12, session="s2") as b:
        eventually(lambda: {k: len(v) for k, v in spread(shards, queue).items()} == {"a": 9, "b": 3}, seconds=30)
        answer = shards.post(f"/api/v1/shards/{queue}", {"action": "drain", "workerId": "a"})
        assert answer.status == 200, answer
        b.awaits(range(12))
        assert a.shards == []
        shards.post(f"/api/v1/shards/{queue}", {"action": "undrain", "workerId": "a"})
        eventually(lambda: {k: len(v) for k, v in spread(shards, queue).items()} == {"a": 9, "b": 3}, seconds=30)
    assert BEAT_SECONDS < 1
