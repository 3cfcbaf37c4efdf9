"""POST /api/v1/configure"""

import pytest

DEFAULTS = {
    "leaseTime": 300,
    "retryLimit": 3,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "maxSize": 0,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "retentionEnabled": False,
    "encryptionEnabled": False,
    "maxWaitTimeSeconds": 0,
}


def configure(server, **body):
    return server.post("/api/v1/configure", body)


def test_the_answer_names_the_queue_and_echoes_every_option(server, queue):
    answer = configure(server, queue=queue, namespace="billing", task="invoice", options={"leaseTime": 60})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    body = answer.json
    assert body["configured"] is True
    assert (body["queue"], body["namespace"], body["task"]) == (queue, "billing", "invoice")
    assert isinstance(body["queueId"], str)
    assert "partitionId" in body
    assert {**DEFAULTS, "leaseTime": 60}.items() <= body["options"].items()
    assert {"retryDelay", "ttl", "deadLetterQueue", "dlqAfterMaxRetries"} <= body["options"].keys()


def test_options_that_are_left_out_keep_their_value_and_null_restores_the_default(server, queue):
    server.configure(queue, labels={"namespace": "billing"}, leaseTime=60, retryLimit=1)
    body = server.configure(queue, leaseTime=None, priority=7)
    assert {"leaseTime": 300, "retryLimit": 1, "priority": 7}.items() <= body["options"].items()
    assert body["namespace"] == "billing"


def test_unknown_options_and_options_that_are_no_object_are_ignored(server, queue):
    assert configure(server, queue=queue, options={"unheardOf": 1}).status == 200
    for options in (None, 5, "text", []):
        assert configure(server, queue=queue, options=options).status == 200


def test_namespace_and_task_may_be_null(server, queue):
    body = configure(server, queue=queue, namespace=None, task=None, options={}).json
    assert (body["namespace"], body["task"]) == ("", "")


def test_a_queue_may_be_named_by_the_empty_string(server):
    assert configure(server, queue="", options={}).json["configured"] is True


@pytest.mark.parametrize("queue", [None, 5, True, [], {}])
def test_a_queue_that_is_no_string_is_refused(server, queue):
    answer = configure(server, queue=queue)
    assert (answer.status, answer.error) == (400, "queue is required")


def test_a_missing_queue_is_refused(server):
    answer = configure(server, options={})
    assert (answer.status, answer.error) == (400, "queue is required")


@pytest.mark.parametrize(
    "option, value",
    [
        ("leaseTime", "long"),
        ("leaseTime", -1),
        ("leaseTime", 1.5),
        ("leaseTime", 10**30),
        ("leaseTime", 10**9),
        ("retryLimit", []),
        ("retentionEnabled", "yes"),
        ("maxSize", {}),
    ],
)
def test_an_option_that_does_not_fit_is_named(server, queue, option, value):
    answer = configure(server, queue=queue, options={option: value})
    assert answer.status == 400
    assert option in answer.error


def test_an_empty_body_is_refused(server):
    answer = server.post("/api/v1/configure")
    assert (answer.status, answer.error) == (400, "Empty request body")


def test_a_new_lease_time_applies_to_the_next_pop(server, queue):
    server.configure(queue, leaseTime=300)
    server.configure(queue, leaseTime=1)
    server.push(queue, 1)
    assert len(server.pop(queue)) == 1
    assert len(server.pop(queue, wait=True, timeout=5000)) == 1
