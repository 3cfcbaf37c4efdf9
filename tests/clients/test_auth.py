"""The published client with a bearer token."""

import base64
import hashlib
import hmac
import json
import time

import pytest
from queen import Queen

from baton import Server

SECRET = "a-secret-that-is-long-enough-for-hs256-0123456789"


def token(**claims):
    part = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")
    signed = part({"alg": "HS256", "typ": "JWT"}) + b"." + part({"exp": time.time() + 300, **claims})
    return (signed + b"." + base64.urlsafe_b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).rstrip(b"=")).decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    environment = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "QUEEN_ENCRYPTION_KEY": "5a" * 32}
    with Server(tmp_path_factory.mktemp("baton") / "data", environment=environment) as server:
        yield server


async def test_a_client_with_a_token_is_the_producer_of_its_messages(guarded, queue):
    client = Queen(url=guarded.url, bearer_token=token(sub="ann", role="read-write"))
    try:
        await client.queue(queue).create()
        await client.queue(queue).push([{"data": {"n": 1}, "producerSub": "spoofed"}])
        messages = await client.queue(queue).batch(1).wait(False).pop()
        assert [(message["data"], message["producerSub"]) for message in messages] == [({"n": 1}, "ann")]
        assert (await client.ack(messages[0], True))["success"]
    finally:
        await client.close()


async def test_a_client_without_a_token_is_told_so(guarded, queue):
    client = Queen(guarded.url)
    try:
        with pytest.raises(Exception, match="Authentication required"):
            await client.queue(queue).push([{"data": 1}])
    finally:
        await client.close()


async def test_a_reader_may_not_push(guarded, queue):
    client = Queen(url=guarded.url, bearer_token=token(role="read-only"))
    try:
        with pytest.raises(Exception, match="Insufficient permissions"):
            await client.queue(queue).push([{"data": 1}])
    finally:
        await client.close()


async def test_an_encrypted_queue_is_like_any_other(guarded, queue):
    client = Queen(url=guarded.url, bearer_token=token(role="admin"))
    try:
        created = await client.queue(queue).config({"encryptionEnabled": True}).create()
        assert created["options"]["encryptionEnabled"] is True
        await client.queue(queue).push([{"data": {"secret": [1, "two"]}}])
        messages = await client.queue(queue).batch(1).wait(False).pop()
        assert messages[0]["data"] == {"secret": [1, "two"]}
    finally:
        await client.close()
