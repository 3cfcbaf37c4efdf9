"""Messages are popped under a lease and acked."""

import asyncio


async def pop_now(builder):
    return await builder.wait(False).pop()


def data_of(messages):
    return [message["data"] for message in messages]


async def test_a_queue_that_is_empty_or_missing_gives_nothing(queen, queue):
    assert await pop_now(queen.queue(queue).batch(10)) == []
    await queen.queue(queue).create()
    assert await pop_now(queen.queue(queue).batch(10)) == []


async def test_a_popped_message_is_acked(queen, queue):
    await queen.queue(queue).push([{"data": {"id": 1}}])
    (message,) = await pop_now(queen.queue(queue).batch(1))
    answer = await queen.ack(message)
    assert answer["success"] is True
    assert await pop_now(queen.queue(queue).batch(1)) == []


async def test_a_batch_is_acked_in_one_call(queen, queue):
    await queen.queue(queue).push([{"data": i} for i in range(50)])
    messages = await pop_now(queen.queue(queue).batch(100))
    answer = await queen.ack(messages)
    assert answer["success"] is True
    assert [result["success"] for result in answer["results"]] == [True] * 50
    assert await pop_now(queen.queue(queue).batch(100)) == []


async def test_a_long_poll_gets_a_message_that_is_pushed_while_it_waits(queen, queue):
    await queen.queue(queue).create()
    polling = asyncio.create_task(queen.queue(queue).batch(1).wait(True).timeout_millis(20000).pop())
    await asyncio.sleep(1)
    assert not polling.done()
    started = asyncio.get_running_loop().time()
    await queen.queue(queue).push([{"data": "late"}])
    (message,) = await polling
    assert message["data"] == "late"
    assert asyncio.get_running_loop().time() - started < 10


async def test_a_long_poll_on_a_queue_that_does_not_exist_yet_gets_its_first_message(queen, queue):
    polling = asyncio.create_task(queen.queue(queue).batch(1).wait(True).timeout_millis(20000).pop())
    await asyncio.sleep(0.5)
    await queen.queue(queue).push([{"data": "first"}])
    assert data_of(await polling) == ["first"]


async def test_a_long_poll_ends_with_nothing_at_its_timeout(queen, queue):
    started = asyncio.get_running_loop().time()
    assert await queen.queue(queue).batch(1).wait(True).timeout_millis(1000).pop() == []
    assert 0.8 < asyncio.get_running_loop().time() - started < 10


async def test_an_unacked_message_comes_again_when_its_lease_is_over(queen, queue):
    await queen.queue(queue).config({"lease_time": 1}).create()
    await queen.queue(queue).push([{"data": 1}])
    (first,) = await pop_now(queen.queue(queue).batch(1))
    await queen.queue(queue).config({"lease_time": 60}).create()
    (second,) = await queen.queue(queue).batch(1).wait(True).timeout_millis(10000).pop()
    assert second["transactionId"] == first["transactionId"]
    assert (await queen.ack(second))["success"] is True
    assert await pop_now(queen.queue(queue).batch(1)) == []


async def test_an_ack_under_an_expired_lease_is_refused_without_an_exception(queen, queue):
    await queen.queue(queue).config({"lease_time": 1}).create()
    await queen.queue(queue).push([{"data": 1}])
    (first,) = await pop_now(queen.queue(queue).batch(1))
    await queen.queue(queue).config({"lease_time": 60}).create()
    (second,) = await queen.queue(queue).batch(1).wait(True).timeout_millis(10000).pop()
    answer = await queen.ack(first)
    assert answer["success"] is False
    assert "lease" in answer["error"].lower()
    assert (await queen.ack(second))["success"] is True


async def test_a_failed_message_comes_again_at_once(queen, queue):
    await queen.queue(queue).create()
    await queen.queue(queue).push([{"data": 1}])
    (first,) = await pop_now(queen.queue(queue).batch(1))
    assert (await queen.ack(first, False))["success"] is True
    (second,) = await pop_now(queen.queue(queue).batch(1))
    assert second["transactionId"] == first["transactionId"]
    assert second["leaseId"] != first["leaseId"]


async def test_messages_of_one_batch_may_have_different_ends(queen, queue):
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await queen.queue(queue).push([{"data": i} for i in range(3)])
    messages = await pop_now(queen.queue(queue).batch(3))
    messages[0]["_status"] = "completed"
    messages[1]["_status"] = "dlq"
    messages[1]["_error"] = "unreadable"
    messages[2]["_status"] = "retry"
    assert (await queen.ack(messages))["success"] is True
    assert data_of(await pop_now(queen.queue(queue).batch(3))) == [2]
    letters = (await queen.queue(queue).dlq().get())["messages"]
    assert [(letter["data"], letter["errorMessage"]) for letter in letters] == [(1, "unreadable")]


async def test_a_renewed_lease_keeps_the_message(queen, queue):
    await queen.queue(queue).config({"lease_time": 2}).create()
    await queen.queue(queue).push([{"data": 1}])
    (message,) = await pop_now(queen.queue(queue).batch(1))
    renewed = await queen.renew(message)
    assert renewed["success"] is True
    assert renewed["newExpiresAt"]
    await asyncio.sleep(2.5)
    assert await pop_now(queen.queue(queue).batch(1)) == []
    assert (await queen.ack(message))["success"] is True


async def test_renewing_a_lost_lease_says_so(queen, queue, generation):
    renewed = await queen.renew("01980000-0000-7000-8000-000000000000")
    # The older client calls every answer a success, and shows only that there is no new expiry.
    assert renewed["newExpiresAt"] is None
    if generation >= 2:
        assert renewed["success"] is False


async def test_a_partition_is_popped_by_name(queen, queue):
    for partition in ("a", "b"):
        await queen.queue(queue).partition(partition).push([{"data": partition}])
    assert data_of(await pop_now(queen.queue(queue).partition("b").batch(10))) == ["b"]
    assert data_of(await pop_now(queen.queue(queue).partition("a").batch(10))) == ["a"]
    assert await pop_now(queen.queue(queue).partition("missing").batch(10)) == []


async def test_names_with_dots_colons_and_dashes_work(queen, queue):
    name = f"{queue}.invoices:eu-west_1"
    await queen.queue(name).partition("customer:42.a").push([{"data": 1}])
    assert data_of(await pop_now(queen.queue(name).partition("customer:42.a").batch(1))) == [1]


async def fill_partitions(queen, queue, partitions, each):
    for partition in range(partitions):
        items = [{"data": [partition, i]} for i in range(each)]
        await queen.queue(queue).partition(f"p{partition}").push(items)


async def test_one_pop_may_take_several_partitions_under_one_lease(queen, queue):
    await fill_partitions(queen, queue, 3, 2)
    messages = await pop_now(queen.queue(queue).batch(100).partitions(10))
    assert sorted(data_of(messages)) == [[p, i] for p in range(3) for i in range(2)]
    assert len({message["partitionId"] for message in messages}) == 3
    assert len({message["leaseId"] for message in messages}) == 1


async def test_the_batch_is_a_cap_over_all_partitions(queen, queue):
    await fill_partitions(queen, queue, 5, 10)
    messages = await pop_now(queen.queue(queue).batch(12).partitions(5))
    assert len(messages) == 12


async def test_a_pop_of_one_partition_takes_only_one(queen, queue):
    await fill_partitions(queen, queue, 3, 2)
    messages = await pop_now(queen.queue(queue).batch(100).partitions(1))
    assert len({message["partition"] for message in messages}) == 1
    assert len(messages) == 2


async def test_an_ack_over_several_partitions_frees_them_all(queen, queue):
    await fill_partitions(queen, queue, 3, 2)
    messages = await pop_now(queen.queue(queue).batch(100).partitions(10))
    assert (await queen.ack(messages))["success"] is True
    await fill_partitions(queen, queue, 3, 1)
    again = await pop_now(queen.queue(queue).batch(100).partitions(10))
    assert sorted(data_of(again)) == [[0, 0], [1, 0], [2, 0]]


async def test_one_renewal_keeps_all_partitions_of_a_pop(queen, queue):
    await queen.queue(queue).config({"lease_time": 2}).create()
    await fill_partitions(queen, queue, 3, 1)
    messages = await pop_now(queen.queue(queue).batch(100).partitions(10))
    assert len(messages) == 3
    (renewed,) = await queen.renew(messages)
    assert renewed["success"] is True
    await asyncio.sleep(2.5)
    assert await pop_now(queen.queue(queue).batch(100).partitions(10)) == []
    assert (await queen.ack(messages))["success"] is True


async def test_a_pop_by_namespace_or_task_reaches_all_their_queues(queen, queue):
    for name, task in (("a", "invoice"), ("b", "refund")):
        await queen.queue(f"{queue}-{name}").namespace(queue).task(task).create()
        await queen.queue(f"{queue}-{name}").push([{"data": name}])
    first = await pop_now(queen.queue().namespace(queue).task("refund").batch(10))
    assert data_of(first) == ["b"]
    second = await pop_now(queen.queue().namespace(queue).batch(10))
    assert data_of(second) == ["a"]


async def test_a_commit_on_delivery_leaves_nothing_to_ack(queen, queue, generation):
    if generation < 2:
        return  # The older client cannot ask for it.
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    messages = await pop_now(queen.queue(queue).batch(1).commit_on_delivery())
    assert data_of(messages) == [1]
    assert not messages[0]["leaseId"]
    assert data_of(await pop_now(queen.queue(queue).batch(5))) == [2]
