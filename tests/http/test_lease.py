"""POST /api/v1/lease/:leaseId/extend"""

from datetime import datetime, timezone

import pytest

from baton import ABSENT, eventually


def extend(server, lease, body=ABSENT):
    return server.post(f"/api/v1/lease/{lease}/extend", body)


def seconds_left(answer):
    assert answer["newExpiresAt"] == answer["expiresAt"] == answer["lease_expires_at"]
    return (datetime.fromisoformat(answer["newExpiresAt"]) - datetime.now(timezone.utc)).total_seconds()


@pytest.mark.parametrize("body", [ABSENT, {}, [], {"seconds": None}])
def test_a_lease_is_extended_by_a_minute_unless_told_otherwise(server, queue, body):
    server.configure(queue, leaseTime=5)
    server.push(queue, 1)
    (message,) = server.pop(queue)
    answer = extend(server, message["leaseId"], body)
    assert answer.status == 200
    assert answer.json["success"] is True
    assert answer.json["renewed"] == 1
    assert answer.json["leaseId"] == message["leaseId"]
    assert 50 < seconds_left(answer.json) < 70


def test_an_extension_never_shortens(server, queue):
    server.push(queue, 1)
    (message,) = server.pop(queue)
    assert seconds_left(extend(server, message["leaseId"], {"seconds": 1}).json) > 200


def test_one_extension_covers_every_partition_of_the_pop(server, queue):
    for partition in "abc":
        server.push(queue, 1, partition=partition)
    messages = server.pop(queue, batch=10, partitions=10)
    assert extend(server, messages[0]["leaseId"], {"seconds": 500}).json["renewed"] == 3


@pytest.mark.parametrize("lease", ["01980000-0000-7000-8000-000000000000", "no-uuid", "%00", "x" * 3000, "%20"])
def test_an_unknown_lease_is_a_failure_with_status_200(server, lease):
    answer = extend(server, lease, {"seconds": 60})
    assert answer.status == 200
    body = answer.json
    assert (body["success"], body["renewed"]) == (False, 0)
    assert body["newExpiresAt"] is body["expiresAt"] is body["lease_expires_at"] is None


def test_an_expired_lease_is_not_revived(server, queue):
    server.push(queue, 1)
    (message,) = server.pop(queue, leaseSeconds=1)
    (again,) = server.pop(queue, wait=True, timeout=10000)
    assert extend(server, message["leaseId"]).json["success"] is False
    assert extend(server, again["leaseId"]).json["success"] is True


def test_a_released_lease_is_gone(server, queue):
    server.push(queue, 1)
    messages = server.pop(queue)
    server.ack(messages)
    assert extend(server, messages[0]["leaseId"]).json["success"] is False


@pytest.mark.parametrize("seconds", [0, -5])
def test_less_than_a_second_is_a_second(server, queue, seconds):
    server.push(queue, 1)

    def extended():
        """In time, which takes another try when the machine is slow."""
        (message,) = server.pop(queue, leaseSeconds=1, wait=True, timeout=10000)
        answer = extend(server, message["leaseId"], {"seconds": seconds}).json
        return answer["success"] and answer

    answer = eventually(extended)
    assert 0 < seconds_left(answer) <= 1.5


@pytest.mark.parametrize("seconds", [10**30, 2**63, 10**9])
def test_a_huge_extension_is_refused_or_bounded(server, queue, seconds):
    server.push(queue, 1)
    (message,) = server.pop(queue)
    answer = extend(server, message["leaseId"], {"seconds": seconds})
    assert answer.status in (200, 400), answer
    if answer.status == 200:
        assert seconds_left(answer.json) <= 8 * 24 * 3600
    assert server.ack([message])[0]["success"] is True


@pytest.mark.parametrize("body", [{"seconds": "long"}, {"seconds": []}, 5, "text", b"{", b"\xff"])
def test_a_malformed_body_never_extends_by_surprise(server, queue, body):
    server.configure(queue, leaseTime=5)
    server.push(queue, 1)
    (message,) = server.pop(queue)
    answer = extend(server, message["leaseId"], body)
    assert answer.status in (200, 400), answer
    assert server.ack([message])[0]["success"] is True
