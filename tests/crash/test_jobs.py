"""Workers and servers are killed or stopped at any instant: no job is lost, and no outcome is accepted twice."""

import itertools
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from baton import Server, eventually
from postgres import Postgres

WORKER = Path(__file__).parent / "job_worker.py"
# Long enough that a busy machine does not lose a worker that is alive.
QUICK = ("--job-lease-ms", "3000", "--job-heartbeat-ms", "200")


BOTH = pytest.mark.parametrize("server", ["embedded", "postgres"], indirect=True)


@pytest.fixture
def server(request, tmp_path):
    database = Postgres() if getattr(request, "param", "embedded") == "postgres" else None
    store = ("--store", database.url, "--store-schema", "jobs") if database else ()
    with Server(tmp_path / "data", *QUICK, *store) as server:
        yield server
    assert "panicked" not in server.text(), server.text()
    if database:
        database.close()


class Worker:
    """One worker process and its diary."""

    numbers = itertools.count()

    def __init__(self, server, tmp_path, queue="q"):
        self.diary = tmp_path / f"worker-{next(self.numbers)}"
        self.diary.touch()
        self.process = subprocess.Popen([sys.executable, str(WORKER), str(server.port), queue, str(self.diary)])

    def lines(self, word):
        found = [line.split() for line in self.diary.read_text().splitlines()]
        return [line[1:] for line in found if line and line[0] == word]

    def signal(self, number):
        self.process.send_signal(number)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(30)


@pytest.fixture
def workers(server, tmp_path):
    started = []

    def start(queue="q"):
        started.append(Worker(server, tmp_path, queue))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


def enqueue(server, seconds=0.0, queue="q", **fields):
    body = {"jobType": "t", "queue": queue, "args": {"seconds": seconds}, **fields}
    answer = server.post("/api/v1/jobs", body)
    assert answer.status == 201, answer
    return answer.json["jobId"]


def job(server, job_id):
    answer = server.get(f"/api/v1/jobs/{job_id}")
    assert answer.status == 200, answer
    return answer.json


def ended(server, job_id):
    shown = job(server, job_id)
    return shown if shown["state"] in ("completed", "failed", "timed_out", "cancelled") else None


def test_a_killed_worker_loses_its_job_to_another(server, workers):
    job_id = enqueue(server, seconds=30)
    first = workers()
    eventually(lambda: first.lines("begin"), 60)
    first.process.kill()
    # The next one finds it short: what counts is that it gets it at all.
    second = workers()
    began = eventually(lambda: second.lines("begin"), 60)
    assert began[0][0] == job_id and int(began[0][1]) > 1
    second.process.kill()
    shown = job(server, job_id)
    assert shown["history"][0]["outcome"] == "lost"
    assert shown["attempts"] <= 1, "a lost execution is no attempt"


@BOTH
def test_a_stopped_worker_that_comes_back_is_refused_and_the_second_result_stands(server, workers):
    job_id = enqueue(server, seconds=1)
    first = workers()
    eventually(lambda: first.lines("begin"), 60)
    first.signal(signal.SIGSTOP)
    second = workers()
    shown = eventually(lambda: ended(server, job_id), 90)
    assert shown["state"] == "completed"
    accepted = eventually(lambda: second.lines("ok"), 60)[0]
    first.signal(signal.SIGCONT)
    refused = eventually(lambda: first.lines("refused"), 60)
    assert refused[0][2] == "stale_fence"
    assert server.get(f"/api/v1/jobs/{job_id}/result").json == f"{job_id}.{accepted[1]}"


def test_a_job_that_kills_its_workers_becomes_a_dead_letter(server, workers):
    job_id = enqueue(server, seconds=60)
    for _ in range(3):
        worker = workers()
        eventually(lambda: worker.lines("begin"), 60)
        worker.process.kill()
    shown = eventually(lambda: ended(server, job_id), 60)
    assert shown["state"] == "failed" and shown["error"]["type"] == "poison"
    letters = server.get("/api/v1/dead-letters").json["jobs"]
    assert [letter["jobId"] for letter in letters] == [job_id]


class Producer(threading.Thread):
    """Enqueues batches under idempotency keys, each again until it was answered."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server = server
        self.accepted = []
        self.cut_off = 0
        self.stopping = False

    def run(self):
        for number in itertools.count():
            if self.stopping:
                return
            body = {"jobs": [{"jobType": "t", "queue": "q", "args": {"seconds": 0}} for _ in range(5)]}
            while True:
                try:
                    answer = self.server.post(f"/api/v1/jobs:batch?idempotencyKey=batch-{number}", body)
                    if answer.status == 201:
                        break
                except OSError:
                    self.cut_off += 1
                    time.sleep(0.05)
            self.accepted += [item["jobId"] for item in answer.json["items"]]
            time.sleep(0.02)


@BOTH
def test_no_job_is_lost_and_none_accepted_twice_when_the_server_is_killed(server, workers, rng):
    producer = Producer(server)
    producer.start()
    running = [workers(), workers()]
    rounds = 5
    for _ in range(rounds):
        time.sleep(rng.uniform(0.2, 0.8))
        server.kill()
        server.start()
    time.sleep(0.3)
    producer.stopping = True
    producer.join(60)
    assert not producer.is_alive()
    assert len(producer.accepted) >= 5 * rounds, "enough was accepted between the kills"
    assert len(set(producer.accepted)) == len(producer.accepted), "each batch was accepted once"

    def counts():
        found = server.get("/api/v1/job-queues/q").json["counts"]
        open_jobs = ("scheduled", "pending", "dispatched", "running", "cancelling")
        return not any(found[state] for state in open_jobs) and found

    found = eventually(counts, 120, every=0.3)
    assert found["completed"] == sum(found.values()), found
    for job_id in producer.accepted:
        assert job(server, job_id)["state"] == "completed"
    # Of every job, one outcome was accepted, and its result is that one's.
    accepted = {}
    for worker in running:
        for job_id, fence, word in worker.lines("ok"):
            # An answer that was lost is repeated and told so.
            assert accepted.setdefault(job_id, fence) == fence, (job_id, word)
    for job_id, fence in accepted.items():
        assert server.get(f"/api/v1/jobs/{job_id}/result").json == f"{job_id}.{fence}"
