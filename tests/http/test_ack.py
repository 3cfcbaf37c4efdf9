"""POST /api/v1/ack and /api/v1/ack/batch"""

import time

import pytest

from baton import ack_of, data_of


def ack(server, message, status="completed", **fields):
    answer = server.post("/api/v1/ack", {**ack_of(message), "status": status, **fields})
    assert answer.status == 200, answer
    (result,) = answer.json
    return result


def succeeded(results):
    return [result["success"] for result in results]


def test_an_ack_is_answered_with_an_array_of_one(server, queue):
    server.push(queue, 1, partition="p", ids=["t1"])
    (message,) = server.pop(queue)
    expected = {
        "index": 0,
        "transactionId": "t1",
        "success": True,
        "error": None,
        "queueName": queue,
        "partitionName": "p",
        "leaseReleased": True,
        "dlq": False,
    }
    assert expected.items() <= ack(server, message).items()


def test_the_lease_is_released_with_the_last_ack(server, queue):
    server.push(queue, 1, 2, 3)
    messages = server.pop(queue, batch=3)
    assert [ack(server, message)["leaseReleased"] for message in messages] == [False, False, True]


def test_a_batch_answers_in_request_order(server, queue):
    server.push(queue, *range(5), ids=[f"t{i}" for i in range(5)])
    messages = server.pop(queue, batch=5)
    results = server.ack(messages[::-1])
    assert [result["transactionId"] for result in results] == ["t4", "t3", "t2", "t1", "t0"]
    assert [result["index"] for result in results] == list(range(5))
    assert succeeded(results) == [True] * 5
    assert server.pop(queue, batch=5) == []


def test_no_acks_is_an_empty_answer(server):
    answer = server.post("/api/v1/ack/batch", {"acknowledgments": []})
    assert (answer.status, answer.json) == (200, [])


def test_nulls_count_as_absent(server, queue):
    server.push(queue, 1)
    (message,) = server.pop(queue)
    assert ack(server, message, status=None, error=None, consumerGroup=None)["success"] is True
    assert server.pop(queue) == []


@pytest.mark.parametrize(
    "missing, message",
    [
        ("transactionId", "transactionId is required"),
        ("partitionId", "partitionId is required to ensure message uniqueness"),
    ],
)
def test_an_ack_names_what_it_lacks(server, missing, message):
    for value in ("absent", None, 5, []):
        body = {"transactionId": "t", "partitionId": "p", missing: value}
        if value == "absent":
            del body[missing]
        answer = server.post("/api/v1/ack", body)
        assert (answer.status, answer.error) == (400, message)


@pytest.mark.parametrize("body", [{}, {"acknowledgments": None}, {"acknowledgments": {}}, {"acknowledgments": 1}])
def test_a_batch_without_its_array_is_refused(server, body):
    answer = server.post("/api/v1/ack/batch", body)
    assert (answer.status, answer.error) == (400, "acknowledgments array is required")


def test_a_batch_names_what_an_item_lacks(server):
    def error(item):
        answer = server.post("/api/v1/ack/batch", {"acknowledgments": [item]})
        assert answer.status == 400
        return answer.error

    transaction = "Each acknowledgment must have a valid transactionId string"
    partition = "Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
    assert error({"partitionId": "p"}) == transaction
    assert error({"transactionId": 5, "partitionId": "p"}) == transaction
    assert error({"transactionId": "t"}) == partition
    assert error({"transactionId": "t", "partitionId": {}}) == partition


@pytest.mark.parametrize("partition", ["no-uuid", "", "00000000-0000-0000-0000-000000000000", "18446744073709551616", "\x00"])
def test_an_unknown_partition_is_a_message_not_found(server, partition):
    (result,) = server.post("/api/v1/ack", {"transactionId": "t", "partitionId": partition}).json
    assert (result["success"], result["error"]) == (False, "unresolvable: Message not found")


def test_an_unknown_transaction_id_is_a_message_not_found(server, queue):
    server.push(queue, 1)
    (message,) = server.pop(queue)
    result = ack(server, {**message, "transactionId": "unheard-of"})
    assert (result["success"], result["error"]) == (False, "unresolvable: Message not found")
    assert ack(server, message)["success"] is True


@pytest.mark.parametrize("lease", ["no-uuid", "00000000-0000-0000-0000-000000000000", "x" * 5000])
def test_an_unknown_lease_is_refused(server, queue, lease):
    server.push(queue, 1)
    (message,) = server.pop(queue)
    result = ack(server, {**message, "leaseId": lease})
    assert (result["success"], result["error"]) == (False, "Invalid or expired lease")
    assert server.pop(queue) == [], "the real lease is untouched"
    assert ack(server, message)["success"] is True


def test_a_lease_of_another_group_or_partition_is_refused(server, queue):
    server.push(queue, 1, partition="p")
    server.push(queue, 2, partition="q")
    (mine,) = server.pop(queue, "p")
    (other_partition,) = server.pop(queue, "q")
    (other_group,) = server.pop(queue, "p", consumerGroup="g")
    for foreign in (other_partition, other_group):
        result = ack(server, {**mine, "leaseId": foreign["leaseId"]})
        assert (result["success"], result["error"]) == (False, "Invalid or expired lease")
    assert ack(server, mine)["success"] is True


def test_an_expired_lease_is_refused_once_another_holds_the_message(server, queue):
    server.push(queue, 1)
    (first,) = server.pop(queue, leaseSeconds=1)
    (second,) = server.pop(queue, wait=True, timeout=10000)
    result = ack(server, first)
    assert (result["success"], result["error"]) == (False, "Invalid or expired lease")
    assert ack(server, second)["success"] is True


def test_an_ack_without_a_lease_is_not_fenced(server, queue):
    server.push(queue, 1, 2)
    messages = server.pop(queue, batch=2)
    for message in messages:
        assert ack(server, {**message, "leaseId": None})["success"] is True
    assert server.pop(queue, batch=2) == []


def test_an_ack_repeated_is_a_success_without_effect(server, queue):
    server.push(queue, 1, 2, 3)
    messages = server.pop(queue, batch=2)
    assert succeeded(server.ack(messages)) == [True, True]
    assert succeeded(server.ack(messages)) == [True, True]
    assert data_of(server.pop(queue, batch=5)) == [3]


def test_acks_of_two_messages_with_one_id_finish_both(server, queue):
    server.configure(queue, dedupWindowSeconds=0)
    for payload in [1, 2]:
        server.push(queue, payload, ids=["same"])
    held = server.pop(queue, batch=10, leaseSeconds=1)
    assert data_of(held) == [1, 2]
    assert [result["success"] for result in server.ack(held)] == [True, True]
    time.sleep(1.5)
    assert server.pop(queue, batch=10) == []


def test_a_message_never_mentioned_is_never_finished(server, queue):
    """A consumer that acks the third message first and then dies loses nothing."""
    server.push(queue, 1, 2, 3)
    messages = server.pop(queue, batch=3, leaseSeconds=3)
    assert ack(server, messages[2])["success"] is True
    assert data_of(server.pop(queue, batch=3, wait=True, timeout=10000)) == [1, 2]


def test_an_ack_of_an_earlier_message_never_moves_back(server, queue):
    server.push(queue, 1, 2, 3, 4)
    first = server.pop(queue, batch=2)
    server.ack(first)
    second = server.pop(queue, batch=1)
    assert data_of(second) == [3]
    server.ack([{**first[0], "leaseId": None}])
    server.ack(second)
    assert data_of(server.pop(queue, batch=5)) == [4]


def test_a_failure_in_the_middle_comes_back_and_the_finished_do_not(server, queue):
    server.push(queue, 1, 2, 3)
    messages = server.pop(queue, batch=3)
    acks = [{**ack_of(m), "status": s} for m, s in zip(messages, ("completed", "failed", "completed"))]
    answer = server.post("/api/v1/ack/batch", {"acknowledgments": acks})
    assert succeeded(answer.json) == [True, True, True]
    assert data_of(server.pop(queue, batch=3)) == [2]


def test_a_failed_ack_ends_the_lease(server, queue):
    server.push(queue, 1, 2, 3)
    messages = server.pop(queue, batch=3)
    assert ack(server, messages[0])["success"] is True
    assert ack(server, messages[1], "failed")["leaseReleased"] is True
    result = ack(server, messages[2])
    assert (result["success"], result["error"]) == (False, "Invalid or expired lease")
    again = server.pop(queue, batch=3)
    assert data_of(again) == [2, 3]
    assert [message["deliveryAttempt"] for message in again][0] == 2


def test_a_failed_batch_costs_each_message_one_retry(server, queue):
    server.configure(queue, retryLimit=1)
    server.push(queue, 1, 2, 3)
    first = server.pop(queue, batch=3)
    results = server.ack(first[1:], status="failed")
    assert [(result["success"], result["dlq"]) for result in results] == [(True, False)] * 2
    second = server.pop(queue, batch=3)
    assert data_of(second) == [1, 2, 3]
    results = server.ack(second, status="failed", error="boom")
    assert [result["dlq"] for result in results] == [False, True, True]
    third = server.pop(queue, batch=3)
    assert data_of(third) == [1], "the one that failed once only"
    assert server.ack(third, status="failed")[0]["dlq"] is True
    letters = server.get(f"/api/v1/dlq?queue={queue}").json["messages"]
    spent = {letter["data"]: (letter["errorMessage"], letter["retryCount"]) for letter in letters}
    assert spent == {1: ("Retries exhausted", 1), 2: ("boom", 1), 3: ("boom", 1)}


def test_without_retries_the_first_failure_is_a_dead_letter(server, queue):
    server.configure(queue, retryLimit=0)
    server.push(queue, 1)
    result = ack(server, server.pop(queue)[0], "failed")
    assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, True, True)
    (letter,) = server.get(f"/api/v1/dlq?queue={queue}").json["messages"]
    assert letter["errorMessage"] == "Retries exhausted"


def test_a_retry_costs_nothing(server, queue):
    server.configure(queue, retryLimit=0)
    server.push(queue, 1)
    for _ in range(5):
        assert ack(server, server.pop(queue)[0], "retry")["dlq"] is False
    assert ack(server, server.pop(queue)[0])["success"] is True


def test_a_dlq_ack_gives_up_at_once(server, queue):
    server.push(queue, 1, 2)
    messages = server.pop(queue, batch=2)
    result = ack(server, messages[0], "dlq", error="unreadable")
    assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, True, True)
    assert ack(server, messages[1])["error"] == "Invalid or expired lease"
    assert data_of(server.pop(queue, batch=2)) == [2], "the rest comes again at once"
    (letter,) = server.get(f"/api/v1/dlq?queue={queue}").json["messages"]
    assert (letter["data"], letter["errorMessage"]) == (1, "unreadable")


def test_success_is_another_word_for_completed(server, queue):
    server.push(queue, 1)
    assert ack(server, server.pop(queue)[0], "success")["success"] is True
    assert server.pop(queue) == []


def test_a_lease_that_runs_out_costs_no_retry(server, queue):
    server.configure(queue, retryLimit=1)
    server.push(queue, 1)
    for seconds in (1, 1, 60):
        (message,) = server.pop(queue, leaseSeconds=seconds, wait=True, timeout=10000)
    assert server.get(f"/api/v1/dlq?queue={queue}").json["messages"] == []
    assert ack(server, message, "failed")["dlq"] is False


def test_the_group_of_a_batch_stands_at_the_top(server, queue):
    server.push(queue, 1, 2)
    messages = server.pop(queue, batch=2, consumerGroup="g")
    assert succeeded(server.ack(messages[:1], group="g", consumerGroup="ignored")) == [True]
    assert succeeded(server.ack(messages[1:], consumerGroup="g")) == [True], "the item's counts when alone"
    assert server.pop(queue, batch=2, consumerGroup="g") == []
    assert len(server.pop(queue, batch=2)) == 2, "queue mode is untouched"


def test_one_batch_may_mix_partitions_and_bad_items(server, queue):
    for partition in "ab":
        server.push(queue, partition, partition=partition)
    messages = server.pop(queue, batch=10, partitions=10)
    assert len(messages) == 2
    ghost = {**messages[0], "transactionId": "ghost"}
    assert succeeded(server.ack([messages[0], ghost, messages[1]])) == [True, False, True]
    assert server.pop(queue, batch=10, partitions=10) == []


def test_a_retry_delay_holds_a_failed_message_back(server, queue):
    server.configure(queue, retryDelay=1500)
    server.push(queue, 1)
    ack(server, server.pop(queue)[0], "failed")
    assert server.pop(queue) == []
    started = time.monotonic()
    assert data_of(server.pop(queue, wait=True, timeout=10000)) == [1]
    assert time.monotonic() - started < 9


def test_a_very_long_error_text_is_kept_in_part(server, queue):
    server.push(queue, 1)
    assert ack(server, server.pop(queue)[0], "dlq", error="é" * 100_000)["success"] is True
    (letter,) = server.get(f"/api/v1/dlq?queue={queue}").json["messages"]
    assert letter["errorMessage"].startswith("é" * 1000)
