"""What was answered is on the disk, not only in the operating system's memory.

A killed process loses nothing that it has handed to the operating system, so a kill alone cannot tell whether a
server syncs before it answers. Here a small library stands between the server and its syncs and keeps a copy of
each file, and the names in each directory, as of its last one; after a kill every file is put back to that copy, and what
the synced directories do not name is removed, as a power cut would leave it.
"""

import http.client
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from baton import Background, Refused, Server, data_of, parked, pop_path
from history import check
from load import LEASE_SECONDS, QUEUE, Load

ROUNDS = 8


@pytest.fixture(scope="module")
def spy(tmp_path_factory):
    """The library, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the library with")
    library = tmp_path_factory.mktemp("spy") / "sync_spy.so"
    source = Path(__file__).with_name("sync_spy.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


@pytest.fixture
def disk():
    """A directory whose inode numbers are never used twice, as they name the copies."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("there is no file system in memory")
    with tempfile.TemporaryDirectory(dir=memory, prefix="baton-") as directory:
        (Path(directory) / "shadow").mkdir()
        yield Path(directory)


def spied_server(spy, disk, **environment):
    environment = {"LD_PRELOAD": str(spy), "SYNC_SPY_SHADOW": str(disk / "shadow"), **environment}
    return Server(disk / "data", environment=environment)


def forget_entries(directory, disk):
    """Removes what was not in a directory when it was last synced; returns how many entries that were."""
    synced = disk / "shadow" / f"{directory.stat().st_ino}.entries"
    known = set(synced.read_text().splitlines()) if synced.exists() else set()
    forgotten = 0
    for path in sorted(directory.iterdir()):
        if path.name not in known:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            forgotten += 1
        elif path.is_dir():
            forgotten += forget_entries(path, disk)
    return forgotten


def cut_the_power(server, disk):
    """Kills the server and puts every file and directory back to its last sync; returns how many bytes and entries that
    changed."""
    server.kill()
    changed = forget_entries(server.data, disk)
    for path in sorted(server.data.rglob("*")):
        if not path.is_file():
            continue
        synced = disk / "shadow" / str(path.stat().st_ino)
        before = path.read_bytes()
        after = synced.read_bytes() if synced.exists() else b""
        if before != after:
            changed += max(len(before), len(after)) - len(after) or 1
            with open(path, "r+b") as file:
                file.truncate(0)
                file.write(after)
    return changed


def syncs(disk):
    return [path for path in (disk / "shadow").iterdir() if path.name != "taken"]


def test_nothing_accepted_or_acked_is_forgotten_in_a_power_cut(spy, disk, rng):
    with spied_server(spy, disk) as server:
        server.configure(QUEUE, leaseTime=LEASE_SECONDS, retryLimit=1000)
        load = Load(rng.random()).start(server)
        for _ in range(ROUNDS):
            time.sleep(rng.uniform(0.1, 0.5))
            load.server_is_down()
            cut_the_power(server, disk)
            server.start()
            load.server_is_up(server)
        time.sleep(0.2)
        load.stop()
        load.drain(server)
    assert syncs(disk), "syncs were seen"
    assert load.accepted() >= 10 * ROUNDS, "enough was accepted between the cuts"
    violations = check(load.history)
    assert violations == [], violations[:20]


def test_the_first_messages_of_a_new_directory_survive_a_power_cut(spy, disk):
    """Its files were synced, but not that they are in the directory, until the first checkpoint."""
    with spied_server(spy, disk) as server:
        for n in range(3):
            server.push("q", n)
        cut_the_power(server, disk)
        server.start()
        assert data_of(server.pop("q", batch=10)) == [0, 1, 2]


def test_the_checker_reports_a_disk_that_lies_about_its_syncs(spy, disk, rng):
    with spied_server(spy, disk) as server:
        server.configure(QUEUE, leaseTime=LEASE_SECONDS, retryLimit=1000)
        assert server.stop() == 0
        server.environment["SYNC_SPY_LIE"] = "1"
        server.start()
        load = Load(rng.random()).start(server)
        time.sleep(1)
        load.server_is_down()
        assert load.accepted() > 0
        assert cut_the_power(server, disk) > 0, "the cut took something away"
        del server.environment["SYNC_SPY_LIE"]
        try:
            server.start()
        except Refused:
            load.abandon()
            return  # What the cut left was noticed even before it was read.
        load.server_is_up(server)
        load.stop()
        load.drain(server)
    assert "lost" in {violation.promise for violation in check(load.history)}


def test_a_push_that_cannot_be_synced_is_not_accepted(spy, disk):
    failing = disk / "failing"
    with spied_server(spy, disk, SYNC_SPY_FAIL=str(failing)) as server:
        accepted = list(range(20))
        for n in accepted:
            server.push("q", n)
        failing.touch()
        refused = 0
        for n in range(100, 105):
            try:
                answer = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": n}]})
            except (OSError, http.client.HTTPException):
                break  # It ends once it has noticed.
            assert answer.status >= 500, answer
            assert answer.error
            refused += 1
        assert refused > 0
        cut_the_power(server, disk)
        failing.unlink()
        server.start()
        server.push("q", "after")
        seen = data_of(server.pop("q", batch=100))
        assert [n for n in seen if n in accepted] == accepted
        assert seen[-1] == "after"


def parked_pop(server):
    pop = Background(server.get, pop_path("q", wait="true", timeout=30000))
    parked(server, 1)
    return pop


def test_a_consumer_that_waits_is_given_nothing_before_it_is_synced(spy, disk):
    stuck = disk / "stuck"
    with spied_server(spy, disk, SYNC_SPY_STUCK=str(stuck)) as server:
        server.configure("q")
        for n in range(24):
            pop = parked_pop(server)
            if n % 4 == 3:
                stuck.touch()
            push = Background(server.push, "q", n)
            if stuck.exists():
                time.sleep(0.3)
                assert not push.done() and not pop.done(), n
                stuck.unlink()
            popped = pop.result().json["messages"]
            assert data_of(popped) == [n]
            push.result()
            server.ack(popped)


def test_a_consumer_that_waits_is_not_given_what_cannot_be_synced(spy, disk):
    failing = disk / "failing"
    with spied_server(spy, disk, SYNC_SPY_FAIL=str(failing)) as server:
        server.configure("q")
        for n in range(12):
            pop = parked_pop(server)
            server.push("q", n)
            server.ack(pop.result().json["messages"])
        pop = parked_pop(server)
        failing.touch()
        answer = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": "lost"}]})
        assert answer.status >= 500, answer
        answer = pop.result()
        assert answer.status >= 500 and answer.error, answer
