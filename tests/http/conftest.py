import uuid

import pytest

from baton import data_of


@pytest.fixture
def unharmed(server):
    """An attack, and what must hold after it: the server lives, serves others, and has lost nothing."""
    canary = f"canary-{uuid.uuid4().hex[:12]}"
    kept = [{"kept": i} for i in range(3)]
    server.push(canary, *kept)
    yield
    assert server.running(), server.text()
    messages = server.pop(canary, batch=10)
    assert data_of(messages) == kept
    assert all(result["success"] for result in server.ack(messages))
    server.push(canary, "served")
    assert data_of(server.pop(canary, batch=10)) == ["served"]
