"""Servers and their PostgreSQL are killed at any instant: nothing accepted is lost, order holds."""

import time

import pytest

from baton import Server
from history import check
from load import LEASE_SECONDS, QUEUE, Load
from postgres import Postgres


@pytest.fixture
def database():
    postgres = Postgres()
    yield postgres
    postgres.close()


@pytest.fixture
def crashing(tmp_path, database):
    with Server(tmp_path / "data", "--store", database.url, "--store-schema", "crash") as server:
        server.configure(QUEUE, leaseTime=LEASE_SECONDS, retryLimit=1000)
        yield server


def test_nothing_accepted_is_lost_when_servers_and_the_database_are_killed(crashing, database, rng, request):
    rounds = max(4, request.config.option.crash_rounds // 5)
    load = Load(rng.random()).start(crashing)
    for number in range(rounds):
        time.sleep(rng.uniform(0.2, 0.9))
        load.server_is_down()
        if number % 2:
            crashing.kill()
        else:
            database.stop()
            database.start()
            crashing.kill()
        crashing.start()
        load.server_is_up(crashing)
    time.sleep(0.2)
    load.stop()
    load.drain(crashing)

    assert load.accepted() >= 5 * rounds, "enough was accepted between the kills"
    violations = check(load.history)
    assert violations == [], violations[:20]
