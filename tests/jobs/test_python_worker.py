"""The worker of the examples, which knows nothing but HTTP."""

import signal
import sys

from baton import ROOT, Server, eventually
from programs import Programs

WORKER = ROOT / "examples" / "jobs" / "worker.py"


def test_a_worker_in_plain_python_runs_jobs_and_ends_well(jobs, programs, name):
    done = [jobs.enqueue("greet", {"name": number}, queue=name) for number in range(5)]
    wrong = jobs.enqueue("greet", {}, queue=name, retry={"maxRetries": 0})
    worker = programs.start(sys.executable, WORKER, name)
    for number, job in enumerate(done):
        ended = jobs.await_state(job)
        assert (ended["state"], jobs.result(ended["jobId"])) == ("completed", {"greeted": number})
    assert jobs.messages(done[3]) == ["hello 3"]
    failed = jobs.await_state(wrong)
    assert failed["state"] == "failed"
    assert failed["history"][0]["error"]["type"] == "KeyError"
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, said


def test_the_example_is_short():
    assert len(WORKER.read_text().splitlines()) <= 99


def test_a_worker_survives_a_server_that_goes_away(tmp_path, name):
    with Server(tmp_path / "data") as server:
        programs = Programs(f"http://127.0.0.1:{server.port}")
        try:
            output = tmp_path / "said"
            with output.open("w") as said:
                worker = programs.start(sys.executable, WORKER, name, stdout=said)
            eventually(lambda: server.get("/api/v1/workers").json["workers"], 60)
            server.stop()
            eventually(lambda: "trying again" in output.read_text(), 60)
            server.start()
            job = server.post("/api/v1/jobs", {"jobType": "greet", "queue": name, "args": {"name": 1}}).json["jobId"]
            eventually(lambda: server.get(f"/api/v1/jobs/{job}").json["state"] == "completed", 60)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, output.read_text()
        finally:
            programs.close()
