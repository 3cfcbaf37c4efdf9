"""The published queue client, unmodified, against a real server. Which version is a matter of the environment."""

import asyncio
import inspect
from importlib.metadata import version

import pytest
from queen import Queen

TEST_SECONDS = 90


def pytest_report_header():
    return f"queen-mq: {version('queen-mq')}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs `async def` tests, and closes their client inside the loop that it lived in."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run():
        try:
            await asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_SECONDS)
        finally:
            if "queen" in arguments:
                await arguments["queen"].close()

    asyncio.run(run())
    return True


@pytest.fixture
def queen(server):
    return Queen(server.url)


@pytest.fixture
def generation():
    """The major version of the client: 0 or 2."""
    return int(version("queen-mq").split(".")[0])
