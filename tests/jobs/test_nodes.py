"""Three servers share the jobs of one PostgreSQL; any of them may leave or die, and no job notices.

Each test shows first that its fault happened. `python tests/jobs/faults.py` runs more of them, for longer.
"""

import json
import socket
import time

import faults_of_leaders as leaders
import faults_of_owners as owners
import pytest
from crew import TIMES, Crew
from drill import check_long, run_long, under_load
from job_history import check, check_fires
from job_load import Producer, Watcher, Worker

from baton import eventually

# Faults that take a few seconds each; the seed says in which order they come.
QUICK = (leaders.kill_leader_inside, leaders.interrupt_leader, owners.drain_unheard)


@pytest.fixture
def crew(tmp_path):
    with Crew(tmp_path) as crew:
        yield crew
    for member in crew.members:
        assert "panicked" not in member.text(), member.text()


def schedule(crew, name="beat"):
    body = {"kind": "interval", "everyMs": 1000, "misfire": "all", "job": {"jobType": "t", "queue": "fires"}}
    answer = crew.any().call("PUT", f"/api/v1/schedules/{name}", body)
    assert answer.status in (200, 201), answer


def fired(crew, name="beat"):
    return len(crew.any().json(f"/jobs?scheduleId={name}&limit=500")["jobs"])


def begin(crew, workers=2, seconds=0.3):
    """Work under way on settled servers."""
    crew.settled()
    for _ in range(workers):
        Worker(crew)
    producer, watcher = Producer(crew, seconds=seconds), Watcher(crew)
    producer.start()
    watcher.start()
    eventually(lambda: len(producer.accepted) >= 20 and crew.counts()["completed"] >= 5, 60)
    return producer, watcher


def finish(crew, producer, watcher, floor=40):
    eventually(lambda: len(producer.accepted) >= floor, 90)
    producer.finish()
    watcher.finish()
    check(crew, producer)


def test_a_killed_leader_is_followed_and_a_stopped_one_changes_nothing_when_it_wakes(crew):
    schedule(crew)
    producer, watcher = begin(crew)
    first = crew.leader()
    term = eventually(crew.term, 60)
    eventually(lambda: fired(crew) >= 2, 60)
    first.kill()
    # Another one leads, under a higher term, and goes on with the fires.
    crew.leader()
    before = eventually(lambda: crew.term() > term and fired(crew), 60)
    eventually(lambda: fired(crew) > before + 2, 60)
    first.start()
    second = crew.leader()
    stopped_in = eventually(crew.term, 60)
    second.freeze()
    eventually(lambda: crew.term() > stopped_in, 60)
    second.thaw()
    crew.settled()
    finish(crew, producer, watcher)
    assert len(watcher.terms) >= 3
    check_fires(crew, "beat")


def test_a_server_that_leaves_hands_its_jobs_over_and_one_that_dies_is_found_out(crew):
    producer, watcher = begin(crew, seconds=1.0)
    leaving, dying, staying = crew.members
    owned = eventually(lambda: crew.node(leaving.name)["ownedJobs"], 60)
    assert owned > 0
    assert leaving.stop() == 0, leaving.text()
    text = leaving.text()
    line = next(line for line in text.splitlines() if "drained: slices" in line)
    assert "c=0" in line and "d=0" in line, line
    assert crew.node(leaving.name) is None
    view = crew.view()
    assert view["orphanedSlices"] == 0 and sum(node["slices"] for node in view["nodes"]) == 64, view
    # The next one goes without a word.
    eventually(lambda: crew.node(dying.name)["ownedJobs"], 60)
    dead = crew.node(dying.name)["nodeId"]
    dying.kill()
    eventually(lambda: (crew.node(staying.name) or {}).get("slices") == 64, 60)
    states = {node["nodeId"]: node["state"] for node in crew.view()["nodes"]}
    assert states[dead] == "dead"
    metrics = staying.get("/metrics/prometheus").body.decode()
    claimed = [line for line in metrics.splitlines() if line.startswith('baton_job_claims_total{reason="NodeCrash"')]
    assert float(claimed[0].split()[-1]) > 0, claimed
    leaving.start()
    dying.start()
    crew.settled()
    finish(crew, producer, watcher)
    kinds = {(event["type"], event.get("state") or event.get("reason")) for event in staying.json("/events")["events"]}
    assert {("node", "dead"), ("node", "left"), ("handoff", "NodeCrash"), ("handoff", "Shutdown")} <= kinds, kinds


def test_all_servers_are_killed_at_once_and_nothing_is_lost(crew):
    schedule(crew)
    producer, watcher = begin(crew)
    before = len(producer.accepted)
    for member in crew.members:
        member.kill()
    eventually(lambda: producer.refused > 3, 60)
    for member in crew.members:
        member.start()
    crew.settled()
    eventually(lambda: len(producer.accepted) > before + 20, 60)
    finish(crew, producer, watcher)
    eventually(lambda: fired(crew) >= 3, 60)
    check_fires(crew, "beat")


def test_running_jobs_survive_when_all_servers_are_away_longer_than_a_lease(tmp_path):
    """All of them began again, although their workers were alive and beat at once; after three times they were poison."""
    with Crew(tmp_path, times=TIMES | {"job-lease-ms": 6000, "job-heartbeat-ms": 500}) as crew:
        crew.settled()
        run_long(crew, 100)
        for _ in range(3):
            for member in crew.members:
                member.kill()
            # That is the fault.
            time.sleep(8)
            for member in crew.members:
                member.start()
            crew.settled()
            check_long(crew, 100)
        # Longer than the term that they were granted.
        time.sleep(8)
        check_long(crew, 100)
        (worker,) = crew.workers
        worker.close()
        eventually(lambda: not crew.counts("long")["running"], 60)


def test_an_operator_drains_a_server_and_sees_it_happen(crew):
    crew.settled()
    member, other = crew.members[0], crew.members[1]
    stream = socket.create_connection(("127.0.0.1", other.port), timeout=60)
    stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")
    # It begins with what happens after its answer has.
    heard = stream.recv(65536)
    assert heard.startswith(b"HTTP/1.1 200"), heard
    answer = member.post(f"/api/v1/nodes/{member.name}/drain")
    assert answer.status == 200 and answer.json["desiredState"] == "draining", answer
    eventually(lambda: crew.node(member.name)["slices"] == 0, 60)
    assert crew.node(member.name)["state"] == "draining" and crew.view()["orphanedSlices"] == 0
    while b'"state":"draining"' not in heard:
        heard += stream.recv(65536)
    events = [json.loads(line[6:]) for line in heard.decode().splitlines() if line.startswith("data: {")]
    assert any(event.get("state") == "asked_to_drain" for event in events)
    stream.close()
    assert member.get("/health").status == 200, "it serves on"
    assert member.post(f"/api/v1/nodes/{member.name}/drain", {"mode": "off"}).status == 200
    crew.settled()
    assert other.post("/api/v1/nodes/nobody/drain").status == 404
    # Of three that share the jobs evenly nothing is moved for nothing.
    cluster = other.json("/cluster")
    assert cluster["leader"]["lock"] == "orchestrix:coordinator:leader", "the name that the design has for it"
    assert len(cluster["nodes"]) >= 3 and crew.leader()


@pytest.mark.parametrize("count", [1, 3])
def test_stopping_all_servers_with_jobs_is_no_reason_for_a_warning(tmp_path, count):
    with Crew(tmp_path, count=count) as crew:
        crew.settled()
        for _ in range(20):
            answer = crew.any().post("/api/v1/jobs", {"jobType": "t", "queue": "q", "delayMs": 600_000})
            assert answer.status == 201, answer
        before = [len(member.output) for member in crew.members]
        for member in crew.members:
            member.terminate()
        for member in crew.members:
            assert member.wait() == 0, member.text()
        texts = ["".join(member.output[lines:]) for member, lines in zip(crew.members, before, strict=True)]
        assert not any(" WARN " in text or " ERROR " in text for text in texts), "\n".join(texts)
        # The last one had something to say, so its log is no proof by silence.
        assert any("the last server leaves; its jobs wait for the next one" in text for text in texts), "\n".join(texts)


def test_seeded_faults_one_after_the_other_leave_a_history_without_fault(tmp_path, rng):
    with under_load(tmp_path, rng) as drill:
        for scenario in rng.sample(QUICK, len(QUICK)):
            scenario(drill)
    assert len(drill.rows) == len(QUICK)
