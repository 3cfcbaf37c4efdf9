"""What one answer to a pop holds, and what a pop leaves behind."""

import time
from datetime import datetime, timedelta, timezone

import pytest

from baton import Background, Server, data_of, parked, pop_path

# What one answer holds at most; the names and numbers beside each message come on top.
ANSWER_MAX = 32 << 20


def push_many(server, queue, count, size, at_once):
    for first in range(0, count, at_once):
        numbers = range(first, min(first + at_once, count))
        server.push(queue, *({"n": n, "filler": "x" * size} for n in numbers))


def drain(server, queue, **params):
    """What pops give until there is nothing more, answer by answer."""
    answers = []
    while messages := server.pop(queue, **params):
        answers.append([message["data"]["n"] for message in messages])
    return answers


def test_an_automatic_ack_finishes_only_what_is_delivered(server, queue):
    push_many(server, queue, 60, 700_000, 30)
    answers = drain(server, queue, batch=10000, autoAck="true")
    assert len(answers) > 1
    assert sum(answers, []) == list(range(60))


def test_a_waiting_pop_with_automatic_ack_finishes_only_what_is_delivered(server, queue):
    server.configure(queue)
    first = Background(server.pop, queue, batch=10000, autoAck="true", wait="true", timeout=30000)
    parked(server, 1)
    push_many(server, queue, 60, 700_000, 60)
    found = [message["data"]["n"] for message in first.result()]
    assert found + sum(drain(server, queue, batch=10000, autoAck="true"), []) == list(range(60))


@pytest.mark.parametrize("auto_ack", ["true", "false"])
def test_an_answer_over_many_partitions_is_bounded(server, queue, auto_ack):
    for number in range(9):
        server.push(queue, {"n": number, "filler": "x" * (7 << 20)}, partition=f"p{number}")
    seen = []
    while True:
        answer = server.get(pop_path(queue, batch=100, partitions=100, autoAck=auto_ack))
        if answer.status == 204:
            break
        assert len(answer.body) < ANSWER_MAX + (1 << 20)
        messages = answer.json["messages"]
        seen += [message["data"]["n"] for message in messages]
        if auto_ack == "false":
            server.ack(messages)
    assert sorted(seen) == list(range(9))


def test_an_answer_counts_the_names_of_messages_too(server, queue):
    name = "x" * 60_000
    for first in range(0, 700, 100):
        server.push(queue, *range(100), ids=[f"{first + n}{name}" for n in range(100)])
    answer = server.get(pop_path(queue, batch=10000))
    assert len(answer.body) < ANSWER_MAX + (1 << 20)


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_pop_waits_for_the_beginning_of_its_group(server, queue, partition):
    server.push(queue, "old", partition="p")
    begins = datetime.now(timezone.utc) + timedelta(seconds=4)
    params = {"consumerGroup": "g", "subscriptionFrom": begins.isoformat().replace("+00:00", "Z")}
    assert server.pop(queue, partition, **params) == []
    server.push(queue, "too early", partition="p")
    assert server.pop(queue, partition, **params) == []
    time.sleep(max(0, (begins - datetime.now(timezone.utc)).total_seconds() + 0.1))
    server.push(queue, "in time", partition="p")
    assert data_of(server.pop(queue, partition, batch=10, **params)) == ["in time"]


POPS = [{}, {"consumerGroup": "g"}, {"wait": "true", "timeout": 50}]


@pytest.mark.parametrize("partition", [None, "p"])
@pytest.mark.parametrize("params", POPS)
def test_a_pop_creates_no_queue(server, queue, partition, params):
    assert server.pop(queue, partition, **params) == []
    assert server.get(f"/api/v1/resources/queues/{queue}").status == 404


def test_a_pop_that_waits_for_a_queue_hears_of_its_first_message(server, queue):
    for mode in ("all", "new"):
        group = {"consumerGroup": mode, "subscriptionMode": mode}
        waiting = Background(server.pop, queue, wait="true", timeout=30000, **group)
        parked(server, 1)
        server.push(queue, mode)
        assert data_of(waiting.result()) == [mode]
        assert server.delete(f"/api/v1/resources/queues/{queue}").status == 200


def test_a_queue_that_is_deleted_while_a_pop_waits_stays_deleted(server, queue):
    server.configure(queue)
    group = {"consumerGroup": "g"}
    waiting = Background(server.pop, queue, wait="true", timeout=30000, **group)
    parked(server, 1)
    assert server.delete(f"/api/v1/resources/queues/{queue}").status == 200
    # The wait list is rechecked every second.
    time.sleep(1.5)
    assert server.get(f"/api/v1/resources/queues/{queue}").status == 404
    server.push(queue, "again")
    assert data_of(waiting.result()) == ["again"]


def test_a_setting_lets_a_pop_create_its_queue(tmp_path, queue):
    with Server(tmp_path, "--pop-creates-queue", "true") as server:
        assert server.pop(queue, consumerGroup="g", subscriptionMode="new") == []
        server.push(queue, "new")
        assert data_of(server.pop(queue, consumerGroup="g")) == ["new"]
        waiting = Background(server.pop, queue, consumerGroup="g", wait="true", timeout=30000)
        parked(server, 1)
        assert server.delete(f"/api/v1/resources/queues/{queue}").status == 200
        time.sleep(1.5)
        assert server.get(f"/api/v1/resources/queues/{queue}").status == 404
        server.push(queue, "again")
        assert data_of(waiting.result()) == ["again"]
