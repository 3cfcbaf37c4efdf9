"""Where a group starts, how it is moved, and what an operator can ask."""

import asyncio
from datetime import datetime, timezone


async def pop_now(builder):
    return await builder.wait(False).pop()


def data_of(messages):
    return [message["data"] for message in messages]


def now():
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


async def push(queen, queue, *payloads):
    await queen.queue(queue).push([{"data": payload} for payload in payloads])


async def test_a_group_starts_at_the_oldest_message_unless_it_asks_otherwise(queen, queue):
    await push(queen, queue, 1, 2)
    assert data_of(await pop_now(queen.queue(queue).group("plain").batch(10))) == [1, 2]
    assert data_of(await pop_now(queen.queue(queue).group("all").subscription_mode("all").batch(10))) == [1, 2]


async def only_new(queen, queue, subscribe):
    """A group that subscribes after two messages sees nothing of them, and everything after."""
    await push(queen, queue, "old", "older")
    await asyncio.sleep(0.05)
    assert await pop_now(subscribe(queen.queue(queue).group("late").batch(10))) == []
    await push(queen, queue, "new")
    assert data_of(await pop_now(subscribe(queen.queue(queue).group("late").batch(10)))) == ["new"]
    assert len(await pop_now(queen.queue(queue).group("everything").batch(10))) == 3


async def test_a_new_group_sees_only_new_messages(queen, queue):
    await only_new(queen, queue, lambda builder: builder.subscription_mode("new"))


async def test_new_only_is_another_word_for_new(queen, queue):
    await only_new(queen, queue, lambda builder: builder.subscription_mode("new-only"))


async def test_a_group_from_now_sees_only_new_messages(queen, queue):
    await only_new(queen, queue, lambda builder: builder.subscription_from("now"))


async def test_a_new_group_on_many_partitions_skips_all_of_them_at_once(queen, queue):
    for partition in range(20):
        await queen.queue(queue).partition(str(partition)).push([{"data": "old"}])
    await asyncio.sleep(0.05)
    assert await pop_now(queen.queue(queue).group("late").subscription_mode("new").batch(100)) == []
    for partition in range(20):
        await queen.queue(queue).partition(str(partition)).push([{"data": partition}])
    seen = []
    for _ in range(20):
        seen += await pop_now(queen.queue(queue).group("late").subscription_mode("new").batch(1))
    assert sorted(data_of(seen)) == list(range(20))


async def test_a_new_group_subscribes_on_an_empty_queue(queen, queue):
    await queen.queue(queue).create()
    assert await pop_now(queen.queue(queue).group("early").subscription_mode("new").batch(10)) == []
    await push(queen, queue, 1)
    assert data_of(await pop_now(queen.queue(queue).group("early").subscription_mode("new").batch(10))) == [1]


async def test_a_group_from_a_timestamp_sees_what_came_after_it(queen, queue):
    await push(queen, queue, "before")
    await asyncio.sleep(0.1)
    moment = now()
    await asyncio.sleep(0.1)
    await push(queen, queue, "after")
    builder = queen.queue(queue).group("since").subscription_from(moment).batch(10)
    assert data_of(await pop_now(builder)) == ["after"]


async def consume_all(queen, queue, group, count):
    messages = await pop_now(queen.queue(queue).group(group).batch(count))
    assert len(messages) == count
    assert (await queen.ack(messages, True, {"group": group}))["success"] is True
    assert await pop_now(queen.queue(queue).group(group).batch(count)) == []


async def test_a_group_that_seeks_back_reads_again(queen, queue):
    moment = now()
    await asyncio.sleep(0.05)
    await push(queen, queue, 1, 2, 3)
    await consume_all(queen, queue, "g", 3)
    answer = await queen.admin.seek_consumer_group("g", queue, {"timestamp": moment})
    assert answer["success"] is True
    assert data_of(await pop_now(queen.queue(queue).group("g").batch(10))) == [1, 2, 3]


async def test_a_group_that_seeks_to_the_end_skips_its_backlog(queen, queue):
    await push(queen, queue, 1, 2, 3)
    assert len(await pop_now(queen.queue(queue).group("g").batch(1))) == 1
    answer = await queen.admin.seek_consumer_group("g", queue, {"toEnd": True})
    assert answer["success"] is True
    assert await pop_now(queen.queue(queue).group("g").batch(10)) == []
    await push(queen, queue, 4)
    assert data_of(await pop_now(queen.queue(queue).group("g").batch(10))) == [4]


async def test_a_deleted_group_starts_again(queen, queue):
    group = f"{queue}-group"
    await push(queen, queue, 1, 2)
    await consume_all(queen, queue, group, 2)
    assert (await queen.delete_consumer_group(group, True))["success"] is True
    assert data_of(await pop_now(queen.queue(queue).group(group).batch(10))) == [1, 2]


async def test_a_group_deleted_for_one_queue_starts_again_there_only(queen, queue):
    group = f"{queue}-group"
    for name in ("a", "b"):
        await push(queen, f"{queue}-{name}", name)
        await consume_all(queen, f"{queue}-{name}", group, 1)
    answer = await queen.admin.delete_consumer_group_for_queue(group, f"{queue}-a", True)
    assert answer["success"] is True
    assert data_of(await pop_now(queen.queue(f"{queue}-a").group(group).batch(10))) == ["a"]
    assert await pop_now(queen.queue(f"{queue}-b").group(group).batch(10)) == []


async def test_deleting_a_group_that_is_not_there_succeeds(queen, queue):
    assert (await queen.delete_consumer_group(f"{queue}-nobody"))["success"] is True


async def test_the_subscription_of_a_group_is_moved(queen, queue):
    group = f"{queue}-group"
    await queen.queue(queue).create()
    await pop_now(queen.queue(queue).group(group).subscription_mode("new").batch(1))
    answer = await queen.update_consumer_group_timestamp(group, "2020-01-01T00:00:00.000Z")
    assert answer["success"] is True
    assert answer["rowsUpdated"] >= 1


async def test_an_operator_sees_queues_namespaces_tasks_and_the_whole(queen, queue):
    await queen.queue(queue).namespace(f"{queue}-ns").task(f"{queue}-task").create()
    await push(queen, queue, 1, 2)
    queues = {row["name"]: row for row in (await queen.admin.list_queues())["queues"]}
    assert queues[queue]["messages"]["total"] == 2
    one = await queen.admin.get_queue(queue)
    assert (one["name"], one["namespace"], one["task"]) == (queue, f"{queue}-ns", f"{queue}-task")
    assert one["totals"]["pending"] == 2
    assert f"{queue}-ns" in {row["namespace"] for row in (await queen.admin.get_namespaces())["namespaces"]}
    assert f"{queue}-task" in {row["task"] for row in (await queen.admin.get_tasks())["tasks"]}
    overview = await queen.admin.get_overview()
    assert overview["queues"] >= 1
    assert overview["messages"]["total"] >= 2


async def test_an_operator_lists_reads_and_deletes_messages(queen, queue):
    await push(queen, queue, {"n": 1}, {"n": 2})
    listed = (await queen.admin.list_messages(queue=queue))["messages"]
    assert len(listed) == 2
    row = listed[0]
    detail = await queen.admin.get_message(row["partitionId"], row["transactionId"])
    assert detail["payload"] in ({"n": 1}, {"n": 2})
    deleted = await queen.admin.delete_message(row["partitionId"], row["transactionId"])
    assert deleted["success"] is True
    left = await pop_now(queen.queue(queue).batch(10))
    assert data_of(left) == [{"n": 3 - detail["payload"]["n"]}]


async def test_an_operator_sends_a_dead_letter_again(queen, queue):
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await push(queen, queue, "poison")
    (message,) = await pop_now(queen.queue(queue).batch(1))
    await queen.ack(message, False)
    answer = await queen.admin.retry_message(message["partitionId"], message["transactionId"])
    assert answer["success"] is True
    assert data_of(await pop_now(queen.queue(queue).batch(1))) == ["poison"]
    assert (await queen.queue(queue).dlq().get())["messages"] == []


async def test_an_operator_sees_groups_and_their_lag(queen, queue):
    group = f"{queue}-group"
    await push(queen, queue, 1, 2, 3)
    (message,) = await pop_now(queen.queue(queue).group(group).batch(1))
    await queen.ack(message, True, {"group": group})
    rows = [row for row in await queen.admin.list_consumer_groups() if row["name"] == group]
    assert [row["queueName"] for row in rows] == [queue]
    detail = await queen.admin.get_consumer_group(group)
    (partition,) = detail[queue]["partitions"]
    assert partition["offsetLag"] == 2
    assert partition["totalConsumed"] == 1
    assert isinstance(await queen.admin.get_lagging_consumers(3600), list)


async def test_the_server_says_that_it_is_healthy(queen):
    assert (await queen.admin.health())["status"] == "healthy"
