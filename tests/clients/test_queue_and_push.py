"""Queues are made, filled and deleted."""

import asyncio
import uuid


async def pop_now(builder):
    return await builder.wait(False).pop()


async def test_a_queue_is_created(queen, queue):
    answer = await queen.queue(queue).create()
    assert answer["configured"] is True
    assert answer["queue"] == queue


async def test_every_option_is_echoed_as_it_was_sent(queen, queue):
    sent = {
        "lease_time": 600,
        "retry_limit": 2,
        "retry_delay": 2000,
        "max_size": 5000,
        "ttl": 7200,
        "priority": 5,
        "delayed_processing": 2,
        "window_buffer": 3,
        "dead_letter_queue": True,
        "dlq_after_max_retries": True,
        "retention_seconds": 4000,
        "completed_retention_seconds": 3000,
        "retention_enabled": True,
        "max_wait_time_seconds": 900,
        "encryption_enabled": False,
    }
    answer = await queen.queue(queue).namespace("billing").task("invoice").config(sent).create()
    assert (answer["namespace"], answer["task"]) == ("billing", "invoice")
    assert answer["options"]["leaseTime"] == 600
    assert answer["options"]["retryLimit"] == 2
    assert answer["options"]["retryDelay"] == 2000
    assert answer["options"]["maxSize"] == 5000
    assert answer["options"]["ttl"] == 7200
    assert answer["options"]["priority"] == 5
    assert answer["options"]["delayedProcessing"] == 2
    assert answer["options"]["windowBuffer"] == 3
    assert answer["options"]["deadLetterQueue"] is True
    assert answer["options"]["dlqAfterMaxRetries"] is True
    assert answer["options"]["retentionSeconds"] == 4000
    assert answer["options"]["completedRetentionSeconds"] == 3000
    assert answer["options"]["retentionEnabled"] is True
    assert answer["options"]["maxWaitTimeSeconds"] == 900
    assert answer["options"]["encryptionEnabled"] is False


async def test_creating_a_queue_twice_keeps_its_messages(queen, queue):
    await queen.queue(queue).create()
    await queen.queue(queue).push([{"data": 1}])
    assert (await queen.queue(queue).create())["configured"] is True
    assert [message["data"] for message in await pop_now(queen.queue(queue).batch(5))] == [1]


async def test_a_deleted_queue_is_gone_with_its_messages(queen, queue):
    await queen.queue(queue).create()
    await queen.queue(queue).push([{"data": 1}])
    assert (await queen.queue(queue).delete())["deleted"] is True
    assert await pop_now(queen.queue(queue).batch(5)) == []
    await queen.queue(queue).create()
    assert await pop_now(queen.queue(queue).batch(5)) == []


async def test_deleting_a_queue_that_is_not_there_succeeds(queen, queue):
    assert (await queen.queue(queue).delete())["deleted"] is True


async def test_a_pushed_message_is_queued(queen, queue):
    results = await queen.queue(queue).push([{"data": {"hello": "world"}}])
    assert [result["status"] for result in results] == ["queued"]


async def test_a_push_makes_the_queue_and_the_partition(queen, queue):
    await queen.queue(queue).partition("made").push([{"data": {"n": 1}}])
    (message,) = await pop_now(queen.queue(queue).partition("made").batch(5))
    assert (message["data"], message["partition"]) == ({"n": 1}, "made")


async def test_a_repeated_transaction_id_is_a_duplicate_of_the_original(queen, queue):
    item = {"data": 1, "transactionId": "order-1"}
    (first,) = await queen.queue(queue).push([item])
    (second,) = await queen.queue(queue).push([{**item, "data": 2}])
    assert (first["status"], second["status"]) == ("queued", "duplicate")
    assert second["message_id"] == first["message_id"]
    assert [message["data"] for message in await pop_now(queen.queue(queue).batch(5))] == [1]


async def test_a_repeated_transaction_id_is_a_duplicate_in_a_named_partition_too(queen, queue):
    item = {"data": 1, "transactionId": "order-1"}
    (first,) = await queen.queue(queue).partition("p").push([item])
    (second,) = await queen.queue(queue).partition("p").push([item])
    assert (first["status"], second["status"]) == ("queued", "duplicate")


async def test_the_same_transaction_id_in_another_partition_is_another_message(queen, queue):
    item = {"data": 1, "transactionId": "order-1"}
    (first,) = await queen.queue(queue).partition("p").push([item])
    (second,) = await queen.queue(queue).partition("q").push([item])
    assert (first["status"], second["status"]) == ("queued", "queued")


async def test_duplicates_inside_one_push_answer_with_the_id_of_the_first(queen, queue):
    items = [{"data": i, "transactionId": "same"} for i in range(5)]
    results = await queen.queue(queue).push(items)
    assert [result["status"] for result in results] == ["queued", *["duplicate"] * 4]
    assert len({result["message_id"] for result in results}) == 1


async def test_of_concurrent_pushes_of_one_id_exactly_one_is_queued(queen, queue):
    pushes = [queen.queue(queue).push([{"data": i, "transactionId": "same"}]) for i in range(20)]

    async def run(push):
        return (await push)[0]

    results = await asyncio.gather(*(run(push) for push in pushes))
    assert sorted(result["status"] for result in results) == [*["duplicate"] * 19, "queued"]
    assert len({result["message_id"] for result in results}) == 1


async def test_messages_without_an_id_are_all_different(queen, queue):
    results = await queen.queue(queue).push([{"data": 1} for _ in range(100)])
    assert {result["status"] for result in results} == {"queued"}
    assert len({result["message_id"] for result in results}) == 100


async def test_an_empty_push_answers_an_empty_list(queen, queue):
    assert not await queen.queue(queue).push([])


async def test_push_callbacks_tell_success_from_duplicate(queen, queue):
    seen = []

    async def succeeded(items):
        seen.append(("success", len(items)))

    async def duplicated(items, error):
        seen.append(("duplicate", len(items)))

    items = [{"data": 1, "transactionId": "a"}, {"data": 2, "transactionId": "a"}, {"data": 3}]
    await queen.queue(queue).push(items).on_success(succeeded).on_duplicate(duplicated)
    assert sorted(seen) == [("duplicate", 1), ("success", 2)]


async def test_null_and_empty_payloads_come_back_as_they_are(queen, queue):
    payloads = [None, {}, [], "", 0, False]
    await queen.queue(queue).push([{"data": payload} for payload in payloads])
    assert [message["data"] for message in await pop_now(queen.queue(queue).batch(10))] == payloads


async def test_a_payload_of_more_than_a_megabyte_comes_back_whole(queen, queue):
    payload = {"rows": [{"n": i, "text": "ü" * 50} for i in range(20_000)]}
    await queen.queue(queue).push([{"data": payload}])
    (message,) = await pop_now(queen.queue(queue).batch(1))
    assert message["data"] == payload


async def test_numbers_and_text_come_back_unchanged(queen, queue):
    payload = {"big": 2**63 + 12345, "negative": -(2**60), "small": 1e-300, "text": "\u0000\n\"\\ 🎻", "π": 3.14}
    await queen.queue(queue).push([{"data": payload}])
    (message,) = await pop_now(queen.queue(queue).batch(1))
    assert message["data"] == payload


async def test_a_trace_id_travels_with_the_message(queen, queue):
    trace = str(uuid.uuid4())
    await queen.queue(queue).push([{"data": 1, "traceId": trace}])
    (message,) = await pop_now(queen.queue(queue).batch(1))
    assert message["traceId"] == trace


async def test_a_delayed_message_waits_for_its_time(queen, queue):
    await queen.queue(queue).config({"delayed_processing": 2}).create()
    await queen.queue(queue).push([{"data": 1}])
    assert await pop_now(queen.queue(queue).batch(1)) == []
    started = asyncio.get_running_loop().time()
    (message,) = await queen.queue(queue).batch(1).wait(True).timeout_millis(10000).pop()
    assert message["data"] == 1
    assert asyncio.get_running_loop().time() - started < 9, "the poll is woken when the delay is over"


async def test_a_window_buffer_holds_a_partition_until_it_is_quiet(queen, queue):
    await queen.queue(queue).config({"window_buffer": 2}).create()
    await queen.queue(queue).push([{"data": 1}])
    assert await pop_now(queen.queue(queue).batch(10)) == []
    await asyncio.sleep(1)
    await queen.queue(queue).push([{"data": 2}])
    await asyncio.sleep(1.2)
    assert await pop_now(queen.queue(queue).batch(10)) == [], "the second push opened the window again"
    messages = await queen.queue(queue).batch(10).wait(True).timeout_millis(10000).pop()
    assert [message["data"] for message in messages] == [1, 2]


async def test_a_buffered_push_arrives_after_its_time(queen, queue):
    await queen.queue(queue).create()
    await queen.queue(queue).buffer({"message_count": 100, "time_millis": 500}).push([{"data": 1}])
    assert await pop_now(queen.queue(queue).batch(1)) == []
    (message,) = await queen.queue(queue).batch(1).wait(True).timeout_millis(10000).pop()
    assert message["data"] == 1


async def test_a_full_buffer_is_pushed_at_once_and_a_flush_sends_the_rest(queen, queue):
    buffered = {"message_count": 10, "time_millis": 60000}
    for i in range(25):
        await queen.queue(queue).buffer(buffered).push([{"data": i}])
    await queen.flush_all_buffers()
    messages = await pop_now(queen.queue(queue).batch(100))
    assert sorted(message["data"] for message in messages) == list(range(25))
