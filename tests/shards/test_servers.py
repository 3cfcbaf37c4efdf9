"""Two servers on one PostgreSQL look after the same shards; one of them is killed."""

import time
import uuid

import postgres
import pytest
from baton import eventually
from workers import TIMEOUT_SECONDS, Worker, address, shard_server, spread


@pytest.fixture
def pair(tmp_path):
    store = ["--store", postgres.shared(), "--store-schema", f"test_{uuid.uuid4().hex[:20]}"]
    store += ["--shards-allocation", "sticky"]
    with shard_server(tmp_path / "a", *store) as first, shard_server(tmp_path / "b", *store) as second:
        yield first, second
        for server in (first, second):
            assert "panicked" not in server.text(), server.text()


def test_both_decide_and_either_may_die(pair, queue):
    first, second = pair
    count = 8
    with (
        Worker(address(first), queue, "a", count, session="a1") as a,
        Worker(address(second), queue, "b", count, session="b1") as b,
        Worker(address(second), queue, "c", count) as c,
    ):
        # What one server decides the workers of the other hear of.
        def settled(server):
            shown = spread(server, queue)
            told = {"a": a.shards, "b": b.shards, "c": c.shards}
            owned = sorted(shard for shards in shown.values() for shard in shards)
            return shown == told and owned == list(range(count)) and set(shown) == {"a", "b", "c"}

        eventually(lambda: settled(first) and settled(second), seconds=60)
        before = spread(second, queue)
        a_tokens = dict(a.held)
        first.kill()
        a.close()
        # The worker goes to the other server, as the life it is, and keeps what it has.
        again = Worker(address(second), queue, "a", count, session="a1")
        with again:
            again.generation = a.generation
            again.awaits(before["a"])
            assert again.held == a_tokens, "under the same tokens"
            eventually(lambda: spread(second, queue) == before, seconds=30)
            # Nobody counts as gone that is there.
            until = time.monotonic() + TIMEOUT_SECONDS + 1
            while time.monotonic() < until:
                assert set(spread(second, queue)) == {"a", "b", "c"}
                time.sleep(0.2)
        # Now it is gone, and only the server that is left can notice.
        eventually(lambda: set(spread(second, queue)) == {"b", "c"}, seconds=30)
        eventually(lambda: sorted(b.shards + c.shards) == list(range(count)), seconds=30)
        # A server that comes back goes on with the others.
        first.start()
        with Worker(address(first), queue, "d", count, session="d1") as d:
            eventually(lambda: d.shards and sorted(b.shards + c.shards + d.shards) == list(range(count)), seconds=60)
