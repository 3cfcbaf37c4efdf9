"""Names that a route does not know: Baton's own routes refuse them, the others list them in `Baton-Ignored`."""

import re
import uuid

import pytest

OWN = re.compile(
    r"/api/v1/(caller|cluster|dead-letters|dlq[/:]|election|events|executions|fleet|job|kv|leases|locks|nodes|schedules|settings|shards|system|timers|workers)"
)
# A body that is right but for the unknown member, where an empty one would be refused for something else first.
ACK = {"transactionId": "t", "partitionId": "1"}
BODIES = {
    "POST /api/v1/ack": ACK,
    "POST /api/v1/ack/batch": {"acknowledgments": [ACK]},
    "POST /api/v1/executions/{execution}/logs": {"lines": []},
    "POST /api/v1/executions:report": {"items": []},
    "POST /api/v1/jobs:batch": {"jobs": []},
    "POST /api/v1/push": {"items": []},
    "POST /api/v1/timers": {"operations": [{"op": "cancel", "queue": "q", "timerKey": "k", "noSuchMember": 1}]},
}


def routes(server):
    for path, item in server.get("/api/openapi.json").json["paths"].items():
        for method, route in item.items():
            yield method.upper(), path, route


@pytest.fixture(scope="module")
def ids(server):
    """What stands for the open segments of paths, where not any name will do."""
    worker = server.post("/api/v1/workers", {"name": "w", "queues": ["q"]}).json["workerId"]
    job = str(uuid.uuid4())
    return {"worker": worker, "job": job, "execution": f"{job}.1", "lease": job}


def filled(path, ids):
    return re.sub(r"\{(\w+)\}", lambda match: ids.get(match[1], "x"), path)


def noticed(answer, path, name):
    """Whether an answer shows that `name` was not taken for anything, in the way of its route."""
    if OWN.match(path):
        return answer.status == 400 and name in str(answer.json)
    return name in answer.headers.get("baton-ignored", "").split(", ")


def test_no_route_ignores_a_parameter_in_silence(server, ids):
    silent = []
    for method, path, _ in routes(server):
        answer = server.call(method, f"{filled(path, ids)}?noSuchParameter=1")
        if not noticed(answer, path, "noSuchParameter"):
            silent.append((method, path, answer.status, answer.body[:100]))
    assert not silent, "\n".join(map(str, silent))


def test_no_route_ignores_a_member_in_silence(server, ids):
    silent = []
    for method, path, route in routes(server):
        if "requestBody" not in route:
            continue
        body = {"noSuchMember": 1} | BODIES.get(f"{method} {path}", {})
        answer = server.call(method, filled(path, ids), body=body)
        if not noticed(answer, path, "noSuchMember"):
            silent.append((method, path, answer.status, answer.body[:100]))
    assert not silent, "\n".join(map(str, silent))


def test_the_nearest_known_name_is_in_the_refusal(server):
    for method, path, body, near in [
        ("GET", "/api/v1/shards/s?workr=w", None, "worker"),
        ("GET", "/api/v1/nodes?limit=1", None, "none is known"),
        ("POST", "/api/v1/kv", {"operations": [{"op": "get", "ns": "n", "key": "k", "requird": True}]}, "required"),
        ("PUT", "/api/v1/kv/n/k", {"value": 1, "ttlSecond": 1}, "ttlSeconds"),
        ("POST", "/api/v1/locks", {"operations": [{"op": "get", "name": "n", "ownr": "o"}]}, "owner"),
        ("POST", "/api/v1/elections/g", {"action": "join", "workerId": "w", "leasMs": 1}, "leaseMs"),
        ("POST", "/api/v1/shards/s", {"action": "register", "workerID": "w", "maxShardCount": 3}, "workerId"),
        ("POST", "/api/v1/system/maintenance", {"enable": True}, "enabled"),
    ]:
        answer = server.call(method, path, **({"body": body} if body is not None else {}))
        assert answer.status == 400 and near in answer.json["error"] + answer.json.get("detail", ""), (path, answer)


def test_a_push_and_an_ack_list_what_they_ignore(server, queue):
    items = [{"queue": queue, "payload": n, "dely": 5, "priority": 1} for n in range(3)]
    pushed = server.post("/api/v1/push", {"items": items, "bufferMs": 5})
    assert pushed.status == 201 and len(pushed.json) == 3, pushed
    assert pushed.headers["baton-ignored"] == "dely, priority, bufferMs"
    assert "baton-ignored" not in server.post("/api/v1/push", {"items": [{"queue": queue, "payload": {"dely": 1}}]}).headers
    popped = server.get(f"/api/v1/pop/queue/{queue}?wiat=true&batch=1&wait=true&timeout=5000")
    assert popped.status == 200 and popped.headers["baton-ignored"] == "wiat", popped
    message = popped.json["messages"][0]
    ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    acked = server.post("/api/v1/ack", ack | {"grup": "g"})
    assert acked.json[0]["success"] and acked.headers["baton-ignored"] == "grup", acked
    acked = server.post("/api/v1/ack/batch", {"acknowledgments": [ack | {"a": 1}], "b": 2})
    assert acked.headers["baton-ignored"] == "a, b", acked


def test_members_are_known_at_every_depth(server, queue):
    body = {
        "operations": [
            {"type": "push", "queue": queue, "data": {"free": 1}, "dely": 1},
            {"type": "push", "items": [{"queue": queue, "payload": {"free": 1}, "pririty": 1}]},
        ],
        "kv": [{"op": "put", "ns": "n", "key": queue, "value": {"free": 1}, "forever": True, "ttl": 1}],
    }
    done = server.post("/api/v1/transaction", body)
    assert done.json["success"] and done.headers["baton-ignored"] == "dely, pririty, ttl", done
    configured = server.post("/api/v1/configure", {"queue": queue, "leaseTime": 9, "options": {"retryLimt": 1}})
    assert configured.headers["baton-ignored"] == "retryLimt", configured


def test_the_header_is_short_and_holds_nothing_but_names(server):
    query = "&".join(["a%0d%0aset-cookie:%20x=1"] + [f"{'n' * 500}{number}=1" for number in range(50)])
    answer = server.get(f"/health?{query}")
    assert answer.status == 200 and "set-cookie" not in answer.headers, answer.headers
    header = answer.headers["baton-ignored"]
    assert header.startswith("a%0D%0Aset-cookie%3A%20x, nnn") and header.endswith(", ...") and len(header) < 500


UUID = "01900000-0000-7000-8000-000000000001"


def sample(schema, schemas, members=()):
    """A value that fits a schema, with every member that is known. The objects on the way to `members` have an unknown one."""
    if "$ref" in schema:
        return sample(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas, members)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            return sample(schema[several][0], schemas, members)
    if "properties" in schema:
        unknown = {"noSuchMember": 1} if members == ("",) else {}
        inner = lambda name: members[1:] if members[:1] == (name,) else ()
        known = {name: sample(inside, schemas, inner(name)) for name, inside in schema["properties"].items()}
        return unknown | known | ({"payload": "bnVsbA=="} if "timerKey" in known else {})
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array":
        return [sample(schema["items"], schemas, members)]
    if kind == "string":
        return {"uuid": UUID, "date-time": "2026-01-01T00:00:00Z"}.get(schema.get("format"), "x")
    return {"integer": 1, "number": 1.0, "boolean": True, "object": {}}.get(kind, "any")


def places(schema, schemas, before=()):
    """The ways to all objects of a schema whose members are known."""
    if "$ref" in schema:
        yield from places(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas, before)
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            yield from places(schema[several][0], schemas, before)
    if "properties" in schema:
        yield (*before, "")
        for name, inside in schema["properties"].items():
            yield from places(inside, schemas, (*before, name))
    if "items" in schema:
        yield from places(schema["items"], schemas, before)


def test_no_route_ignores_a_member_in_silence_at_any_depth(server, ids):
    document = server.get("/api/openapi.json").json
    schemas, silent, tried = document["components"]["schemas"], [], 0
    for method, path, route in routes(server):
        if "requestBody" not in route:
            continue
        given = route["requestBody"]["content"]["application/json"]["schema"]
        for schema in given.get("oneOf", [given]):
            for place in places(schema, schemas):
                body = sample(schema, schemas, place)
                tried += 1
                answer = server.call(method, filled(path, ids), body=body)
                if not noticed(answer, path, "noSuchMember"):
                    silent.append((method, path, ".".join(place), answer.status, answer.body[:150]))
    assert tried > 80 and not silent, f"{tried}:\n" + "\n".join(map(str, silent))


def test_a_route_without_a_body_ignores_none_in_silence(server, ids):
    silent = []
    for method, path, route in routes(server):
        if "requestBody" not in route and method != "GET":
            answer = server.call(method, filled(path, ids), body={"noSuchMember": 1})
            if not noticed(answer, path, "noSuchMember"):
                silent.append((method, path, answer.status, answer.body[:150]))
    assert not silent, "\n".join(map(str, silent))


def malformed(schema):
    """A value that does not fit the schema of a parameter; none where any text fits."""
    if "enum" in schema:
        return "nonsense"
    return {"integer": "abc", "boolean": "perhaps", "number": "abc"}.get(schema.get("type")) or (
        "noon" if schema.get("format") == "date-time" else None
    )


# What a call must have before its parameters matter.
NEEDED = {
    "GET /api/v1/pop": {"query": "namespace=n&"},
    "PUT /api/v1/schedules/{schedule}": {
        "call": {"body": {"kind": "interval", "everyMs": 60_000, "enabled": False, "job": {"jobType": "t"}}}
    },
}


def test_no_route_takes_a_malformed_value_for_another(server, ids, queue):
    server.push(queue, 1)
    silent, tried = [], 0
    for method, path, route in routes(server):
        for parameter in route.get("parameters", []):
            value = malformed(parameter["schema"]) if parameter["in"] == "query" else None
            if value is None:
                continue
            tried += 1
            target = filled(path.replace("{queue}", queue), ids)
            needed = NEEDED.get(f"{method} {path}", {})
            answer = server.call(method, f"{target}?{needed.get('query', '')}{parameter['name']}={value}", **needed.get("call", {}))
            if answer.status != 400 or parameter["name"] not in str(answer.json):
                silent.append((method, path, parameter["name"], answer.status, answer.body[:150]))
    assert tried > 40 and not silent, f"{tried}:\n" + "\n".join(map(str, silent))


@pytest.mark.parametrize("query", ["batch=abc", "partitions=1.5", "timeout=soon", "leaseSeconds=1s", "subscriptionFrom=noon"])
def test_a_malformed_value_of_a_pop_is_refused(server, queue, query):
    answer = server.get(f"/api/v1/pop/queue/{queue}?{query}&consumerGroup=g")
    assert answer.status == 400 and query.split("=")[0] in answer.json["error"], answer
