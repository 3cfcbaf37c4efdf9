"""Servers are killed around fires: every nominal time has its job, and none has two."""

import os
import time
from datetime import datetime, timedelta, timezone

import pytest

import postgres
from baton import Server, eventually
from fleet import Jobs

SCHEDULES = 3
# What a server logs when it begins to fire.
LEADS = "this node runs the duties of jobs"


def moment(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def iso(at):
    return at.isoformat().replace("+00:00", "Z")


def nominal(jobs, schedule):
    return [moment(job["scheduledFor"]) for job in jobs.of_schedule(schedule)]


def check(jobs, name, start, end):
    """Each second from the start to the last fire, which is not before the end, has exactly one job."""
    for number in range(SCHEDULES):
        fired = sorted(nominal(jobs, f"{name}-{number}"))
        assert len(set(fired)) == len(fired), "a nominal time was fired for twice"
        expected = [start + timedelta(seconds=second) for second in range(len(fired))]
        assert fired == expected, "a nominal time was lost"
        assert len(fired) >= (end - start).total_seconds()


def begin(jobs, name):
    """Schedules that fire every second, and are made up for whatever happens."""
    start = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=1)
    for number in range(SCHEDULES):
        jobs.put_schedule(
            f"{name}-{number}",
            kind="interval",
            everyMs=1000,
            startAt=iso(start),
            misfire="all",
            job={"jobType": "t", "queue": name},
        )
    return start


def settle(jobs, name):
    """Waits until all schedules have fired for what comes after this call, then pauses them. Tells up to when."""
    end = datetime.now(timezone.utc) + timedelta(seconds=2)
    for number in range(SCHEDULES):
        schedule = f"{name}-{number}"
        eventually(lambda schedule=schedule: moment(jobs.schedule(schedule)["nextFires"][0]) > end, 120, every=0.5)
        jobs.call("POST", f"/schedules/{schedule}/pause")
    return end


def test_no_fire_is_lost_or_repeated_over_kills(tmp_path, rng, name):
    with Server(tmp_path / "data") as server:
        jobs = Jobs(server)
        start = begin(jobs, name)
        for _ in range(3):
            time.sleep(rng.uniform(0.3, 1.2))
            server.kill()
            server.start()
        check(jobs, name, start, settle(jobs, name))


@pytest.mark.skipif(os.environ.get("BATON_TEST_STORE") == "postgres", reason="has a database of its own")
def test_servers_that_share_a_database_fire_once(tmp_path, name):
    store = ["--store", postgres.shared(), "--store-schema", name.replace("-", "_")]
    servers = [Server(tmp_path / f"data-{number}", *store, "--node-id", f"n{number}") for number in range(2)]
    with servers[0], servers[1]:
        start = begin(Jobs(servers[0]), name)
        jobs = Jobs(servers[1])
        eventually(lambda: jobs.schedule(f"{name}-0")["jobs"] >= 2, 60)
        # The one that fires is killed; the other takes over when its lease is over, half a minute later.
        assert LEADS in servers[0].text() and LEADS not in servers[1].text()
        servers[0].kill()
        check(jobs, name, start, settle(jobs, name))
        eventually(lambda: LEADS in servers[1].text(), 60)


def test_a_start_in_the_past_is_a_downtime(jobs, name):
    start = iso(datetime.now(timezone.utc) - timedelta(days=14))
    common = {"kind": "interval", "everyMs": 5000, "startAt": start, "job": {"jobType": "t", "queue": name}}
    expected = {"once": 1, "all": 100, "skip": 0}
    for policy in expected:
        jobs.put_schedule(f"{name}-{policy}", **common, misfire=policy)
    for policy, count in expected.items():
        schedule = f"{name}-{policy}"
        eventually(lambda schedule=schedule: jobs.schedule(schedule)["misfires"] == 1, 30)
        jobs.call("POST", f"/schedules/{schedule}/pause")
        # Those that came on time since are not what was missed.
        caught_up = moment(jobs.schedule(schedule)["createdAt"])
        made = [at for at in nominal(jobs, schedule) if at <= caught_up]
        assert len(made) == len(set(made)) == count, policy


def test_a_fire_that_is_cut_short_by_a_kill_happens_after_it(tmp_path, name):
    with Server(tmp_path / "data") as server:
        jobs = Jobs(server)
        at = datetime.now(timezone.utc) + timedelta(seconds=2)
        jobs.put_schedule(name, kind="once", at=iso(at), job={"jobType": "t", "queue": name})
        time.sleep(max(0, (at - datetime.now(timezone.utc)).total_seconds()))
        server.kill()
        server.start()
        [job] = eventually(lambda: jobs.of_schedule(name), 60)
        assert abs(moment(job["scheduledFor"]) - at) < timedelta(milliseconds=1)
        assert jobs.schedule(name)["nextFires"] == []
