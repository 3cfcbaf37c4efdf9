"""Requests that a page of another site has a browser send."""

import pytest

import tokens
from baton import Server, Wire, request_bytes

OWN = "localhost"


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    settings = ["--cors-origins", "https://console.example", "--allowed-hosts", "baton.example,localhost"]
    with Server(tmp_path_factory.mktemp("listing") / "data", *settings) as server:
        yield server


def send(server, method, target, body=b"", host=OWN, **headers):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    request = request_bytes(method, target, body, lines).replace(b"Host: localhost", f"Host: {host}".encode())
    with Wire(server.port) as wire:
        wire.send(request)
        return wire.answer()


def is_refused(answer):
    return (answer.status, answer.json["code"]) == (403, "foreign_site") and not any("access-control" in name for name in answer.headers)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://localhost:1"])
@pytest.mark.parametrize("method, target", [("GET", "/health"), ("POST", "/api/v1/push"), ("OPTIONS", "/api/v1/push"), ("DELETE", "/api/v1/resources/queues/q")])
def test_a_page_of_another_site_is_refused(server, listing, method, target, origin):
    for asked in (server, listing):
        answer = send(asked, method, target, Origin=origin, Content_Type="text/plain")
        assert is_refused(answer), answer


def test_a_push_of_another_site_stores_nothing(server, queue):
    body = b'{"items":[{"queue":"%s","payload":1}]}' % queue.encode()
    assert is_refused(send(server, "POST", "/api/v1/push", body, Origin="https://evil.example", Content_Type="text/plain"))
    assert server.pop(queue) == []


def test_a_page_of_the_server_itself_is_served(server):
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:6632"):
        answer = send(server, "GET", "/health", host=host, Origin=f"http://{host}")
        assert answer.status == 200 and "access-control-allow-origin" not in answer.headers


def test_a_site_that_is_listed_may_read(listing):
    origin = "https://console.example"
    answer = send(listing, "GET", "/api/v1/resources/queues", Origin=origin)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
    assert answer.headers["vary"] == "origin"
    preflight = send(listing, "OPTIONS", "/api/v1/push", Origin=origin)
    assert preflight.status == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Authorization" in preflight.headers["access-control-allow-headers"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6632", "127.0.0.1.evil.example", "10.0.0.1"])
def test_a_name_beyond_loopback_leads_to_no_server_on_loopback(server, host):
    assert is_refused(send(server, "GET", "/api/v1/resources/queues", host=host))
    assert is_refused(send(server, "GET", "/api/v1/resources/queues", host=host, Origin=f"http://{host}"))


def test_a_name_that_is_listed_leads_to_the_server(listing):
    assert send(listing, "GET", "/health", host="baton.example:6632").status == 200
    assert is_refused(send(listing, "GET", "/health", host="other.example"))


def test_a_server_with_tokens_goes_by_any_name(tmp_path):
    with Server(tmp_path, "--jwt-enabled", "true", "--jwt-secret", tokens.SECRET) as server:
        assert send(server, "GET", "/health", host="anything.example").status == 200
        assert is_refused(send(server, "GET", "/health", host="anything.example", Origin="https://evil.example"))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_an_image_of_another_site_pops_nothing(server, queue, site):
    server.push(queue, "kept")
    target = f"/api/v1/pop/queue/{queue}?autoAck=true"
    assert is_refused(send(server, "GET", target, Sec_Fetch_Site=site))
    assert send(server, "GET", "/api/docs", Sec_Fetch_Site=site).status == 200
    assert send(server, "GET", target, Sec_Fetch_Site="same-origin").json["messages"][0]["data"] == "kept"
