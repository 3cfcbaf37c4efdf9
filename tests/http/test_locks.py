"""POST /api/v1/locks: locks and semaphores with fencing tokens."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton import Server, data_of


@pytest.fixture
def name(queue):
    """A lock of the test's own."""
    return queue


def one(server, op, name, **fields):
    answer = server.post("/api/v1/locks", {"operations": [{"op": op, "name": name, **fields}]})
    assert answer.status == 200, answer
    (result,) = answer.json["results"]
    assert (result["index"], result["op"], result["name"]) == (0, op, name)
    return result


def acquire(server, name, owner="a", ttl=60, **fields):
    return one(server, "acquire", name, owner=owner, ttlSeconds=ttl, **fields)


def guarded(server, guard, queue, payload):
    push = {"type": "push", "items": [{"queue": queue, "payload": payload}]}
    answer = server.post("/api/v1/transaction", {"operations": [push], "kv": [guard]})
    assert answer.status == 200, answer
    return answer.json


def test_fifty_who_want_a_lock_find_one_holder(server, name):
    with ThreadPoolExecutor(50) as pool:
        results = list(pool.map(lambda i: acquire(server, name, f"owner-{i}"), range(50)))
    (winner,) = [result for result in results if result["acquired"]]
    losers = [result for result in results if not result["acquired"]]
    assert {result["reason"] for result in losers} == {"held"}
    assert {result["holders"][0]["owner"] for result in losers} == {winner["owner"]}
    assert winner["slot"] == 0
    assert winner["guard"] == {
        "op": "check",
        "ns": "queen-locks",
        "key": f"{name}#0",
        "expect": winner["token"],
        "required": True,
    }


def test_fifty_who_want_a_semaphore_of_seven_find_seven_permits(server, name):
    with ThreadPoolExecutor(50) as pool:
        results = list(pool.map(lambda i: acquire(server, name, f"owner-{i}", limit=7), range(50)))
    winners = [result for result in results if result["acquired"]]
    assert sorted(result["slot"] for result in winners) == list(range(7))
    assert len({result["token"] for result in winners}) == 7
    held = one(server, "get", name)
    assert (held["held"], len(held["holders"])) == (True, 7)
    released = winners[3]
    assert one(server, "release", name, token=released["token"], slot=released["slot"])["released"] is True
    assert acquire(server, name, "late", limit=7)["slot"] == released["slot"]


def test_a_stale_token_changes_nothing(server, name, queue):
    first = acquire(server, name, "a", ttl=1)
    assert guarded(server, first["guard"], queue, 1)["success"] is True
    deadline = time.monotonic() + 20
    while not (second := acquire(server, name, "b"))["acquired"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert second["token"] > first["token"]
    stale = {"token": first["token"]}
    assert one(server, "renew", name, ttlSeconds=60, owner="a", **stale)["renewed"] is False
    released = one(server, "release", name, slot=0, **stale)
    assert (released["released"], released["reason"]) == (False, "lost")
    undone = guarded(server, first["guard"], queue, 2)
    assert (undone["success"], undone["reason"], undone["kvReason"]) == (False, "kv_precondition", "version")
    assert (undone["failedIndex"], undone["value"]["owner"], undone["results"]) == (1, "b", [])
    assert data_of(server.pop(queue, batch=10)) == [1]
    assert one(server, "get", name)["holders"][0]["token"] == second["token"]


def test_a_renewal_has_a_new_token_and_the_old_one_no_longer_guards(server, name, queue):
    held = acquire(server, name)
    renewed = one(server, "renew", name, token=held["token"], slot=0, owner="a", ttlSeconds=60)
    assert renewed["renewed"] is True and renewed["token"] > held["token"]
    undone = guarded(server, held["guard"], queue, 1)
    assert undone["value"]["owner"] == "a", "a client sees that it was its own renewal"
    assert guarded(server, renewed["guard"], queue, 2)["success"] is True
    again = acquire(server, name)
    assert (again["acquired"], again["already"], again["slot"]) == (True, True, 0)
    assert one(server, "release", name, token=again["token"])["released"] is True
    assert one(server, "get", name) == {"index": 0, "op": "get", "name": name, "held": False, "holders": []}


def test_a_lock_acquired_again_keeps_its_token_so_that_its_first_guard_holds(server, name, queue):
    first = acquire(server, name)
    again = acquire(server, name)
    assert (again["already"], again["token"], again["guard"]) == (True, first["token"], first["guard"])
    assert guarded(server, first["guard"], queue, 1)["success"] is True
    (holder,) = one(server, "get", name)["holders"]
    assert (holder["token"], holder["owner"]) == (first["token"], "a")
    place = {"op": "get", "ns": first["guard"]["ns"], "key": first["guard"]["key"]}
    assert server.post("/api/v1/kv", {"operations": [place]}).json["results"][0]["version"] == first["token"]
    renewed = one(server, "renew", name, token=first["token"], ttlSeconds=60)
    assert renewed["renewed"] is True and renewed["token"] > first["token"]
    assert one(server, "release", name, token=renewed["token"])["released"] is True


def test_an_owner_is_made_up_when_none_is_given(server, name):
    result = one(server, "acquire", name, ttlSeconds=60)
    assert result["acquired"] is True and result["owner"]
    assert one(server, "acquire", name, ttlSeconds=60)["acquired"] is False


def test_operations_of_a_call_are_independent(server, name):
    acquire(server, f"{name}-taken", "other")
    operations = [
        {"op": "acquire", "name": f"{name}-taken", "owner": "a", "ttlSeconds": 60},
        {"op": "acquire", "name": f"{name}-free", "owner": "a", "ttlSeconds": 60},
        {"op": "get", "name": f"{name}-none"},
    ]
    results = server.post("/api/v1/locks", {"operations": operations}).json["results"]
    assert [results[0]["acquired"], results[1]["acquired"], results[2]["held"]] == [False, True, False]


@pytest.mark.parametrize(
    "operation, reason",
    [
        ({"op": "acquire", "name": "", "ttlSeconds": 1}, "locks_bad_name"),
        ({"op": "acquire", "name": "a#1", "ttlSeconds": 1}, "locks_bad_name"),
        ({"op": "acquire", "name": "a\n", "ttlSeconds": 1}, "locks_bad_name"),
        ({"op": "acquire", "name": "x" * 257, "ttlSeconds": 1}, "locks_bad_name"),
        ({"op": "acquire", "name": "a", "ttlSeconds": 1, "owner": "x" * 257}, "locks_bad_owner"),
        ({"op": "acquire", "name": "a"}, "locks_bad_ttl"),
        ({"op": "acquire", "name": "a", "ttlSeconds": 0}, "locks_bad_ttl"),
        ({"op": "acquire", "name": "a", "ttlSeconds": 1.5}, "locks_bad_ttl"),
        ({"op": "acquire", "name": "a", "forever": True}, "locks_bad_body"),
        ({"op": "acquire", "name": "a", "ttlSeconds": 1, "limit": 0}, "locks_bad_limit"),
        ({"op": "acquire", "name": "a", "ttlSeconds": 1, "limit": 1025}, "locks_bad_limit"),
        ({"op": "renew", "name": "a", "ttlSeconds": 1}, "locks_bad_token"),
        ({"op": "release", "name": "a", "token": "1"}, "locks_bad_token"),
        ({"op": "release", "name": "a", "token": 1, "slot": 5000}, "locks_bad_slot"),
        ({"op": "steal", "name": "a"}, "locks_unknown_op"),
        ({"name": "a"}, "locks_bad_body"),
        ("acquire", "locks_bad_body"),
    ],
)
def test_a_wrong_operation_says_what_is_wrong(server, operation, reason):
    answer = server.post("/api/v1/locks", {"operations": [operation]})
    assert answer.status == 400, answer
    assert (answer.json["error"], answer.json["reason"]) == ("locks_bad_request", reason)
    assert answer.json["detail"]


def test_a_call_is_bounded_and_names_a_lock_once(server, name):
    def refused(operations):
        answer = server.post("/api/v1/locks", {"operations": operations})
        assert answer.status == 400, answer
        return answer.json["reason"]

    assert refused([{"op": "get", "name": name}] * 2) == "locks_duplicate_name"
    assert refused([{"op": "get", "name": f"{name}-{i}"} for i in range(65)]) == "locks_too_many_ops"
    assert refused([]) == "locks_too_many_ops"
    assert refused({}) == "locks_bad_body"


def test_locks_survive_a_kill(tmp_path):
    with Server(tmp_path / "data") as server:
        held = acquire(server, "l", "a", ttl=600)
        server.kill()
        server.start()
        assert acquire(server, "l", "b")["acquired"] is False
        renewed = one(server, "renew", "l", token=held["token"], ttlSeconds=600)
        assert renewed["renewed"] is True and renewed["token"] > held["token"]
        assert one(server, "release", "l", token=renewed["token"])["released"] is True
        assert acquire(server, "l", "b")["token"] > renewed["token"]
