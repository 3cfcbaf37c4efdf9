"""GET /api/v1/pop, in its three forms"""

import re
import time
import uuid

import pytest

from baton import Background, Connection, data_of, parked, pop_path


def test_a_pop_answers_the_whole_shape(server, queue):
    (pushed,) = server.push(queue, {"n": 1}, partition="a", ids=["t1"])
    answer = server.get(pop_path(queue))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    body = answer.json
    (message,) = body.pop("messages")
    lease = body["leaseId"]
    uuid.UUID(lease)
    assert body == {
        "success": True,
        "queue": queue,
        "partition": "a",
        "partitionId": pushed["partition_id"],
        "leaseId": lease,
        "consumerGroup": "__QUEUE_MODE__",
        "partitionsClaimed": 1,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", message.pop("createdAt"))
    assert message == {
        "id": pushed["message_id"],
        "transactionId": "t1",
        "traceId": None,
        "data": {"n": 1},
        "producerSub": None,
        "partitionId": pushed["partition_id"],
        "partition": "a",
        "leaseId": lease,
        "consumerGroup": "__QUEUE_MODE__",
        "queue": queue,
        "offset": 0,
        "deliveryAttempt": 1,
    }


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_pop_with_nothing_to_give_is_204_without_a_body(server, queue, partition):
    for _ in range(2):
        answer = server.get(pop_path(queue, partition))
        assert (answer.status, answer.body) == (204, b"")
        assert int(answer.headers.get("content-length", 0)) == 0
        server.configure(queue)


def test_an_empty_pop_leaves_the_connection_usable(server, queue):
    with Connection(server.port) as connection:
        for _ in range(3):
            assert connection.call("GET", pop_path(queue)).status == 204
            assert connection.call("GET", "/health").status == 200


def test_one_message_is_the_default_batch(server, queue):
    server.push(queue, 1, 2, 3)
    assert data_of(server.pop(queue)) == [1]


@pytest.mark.parametrize("batch", ["0", "-1", "-9223372036854775808"])
def test_a_batch_below_one_is_one(server, queue, batch):
    server.push(queue, 1, 2)
    assert data_of(server.pop(queue, batch=batch)) == [1]


@pytest.mark.parametrize("batch", ["", "99999999999999999999999999"])
def test_a_batch_that_is_empty_or_too_large_still_pops(server, queue, batch):
    server.push(queue, 1, 2)
    assert data_of(server.pop(queue, batch=batch))[:1] == [1]


@pytest.mark.parametrize("name", ["batch", "partitions", "timeout", "leaseSeconds"])
@pytest.mark.parametrize("value", ["many", "1.5", "0x10"])
def test_a_parameter_that_is_no_whole_number_is_refused(server, queue, name, value):
    server.push(queue, 1)
    answer = server.get(f"/api/v1/pop/queue/{queue}?{name}={value}")
    assert answer.status == 400 and answer.error == f'{name} is a whole number, not "{value}"'
    assert data_of(server.pop(queue)) == [1], "nothing was taken"


def test_huge_numbers_in_the_query_do_no_harm(server, queue):
    server.push(queue, 1, 2)
    huge = 2**63 - 1
    messages = server.pop(queue, batch=huge, partitions=huge, timeout=huge, leaseSeconds=huge, wait=True)
    assert data_of(messages) == [1, 2]
    assert [result["success"] for result in server.ack(messages)] == [True, True]


def test_the_batch_counts_over_all_partitions(server, queue):
    for partition in "abc":
        server.push(queue, *range(5), partition=partition)
    answer = server.get(pop_path(queue, batch=12, partitions=3)).json
    assert len(answer["messages"]) == 12
    assert answer["partitionsClaimed"] == 3
    assert len({message["leaseId"] for message in answer["messages"]}) == 1
    order = [message["partition"] for message in answer["messages"]]
    assert order == sorted(order, key=order.index), "messages of one partition stand together"
    for partition in "abc":
        data = [m["data"] for m in answer["messages"] if m["partition"] == partition]
        assert data == list(range(len(data)))


@pytest.mark.parametrize("partitions", [0, -5])
def test_fewer_than_one_partition_is_one(server, queue, partitions):
    for partition in "ab":
        server.push(queue, 1, partition=partition)
    assert len(server.pop(queue, batch=10, partitions=partitions)) == 1


def test_every_partition_is_served_in_turn(server, queue):
    for partition in range(10):
        server.push(queue, *range(3), partition=str(partition))
    served = []
    for _ in range(10):
        messages = server.pop(queue)
        served.append(messages[0]["partition"])
        server.ack(messages)
    assert sorted(served) == [str(partition) for partition in range(10)], "none starves while others are served"


def test_a_leased_partition_gives_nothing_to_its_group(server, queue):
    server.push(queue, 1, 2, partition="p")
    assert len(server.pop(queue)) == 1
    assert server.pop(queue) == []
    assert server.pop(queue, "p") == []
    assert data_of(server.pop(queue, "p", consumerGroup="other", batch=5)) == [1, 2]


def test_true_is_spelled_true_or_1(server, queue):
    server.push(queue, 1, 2, 3, 4)
    for spelling, leased in (("1", False), ("true", False), ("0", True)):
        (message,) = server.pop(queue, autoAck=spelling)
        assert bool(message["leaseId"]) is leased
    for spelling in ("TRUE", "yes", "2"):
        answer = server.get(pop_path(queue, autoAck=spelling))
        assert answer.status == 400 and "autoAck is true or false" in answer.json["error"], answer


def test_an_automatic_ack_moves_on_without_a_lease(server, queue):
    server.push(queue, 1, 2, 3)
    answer = server.get(pop_path(queue, batch=2, autoAck=True)).json
    assert answer["leaseId"] == ""
    assert [message["leaseId"] for message in answer["messages"]] == ["", ""]
    assert data_of(server.pop(queue, batch=5)) == [3]


def test_lease_seconds_override_the_queue(server, queue):
    server.configure(queue, leaseTime=300)
    server.push(queue, 1)
    assert len(server.pop(queue, leaseSeconds=1)) == 1
    (message,) = server.pop(queue, wait=True, timeout=10000)
    assert message["deliveryAttempt"] == 2


def test_query_values_are_decoded(server, queue):
    server.push(queue, 1)
    (message,) = server.get(f"/api/v1/pop/queue/{queue}?consumerGroup=a+b%20%C3%A9%26c").json["messages"]
    assert message["consumerGroup"] == "a b é&c"


def test_path_segments_are_decoded(server, queue):
    name = f"{queue} ä/b%+?#.."
    server.push(name, 1, partition="p /q")
    (message,) = server.pop(name, "p /q")
    assert (message["queue"], message["partition"]) == (name, "p /q")


def test_a_long_poll_is_answered_by_a_push(server, queue):
    polling = Background(server.pop, queue, wait=True, timeout=20000)
    parked(server, 1)
    assert not polling.done()
    started = time.monotonic()
    server.push(queue, "late")
    assert data_of(polling.result()) == ["late"]
    assert time.monotonic() - started < 10


def test_a_long_poll_is_answered_when_another_acks(server, queue):
    server.push(queue, 1, 2)
    held = server.pop(queue)
    polling = Background(server.pop, queue, wait=True, timeout=20000)
    parked(server, 1)
    assert not polling.done()
    started = time.monotonic()
    server.ack(held)
    assert data_of(polling.result()) == [2]
    assert time.monotonic() - started < 10


def test_a_long_poll_is_answered_when_another_lease_ends(server, queue):
    server.configure(queue, leaseTime=1)
    server.push(queue, 1)
    server.pop(queue)
    started = time.monotonic()
    assert data_of(server.pop(queue, wait=True, timeout=20000)) == [1]
    assert time.monotonic() - started < 10


def test_a_long_poll_with_a_timeout_ends_in_time(server, queue):
    started = time.monotonic()
    assert server.pop(queue, wait=True, timeout=700) == []
    assert 0.6 < time.monotonic() - started < 10


def test_one_push_wakes_only_as_many_polls_as_it_has_work_for(server, queue):
    polls = [Background(server.pop, queue, wait=True, timeout=4000) for _ in range(5)]
    parked(server, 5)
    server.push(queue, 1)
    results = [poll.result() for poll in polls]
    assert sorted(map(len, results)) == [0, 0, 0, 0, 1]


def test_hundreds_of_polls_wait_and_one_push_reaches_one_of_them(server, queue):
    connections = [Connection(server.port) for _ in range(300)]
    path = pop_path(queue, wait=True, timeout=120000)
    polls = [Background(connection.call, "GET", path) for connection in connections]
    parked(server, 300)
    started = time.monotonic()
    for i in range(300):
        server.push(queue, i, partition=str(i))
    answers = [poll.result() for poll in polls]
    assert sorted(m["data"] for answer in answers for m in answer.json["messages"]) == list(range(300))
    assert time.monotonic() - started < 60
    for connection in connections:
        connection.close()


def test_a_large_batch_is_cut_and_the_rest_comes_next(server, queue):
    megabyte = "x" * (1 << 20)
    for i in range(5):
        server.push(queue, *[f"{i}-{j}-{megabyte}" for j in range(8)])
    seen = []
    for _ in range(10):
        messages = server.pop(queue, batch=1000)
        if not messages:
            break
        seen += [message["data"][:3] for message in messages]
        assert all(result["success"] for result in server.ack(messages))
    assert seen == [f"{i}-{j}" for i in range(5) for j in range(8)]


def discover(server, **params):
    query = "&".join(f"{name}={value}" for name, value in params.items())
    return server.get(f"/api/v1/pop?{query}")


def test_a_pop_by_namespace_and_task_reaches_the_queues_that_carry_both(server, queue):
    for name, task in (("a", "invoice"), ("b", "refund")):
        server.configure(f"{queue}-{name}", labels={"namespace": queue, "task": task})
        server.push(f"{queue}-{name}", name)
    answer = discover(server, namespace=queue, task="refund", batch=10)
    assert answer.status == 200
    assert data_of(answer.json["messages"]) == ["b"]
    assert data_of(discover(server, namespace=queue, batch=10).json["messages"]) == ["a"]
    assert discover(server, namespace=queue, batch=10).status == 204
    assert discover(server, namespace=f"{queue}-none").status == 204


def test_a_pop_by_task_alone_works(server, queue):
    server.configure(queue, labels={"task": queue})
    server.push(queue, 1)
    (message,) = discover(server, task=queue, batch=10).json["messages"]
    assert (message["data"], message["queue"]) == (1, queue)
    assert server.ack([message])[0]["success"] is True


def test_a_pop_by_neither_is_refused(server):
    answer = discover(server, batch=1)
    assert answer.status == 400
    expected = {"success": False, "error": "namespace or task is required", "messages": []}
    assert expected.items() <= answer.json.items()


def test_a_group_has_a_short_name_too(server, queue):
    server.push(queue, 1)
    path = f"/api/v1/pop/queue/{queue}"
    assert server.get(f"{path}?group=short").json["messages"][0]["data"] == 1
    assert server.get(f"{path}?consumerGroup=short").status == 204, "it holds the message"
    assert server.get(f"{path}?consumerGroup=long&group=short").json["messages"][0]["data"] == 1


def test_a_new_group_is_recorded_on_its_first_pop(server, queue):
    server.push(queue, "old")
    time.sleep(0.02)
    assert server.pop(queue, consumerGroup="g", subscriptionMode="new") == []
    server.push(queue, "new")
    assert data_of(server.pop(queue, consumerGroup="g", subscriptionMode="all", batch=5)) == ["new"]


@pytest.mark.parametrize("mode", ["", "all", "from_beginning"])
def test_another_mode_starts_at_the_oldest(server, queue, mode):
    server.push(queue, 1, 2)
    assert data_of(server.pop(queue, consumerGroup="g", subscriptionMode=mode, batch=5)) == [1, 2]


def test_an_unknown_mode_is_refused(server, queue):
    answer = server.get(pop_path(queue, consumerGroup="g", subscriptionMode="newest"))
    assert answer.status == 400 and "subscriptionMode is one of all, new, new-only" in answer.json["error"], answer


def test_queue_mode_always_starts_at_the_oldest(server, queue):
    server.push(queue, 1, 2)
    assert data_of(server.pop(queue, subscriptionMode="new", batch=5)) == [1, 2]


def test_a_timestamp_that_cannot_be_read_is_refused_and_subscribes_nobody(server, queue):
    server.push(queue, 1)
    answer = server.get(pop_path(queue, consumerGroup="g", subscriptionFrom="yesterday-ish"))
    assert answer.status == 400
    assert "yesterday-ish" in answer.error
    assert data_of(server.pop(queue, consumerGroup="g")) == [1]


def test_a_timestamp_may_have_an_offset(server, queue):
    server.push(queue, 1)
    assert server.pop(queue, consumerGroup="later", subscriptionFrom="2999-01-01T00:00:00+02:00") == []
    assert data_of(server.pop(queue, consumerGroup="earlier", subscriptionFrom="2001-01-01T00:00:00-05:00")) == [1]


def newest(server, queue, group="g", **more):
    query = "&".join(f"{name}={value}" for name, value in {"subscriptionMode": "all", "batch": 10, **more}.items())
    return server.get(f"/api/v1/pop/queue/{queue}?consumerGroup={group}&conflation=true&{query}")


def test_a_conflating_group_is_given_the_newest_of_each_partition(server, queue):
    empty = newest(server, queue)
    assert (empty.status, empty.json["conflation"], empty.json["messages"]) == (200, True, [])
    server.push(queue, 1, 2, 3, partition="a")
    server.push(queue, 7, partition="b")
    answer = newest(server, queue).json
    assert answer["conflation"] is True and answer["partitionsClaimed"] == 2
    assert sorted(message["data"] for message in answer["messages"]) == [3, 7]
    server.push(queue, 4, partition="a")
    acks = [{"transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"]} for m in answer["messages"]]
    acked = server.post("/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": "g"}).json
    assert all(item["success"] for item in acked)
    assert sorted(item.get("conflated", 0) for item in acked) == [0, 2]
    assert [message["data"] for message in newest(server, queue).json["messages"]] == [4]


def test_conflation_is_decided_by_the_first_pop(server, queue):
    server.push(queue, 1, 2)
    server.pop(queue, consumerGroup="plain", subscriptionMode="all", batch=1)
    later = newest(server, queue, "plain")
    assert later.status == 200 and later.json["conflationConflict"] is True and "conflation" not in later.json
    groups = {row["name"]: row["conflation"] for row in server.get("/api/v1/consumer-groups").json if row["queueName"] == queue}
    assert groups == {"plain": False}


@pytest.mark.parametrize("query", ["conflation=true", "consumerGroup=g&conflation=true&autoAck=true"])
def test_conflation_needs_a_group_and_an_ack(server, queue, query):
    answer = server.get(f"/api/v1/pop/queue/{queue}?{query}")
    assert answer.status == 400 and answer.json["messages"] == [] and "conflation" in answer.error


def test_autopilot_tells_what_it_chose(server, queue):
    for partition in range(5):
        server.push(queue, partition, partition=str(partition))
    path = f"/api/v1/pop/queue/{queue}?consumerGroup=g&subscriptionMode=all&autopilot=true"
    answer = server.get(path).json
    assert answer["autopilot"]["batch"] == 200 and answer["autopilot"]["partitions"] >= answer["partitionsClaimed"] > 1
    assert answer["autopilot"]["waitMs"] == 100
    given = f"/api/v1/pop/queue/{queue}?consumerGroup=h&subscriptionMode=all&autopilot=true&batch=3&partitions=1"
    assert server.get(given).json["autopilot"] == {"batch": 3, "partitions": 1, "waitMs": 100}
    assert "autopilot" not in server.get(f"/api/v1/pop/queue/{queue}?autopilot=true").json
