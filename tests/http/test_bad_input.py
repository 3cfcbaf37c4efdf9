"""Input that no honest client sends: it is refused, or taken as what it is, and harms nobody."""

import json
from urllib.parse import quote

import pytest

from baton import Background, Wire, data_of, pop_path, request_bytes

pytestmark = pytest.mark.usefixtures("unharmed")

BODY_BYTES_MAX = 64 << 20
BATCH_ITEMS_MAX = 100_000
NAME_BYTES_MAX = 255
TRANSACTION_ID_BYTES_MAX = 65_535


def push(server, **item):
    return server.post("/api/v1/push", {"items": [item]})


def test_the_longest_name_is_taken_and_one_byte_more_is_refused(server, queue):
    longest = (queue + "x" * NAME_BYTES_MAX)[:NAME_BYTES_MAX]
    assert push(server, queue=longest, partition=longest, payload=1).status == 201
    assert data_of(server.pop(longest, longest, consumerGroup=longest)) == [1]
    for field in ("queue", "partition"):
        answer = push(server, **{"queue": queue, "payload": 1, field: longest + "x"})
        assert answer.status in (400, 413), answer
        assert answer.error
    for name in ("é" * 128, "x" * 100_000):
        assert push(server, queue=name, payload=1).status in (400, 413)
        assert server.post("/api/v1/configure", {"queue": name}).status in (400, 413)


def test_names_that_are_too_long_in_a_path_or_query_are_refused(server, queue):
    server.push(queue, 1)
    long = "x" * (NAME_BYTES_MAX + 1)
    for path in (
        f"/api/v1/pop/queue/{long}",
        f"/api/v1/pop/queue/{queue}/partition/{long}",
        f"/api/v1/pop/queue/{queue}?consumerGroup={long}",
        f"/api/v1/pop/queue/{'x' * 20_000}",
    ):
        answer = server.get(path)
        assert answer.status in (204, 400, 413, 414, 431), answer
    assert data_of(server.pop(queue)) == [1]


def test_the_longest_transaction_id_is_taken_and_one_byte_more_is_refused(server, queue):
    longest = "t" * TRANSACTION_ID_BYTES_MAX
    assert push(server, queue=queue, payload=1, transactionId=longest).json[0]["status"] == "queued"
    assert push(server, queue=queue, payload=1, transactionId=longest).json[0]["status"] == "duplicate"
    answer = push(server, queue=queue, payload=1, transactionId=longest + "t")
    assert answer.status in (400, 413), answer
    messages = server.pop(queue, batch=5)
    assert [message["transactionId"] for message in messages] == [longest]
    assert server.ack(messages)[0]["success"] is True


def test_too_many_items_are_refused_whole(server, queue):
    items = [{"queue": queue}] * (BATCH_ITEMS_MAX + 1)
    answer = server.post("/api/v1/push", {"items": items})
    assert answer.status in (400, 413), answer
    assert answer.error
    assert server.pop(queue) == []


def test_a_name_with_a_nul_is_refused_or_kept_apart(server, queue):
    for field in ("queue", "partition", "transactionId"):
        name = f"{queue}\x00{field}"
        answer = push(server, **{"queue": queue, "payload": field, field: name})
        assert answer.status in (201, 400), answer
        if answer.status == 201:
            where = {"queue": (name, None), "partition": (queue, name), "transactionId": (queue, "Default")}[field]
            (message,) = server.pop(*where)
            assert message["data"] == field
            assert server.ack([message])[0]["success"] is True
    assert server.pop(queue) == [], "nothing leaked into the name before the NUL"


def test_odd_names_are_names(server, queue):
    for name in ("..", ".", "/", "a/b", " ", "\n", "%2e", "🎻", "\u202e", "'; DROP TABLE messages; --", "\\", '"'):
        name = f"{queue}{name}"
        assert push(server, queue=name, partition=name, payload=name).status == 201
        (message,) = server.pop(name, name, consumerGroup=name)
        assert (message["data"], message["partition"], message["consumerGroup"]) == (name, name, name)
        assert server.ack([message], group=name)[0]["success"] is True
        assert server.delete(f"/api/v1/resources/queues/{quote(name, safe='')}").json["existed"] is True


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_payload_that_many_could_not_read_is_refused(server, queue, opening, closing):
    """Who pops it gets other messages in the same answer, and could read none of them."""
    name = queue.encode()
    for depth, fits in ((100, True), (101, False), (10_000, False), (1_000_000, False)):
        payload = opening * depth + b"1" + closing * depth
        items = b'[{"queue":"%s","payload":"good"},{"queue":"%s","payload":%s}]' % (name, name, payload)
        for path, body in (
            ("/api/v1/push", b'{"items":%s}' % items),
            ("/api/v1/transaction", b'{"operations":[{"type":"push","items":%s}]}' % items),
        ):
            answer = server.post(path, body)
            popped = server.get(pop_path(queue, batch=2, autoAck="true"))
            if fits:
                assert answer.status in (200, 201), answer
                assert b'"data":"good"' in popped.body and b'"data":' + payload in popped.body
                json.loads(popped.body)
            else:
                assert answer.status == 400, answer.status
                assert "nested 100 levels deep" in answer.error
                assert popped.status == 204


@pytest.mark.parametrize("path", ["/api/v1/configure", "/api/v1/push", "/api/v1/ack", "/api/v1/transaction"])
def test_deep_nesting_outside_a_payload_is_refused(server, path):
    for body in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"options":' * 10_000 + b"1" + b"}" * 10_000):
        answer = server.post(path, body)
        assert answer.status == 400, answer.status
        assert answer.error


def test_a_body_over_the_limit_is_413(server):
    filler = b" " * (1 << 20)
    with Wire(server.port, timeout=60) as wire:
        reading = Background(wire.answer)
        try:
            wire.send(request_bytes("POST", "/api/v1/push", headers=[f"Content-Length: {BODY_BYTES_MAX + 1}"]))
            for _ in range(BODY_BYTES_MAX >> 20):
                wire.send(filler)
            wire.send(b" ")
        except OSError:
            pass  # The server need not read it all.
        answer = reading.result(60)
    assert answer is not None, "the answer was lost"
    assert answer.status == 413
    assert answer.error


def test_a_chunked_body_over_the_limit_is_413(server):
    filler = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
    with Wire(server.port, timeout=60) as wire:
        reading = Background(wire.answer)
        try:
            wire.send(request_bytes("POST", "/api/v1/push", headers=["Transfer-Encoding: chunked"]))
            for _ in range((BODY_BYTES_MAX >> 20) + 1):
                wire.send(filler)
            wire.send(b"0\r\n\r\n")
        except OSError:
            pass  # The server need not read it all.
        answer = reading.result(60)
    assert answer is not None, "the answer was lost"
    assert answer.status == 413


def test_a_payload_just_under_the_limit_comes_back_whole(server, queue):
    payload = b'"' + b"x" * (30 << 20) + b'"'
    body = b'{"items":[{"queue":"%s","payload":%s}]}' % (queue.encode(), payload)
    assert server.post("/api/v1/push", body).status == 201
    assert b'"data":' + payload in server.get(pop_path(queue)).body


PATHS = [
    b"/api/v1/pop/queue/%2e%2e",
    b"/api/v1/pop/queue/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    b"/api/v1/pop/queue/../../../../etc/passwd",
    b"/../../../../etc/passwd",
    b"/%2e%2e/%2e%2e/etc/passwd",
    b"//api/v1/pop/queue/x",
    b"/api//v1/pop/queue/x",
    b"/api/v1/pop/queue/",
    b"/api/v1/pop/queue//partition/",
    b"/api/v1/pop/queue/%00",
    b"/api/v1/pop/queue/a%00b/partition/%00",
    b"/api/v1/pop/queue/%",
    b"/api/v1/pop/queue/%z",
    b"/api/v1/pop/queue/%zz",
    b"/api/v1/pop/queue/%4",
    b"/api/v1/pop/queue/%ff%fe",
    b"/api/v1/pop/queue/%c3%28",
    b"/api/v1/pop/queue/x?consumerGroup=%ff",
    b"/api/v1/pop/queue/x?consumerGroup=%zz&batch=%zz",
    b"/api/v1/pop/queue/x?&&&===&batch&=1&",
    b"/api/v1/pop/queue/x?" + b"a=b&" * 3_000,
    b"/api/v1/pop/queue/" + b"a/" * 3_000,
    b"/api/v1/resources/queues/%2e%2e",
    b"/api/v1/messages/%00/%ff",
    b"/api/v1/consumer-groups/%ff",
    b"http://localhost/api/v1/pop/queue/x",
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: repr(path[:60]))
def test_no_path_is_an_error_of_the_server(server, path):
    with Wire(server.port) as wire:
        wire.send(request_bytes("GET", path))
        answer = wire.answer()
        assert answer is not None, "the connection was closed without an answer"
        assert answer.status in (200, 204, 400, 404, 414, 431), answer
        assert b"root:" not in answer.body
        if answer.status in (400, 404) and answer.body:
            assert answer.error


RAW = [
    b"\x00\x01\x02\x03\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /health\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-Filler: y\r\n" * 5_000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"y" * 1_000_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: repr(raw[:60]))
def test_bytes_that_are_no_request_are_refused_or_dropped(server, raw):
    with Wire(server.port, timeout=10) as wire:
        try:
            wire.send(raw)
            answer = wire.answer()
        except (OSError, TimeoutError):
            answer = None
        assert answer is None or answer.status < 500 or answer.status == 505, answer


WRONG_TYPES = [None, True, -1, 1e400, "text", [], {}, [[]], {"a": {}}]


@pytest.mark.parametrize("field", ["queue", "namespace", "task", "options"])
def test_configure_takes_or_refuses_any_type(server, queue, field):
    for value in WRONG_TYPES:
        body = json.dumps({"queue": queue, field: value}).replace("Infinity", "1e400").encode()
        answer = server.post("/api/v1/configure", body)
        assert answer.status in (200, 400), answer
        if answer.status == 400:
            assert answer.error


@pytest.mark.parametrize("field", ["transactionId", "partitionId", "leaseId", "status", "consumerGroup", "error"])
@pytest.mark.parametrize("path", ["/api/v1/ack", "/api/v1/ack/batch", "/api/v1/transaction"])
def test_acks_take_or_refuse_any_type(server, queue, field, path):
    server.push(queue, 1)
    (message,) = server.pop(queue)
    for value in WRONG_TYPES:
        ack = {"transactionId": "ghost", "partitionId": message["partitionId"], field: value}
        body = {
            "/api/v1/ack": ack,
            "/api/v1/ack/batch": {"acknowledgments": [ack], "consumerGroup": value},
            "/api/v1/transaction": {"operations": [{"type": "ack", **ack}], "requiredLeases": value},
        }[path]
        answer = server.post(path, json.dumps(body).replace("Infinity", "1e400").encode())
        assert answer.status in (200, 400), answer
        if answer.status == 400:
            assert answer.error
    assert server.ack([message])[0]["success"] is True


@pytest.mark.parametrize("name", ["batch", "partitions", "timeout", "leaseSeconds", "wait", "autoAck", "consumerGroup", "subscriptionMode", "subscriptionFrom"])
def test_every_parameter_of_a_pop_takes_any_text(server, queue, name):
    server.push(queue, *range(30), partition="p")
    for value in ("", "-1", "0", "1e9", "99999999999999999999", "%00", "%F0%9F%8E%BB", "null", "[]", "NaN", "+5"):
        answer = server.get(f"/api/v1/pop/queue/{queue}?{name}={value}")
        assert answer.status in (200, 204, 400), answer
        if answer.status == 400:
            assert answer.error


@pytest.mark.parametrize("error", ["text", 7, True])
def test_an_error_of_the_wrong_type_is_refused_in_words_of_the_reader(server, error):
    item = {"jobId": "0199a0a0-0000-7000-8000-000000000000", "fence": 1, "outcome": "failed", "error": error}
    answer = server.post("/api/v1/executions:report", {"items": [item]})
    assert answer.status == 400
    assert "expected an object with `type` and `message`" in answer.error and "Raw" not in answer.error


@pytest.mark.parametrize("path", ["jobs", "jobs:batch", "workers", "jobs:bulk", "schedules", "elections/g", "shards/s"])
def test_no_refusal_names_a_type_of_the_program(server, path):
    answer = server.post(f"/api/v1/{path}", 7)
    assert answer.status >= 400
    assert "struct " not in answer.error and "enum " not in answer.error, answer.error


@pytest.mark.parametrize(
    "headers, hint",
    [
        ({"Content-Encoding": "gzip"}, "push_compression"),
        ({"Content-Encoding": "zstd", "Content-Type": "application/json"}, "uncompressed"),
        ({"Content-Type": "application/x-queen-push"}, "binary_push"),
        ({"Content-Type": "application/octet-stream"}, "application/json"),
        ({"Content-Type": "application/msgpack"}, "application/json"),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/transaction", "/api/v1/jobs"])
def test_a_compressed_or_binary_body_is_refused_with_what_to_send(server, path, headers, hint):
    answer = server.post(path, b"QPB1\x00\x00", headers=headers)
    assert (answer.status, answer.json["code"]) == (415, "unsupported_media")
    assert hint in answer.error


@pytest.mark.parametrize("type", ["application/json; charset=utf-8", "application/x-www-form-urlencoded", "text/plain", "application/vnd.api+json"])
def test_json_is_read_under_the_types_that_clients_give_it(server, queue, type):
    headers = {"Content-Type": type, "Content-Encoding": "identity"}
    answer = server.post("/api/v1/push", json.dumps({"items": [{"queue": queue, "payload": 1}]}).encode(), headers=headers)
    assert answer.status == 201


@pytest.mark.parametrize(
    "method, path, instead",
    [
        ("POST", "/api/v1/ephemeral/push", "ordinary queue"),
        ("GET", "/api/v1/ephemeral/queues/q/depth", "ordinary queue"),
        ("POST", "/streams/v1/claim", "pop the source queue"),
        ("POST", "/streams/v1/state/partitions", "state/get"),
        ("GET", "/api/v1/migration/status", "baton migrate"),
    ],
)
def test_a_route_of_queen_that_is_not_supported_says_what_to_use(server, method, path, instead):
    answer = server.call(method, path)
    assert (answer.status, answer.json["code"]) == (501, "not_supported")
    assert instead in answer.error
