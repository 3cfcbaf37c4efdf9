"""kill -9 at any instant loses nothing that was accepted, and needs no repair by hand."""

import shutil
import time

import pytest

from baton import Server
from history import check
from load import LEASE_SECONDS, QUEUE, Load


@pytest.fixture
def crashing(tmp_path):
    """A server of the test's own, with the queue of the load on it."""
    with Server(tmp_path / "data") as server:
        server.configure(QUEUE, leaseTime=LEASE_SECONDS, retryLimit=1000)
        yield server


def run_until_killed(server, load, seconds):
    """Lets the load run for a while, then kills the server at whatever it is doing."""
    time.sleep(seconds)
    load.server_is_down()
    server.kill()


def restart(server, load):
    server.start()
    load.server_is_up(server)


def test_nothing_accepted_is_lost_reordered_or_repeated_over_many_kills(crashing, rng, request):
    rounds = request.config.option.crash_rounds
    load = Load(rng.random()).start(crashing)
    for _ in range(rounds):
        run_until_killed(crashing, load, rng.uniform(0.02, 0.8))
        restart(crashing, load)
    time.sleep(0.2)
    load.stop()
    load.drain(crashing)

    assert load.cut_off >= rounds, "the kills came while calls were under way"
    assert load.accepted() >= 10 * rounds, "enough was accepted between the kills"
    assert len(load.history.acks) >= rounds
    violations = check(load.history)
    assert violations == [], violations[:20]


def test_the_checker_reports_a_server_that_forgets_its_last_moments(crashing, rng, tmp_path):
    load = Load(rng.random()).start(crashing)
    run_until_killed(crashing, load, 0.5)
    earlier = tmp_path / "earlier"
    shutil.copytree(crashing.data, earlier)
    restart(crashing, load)
    before = load.accepted()
    run_until_killed(crashing, load, 1)
    assert load.accepted() > before, "something was accepted that is now forgotten"

    shutil.rmtree(crashing.data)
    shutil.copytree(earlier, crashing.data)
    restart(crashing, load)
    load.stop(forgotten=True)
    load.drain(crashing)

    assert "lost" in {violation.promise for violation in check(load.history)}


def test_a_kill_while_starting_does_no_harm(crashing, rng):
    accepted = [f"m{i}" for i in range(500)]
    crashing.push(QUEUE, *accepted, partition="p")
    crashing.kill()
    for _ in range(10):
        crashing.launch()
        time.sleep(rng.uniform(0, 0.1))
        crashing.kill()
    crashing.start()
    assert [message["data"] for message in crashing.pop(QUEUE, batch=1000)] == accepted
