"""What goes on while a token expires ends with it."""

import time

import requests

from baton import Server
from tokens import SECRET, bearer, hs256
from watch import MIB, Watch

SECONDS = 3


def start(path):
    settings = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "JWT_CLOCK_SKEW": "0"}
    return Server(path / "data", environment=settings)


def test_a_stream_ends_when_its_token_expires(tmp_path):
    with start(tmp_path) as server, Watch(server) as watch:
        headers = bearer(hs256(exp=time.time() + SECONDS)) | {"Accept": "text/event-stream"}
        with requests.get(f"{server.url}/api/v1/events", headers=headers, stream=True, timeout=60) as events:
            assert events.status_code == 200, events.text
            started = time.monotonic()
            for _ in events.iter_content(None):
                assert time.monotonic() - started < 60, "the stream goes on without a valid token"
    watch.check(64 * MIB, times=1)


def test_a_waiting_pop_ends_when_its_token_expires_and_takes_nothing(tmp_path):
    with start(tmp_path) as server:
        headers = bearer(hs256(exp=time.time() + SECONDS))
        waited = server.get("/api/v1/pop/queue/q?wait=true&timeout=50000", headers=headers)
        assert (waited.status, waited.error, waited.json["code"]) == (401, "Token has expired", "unauthenticated")
        assert "www-authenticate" in waited.headers
        lasting = bearer(hs256())
        server.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]}, headers=lasting)
        assert len(server.get("/api/v1/pop/queue/q", headers=lasting).json["messages"]) == 1
