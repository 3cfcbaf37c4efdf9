"""Servers and their PostgreSQL are killed at any instant: nothing accepted is lost, order holds."""

import time

import pytest

from baton import Server, eventually
from history import check
from load import LEASE_SECONDS, QUEUE, Load, all_arrive
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


def test_pushes_wait_on_the_local_disk_while_the_database_is_away(crashing, database, rng):
    """Also when the server is killed before they have all arrived: in order, each once."""
    load = Load(rng.random()).start(crashing)
    time.sleep(0.5)
    database.stop()
    # Longer than a call waits for a database that may be back at once.
    eventually(lambda: load.buffered >= 50, 120)
    assert crashing.get("/health").status == 503, "it says that it is not well"
    waiting = crashing.get("/api/v1/status/buffers").json
    assert waiting["pending"] > 0 and waiting["dbHealthy"] is False
    database.start()
    load.server_is_down()
    crashing.kill()
    crashing.start()
    load.server_is_up(crashing)
    # While the load goes on: pushes for a partition go behind those that wait, but not forever.
    all_arrive(crashing)
    load.stop()
    load.drain(crashing)
    violations = check(load.history)
    assert violations == [], violations[:20]


def test_without_a_spool_pushes_are_refused(tmp_path, database):
    store = ("--store", database.url, "--store-schema", "small", "--spool-max", "0")
    with Server(tmp_path / "data", *store) as server:
        item = {"queue": "q", "payload": "x"}
        assert server.post("/api/v1/push", {"items": [item]}).status == 201
        database.stop()
        refused = server.post("/api/v1/push", {"items": [item]})
        assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1, refused
        database.start()
        eventually(lambda: server.post("/api/v1/push", {"items": [item]}).status == 201, 60)


def test_a_spool_takes_no_more_than_it_may(tmp_path, database):
    store = ("--store", database.url, "--store-schema", "small", "--spool-max", "10KiB")

    def push(size):
        item = {"queue": "q", "payload": "x" * size}
        return server.post("/api/v1/push", {"items": [item]})

    def taken(answer):
        return answer.status == 201 and answer.json[0]["status"]

    with Server(tmp_path / "data", *store) as server:
        assert taken(push(1)) == "queued"
        database.stop()
        # One that is under way at that instant may be told that its outcome is unknown.
        eventually(lambda: taken(push(6_000)) == "buffered", 60)
        refused = push(6_000)
        assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1, refused
        assert taken(push(1)) == "buffered", "there is room for less"
        database.start()
        all_arrive(server)
        eventually(lambda: taken(push(6_000)) == "queued", 60)
        database.stop()
        eventually(lambda: taken(push(6_000)) == "buffered", 60)
