"""A call ends in time, whatever the store does; whoever asked to wait gets the time that he asked for."""

import threading
import time

import pytest

from baton import Server, eventually
from links import Gate
from postgres import Postgres

# Long enough that a busy machine does not mistake itself for a slow store, most of the time.
TIMEOUT = 3
JOB = {"jobType": "t", "args": {}, "tags": ["late"]}


@pytest.fixture
def link():
    database = Postgres()
    link = Gate(database.port)
    link.url = database.url_over(link.port)
    yield link
    link.close()
    database.close()


def hurried(directory, *args):
    return Server(directory / "data", "--call-timeout-ms", str(TIMEOUT * 1000), *args)


def done(call, status=201):
    """What a call came to that is sent again until it has come to something."""
    return eventually(lambda: (answer := call()).status == status and answer, 60)


def at_once(*calls):
    """What each call came to; all of them are made together."""
    answers = [None] * len(calls)

    def make(number, call):
        answers[number] = call()

    threads = [threading.Thread(target=make, args=(number, call)) for number, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_calls_that_the_store_does_not_answer_are_told_so_and_can_be_repeated(tmp_path, link):
    with hurried(tmp_path, "--store", link.url) as server:
        first, second = ({"items": [{"queue": "q", "payload": id_, "transactionId": id_}]} for id_ in ("first", "second"))
        enqueue = "/api/v1/jobs?idempotencyKey=once"
        done(lambda: server.post("/api/v1/push", first))
        link.mode = "cut"
        calls = (
            lambda: server.post(enqueue, JOB),
            lambda: server.post("/api/v1/push", second),
            lambda: server.get("/api/v1/jobs?tag=late"),
            lambda: server.get("/api/v1/pop/queue/q"),
        )
        answers = at_once(*calls)
        for answer in answers:
            assert answer.status == 503 and answer.json["code"] == "took_too_long", answer
            assert int(answer.headers["retry-after"]) > 0, answer
            assert f"within {TIMEOUT} s" in answer.error and "may still happen" in answer.error, answer
        assert answers[-1].json["messages"] == [] and answers[-1].json["success"] is False, answers
        link.heal()
        # All of it may have happened, and none of it happens twice.
        job = done(calls[0]).json["jobId"]
        done(calls[1])
        assert [one["jobId"] for one in done(calls[2], 200).json["jobs"]] == [job]
        found = done(lambda: server.get("/api/v1/resources/queues/q"), 200).json
        assert found["totals"]["total"] == 2, found
    assert "panicked" not in server.text(), server.text()


def test_whoever_asks_to_wait_is_given_more_time_than_a_call_has(tmp_path):
    with hurried(tmp_path) as server:
        job = done(lambda: server.post("/api/v1/jobs", JOB | {"delayMs": 86_400_000})).json["jobId"]
        worker = done(lambda: server.post("/api/v1/workers", {"name": "w", "queues": ["empty"]})).json["workerId"]
        wait, begin = TIMEOUT * 2000, time.monotonic()
        answers = at_once(
            lambda: server.get(f"/api/v1/pop/queue/empty?wait=true&timeout={wait}"),
            lambda: server.get(f"/api/v1/jobs/{job}/wait?timeoutMs={wait}"),
            lambda: server.post(f"/api/v1/workers/{worker}/lease", {"max": 1, "waitMs": wait}),
        )
        assert time.monotonic() - begin > TIMEOUT, answers
        assert [answer.status for answer in answers] == [204, 200, 200], answers
        assert answers[1].json["state"] == "scheduled" and answers[2].json["leases"] == [], answers
    assert "panicked" not in server.text(), server.text()
