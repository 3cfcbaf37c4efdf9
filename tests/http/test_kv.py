"""POST /api/v1/kv and the path routes: records with an expiry, compare-and-set and counters."""

import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from baton import Server


@pytest.fixture
def ns(queue):
    """A namespace of the test's own."""
    return queue


def call(server, *operations):
    return server.post("/api/v1/kv", {"operations": list(operations)})


def one(server, op, ns, key="k", **fields):
    answer = call(server, {"op": op, "ns": ns, "key": key, **fields})
    assert answer.status == 200, answer
    (result,) = answer.json["results"]
    assert (result["index"], result["op"]) == (0, op)
    return result


def put(server, ns, key, value, **fields):
    expiry = {} if "ttlSeconds" in fields else {"forever": True}
    return one(server, "put", ns, key, value=value, **expiry, **fields)


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "ü\u0000\n", [], {"a": [1, {"b": None}]}, 2**70, "x" * 65000])
def test_a_value_comes_back_as_it_was_written(server, ns, value):
    written = put(server, ns, "k", value)
    assert (written["applied"], written["value"]) == (True, value)
    read = one(server, "get", ns)
    assert (read["found"], read["key"], read["value"]) == (True, "k", value)
    assert read["version"] == written["version"] > 0
    assert read["expiresAt"] is None
    assert read["updatedAt"].endswith("Z")


def test_null_is_something_else_than_absent(server, ns):
    assert one(server, "get", ns)["found"] is False
    put(server, ns, "k", None)
    read = one(server, "get", ns)
    assert (read["found"], read["value"]) == (True, None)


def test_only_one_of_many_claims_a_key(server, ns):
    def claim(i):
        return one(server, "putIfAbsent", ns, value=i, ttlSeconds=60)

    with ThreadPoolExecutor(50) as pool:
        results = list(pool.map(claim, range(50)))
    (winner,) = [result for result in results if result["applied"]]
    losers = [result for result in results if not result["applied"]]
    assert {result["reason"] for result in losers} == {"exists"}
    assert {(result["value"], result["version"]) for result in losers} == {(winner["value"], winner["version"])}


def test_no_increment_is_lost_and_none_passes_the_bound(server, ns):
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda _: one(server, "incr", ns, delta=1, max=30, ttlSeconds=60), range(50)))
    assert sorted(result["value"] for result in results if result["applied"]) == list(range(1, 31))
    assert {result["reason"] for result in results if not result["applied"]} == {"limit"}
    assert one(server, "get", ns)["value"] == 30


def test_a_write_is_fenced_by_the_version_it_expects(server, ns):
    first = put(server, ns, "k", 1)
    second = put(server, ns, "k", 2, expect=first["version"])
    assert second["version"] > first["version"]
    stale = put(server, ns, "k", 3, expect=first["version"])
    assert (stale["applied"], stale["reason"], stale["value"], stale["version"]) == (False, "version", 2, second["version"])
    assert one(server, "delete", ns, expect=first["version"])["reason"] == "version"
    assert one(server, "check", ns, expect=second["version"])["applied"] is True
    assert one(server, "check", ns, expect=0)["reason"] == "exists"
    assert one(server, "delete", ns, expect=second["version"])["applied"] is True
    assert one(server, "delete", ns)["reason"] == "absent"
    assert one(server, "check", ns, expect=0)["applied"] is True
    assert put(server, ns, "k", 4, expect=second["version"])["reason"] == "absent"


def test_an_expired_record_is_gone_for_every_operation(server, ns):
    put(server, ns, "k", 1, ttlSeconds=1)
    one(server, "incr", ns, "c", delta=5, ttlSeconds=1)
    assert one(server, "get", ns)["expiresAt"] is not None
    deadline = time.monotonic() + 20
    while one(server, "get", ns)["found"] or one(server, "get", ns, "c")["found"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    results = call(
        server,
        {"op": "getMany", "ns": ns, "keys": ["k"]},
        {"op": "getPrefix", "ns": ns, "prefix": "k"},
        {"op": "check", "ns": ns, "key": "k", "expect": 0},
        {"op": "putIfAbsent", "ns": ns, "key": "k", "value": 2, "forever": True},
    ).json["results"]
    # Reads are answered after the writes of the same call.
    assert [row["value"] for row in results[0]["rows"]] == [2]
    assert [row["value"] for row in results[1]["rows"]] == [2]
    assert results[2]["applied"] and results[3]["applied"]
    assert one(server, "incr", ns, "c", delta=1, ttlSeconds=60)["value"] == 1


def test_several_keys_are_read_in_order_and_missing_ones_are_named(server, ns):
    for key in ("b", "a"):
        put(server, ns, key, key.upper())
    (result,) = call(server, {"op": "getMany", "ns": ns, "keys": ["z", "b", "a"]}).json["results"]
    assert [(row["key"], row["value"]) for row in result["rows"]] == [("a", "A"), ("b", "B")]
    assert (result["missing"], result["truncated"]) == (["z"], False)


def test_a_prefix_is_read_in_pages(server, ns):
    keys = [f"p/{i:02}" for i in range(25)]
    call(server, *({"op": "put", "ns": ns, "key": key, "value": 1, "forever": True} for key in [*keys, "q", "p"]))
    seen, after = [], None
    while True:
        operation = {"op": "getPrefix", "ns": ns, "prefix": "p/", "limit": 10, "keysOnly": True}
        if after:
            operation["after"] = after
        (page,) = call(server, operation).json["results"]
        assert all("value" not in row for row in page["rows"])
        seen += [row["key"] for row in page["rows"]]
        assert page["truncated"] is (page["nextAfter"] is not None)
        if not page["truncated"]:
            break
        after = page["nextAfter"]
    assert seen == keys


def test_a_large_answer_is_cut_and_says_so(server, ns):
    value = "x" * 65000
    for start in range(0, 80, 40):
        keys = [f"k{i:02}" for i in range(start, start + 40)]
        call(server, *({"op": "put", "ns": ns, "key": key, "value": value, "forever": True} for key in keys))
    (page,) = call(server, {"op": "getPrefix", "ns": ns, "prefix": "k", "limit": 1000}).json["results"]
    assert page["truncated"] is True
    assert 0 < len(page["rows"]) < 80
    assert page["nextAfter"] == page["rows"][-1]["key"]


def test_a_required_step_undoes_the_whole_call(server, ns):
    version = put(server, ns, "gate", 1)["version"]
    answer = call(
        server,
        {"op": "put", "ns": ns, "key": "a", "value": 1, "forever": True},
        {"op": "check", "ns": ns, "key": "gate", "expect": version + 1, "required": True},
    )
    assert answer.status == 200
    assert answer.json == {
        "ok": False,
        "reason": "kv_precondition",
        "failedIndex": 1,
        "kvReason": "version",
        "version": version,
        "value": 1,
    }
    assert one(server, "get", ns, "a")["found"] is False
    applied = call(
        server,
        {"op": "check", "ns": ns, "key": "gate", "expect": version, "required": True},
        {"op": "put", "ns": ns, "key": "a", "value": 1, "forever": True},
    )
    assert [result["applied"] for result in applied.json["results"]] == [True, True]


@pytest.mark.parametrize(
    "operation, status, code, reason",
    [
        ({"op": "get", "ns": "Upper", "key": "k"}, 400, "kv_bad_request", "kv_bad_namespace"),
        ({"op": "get", "ns": "n" * 65, "key": "k"}, 400, "kv_bad_request", "kv_bad_namespace"),
        ({"op": "get", "ns": "n", "key": "k" * 513}, 400, "kv_bad_request", "kv_bad_key"),
        ({"op": "get", "ns": "n", "key": "a\0b"}, 400, "kv_bad_request", "kv_bad_key"),
        ({"op": "get", "ns": "n", "key": 7}, 400, "kv_bad_request", "kv_bad_key"),
        ({"op": "getMany", "ns": "n", "keys": []}, 400, "kv_bad_request", "kv_bad_key"),
        ({"op": "getMany", "ns": "n", "keys": ["k"] * 1025}, 400, "kv_bad_request", "kv_too_many_keys"),
        ({"op": "getPrefix", "ns": "n", "prefix": ""}, 400, "kv_bad_request", "kv_prefix_required"),
        ({"op": "put", "ns": "n", "key": "k", "value": 1}, 400, "kv_bad_request", "kv_expiry_not_specified"),
        ({"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": -1}, 400, "kv_bad_request", "kv_bad_ttl"),
        ({"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 10**12}, 400, "kv_bad_request", "kv_bad_ttl"),
        ({"op": "put", "ns": "n", "key": "k", "value": 1, "forever": True, "expect": -1}, 400, "kv_bad_request", "kv_bad_expect"),
        ({"op": "put", "ns": "n", "key": "k", "value": "x" * 65536, "forever": True}, 413, "payload_too_large", "kv_value_too_large"),
        ({"op": "put", "ns": "queen-locks", "key": "l#0", "value": 1, "forever": True}, 400, "kv_bad_request", "kv_bad_namespace"),
        ({"op": "sing", "ns": "n", "key": "k"}, 400, "kv_bad_request", "kv_unknown_op"),
        ({"ns": "n", "key": "k"}, 400, "kv_bad_request", "kv_bad_body"),
        (7, 400, "kv_bad_request", "kv_bad_body"),
        ([], 400, "kv_bad_request", "kv_bad_body"),
    ],
)
def test_a_wrong_operation_says_what_is_wrong(server, operation, status, code, reason):
    answer = call(server, operation)
    assert answer.status == status, answer
    assert (answer.json["error"], answer.json["code"], answer.json["reason"]) == (code, code, reason)
    assert answer.json["detail"]


def test_a_key_is_written_once_in_a_call_and_a_call_is_bounded(server, ns):
    write = {"op": "put", "ns": ns, "key": "k", "value": 1, "forever": True}
    assert call(server, write, {**write, "value": 2}).json["reason"] == "kv_duplicate_key_in_call"
    assert one(server, "get", ns)["found"] is False
    assert call(server, *[{"op": "get", "ns": ns, "key": "k"}] * 257).json["reason"] == "kv_too_many_ops"
    assert call(server, *[{"op": "get", "ns": ns, "key": "k"}] * 256).status == 200


@pytest.mark.parametrize("body", [{}, {"operations": None}, {"operations": {}}, {"operations": []}, [], 5, b"{", b""])
def test_a_body_without_operations_is_refused(server, body):
    assert server.post("/api/v1/kv", body).status == 400


def test_a_record_has_a_path(server, ns):
    path = f"/api/v1/kv/{ns}/{quote('a/b c', safe='/')}"
    assert server.get(path).json["found"] is False
    written = server.call("PUT", path, {"value": {"x": 1}, "ttlSeconds": 60})
    assert (written.status, written.json["applied"]) == (200, True)
    read = server.get(path)
    assert (read.json["found"], read.json["key"], read.json["value"]) == (True, "a/b c", {"x": 1})
    assert read.headers["etag"] == f'"{read.json["version"]}"'
    assert server.call("PUT", path, {"value": 2, "forever": True, "expect": 0}).json["reason"] == "exists"
    assert server.call("DELETE", path, {"expect": read.json["version"] + 1}).json["reason"] == "version"
    assert server.delete(path).json["applied"] is True
    assert server.get(f"{path}?x=1").json["reason"] == "kv_no_query_string"
    assert server.call("PUT", path, {"value": 2, "forever": True, "key": "k"}).json["reason"] == "kv_field_in_path"
    assert server.call("PUT", path, {"value": 2}).json["reason"] == "kv_expiry_not_specified"
    assert server.call("PUT", path).status == 400


def test_records_survive_a_kill(tmp_path):
    with Server(tmp_path / "data") as server:
        version = put(server, "n", "k", {"kept": True}, ttlSeconds=600)["version"]
        one(server, "incr", "n", "c", delta=2, ttlSeconds=600)
        server.kill()
        server.start()
        read = one(server, "get", "n")
        assert (read["value"], read["version"]) == ({"kept": True}, version)
        assert one(server, "incr", "n", "c", delta=1, ttlSeconds=600)["value"] == 3
        assert put(server, "n", "k", 1)["version"] > version
