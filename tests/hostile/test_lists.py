"""Bodies that are lists of next to nothing: every route, every member that its body may have."""

import pytest

from watch import MIB, Watch

BODY_BYTES = 8 * MIB
# The largest body that a route takes.
BODY_BYTES_MAX = 60 * MIB
FILLERS = {"objects": "{},", "texts": '"",'}


def filled(before, filler, after, size=BODY_BYTES):
    count = (size - len(before) - len(after)) // len(filler)
    return (before + (filler * count)[:-1] + after).encode()


def many_members(before, after):
    """An object with as many members as the body can hold."""
    members, size = [], len(before) + len(after)
    while size < BODY_BYTES:
        members.append(f'"{len(members):x}":0')
        size += len(members[-1]) + 1
    return (before + "{" + ",".join(members) + "}" + after).encode()


def resolved(schema, document):
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def places(schema, document, before="", after="", depth=3):
    """Where a list can stand in a body, as the text around it."""
    schema = resolved(schema, document)
    for other in (part for word in ("anyOf", "oneOf", "allOf") for part in schema.get(word, [])):
        yield from places(other, document, before, after, depth)
    yield before, after
    if depth == 0:
        return
    if "items" in schema:
        yield from places(schema["items"], document, before + "[", "]" + after, depth - 1)
    for name, member in schema.get("properties", {}).items():
        yield from places(member, document, before + f'{{"{name}":', "}" + after, depth - 1)


def body_routes(server):
    document = server.get("/api/openapi.json").json
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            if method in ("post", "put"):
                target = path.replace("{", "").replace("}", "")
                yield method.upper(), target, sorted(set(places(schema, document)))


def test_no_list_in_a_body_takes_many_times_its_size(server):
    checked = 0
    for method, target, around in body_routes(server):
        for before, after in around:
            body = filled(before + "[", FILLERS["objects"], "]" + after)
            with Watch(server) as watch:
                answer = server.call(method, target, body)
            assert answer.status < 500, (method, target, before, answer)
            watch.check(len(body))
            checked += 1
            if answer.status == 413 and answer.json["code"] == "body_too_large":
                # The route takes no such body, whatever is in it.
                break
    assert checked > 60


@pytest.mark.parametrize("filler", FILLERS)
def test_a_batch_of_next_to_nothing_is_refused_for_next_to_nothing(server, filler):
    bodies = {
        "/api/v1/jobs:batch": ('{"jobs":[', "]}"),
        "/api/v1/jobs": ('{"priority":[', '],"jobType":"x"}'),
        "/api/v1/push": ('{"items":[', "]}"),
        "/api/v1/transaction": ('{"operations":[', "]}"),
    }
    for path, (before, after) in bodies.items():
        body = filled(before, FILLERS[filler], after, BODY_BYTES_MAX)
        with Watch(server) as watch:
            answer = server.post(path, body)
        assert answer.status in (400, 413, 422), (path, answer)
        watch.check(len(body))


@pytest.mark.parametrize(
    "path, before, after",
    [
        ("/api/v1/configure", '{"queue":"q","options":', "}"),
        ("/api/v1/system/maintenance", "", ""),
        ("/api/v1/kv", '{"operations":[', "]}"),
        ("/api/v1/locks", '{"operations":[', "]}"),
        ("/api/v1/timers", '{"operations":[', "]}"),
        ("/api/v1/fetch", '{"entries":[', "]}"),
        ("/api/v1/traces", '{"traceNames":', "}"),
        ("/api/v1/workers", '{"labels":', "}"),
    ],
)
def test_no_object_in_a_body_takes_many_times_its_size(server, path, before, after):
    body = many_members(before, after)
    with Watch(server) as watch:
        answer = server.post(path, body)
    assert answer.status in (400, 413, 422), answer
    watch.check(len(body))
