"""What holds for every route: statuses, headers, connections."""

import pytest

from baton import Connection, Wire, data_of, pop_path, request_bytes

# Posts that need a body, and posts that say what they lack when there is none.
NEEDED = [
    "/api/v1/configure",
    "/api/v1/push",
    "/api/v1/ack",
    "/api/v1/ack/batch",
    "/api/v1/transaction",
]
POSTS = [*NEEDED, "/api/v1/consumer-groups/g/subscription", "/api/v1/consumer-groups/g/queues/q/seek"]


@pytest.mark.parametrize("path", ["/api/v1/push", "/health", "/api/v1/no/such/path", "/", "*"])
def test_options_is_answered_everywhere(server, path):
    with Wire(server.port) as wire:
        wire.send(request_bytes("OPTIONS", path))
        answer = wire.answer()
    assert (answer.status, answer.body) == (204, b"")
    assert "access-control-allow-origin" not in answer.headers


def test_no_answer_lets_a_page_of_another_site_read_it(server, queue):
    answers = [
        server.get("/health"),
        server.get(pop_path(queue)),
        server.get("/api/v1/no-such-route"),
        server.post("/api/v1/push", b"{"),
        server.post("/api/v1/push", {"items": [{"queue": queue}]}),
    ]
    assert [answer.status for answer in answers] == [200, 204, 404, 400, 201]
    for answer in answers:
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/api/v1/nope", "/api/", "/api/v2/push", "/health/x", "/metrics/x", "/api/v1/pop/queue"])
def test_an_unknown_path_is_404_as_json(server, path):
    for method in ("GET", "POST", "DELETE", "PUT"):
        answer = server.call(method, path)
        assert answer.status == 404, (method, answer)
        assert answer.error


@pytest.mark.parametrize("method, path", [("GET", "/api/v1/push"), ("DELETE", "/api/v1/ack"), ("PUT", "/health")])
def test_a_method_that_a_route_does_not_have_is_refused_as_json(server, method, path):
    answer = server.call(method, path)
    assert answer.status in (404, 405)
    assert answer.error


@pytest.mark.parametrize("path", NEEDED)
def test_an_empty_body_is_refused_where_one_is_needed(server, path):
    answer = server.post(path)
    assert (answer.status, answer.error) == (400, "Empty request body")


MALFORMED = [
    b"{",
    b"}",
    b"[",
    b'{"items":',
    b'{"items":[{"queue":"q"',
    b"nul",
    b"{'items':[]}",
    b'{"items":[]}x',
    b'{"items":[],}',
    b"\x00",
    b"\xff\xfe",
]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", MALFORMED, ids=repr)
def test_malformed_json_is_refused_with_its_reason(server, path, body):
    answer = server.post(path, body)
    assert answer.status == 400, answer
    assert answer.error.startswith("Invalid JSON")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [b"", b" ", b"\r\n\t ", b"null", b"5", b'"text"', b"[]", b"{}"], ids=repr)
def test_a_body_that_says_nothing_is_refused(server, path, body):
    answer = server.post(path, body)
    assert answer.status == 400, answer
    assert answer.error


@pytest.mark.parametrize("where", ["queue", "partition", "payload", "transactionId", "unknown"])
def test_text_that_is_no_utf_8_is_never_stored(server, queue, where):
    item = b'{"queue":"%s","%s":"\xc3\x28"}' % (queue.encode(), where.encode())
    answer = server.post("/api/v1/push", b'{"items":[' + item + b"]}")
    if where != "unknown" or answer.status != 201:
        assert answer.status == 400, answer
        assert answer.error
        assert server.pop(queue) == []


def test_a_body_is_json_whatever_it_is_called(server, queue):
    body = b'{"items":[{"queue":"%s","payload":1}]}' % queue.encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8", ""):
        assert server.post("/api/v1/push", body, headers={"Content-Type": kind}).status == 201
    assert data_of(server.pop(queue, batch=10)) == [1] * 4


def test_one_connection_serves_many_requests(server, queue):
    with Connection(server.port) as connection:
        connection.call("GET", "/health")
        socket = connection.http.sock
        for i in range(200):
            assert connection.call("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": i}]}).status == 201
            assert connection.call("POST", "/api/v1/push", b"{").status == 400
            assert connection.call("GET", "/api/v1/none").status == 404
        assert connection.http.sock is socket, "the connection was kept open throughout"
    assert data_of(server.pop(queue, batch=1000)) == list(range(200))


def test_pipelined_requests_are_answered_in_order(server, queue):
    def push(n):
        return request_bytes("POST", "/api/v1/push", b'{"items":[{"queue":"%s","payload":%d}]}' % (queue.encode(), n))

    with Wire(server.port) as wire:
        wire.send(push(1) + request_bytes("GET", "/api/v1/none") + push(2) + request_bytes("GET", pop_path(queue, batch=5)))
        answers = [wire.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [201, 404, 201, 200]
    assert data_of(answers[3].json["messages"]) == [1, 2]


def test_a_chunked_body_is_read_like_any_other(server, queue):
    body = b'{"items":[{"queue":"%s","payload":[1,2,3]}]}' % queue.encode()
    with Wire(server.port) as wire:
        wire.send(request_bytes("POST", "/api/v1/push", headers=["Transfer-Encoding: chunked"]))
        for byte in body:
            wire.send(b"1\r\n%c\r\n" % byte)
        wire.send(b"0\r\n\r\n")
        assert wire.answer().status == 201
    assert data_of(server.pop(queue)) == [[1, 2, 3]]


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(server, queue):
    body = b'{"items":[{"queue":"%s","payload":1}]}' % queue.encode()
    with Wire(server.port) as wire:
        wire.send(request_bytes("POST", "/api/v1/push", headers=["Expect: 100-continue", f"Content-Length: {len(body)}"]))
        assert wire.answer().status == 100
        wire.send(body)
        assert wire.answer().status == 201
