"""The worker of the examples, which knows nothing but HTTP."""

import signal
import sys

from baton import ROOT

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
    assert len(WORKER.read_text().splitlines()) <= 66
