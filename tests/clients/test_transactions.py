"""Acks and pushes that happen together or not at all."""

import asyncio

import pytest


async def pop_now(builder):
    return await builder.wait(False).pop()


def data_of(messages):
    return [message["data"] for message in messages]


async def leased(queen, queue, *payloads, batch=None):
    await queen.queue(queue).push([{"data": payload} for payload in payloads])
    return await pop_now(queen.queue(queue).batch(batch or len(payloads)))


async def test_an_ack_and_a_push_are_committed_together(queen, queue):
    (message,) = await leased(queen, queue, 1)
    answer = await queen.transaction().ack(message).queue(f"{queue}-next").push([{"data": 2}]).commit()
    assert answer["success"] is True
    assert await pop_now(queen.queue(queue).batch(1)) == []
    assert data_of(await pop_now(queen.queue(f"{queue}-next").batch(5))) == [2]


async def test_several_queues_and_partitions_are_pushed_to_at_once(queen, queue):
    (message,) = await leased(queen, queue, 1)
    transaction = queen.transaction().ack(message)
    for name in ("a", "b"):
        for partition in ("p", "q"):
            items = [{"data": [name, partition, i]} for i in range(3)]
            transaction = transaction.queue(f"{queue}-{name}").partition(partition).push(items)
    await transaction.commit()
    for name in ("a", "b"):
        for partition in ("p", "q"):
            messages = await pop_now(queen.queue(f"{queue}-{name}").partition(partition).batch(10))
            assert data_of(messages) == [[name, partition, i] for i in range(3)]


async def test_several_acks_of_one_batch_leave_nothing_behind(queen, queue):
    messages = await leased(queen, queue, 1, 2, 3)
    transaction = queen.transaction()
    for message in messages:
        transaction = transaction.ack(message)
    await transaction.commit()
    assert await pop_now(queen.queue(queue).batch(10)) == []


async def test_a_list_of_messages_is_acked_in_one_operation(queen, queue):
    messages = await leased(queen, queue, 1, 2, 3)
    await queen.transaction().ack(messages).commit()
    assert await pop_now(queen.queue(queue).batch(10)) == []


async def test_a_failed_ack_without_retries_empties_the_queue(queen, queue):
    await queen.queue(queue).config({"retry_limit": 0}).create()
    (message,) = await leased(queen, queue, 1)
    await queen.transaction().ack(message, "failed").commit()
    assert await pop_now(queen.queue(queue).batch(10)) == []
    assert data_of((await queen.queue(queue).dlq().get())["messages"]) == [1]


async def test_a_bad_ack_takes_the_push_back(queen, queue):
    (message,) = await leased(queen, queue, 1)
    ghost = {**message, "transactionId": "no-such-message"}
    with pytest.raises(Exception) as refused:
        await queen.transaction().queue(f"{queue}-next").push([{"data": 2}]).ack(ghost).commit()
    assert "Message not found" in str(refused.value)
    assert await pop_now(queen.queue(f"{queue}-next").batch(5)) == []
    assert (await queen.ack(message))["success"] is True, "the lease is untouched"


async def test_a_lost_lease_takes_the_whole_transaction_back(queen, queue):
    await queen.queue(queue).config({"lease_time": 1}).create()
    (message,) = await leased(queen, queue, 1)
    await queen.queue(queue).config({"lease_time": 60}).create()
    (again,) = await queen.queue(queue).batch(1).wait(True).timeout_millis(10000).pop()
    with pytest.raises(Exception) as refused:
        await queen.transaction().ack(message).queue(f"{queue}-next").push([{"data": 2}]).commit()
    assert "lease" in str(refused.value).lower()
    assert await pop_now(queen.queue(f"{queue}-next").batch(5)) == []
    assert (await queen.ack(again))["success"] is True


async def test_an_empty_transaction_is_refused(queen):
    with pytest.raises(Exception):
        await queen.transaction().commit()


async def test_a_large_payload_travels_in_a_transaction(queen, queue):
    (message,) = await leased(queen, queue, 1)
    payload = {"text": "ü" * 700_000}
    await queen.transaction().ack(message).queue(f"{queue}-next").push([{"data": payload}]).commit()
    assert data_of(await pop_now(queen.queue(f"{queue}-next").batch(1))) == [payload]


async def test_an_ack_for_a_group_leaves_other_groups_alone(queen, queue):
    await queen.queue(queue).push([{"data": 1}])
    (message,) = await pop_now(queen.queue(queue).group("a").batch(1))
    await queen.transaction().ack(message, "completed", {"consumer_group": "a"}).commit()
    assert await pop_now(queen.queue(queue).group("a").batch(1)) == []
    assert data_of(await pop_now(queen.queue(queue).group("b").batch(1))) == [1]


async def test_a_chain_of_queues_is_worked_through(queen, queue):
    """Each stage acks what it read and pushes to the next, in one transaction, inside a consumer."""
    stages = [f"{queue}-{i}" for i in range(3)]
    for stage in stages:
        await queen.queue(stage).create()
    await queen.queue(stages[0]).push([{"data": {"value": i}} for i in range(10)])
    results = []

    async def hand_on(message, stage):
        value = {"value": message["data"]["value"] * 2}
        await queen.transaction().ack(message).queue(stage).push([{"data": value}]).commit()

    async def first(message):
        await hand_on(message, stages[1])

    async def second(message):
        await hand_on(message, stages[2])

    async def last(message):
        results.append(message["data"]["value"])

    for stage, handler, auto_ack in ((0, first, False), (1, second, False), (2, last, True)):
        consumer = queen.queue(stages[stage]).batch(1).limit(10).auto_ack(auto_ack).each()
        await asyncio.wait_for(consume(consumer, handler), 30)
    assert results == [i * 4 for i in range(10)]
    for stage in stages:
        assert await pop_now(queen.queue(stage).batch(10)) == []


async def consume(builder, handler):
    await builder.consume(handler)


async def test_acks_under_several_leases_are_committed_together(queen, queue):
    messages = []
    for partition in ("p", "q"):
        await queen.queue(queue).partition(partition).push([{"data": partition}])
        messages += await pop_now(queen.queue(queue).partition(partition).batch(1))
    assert len({message["leaseId"] for message in messages}) == 2
    await queen.transaction().ack(messages).commit()
    for partition in ("p", "q"):
        assert await pop_now(queen.queue(queue).partition(partition).batch(1)) == []
