"""The consumer loop of the client: order, concurrency, groups, retries, renewal and dead letters."""

import asyncio

from queen import Queen

from baton import Server


async def pop_now(builder):
    return await builder.wait(False).pop()


def data_of(messages):
    return [message["data"] for message in messages]


def polling(builder):
    """A consumer that polls without waiting and ends once nothing has come for a while."""
    return builder.wait(False).idle_millis(1500)


async def test_a_consumer_handles_and_acks_one_message(queen, queue):
    await queen.queue(queue).push([{"data": 1}])
    seen = []

    async def handle(message):
        seen.append(message["data"])

    await queen.queue(queue).batch(1).limit(1).each().consume(handle)
    assert seen == [1]
    assert await pop_now(queen.queue(queue).batch(1)) == []


async def test_a_consumer_waits_for_messages_to_come(queen, queue):
    seen = []

    async def handle(message):
        seen.append(message["data"])

    consuming = asyncio.create_task(run(queen.queue(queue).batch(1).limit(3).each().consume(handle)))
    for i in range(3):
        await asyncio.sleep(0.2)
        await queen.queue(queue).push([{"data": i}])
    await asyncio.wait_for(consuming, 20)
    assert seen == [0, 1, 2]


async def run(builder):
    return await builder


async def test_a_batch_consumer_gets_a_list(queen, queue):
    await queen.queue(queue).push([{"data": i} for i in range(10)])
    batches = []

    async def handle(messages):
        batches.append(data_of(messages))

    await queen.queue(queue).batch(10).limit(10).consume(handle)
    assert batches == [list(range(10))]
    assert await pop_now(queen.queue(queue).batch(10)) == []


async def test_concurrent_consumers_of_one_partition_keep_its_order(queen, queue):
    await queen.queue(queue).partition("p").push([{"data": i} for i in range(100)])
    seen = []

    async def handle(message):
        seen.append(message["data"])
        await asyncio.sleep(0)

    await polling(queen.queue(queue).batch(1).concurrency(10).each()).consume(handle)
    assert seen == list(range(100))


async def test_concurrent_batch_consumers_keep_the_order_of_buffered_pushes(queen, queue):
    for i in range(300):
        await queen.queue(queue).buffer({"message_count": 50, "time_millis": 100}).push([{"data": i}])
    seen = []

    async def handle(messages):
        seen.extend(data_of(messages))

    await polling(queen.queue(queue).batch(20).concurrency(5)).consume(handle)
    assert seen == list(range(300))


async def test_concurrent_consumers_share_partitions_without_overlap(queen, queue):
    for partition in range(10):
        items = [{"data": [partition, i]} for i in range(20)]
        await queen.queue(queue).partition(str(partition)).push(items)
    seen = []

    async def handle(messages):
        seen.extend(data_of(messages))

    await polling(queen.queue(queue).batch(7).concurrency(10)).consume(handle)
    assert sorted(seen) == [[p, i] for p in range(10) for i in range(20)]
    for partition in range(10):
        assert [i for p, i in seen if p == partition] == list(range(20))


async def test_groups_each_get_every_message(queen, queue):
    await queen.queue(queue).push([{"data": i} for i in range(20)])
    seen = {"a": [], "b": [], None: []}

    def consume(group):
        async def handle(messages):
            seen[group].extend(data_of(messages))

        builder = queen.queue(queue).batch(7).limit(20)
        if group:
            builder = builder.group(group)
        return run(builder.consume(handle))

    await asyncio.wait_for(asyncio.gather(*(consume(group) for group in seen)), 30)
    assert seen == {"a": list(range(20)), "b": list(range(20)), None: list(range(20))}


async def failing_twice(queen, queue, group=None):
    """Consumes 100 messages in one batch whose handler throws twice; returns the batches it saw."""
    batches = []

    async def handle(messages):
        batches.append(data_of(messages))
        if len(batches) < 3:
            raise RuntimeError("not yet")

    builder = queen.queue(queue).batch(100)
    if group:
        builder = builder.group(group)
    await polling(builder).consume(handle)
    return batches


async def test_a_batch_that_fails_twice_completes_at_the_third_attempt(queen, queue):
    await queen.queue(queue).config({"retry_limit": 3}).create()
    await queen.queue(queue).push([{"data": i} for i in range(100)])
    assert await failing_twice(queen, queue) == [list(range(100))] * 3
    assert await pop_now(queen.queue(queue).batch(100)) == []
    assert (await queen.queue(queue).dlq().get())["messages"] == []


async def test_retries_of_one_group_leave_another_alone(queen, queue):
    await queen.queue(queue).config({"retry_limit": 3}).create()
    await queen.queue(queue).push([{"data": i} for i in range(100)])
    assert await failing_twice(queen, queue, "a") == [list(range(100))] * 3
    assert data_of(await pop_now(queen.queue(queue).group("b").batch(100))) == list(range(100))
    assert await pop_now(queen.queue(queue).group("a").batch(100)) == []


async def test_a_message_that_fails_in_the_middle_is_never_skipped(queen, queue):
    await queen.queue(queue).config({"retry_limit": 3}).create()
    await queen.queue(queue).push([{"data": i} for i in range(10)])
    failed = []
    done = []

    async def handle(message):
        if message["data"] == 4 and len(failed) < 2:
            failed.append(4)
            raise RuntimeError("not yet")
        done.append(message["data"])

    await polling(queen.queue(queue).batch(10).each()).consume(handle)
    # The older client goes on after a failure, so later messages may be handled twice; none may be missing.
    assert set(done) == set(range(10))
    assert failed == [4, 4]
    assert await pop_now(queen.queue(queue).batch(10)) == []


async def test_a_message_out_of_retries_is_a_dead_letter_with_its_payload_and_error(queen, queue):
    await queen.queue(queue).config({"retry_limit": 1}).create()
    await queen.queue(queue).push([{"data": {"message": "poison"}}])
    attempts = []

    async def handle(message):
        attempts.append(message["data"])
        raise RuntimeError("cannot digest")

    async def failed(message, error):
        await queen.ack(message, False, {"error": str(error)})

    await polling(queen.queue(queue).batch(1).each()).consume(handle).on_error(failed)
    assert len(attempts) == 2
    answer = await queen.queue(queue).dlq().get()
    (letter,) = answer["messages"]
    assert answer["total"] == 1
    assert letter["data"] == {"message": "poison"}
    assert "cannot digest" in letter["errorMessage"]
    assert await pop_now(queen.queue(queue).batch(1)) == []


async def test_the_message_after_a_dead_letter_is_delivered(queen, queue):
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await queen.queue(queue).push([{"data": "poison"}, {"data": "fine"}])
    done = []

    async def handle(message):
        if message["data"] == "poison":
            raise RuntimeError("cannot digest")
        done.append(message["data"])

    await polling(queen.queue(queue).batch(1).each()).consume(handle)
    assert done == ["fine"]
    letters = (await queen.queue(queue).dlq().get())["messages"]
    assert data_of(letters) == ["poison"]


async def test_dead_letters_are_listed_by_group_and_page(queen, queue):
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await queen.queue(queue).push([{"data": i} for i in range(5)])
    for group in ("a", "b"):
        for _ in range(5):
            (message,) = await pop_now(queen.queue(queue).group(group).batch(1))
            await queen.ack(message, "dlq", {"group": group, "error": group})
    everything = await queen.queue(queue).dlq().get()
    assert everything["total"] == 10
    page = await queen.queue(queue).dlq("a").limit(2).offset(4).get()
    assert page["total"] == 5
    assert data_of(page["messages"]) == [0], "newest first"
    assert page["messages"][0]["errorMessage"] == "a"
    none = await queen.queue(queue).dlq("a").from_("2001-01-01T00:00:00Z").to("2001-01-02T00:00:00Z").get()
    assert (none["total"], none["messages"]) == (0, [])


async def test_a_renewing_consumer_keeps_a_message_longer_than_its_lease(queen, queue):
    await queen.queue(queue).config({"lease_time": 3}).create()
    await queen.queue(queue).push([{"data": 1}])
    handled = []

    async def handle(message):
        handled.append(message["data"])
        await asyncio.sleep(5)

    consuming = asyncio.create_task(
        run(queen.queue(queue).batch(1).limit(1).renew_lease(True, 400).each().consume(handle))
    )
    await asyncio.sleep(4)
    assert await pop_now(queen.queue(queue).batch(1)) == [], "nobody else gets it while it is renewed"
    await consuming
    assert handled == [1]
    assert await pop_now(queen.queue(queue).batch(1)) == []


async def test_messages_are_acked_by_hand_without_redelivery(queen, queue):
    await queen.queue(queue).push([{"data": i} for i in range(1000)])
    seen = []

    async def handle(message):
        seen.append(message["data"])
        assert (await queen.ack(message))["success"] is True

    await queen.queue(queue).batch(100).limit(1000).auto_ack(False).each().consume(handle)
    assert seen == list(range(1000))
    assert await pop_now(queen.queue(queue).batch(10)) == []


async def test_a_consumer_stops_at_its_signal(queen, queue):
    stop = asyncio.Event()
    seen = []

    async def handle(message):
        seen.append(message["data"])
        stop.set()

    await queen.queue(queue).push([{"data": i} for i in range(3)])
    await asyncio.wait_for(run(queen.queue(queue).batch(1).each().consume(handle, signal=stop)), 20)
    assert seen == [0]


async def test_a_consumer_of_a_namespace_reads_all_its_queues(queen, queue):
    for name in ("a", "b", "c"):
        await queen.queue(f"{queue}-{name}").namespace(queue).create()
        await queen.queue(f"{queue}-{name}").push([{"data": name}])
    seen = []

    async def handle(messages):
        seen.extend(data_of(messages))

    await polling(queen.queue().namespace(queue).batch(10)).consume(handle)
    assert sorted(seen) == ["a", "b", "c"]


async def test_tracing_a_message_never_breaks_its_consumption(queen, queue):
    await queen.queue(queue).push([{"data": 1}])
    outcomes = []

    async def handle(message):
        for name in ("one", ["one", "two"], None):
            outcomes.append(await message["trace"]({"traceName": name, "data": {"text": "seen"}}))

    await queen.queue(queue).batch(1).limit(1).each().consume(handle)
    assert len(outcomes) == 3
    assert await pop_now(queen.queue(queue).batch(1)) == []


async def test_a_consumer_survives_a_restart_of_the_server(queen, queue, tmp_path):
    with Server(tmp_path / "data") as first:
        port = first.port
        async with Queen(first.url) as client:
            seen = []

            async def handle(message):
                seen.append(message["data"])

            await client.queue(queue).push([{"data": 1}])
            consuming = asyncio.create_task(
                run(client.queue(queue).batch(1).limit(2).timeout_millis(5000).each().consume(handle))
            )
            while not seen:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(first.kill)
            with Server(tmp_path / "data", listen=f"127.0.0.1:{port}") as second:
                await asyncio.to_thread(second.push, queue, 2)
                await asyncio.wait_for(consuming, 60)
    assert seen == [1, 2]
