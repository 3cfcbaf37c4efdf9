"""What every process-level test shares: a server per module, a queue per test, and an order that nobody chose."""

import os
import random
import uuid

import pytest

from baton import Server
from programs import Programs


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=None, help="order of the tests and randomness inside them")
    parser.addoption("--crash-rounds", type=int, default=30, help="kills in the crash test")


def pytest_configure(config):
    if config.option.seed is None:
        config.option.seed = int(os.environ.get("BATON_TEST_SEED") or random.randrange(1 << 31))
    # Processes that share the tests among them must agree on the order.
    os.environ["BATON_TEST_SEED"] = str(config.option.seed)


def pytest_report_header(config):
    return f"seed: {config.option.seed} (repeat with --seed)"


def pytest_collection_modifyitems(config, items):
    """Shuffles the modules and the tests within each, so that none comes to rely on another."""
    shuffler = random.Random(config.option.seed)
    modules = {}
    for item in items:
        modules.setdefault(item.nodeid.split("::")[0], []).append(item)
    names = sorted(modules)
    shuffler.shuffle(names)
    items[:] = []
    for name in names:
        tests = sorted(modules[name], key=lambda item: item.nodeid)
        shuffler.shuffle(tests)
        items.extend(tests)


@pytest.fixture
def rng(request):
    """Randomness that `--seed` repeats, whatever ran before."""
    return random.Random(f"{request.config.option.seed} {request.node.nodeid}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server for all tests of a module; it must still be running, and stop well, when they are over."""
    server = Server(tmp_path_factory.mktemp("baton") / "data")
    with server:
        yield server
        assert server.running(), server.text()
        assert server.stop() == 0, server.text()
    assert "panicked" not in server.text(), server.text()


@pytest.fixture
def programs(server):
    """Commands that talk to the server, and processes that end with the test."""
    programs = Programs(server.url)
    yield programs
    programs.close()


@pytest.fixture
def queue():
    """A queue name of the test's own."""
    return f"test-{uuid.uuid4().hex[:12]}"
