"""A server with jobs for each module."""

import uuid

import pytest

from baton import Server
from fleet import QUICK, Jobs


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server for all tests of a module; it must still be running, and stop well, when they are over."""
    with Server(tmp_path_factory.mktemp("baton") / "data", *QUICK) as server:
        yield server
        assert server.running(), server.text()
        assert server.stop() == 0, server.text()
    assert "panicked" not in server.text(), server.text()


@pytest.fixture
def jobs(server):
    return Jobs(server)


@pytest.fixture
def name():
    """A name of the test's own, for a queue or a schedule."""
    return f"test-{uuid.uuid4().hex[:12]}"
