"""Traces and maintenance as the published client speaks of them."""

import pytest
from queen import Queen

from baton import Server, eventually


def data_of(messages):
    return [message["data"] for message in messages]


async def push(queen, queue, *payloads):
    return await queen.queue(queue).push([{"data": payload} for payload in payloads])


async def test_a_consumer_traces_its_message_under_one_name_several_or_none(queen, queue):
    await push(queen, queue, {"n": 1})
    traced, seen = [], []

    async def handle(message):
        seen.append(message)
        trace = message["trace"]
        traced.append(await trace({"data": {"text": "one"}, "traceName": f"{queue}-a"}))
        traced.append(await trace({"data": {"text": "two"}, "traceName": [f"{queue}-a", f"{queue}-b"], "eventType": "step"}))
        traced.append(await trace({"data": {"text": "none"}}))

    await queen.queue(queue).each().limit(1).idle_millis(5000).consume(handle)
    assert [outcome["success"] for outcome in traced] == [True, True, True], traced
    found = await queen.admin.get_traces_by_name(f"{queue}-a")
    assert found["total"] == 2 and found["traces"][0]["data"] == {"text": "two"}
    names = await queen.admin.get_trace_names(limit=100)
    counts = {row["trace_name"]: row["trace_count"] for row in names["trace_names"]}
    assert (counts[f"{queue}-a"], counts[f"{queue}-b"]) == (2, 1)
    (message,) = seen
    of_message = await queen.admin.get_traces_for_message(message["partitionId"], message["transactionId"])
    assert [row["data"]["text"] for row in of_message["traces"]] == ["one", "two", "none"]


async def test_a_message_is_moved_to_the_dead_letters(queen, queue, generation):
    if generation > 0:
        pytest.skip("this version of the client has no such call")
    await push(queen, queue, {"bad": True})
    (message,) = await queen.queue(queue).wait(False).pop()
    moved = await queen.admin.move_message_to_dlq(message["partitionId"], message["transactionId"])
    assert moved["success"] is True
    letters = await queen.queue(queue).dlq().get()
    assert data_of(letters["messages"]) == [{"bad": True}]


async def test_what_is_pushed_in_maintenance_arrives_in_order_afterwards(tmp_path, queue, generation):
    if generation > 0:
        pytest.skip("this version of the client has no maintenance calls")
    with Server(tmp_path / "data") as server:
        queen = Queen(server.url)
        try:
            assert (await queen.admin.set_maintenance_mode(True))["maintenanceMode"] is True
            for n in range(10):
                await push(queen, queue, {"n": n})
            assert await queen.queue(queue).wait(False).pop() == []
            state = await queen.admin.get_maintenance_mode()
            assert (state["maintenanceMode"], state["bufferedMessages"]) == (True, 10)
            assert (await queen.admin.set_maintenance_mode(False))["maintenanceMode"] is False
            eventually(lambda: server.get("/api/v1/system/maintenance").json["bufferedMessages"] == 0)
            await queen.admin.set_pop_maintenance_mode(True)
            assert (await queen.admin.get_pop_maintenance_mode())["popMaintenanceMode"] is True
            assert await queen.queue(queue).batch(100).wait(True).timeout_millis(20000).pop() == []
            await queen.admin.set_pop_maintenance_mode(False)
            assert data_of(await queen.queue(queue).batch(100).wait(False).pop()) == [{"n": n} for n in range(10)]
        finally:
            await queen.close()
