"""GET /api/v1/dlq"""

import time
from urllib.parse import quote

import pytest


def give_up(server, queue, payload, partition="p", group=None, error="boom", id=None):
    server.push(queue, payload, partition=partition, ids=[id or f"{partition}-{payload}-{group}"])
    params = {"consumerGroup": group} if group else {}
    messages = server.pop(queue, partition, batch=100, **params)
    server.ack(messages, status="dlq", group=group, error=error)


def letters(server, **params):
    query = "&".join(f"{name}={quote(str(value))}" for name, value in params.items())
    answer = server.get(f"/api/v1/dlq?{query}")
    assert answer.status == 200, answer
    return answer.json


def test_a_dead_letter_has_every_field(server, queue):
    give_up(server, queue, {"n": 2}, id="t2")
    body = letters(server, queue=queue)
    (letter,) = body["messages"]
    expected = {
        "transactionId": "t2",
        "queue": queue,
        "partition": "p",
        "consumerGroup": "__QUEUE_MODE__",
        "errorMessage": "boom",
        "retryCount": 0,
        "data": {"n": 2},
        "producerSub": None,
    }
    assert expected.items() <= letter.items()
    assert {"id", "partitionId", "createdAt", "failedAt"} <= letter.keys()
    assert body["total"] == 1
    assert body["pagination"] == {"limit": 100, "offset": 0}


def test_a_page_of_large_dead_letters_is_bounded(server, queue):
    for number in range(6):
        give_up(server, queue, {"n": number, "filler": "x" * (8 << 20)}, partition=str(number), id=f"t{number}")
    answer = server.get(f"/api/v1/dlq?queue={queue}")
    assert len(answer.body) < 34 << 20
    found = answer.json["messages"]
    assert [letter["partition"] for letter in found] == ["5", "4", "3", "2", "1", "0"]
    assert [letter.get("dataOmitted", False) for letter in found] == [False] * 3 + [True] * 3
    assert [letter["data"] is None for letter in found] == [False] * 3 + [True] * 3
    assert server.get(f"/api/v1/resources/queues/{queue}").json["totals"]["deadLetter"] == 6


def test_dead_letters_are_paged_newest_first(server, queue):
    for i in range(5):
        give_up(server, queue, i)
    body = letters(server, queue=queue, limit=2, offset=1)
    assert [letter["data"] for letter in body["messages"]] == [3, 2]
    assert body["total"] == 5
    assert body["pagination"] == {"limit": 2, "offset": 1}


def test_dead_letters_are_filtered_by_group_partition_and_time(server, queue):
    give_up(server, queue, "a", partition="a")
    give_up(server, queue, "b", partition="b")
    give_up(server, queue, "c", partition="c", group="g")
    assert [letter["data"] for letter in letters(server, queue=queue, partition="b")["messages"]] == ["b"]
    assert [letter["data"] for letter in letters(server, queue=queue, consumerGroup="g")["messages"]] == ["c"]
    recent = {"from": "2020-01-01T00:00:00Z", "to": "2999-01-01T00:00:00Z"}
    assert letters(server, queue=queue, **recent)["total"] == 3
    assert letters(server, queue=queue, **{"from": "2999-01-01T00:00:00Z"})["total"] == 0


def bulk(server, action, **body):
    answer = server.post(f"/api/v1/dlq:{action}", body)
    assert answer.status == 200, answer
    return answer.json


def test_dead_letters_are_grouped_by_error(server, queue):
    for number in range(3):
        give_up(server, queue, number, error="refused")
    give_up(server, queue, "odd", partition="q", group="g", error="timed out")
    answer = server.get(f"/api/v1/dlq/errors?queue={queue}").json
    assert [(row["error"], row["count"]) for row in answer["errors"]] == [("refused", 3), ("timed out", 1)]
    assert (answer["counted"], answer["nextCursor"]) == (4, None)
    first, second = answer["errors"]
    assert first["firstFailedAt"] <= first["lastFailedAt"] <= second["lastFailedAt"]
    expected = {"queue": queue, "partition": "q", "transactionId": "q-odd-g", "consumerGroup": "g"}
    assert expected.items() <= second["sample"].items()
    narrowed = server.get(f"/api/v1/dlq/errors?queue={queue}&errorContains=out").json
    assert [row["count"] for row in narrowed["errors"]] == [1]
    assert "queue" in server.get("/api/v1/dlq/errors?queu=x").error


def test_dead_letters_are_replayed_by_filter(server, queue):
    for number in range(4):
        give_up(server, queue, number, error=f"error {number % 2}")
    chosen = {"queue": queue, "error": "error 1"}
    assert bulk(server, "replay", filter=chosen, dryRun=True) | {"nextCursor": 0} == {
        "dryRun": True, "matched": 2, "replayed": 0, "duplicates": 0, "stopped": None, "nextCursor": 0,
    }
    assert letters(server, queue=queue)["total"] == 4
    first = bulk(server, "replay", filter=chosen, limit=1)
    assert (first["replayed"], first["nextCursor"] is None) == (1, False)
    rest = bulk(server, "replay", filter=chosen, cursor=first["nextCursor"])
    assert (rest["replayed"], rest["nextCursor"]) == (1, None)
    assert [message["data"] for message in server.pop(queue, batch=10)] == [1, 3]
    assert letters(server, queue=queue)["total"] == 2


def test_a_replay_keeps_to_its_rate(server, queue):
    for number in range(6):
        give_up(server, queue, number)
    started = time.monotonic()
    done = bulk(server, "replay", filter={"queue": queue}, ratePerSec=1)
    assert (done["replayed"], done["nextCursor"] is None) == (5, False)
    assert time.monotonic() - started >= 4


def test_dead_letters_are_purged_by_filter(server, queue):
    for number in range(4):
        give_up(server, queue, number, error=f"error {number % 2}")
    assert bulk(server, "purge", filter={"queue": queue, "errorContains": "r 0"})["purged"] == 2
    assert [letter["errorMessage"] for letter in letters(server, queue=queue)["messages"]] == ["error 1"] * 2
    assert bulk(server, "purge", filter={"queue": queue}, dryRun=True)["matched"] == 2
    assert bulk(server, "purge", filter={"queue": queue})["purged"] == 2
    assert letters(server, queue=queue)["total"] == 0
    assert server.pop(queue, batch=10) == []


@pytest.mark.parametrize("action", ["replay", "purge"])
def test_all_dead_letters_are_meant_only_by_all(server, queue, action):
    give_up(server, queue, 1)
    for body in ({}, {"filter": {}}, {"filter": {"queue": queue}, "all": True}, {"filter": {"queu": queue}}):
        assert server.post(f"/api/v1/dlq:{action}", body).status == 400, body
    for wrong in ({"ratePerSec": 0}, {"cursor": "x"}):
        assert server.post(f"/api/v1/dlq:{action}", {"filter": {"queue": queue}, **wrong}).status == 400
    assert letters(server, queue=queue)["total"] == 1
    assert bulk(server, action, all=True)["matched"] >= 1
    assert letters(server, queue=queue)["total"] == 0


def test_a_queue_without_dead_letters_has_none(server, queue):
    body = letters(server, queue=queue)
    assert (body["messages"], body["total"]) == ([], 0)


def test_a_message_given_up_by_two_groups_is_two_dead_letters(server, queue):
    server.push(queue, 1)
    for group in ("g", "h"):
        server.ack(server.pop(queue, consumerGroup=group), status="dlq", group=group)
    assert {letter["consumerGroup"] for letter in letters(server, queue=queue)["messages"]} == {"g", "h"}


def test_a_deleted_queue_takes_its_dead_letters_with_it(server, queue):
    give_up(server, queue, 1)
    server.delete(f"/api/v1/resources/queues/{queue}")
    assert letters(server, queue=queue)["total"] == 0


def test_a_queue_without_dead_letters_by_choice_drops_them(server, queue):
    server.configure(queue, retryLimit=0, deadLetterQueue=False, dlqAfterMaxRetries=False)
    server.push(queue, 1, 2)
    server.ack(server.pop(queue), status="failed")
    assert [message["data"] for message in server.pop(queue, batch=5)] == [2]
    assert letters(server, queue=queue)["total"] == 0


@pytest.mark.parametrize("params", ["limit=-1", "limit=x", "offset=-7", "limit=99999999999999999999", "from=x", "to=%00"])
def test_odd_parameters_are_no_error_of_the_server(server, params):
    answer = server.get(f"/api/v1/dlq?{params}")
    assert answer.status in (200, 400), answer
