"""Records, locks, timers, reads by offset and depth, as the newer client calls them."""

import asyncio
from datetime import timedelta

import pytest

pytest.importorskip("queen.kv", reason="this client has no records")

from queen import Queen  # noqa: E402
from queen.errors import KvError, LockError, LockNotHeldError, TimerError  # noqa: E402

from baton import data_of  # noqa: E402


@pytest.fixture
def ns(queue):
    return queue


async def pop_one(queen, queue):
    """The messages of a waiting pop, acked."""
    messages = await queen.queue(queue).batch(10).wait(True).timeout_millis(20000).pop()
    await queen.ack(messages)
    return messages


async def nothing_in(queen, queue):
    return await queen.queue(queue).batch(10).wait(False).pop() == []


# Records


async def test_a_record_is_written_read_and_deleted(queen, ns):
    written = await queen.kv.put(ns, "k", {"a": [1, None]}, ttl_seconds=60)
    assert written and written["version"] > 0
    read = await queen.kv.get(ns, "k")
    assert read and read["value"] == {"a": [1, None]} and read["version"] == written["version"]
    assert read["expiresAt"] and read["updatedAt"]
    assert await queen.kv.delete(ns, "k", expect=read["version"])
    assert not await queen.kv.get(ns, "k")
    gone = await queen.kv.delete(ns, "k")
    assert not gone and gone["reason"] == "absent"


async def test_compare_and_set_counters_and_checks(queen, ns):
    first = await queen.kv.put(ns, "k", 1, forever=True, expect=0)
    lost = await queen.kv.put(ns, "k", 2, forever=True, expect=first["version"] + 1)
    assert not lost and (lost["reason"], lost["value"], lost["version"]) == ("version", 1, first["version"])
    assert (await queen.kv.put_if_absent(ns, "k", 3, ttl=timedelta(seconds=5)))["reason"] == "exists"
    assert await queen.kv.check(ns, "k", expect=first["version"])
    assert (await queen.kv.incr(ns, "c", delta=5, ttl_seconds=60))["value"] == 5
    assert (await queen.kv.incr(ns, "c", delta=-2, min=0, ttl_seconds=60))["value"] == 3
    refused = await queen.kv.incr(ns, "c", delta=-4, min=0, ttl_seconds=60)
    assert not refused and (refused["reason"], refused["value"]) == ("limit", 3)


async def test_once_is_true_for_one_of_many(queen, ns):
    claims = await asyncio.gather(*(queen.kv.once(ns, "job", ttl_seconds=60) for _ in range(30)))
    assert claims.count(True) == 1


async def test_many_records_are_read_at_once(queen, ns):
    await queen.kv.batch([queen.kv.op.put(ns, f"p/{i:02}", i, forever=True) for i in range(25)])
    many = await queen.kv.get_many(ns, ["p/03", "p/01", "none"])
    assert [(row["key"], row["value"]) for row in many["rows"]] == [("p/01", 1), ("p/03", 3)]
    assert many["missing"] == ["none"]
    page = await queen.kv.get_prefix(ns, "p/", limit=10)
    assert page["truncated"] and page["nextAfter"] == "p/09"
    assert [row["value"] for row in await queen.kv.list_all(ns, "p/", limit=10)] == list(range(25))


async def test_a_refusal_is_typed(queen, ns):
    with pytest.raises(KvError) as refused:
        await queen.kv.put("Not Allowed", "k", 1, forever=True)
    assert (refused.value.status, refused.value.code, refused.value.reason) == (400, "kv_bad_request", "kv_bad_namespace")
    with pytest.raises(KvError) as refused:
        await queen.kv.put(ns, "k", "x" * 70000, forever=True)
    assert (refused.value.status, refused.value.code) == (413, "payload_too_large")


# Locks


async def test_a_lock_has_one_holder_and_goes_on(queen, queue):
    first, second = queen.lock(queue, ttl_seconds=30), queen.lock(queue, ttl_seconds=30)
    assert await first.acquire() and first.held and first.token > 0
    assert not await second.acquire()
    holders = await queen.locks.get(queue)
    assert holders and [holder["owner"] for holder in holders["holders"]] == [first.owner]
    token = first.token
    assert await first.renew() and first.token > token
    assert await first.release() and not first.held
    assert await second.acquire(wait=5) and second.token > token
    async with queen.lock(f"{queue}-other", ttl_seconds=30) as other:
        assert other.held
        with pytest.raises(LockNotHeldError):
            async with queen.lock(f"{queue}-other", ttl_seconds=30):
                pass


async def test_one_of_fifty_clients_gets_the_lock(queen, queue):
    locks = [queen.lock(queue, ttl_seconds=30) for _ in range(50)]
    assert (await asyncio.gather(*(lock.acquire() for lock in locks))).count(True) == 1


async def test_a_lock_renews_itself_and_is_free_when_its_holder_is_gone(queen, queue):
    lock = queen.lock(queue, ttl_seconds=2, renew_every=0.3)
    assert await lock.acquire()
    token = lock.token
    while lock.token == token:
        await asyncio.sleep(0.05)
    abandoned = queen.lock(f"{queue}-abandoned", ttl_seconds=1, auto_renew=False)
    assert await abandoned.acquire()
    successor = queen.lock(f"{queue}-abandoned", ttl_seconds=30)
    assert await successor.acquire(wait=20)
    await asyncio.wait_for(abandoned.lost.wait(), 20)
    assert lock.held


async def test_a_semaphore_has_as_many_permits_as_asked_for(queen, queue):
    permits = [queen.semaphore(queue, 3, ttl_seconds=30) for _ in range(5)]
    taken = [await permit.acquire() for permit in permits]
    assert taken == [True, True, True, False, False]
    assert [permit.slot for permit in permits[:3]] == [0, 1, 2]
    await permits[1].release()
    assert await permits[4].acquire() and permits[4].slot == 1


async def test_work_under_a_lost_lock_is_not_done(queen, queue):
    lock = queen.lock(queue, ttl_seconds=30)
    assert await lock.acquire()
    assert await queen.transaction().guard(lock).queue(queue).push([{"data": 1}]).commit()
    assert await lock.renew(), "a newer token guards as well"
    assert await queen.transaction().guard(lock).queue(queue).push([{"data": 2}]).commit()
    # Somebody else takes it, and the handle does not know yet.
    assert await queen.locks.release(queue, token=lock.token, slot=0)
    assert await queen.locks.acquire(queue, ttl_seconds=30, owner="somebody else")
    undone = await queen.transaction().guard(lock).queue(queue).push([{"data": 3}]).commit()
    assert not undone and undone["reason"] == "kv_precondition"
    assert lock.lost.is_set()
    assert data_of(await pop_one(queen, queue)) == [1, 2]


async def test_a_wrong_lock_is_a_typed_refusal(queen, queue):
    with pytest.raises(LockError) as refused:
        await queen.locks.batch([{"op": "steal", "name": queue}])
    assert (refused.value.status, refused.value.code, refused.value.reason) == (400, "locks_bad_request", "locks_unknown_op")


# Timers


async def test_a_timer_becomes_a_message(queen, queue):
    result = await queen.timers.schedule(queue, "k/1", {"a": "ü"}, delay_ms=200, txn="t-1", partition="p")
    assert result and result["status"] == "scheduled" and result["txn"] == "t-1"
    (message,) = await pop_one(queen, queue)
    assert (message["data"], message["transactionId"], message["partition"]) == ({"a": "ü"}, "t-1", "p")
    gone = await queen.timers.cancel(queue, "k/1", txn="t-1")
    assert not gone and (gone["status"], gone["txn"]) == ("absent", "t-1")


async def test_timers_are_looked_at_moved_and_cancelled(queen, queue):
    for i in range(12):
        await queen.timer(queue).key(f"order/{i:02}").payload({"i": i}).after(timedelta(hours=1)).schedule()
    shown = await queen.timers.peek(queue, "order/03")
    assert shown and shown["timerKey"] == "order/03"
    rows = await queen.timers.list_all(queue, limit=5)
    assert [row["timerKey"] for row in rows] == [f"order/{i:02}" for i in range(12)]
    assert (await queen.timer(queue).key("order/03").cancel())["status"] == "cancelled"
    assert not await queen.timers.peek(queue, "order/03")
    moved = await queen.timer(queue).key("order/04").payload({"i": "now"}).after_ms(0).reschedule()
    assert moved["status"] == "rescheduled"
    assert data_of(await pop_one(queen, queue)) == [{"i": "now"}]
    with pytest.raises(TimerError) as refused:
        await queen.timers.schedule(queue, "far", 1, delay=timedelta(days=100))
    assert (refused.value.status, refused.value.code) == (403, "timer_horizon_exceeded")


# Transactions


async def test_acks_pushes_records_and_timers_are_committed_together(queen, queue, ns):
    await queen.queue(queue).push([{"data": 1}])
    (message,) = await queen.queue(queue).batch(1).wait(False).pop()
    result = await (
        queen.transaction()
        .ack(message)
        .queue(f"{queue}-next")
        .push([{"data": 2}])
        .kv.put(ns, "state", "done", forever=True)
        .kv.incr(ns, "count", ttl_seconds=60)
        .kv.get(ns, "count")
        .timer(queue)
        .key("t")
        .payload({"later": True})
        .after_ms(0)
        .schedule()
        .commit()
    )
    assert result
    assert [r["type"] for r in result["results"]] == ["ack", "push", "kv", "kv", "kv", "timer"]
    assert result["results"][4]["value"] == 1, "a read sees the writes beside it"
    assert (await queen.kv.get(ns, "state"))["value"] == "done"
    assert data_of(await pop_one(queen, f"{queue}-next")) == [2]
    assert data_of(await pop_one(queen, queue)) == [{"later": True}]


async def test_a_message_that_comes_twice_is_worked_on_once(queen, queue, ns):
    async def work():
        return await queen.transaction().once(ns, "message-1", ttl_seconds=60).queue(queue).push([{"data": 1}]).commit()

    first, second = await work(), await work()
    assert first and not second
    assert (second["reason"], second["kvReason"]) == ("kv_precondition", "exists")
    assert data_of(await pop_one(queen, queue)) == [1]
    assert await nothing_in(queen, queue)


# Reads by offset, depth


async def test_partitions_are_read_by_offset(queen, queue):
    for partition in ("a", "b"):
        await queen.queue(queue).partition(partition).push([{"data": [partition, i]} for i in range(30)])
    read = await queen.queue(queue).fetch(["a", "b", "none"], offsets={"b": 28}, max_bytes=100)
    assert [record["payload"] for record in read["a"]["records"]] == [["a", i] for i in range(30)]
    assert [record["offset"] for record in read["b"]["records"]] == [28, 29]
    assert (read["a"]["nextOffset"], read["none"]["records"]) == (30, [])
    assert (await queen.queue(f"{queue}-none").fetch("a"))["a"]["records"] == []


async def test_changed_partitions_are_found(queen, queue):
    await queen.queue(queue).partition("a").push([{"data": 1}])
    before = await queen.queue(queue).changed_since()
    assert [partition["name"] for partition in before["partitions"]] == ["a"]
    await queen.queue(queue).partition("b").push([{"data": 1}])
    after = await queen.queue(queue).changed_since(before["safeTime"])
    assert [partition["name"] for partition in after["partitions"]] == ["b"]
    assert (await queen.queue(f"{queue}-none").changed_since())["partitions"] == []


async def test_depth_is_reported_for_a_group(queen, queue):
    await queen.queue(queue).push([{"data": i} for i in range(4)])
    await queen.queue(queue).group("g").subscription_mode("all").batch(3).wait(False).pop()
    depth = await queen.admin.get_queue_depth(queue, "g")
    assert (depth["pending"], depth["processing"], depth["ready"], depth["partitionsPending"]) == (4, 3, 1, 1)


async def test_records_locks_and_timers_outlive_the_server(tmp_path):
    from baton import Server

    with Server(tmp_path / "data") as server:
        queen = Queen(server.url)
        version = (await queen.kv.put("ns", "k", "kept", ttl_seconds=600))["version"]
        held = await queen.locks.acquire("l", ttl_seconds=600, owner="me")
        await queen.timers.schedule("q", "t", "fired", delay_ms=1500)
        await queen.close()
        server.kill()
        server.start()
        queen = Queen(server.url)
        try:
            assert (await queen.kv.get("ns", "k"))["version"] == version
            assert not await queen.locks.acquire("l", ttl_seconds=600, owner="you")
            assert await queen.locks.renew("l", token=held["token"], ttl_seconds=600)
            assert data_of(await pop_one(queen, "q")) == ["fired"]
        finally:
            await queen.close()


# The newest only


async def test_a_conflating_group_gets_the_newest_and_finishes_the_rest(queen, queue):
    for number in range(3):
        await queen.queue(queue).partition("p").push([{"data": number}])
    consumer = lambda: queen.queue(queue).group("g").subscription_mode("all").conflation().batch(10).wait(False)
    messages = await consumer().pop()
    assert data_of(messages) == [2]
    await queen.ack(messages, True, {"group": "g"})
    assert await consumer().pop() == []
