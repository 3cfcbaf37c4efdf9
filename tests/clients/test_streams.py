"""The streams part of the published client, unmodified: windows, gates, and state that outlives its runner."""

import asyncio
import uuid

import pytest
from queen import Queen

from baton import Server

streams = pytest.importorskip("queen.streams", reason="this version of the client has no streams")
Stream = streams.Stream


@pytest.fixture
def query():
    return f"query-{uuid.uuid4().hex[:12]}"


async def collect(queen, queue, wanted, seconds=30, quiet=0.0):
    """Consumes until `wanted` says that it is enough, and then for `quiet` seconds more."""
    seen, deadline = [], asyncio.get_running_loop().time() + seconds
    while not wanted(seen):
        assert asyncio.get_running_loop().time() < deadline, f"still waiting; so far: {seen}"
        found = await queen.queue(queue).batch(100).partitions(10).wait(True).timeout_millis(500).group("reader").pop()
        for message in found:
            seen.append(message)
            await queen.ack(message, True, {"group": "reader"})
    if quiet:
        await asyncio.sleep(quiet)
        more = await queen.queue(queue).batch(100).partitions(10).wait(False).group("reader").pop()
        assert not more, f"nothing more should come, but: {more}"
    return seen


def data(messages):
    return [message["data"] for message in messages]


async def push(queen, queue, *values, partition="p"):
    await queen.queue(queue).partition(partition).push([{"data": value} for value in values])


async def run(stream, query, server, **options):
    errors = []
    options = {"batch_size": 50, "max_wait_millis": 200, "on_error": lambda error, at: errors.append((error, at)), **options}
    runner = await stream.run(query_id=query, url=server.url, **options)
    runner.errors = errors
    return runner


def sums(queen, queue, seconds=1, **window):
    """Sums of `v` per window of event time `t` and key `k`. Windows are closed by later events alone: the runner's own
    flush reads a window and gives it out without a lease, so that one which a cycle closes meanwhile comes twice."""
    return (
        Stream.from_(queen.queue(queue))
        .key_by(lambda message: message["data"]["k"])
        .window_tumbling(seconds=seconds, event_time=lambda message: message["data"]["t"], idle_flush_ms=0, **window)
        .aggregate({"sum": lambda value: value["v"], "count": lambda value: 1})
        .to(queen.queue(f"{queue}-out"))
    )


async def test_mapped_messages_reach_the_sink_in_order(queen, server, queue, query):
    stream = (
        Stream.from_(queen.queue(queue))
        .filter(lambda message: message["data"]["n"] % 2 == 0)
        .map(lambda message: {"double": message["data"]["n"] * 2})
        .to(queen.queue(f"{queue}-out"))
    )
    await push(queen, queue, *({"n": n} for n in range(100)))
    runner = await run(stream, query, server)
    seen = await collect(queen, f"{queue}-out", lambda seen: len(seen) >= 50, quiet=1)
    await runner.stop()
    assert data(seen) == [{"double": n * 2} for n in range(0, 100, 2)]
    assert {message["partition"] for message in seen} == {"p"}
    assert runner.errors == []


async def test_a_window_is_summed_exactly_once(queen, server, queue, query):
    base = 1_700_000_000_000
    events = [{"k": f"k{i % 3}", "t": base + i * 10, "v": i} for i in range(300)]
    runner = await run(sums(queen, queue), query, server)
    for start in range(0, len(events), 25):
        await push(queen, queue, *events[start : start + 25])
    # An event far ahead closes every window before it.
    await push(queen, queue, {"k": "end", "t": base + 60_000, "v": 0})
    expected = {}
    for event in events:
        window = (event["t"] - base) // 1000
        expected[event["k"], window] = expected.get((event["k"], window), 0) + event["v"]
    seen = await collect(queen, f"{queue}-out", lambda seen: len(seen) >= len(expected), quiet=1.5)
    await runner.stop()
    assert runner.errors == []
    assert sorted(value["sum"] for value in data(seen)) == sorted(expected.values())
    assert sum(value["count"] for value in data(seen)) == len(events)


async def test_a_window_goes_on_over_restarts_of_runner_and_server(tmp_path, queue, query):
    base = 1_700_000_000_000
    with Server(tmp_path / "data") as server:
        for round in range(4):
            queen = Queen(server.url)
            try:
                runner = await run(sums(queen, queue, seconds=3600), query, server)
                await push(queen, queue, *({"k": "k", "t": base + round, "v": v} for v in range(10)))
                deadline = asyncio.get_running_loop().time() + 30
                while runner.metrics()["messagesTotal"] < 10:
                    assert asyncio.get_running_loop().time() < deadline, runner.metrics()
                    await asyncio.sleep(0.05)
                await runner.stop()
                assert runner.errors == []
            finally:
                await queen.close()
            server.kill() if round % 2 else server.stop()
            server.start()
        queen = Queen(server.url)
        try:
            runner = await run(sums(queen, queue, seconds=3600), query, server)
            await push(queen, queue, {"k": "k", "t": base + 2 * 3600_000, "v": 0})
            seen = await collect(queen, f"{queue}-out", lambda seen: len(seen) >= 1, quiet=1)
            await runner.stop()
        finally:
            await queen.close()
    assert [(value["sum"], value["count"]) for value in data(seen)] == [(180, 40)]


async def test_a_gate_lets_through_in_order_and_keeps_its_state(queen, server, queue, query):
    """Every second evaluation is refused: each refusal ends a batch early, and the rest comes back in order."""
    await queen.queue(queue).config({"lease_time": 2}).create()
    refused = []

    def allow(message, context):
        n = message["data"]["n"] if "data" in message else message["n"]
        if n % 5 == 4 and n not in refused:
            refused.append(n)
            return False
        context.state["allowed"] = context.state.get("allowed", 0) + 1
        context.state["last"] = n
        return True

    stream = Stream.from_(queen.queue(queue)).gate(allow).to(queen.queue(f"{queue}-out"))
    await push(queen, queue, *({"n": n} for n in range(20)))
    runner = await run(stream, query, server)
    seen = await collect(queen, f"{queue}-out", lambda seen: len(seen) >= 20, quiet=1.5)
    await runner.stop()
    assert [value["n"] for value in data(seen)] == list(range(20))
    assert refused == [4, 9, 14, 19]
    assert runner.errors == []
    partition = server.pop(queue, batch=1, consumerGroup="other")[0]["partitionId"]
    registered = server.post(
        "/streams/v1/queries", {"name": query, "source_queue": queue, "config_hash": "another"}
    )
    assert registered.status == 409
    rows = server.post(
        "/streams/v1/state/get", {"query_id": registered.json["query_id"], "partition_id": partition}
    ).json["rows"]
    assert [row["value"] for row in rows] == [{"allowed": 20, "last": 19}]


async def test_another_configuration_is_refused_until_it_is_reset(queen, server, queue, query):
    runner = await run(sums(queen, queue, seconds=1), query, server)
    await runner.stop()
    with pytest.raises(Exception, match="config_hash mismatch"):
        await run(sums(queen, queue, seconds=2), query, server)
    runner = await run(sums(queen, queue, seconds=2), query, server, reset=True)
    await runner.stop()


async def test_a_rate_limiter_holds_back_what_is_over_its_rate(queen, server, queue, query):
    """A bucket of 5 that fills at 5 a second: 15 messages need about two seconds, and none is lost or overtaken."""
    await queen.queue(queue).config({"lease_time": 1}).create()
    gate = streams.helpers.token_bucket_gate(capacity=5, refill_per_sec=5)
    stream = Stream.from_(queen.queue(queue)).gate(gate).to(queen.queue(f"{queue}-out"))
    await push(queen, queue, *({"n": n} for n in range(15)))
    runner = await run(stream, query, server)
    seen = await collect(queen, f"{queue}-out", lambda seen: len(seen) >= 15, seconds=60, quiet=1.5)
    metrics = runner.metrics()
    await runner.stop()
    assert [value["n"] for value in data(seen)] == list(range(15))
    assert metrics["gateDenialsTotal"] > 0, "it held something back"


async def test_sliding_and_session_windows_emit_what_they_hold(queen, server, queue, query):
    base = 1_700_000_000_000
    event_time = lambda message: message["data"]["t"]  # noqa: E731
    windows = {
        "sliding": lambda stream: stream.window_sliding(size=2, slide=1, event_time=event_time, idle_flush_ms=0),
        "session": lambda stream: stream.window_session(gap=2, event_time=event_time, idle_flush_ms=0),
    }
    await push(queen, queue, *({"t": base + second * 1000, "v": 1} for second in (0, 1, 10, 11, 12)), {"t": base + 100_000, "v": 1})
    for kind, window in windows.items():
        out = f"{queue}-{kind}"
        stream = window(Stream.from_(queen.queue(queue)))
        stream = stream.aggregate({"sum": lambda value: value["v"]}).to(queen.queue(out))
        runner = await run(stream, f"{query}-{kind}", server)
        enough = 7 if kind == "sliding" else 2
        seen = await collect(queen, out, lambda seen: len(seen) >= enough, quiet=1)
        await runner.stop()
        assert runner.errors == []
        sums = sorted(value["sum"] for value in data(seen))
        # Two seconds wide, each second anew: 0 and 10 begin alone, 1 and 12 end alone, between them are pairs.
        assert sums == ([1, 1, 1, 1, 2, 2, 2] if kind == "sliding" else [2, 3])


async def test_sums_are_exact_although_the_server_is_killed_again_and_again(tmp_path, queue, query):
    base, total = 1_700_000_000_000, 400
    with Server(tmp_path / "data") as server:
        server.configure(queue, leaseTime=1)
        queen = Queen(server.url)
        try:
            runner = await run(sums(queen, queue), query, server, batch_size=20)
            for start in range(0, total, 20):
                events = [{"k": "k", "t": base + n * 10, "v": n} for n in range(start, start + 20)]
                ids = [f"{queue}-{n}" for n in range(start, start + 20)]
                await asyncio.to_thread(server.push, queue, *events, partition="p", ids=ids)
                if start % 100 == 60:
                    await asyncio.sleep(0.1)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.push, queue, {"k": "end", "t": base + 60_000, "v": 0}, partition="p")
            seen = await collect(queen, f"{queue}-out", lambda seen: len(seen) >= 4, seconds=60, quiet=2)
            await runner.stop()
        finally:
            await queen.close()
    assert [value["count"] for value in data(seen)] == [100] * 4
    assert [value["sum"] for value in data(seen)] == [sum(range(n, n + 100)) for n in range(0, total, 100)]
