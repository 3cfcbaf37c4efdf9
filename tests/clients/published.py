"""A pytest plugin that runs the tests which a release of queen-mq ships, against the server at QUEEN_SERVER_URL.

The source package holds the tests without their `conftest.py`, so this stands in for it: a client for each test, and an
event loop for those that are coroutines.
"""

import asyncio
import inspect
import os

import pytest
from queen import Queen

TEST_SECONDS = 90


def pytest_configure(config):
    config.addinivalue_line("markers", "asyncio: the test is a coroutine")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run():
        try:
            await asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_SECONDS)
        finally:
            if "client" in arguments:
                await arguments["client"].close()

    asyncio.run(run())
    return True


@pytest.fixture
def client():
    return Queen(os.environ["QUEEN_SERVER_URL"])
