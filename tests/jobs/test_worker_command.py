"""`baton worker --exec`: shell commands as jobs."""

import os
import signal
import time

import pytest

from baton import Server, eventually
from fleet import QUICK, Jobs
from programs import Programs

# Longer than a lease of these tests.
OUTAGE_SECONDS = 7


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_command_gets_the_arguments_and_its_output_becomes_the_log(jobs, programs, name):
    job = jobs.enqueue("t", {"to": "a"}, queue=name)
    programs.worker('cat; echo; echo "$BATON_JOB_TYPE $BATON_ATTEMPT $BATON_FENCE"; echo oops >&2', "--queue", name)
    ended = jobs.await_state(job)
    assert (ended["state"], jobs.result(ended["jobId"])) == ("completed", {"exitCode": 0})
    lines = jobs.messages(job)
    assert sorted(lines) == sorted(['{"to": "a"}', f"t 1 {ended['history'][0]['executionId'].split('.')[1]}", "oops"])


def test_an_exit_code_fails_the_job_and_it_is_tried_again(jobs, programs, name):
    job = jobs.enqueue("t", queue=name, retry={"maxRetries": 1, "initialDelayMs": 10, "jitter": 0})
    programs.worker('echo "try $BATON_ATTEMPT" >&2; exit $((5 - BATON_ATTEMPT))', "--queue", name)
    ended = jobs.await_state(job)
    assert ended["state"] == "failed"
    errors = [attempt["error"]["message"] for attempt in ended["history"]]
    assert errors == ["exit code 4: try 1", "exit code 3: try 2"]


def test_only_jobs_of_its_type_are_taken(jobs, programs, name):
    other = jobs.enqueue("other", queue=name)
    job = jobs.enqueue("mine", queue=name)
    programs.worker("true", "--queue", name, "--type", "mine")
    assert jobs.await_state(job)["state"] == "completed"
    assert jobs.get(other)["state"] == "dispatched"


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(jobs, programs, name, tmp_path):
    out = tmp_path / "pids"
    job = jobs.enqueue("t", queue=name, timeoutMs=1000, retry={"maxRetries": 0})
    programs.worker(f"sh -c 'echo $$ >> {out}; sleep 600' & echo $$ >> {out}; wait", "--queue", name)
    assert jobs.await_state(job)["state"] == "timed_out"
    pids = [int(pid) for pid in out.read_text().split()]
    assert len(pids) == 2
    eventually(lambda: not any(is_alive(pid) for pid in pids), 30)


def test_a_cancelled_job_ends_its_command(jobs, programs, name, tmp_path):
    out = tmp_path / "out"
    job = jobs.enqueue("t", queue=name)
    programs.worker(f"trap 'echo ended >> {out}; exit 1' TERM; echo begun >> {out}; sleep 600 & wait", "--queue", name)
    eventually(out.exists, 30)
    code, said, _ = programs.baton("job", "cancel", job, "--reason", "not needed")
    assert (code, said) == (0, "cancelling\n")
    assert jobs.await_state(job)["state"] == "cancelled"
    assert out.read_text().split() == ["begun", "ended"]


def test_a_job_ends_only_when_all_processes_of_its_command_have(jobs, programs, name, tmp_path):
    """The shell ended at TERM, its child ignored it, and the next job began beside that."""
    out = tmp_path / "out"
    child = f"sh -c 'trap \"\" TERM; echo $$ >> {out}; exec sleep 600' &"
    command = f"[ -e {out} ] && exit 0; echo $$ >> {out}; {child} wait"
    job = jobs.enqueue("t", queue=name)
    programs.worker(command, "--queue", name)
    eventually(lambda: out.exists() and len(out.read_text().split()) == 2, 30)
    shell, child = (int(pid) for pid in out.read_text().split())
    following = jobs.enqueue("t", queue=name)
    assert programs.baton("job", "cancel", job)[0] == 0
    assert jobs.await_state(job)["state"] == "cancelled"
    eventually(lambda: not is_alive(child) and not is_alive(shell), 10)
    assert jobs.await_state(following)["state"] == "completed"


def test_at_sigterm_a_running_command_may_finish(jobs, programs, name, tmp_path):
    begun = tmp_path / "begun"
    job = jobs.enqueue("t", queue=name)
    worker = programs.worker(f"touch {begun}; sleep 1; echo done", "--queue", name)
    eventually(begun.exists, 30)
    late = jobs.enqueue("t", queue=name)
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert "1 completed, 0 failed" in said
    assert jobs.get(job)["state"] == "completed"
    assert jobs.messages(job) == ["done"]
    assert jobs.get(late)["state"] == "dispatched"


def test_what_does_not_finish_in_time_is_given_back_uncharged(jobs, programs, name, tmp_path):
    begun = tmp_path / "begun"
    job = jobs.enqueue("t", queue=name, retry={"maxRetries": 0})
    worker = programs.worker(f"touch {begun}; sleep 600", "--queue", name, "--grace", "0.1")
    eventually(begun.exists, 30)
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert "1 given back" in said
    assert jobs.get(job)["state"] == "dispatched"
    programs.worker("true", "--queue", name)
    assert jobs.await_state(job)["state"] == "completed"


def test_a_frozen_worker_cannot_report_what_another_has_done(jobs, programs, name, tmp_path):
    out = tmp_path / "out"
    job = jobs.enqueue("t", queue=name)
    command = f'echo "begun $BATON_FENCE" >> {out}; while [ ! -e {out}.go ]; do sleep 0.1; done'
    first = programs.worker(command, "--queue", name)
    eventually(out.exists, 30)
    first.send_signal(signal.SIGSTOP)
    programs.worker(command, "--queue", name)
    eventually(lambda: len(out.read_text().splitlines()) == 2, 60)
    (tmp_path / "out.go").touch()
    ended = jobs.await_state(job)
    assert ended["state"] == "completed", ended
    first.send_signal(signal.SIGCONT)
    time.sleep(1)
    assert [attempt["outcome"] for attempt in jobs.get(job)["history"]] == ["lost", "succeeded"]


@pytest.fixture
def outage(tmp_path, name):
    """A job that runs while its server is away for longer than its lease, and whose command says when it began and ended."""
    out = tmp_path / "out"
    command = f'echo "begun $BATON_ATTEMPT" >> {out}; while [ ! -e {out}.go ]; do sleep 0.1; done; echo ended >> {out}'
    with Server(tmp_path / "data", *QUICK) as server:
        programs = Programs(f"http://127.0.0.1:{server.port}")

        def run(*args):
            jobs = Jobs(server)
            job = jobs.enqueue("t", queue=name, retry={"maxRetries": 0})
            programs.worker(command, "--queue", name, *args)
            eventually(out.exists, 30)
            server.kill()
            time.sleep(OUTAGE_SECONDS)
            return jobs, job

        try:
            yield server, run, out
        finally:
            programs.close()


@pytest.mark.parametrize("ends", ["after", "during"])
def test_a_command_goes_on_while_no_server_answers_and_runs_once(outage, ends):
    server, run, out = outage
    jobs, job = run()
    if ends == "during":
        out.with_name("out.go").touch()
        eventually(lambda: "ended" in out.read_text(), 30)
    server.start()
    time.sleep(OUTAGE_SECONDS)
    out.with_name("out.go").touch()
    ended = jobs.await_state(job)
    assert (ended["state"], ended["attempts"]) == ("completed", 1), ended
    assert [attempt["outcome"] for attempt in ended["history"]] == ["succeeded"]
    assert out.read_text().split("\n")[:-1] == ["begun 1", "ended"]


def test_an_exclusive_command_is_stopped_before_its_lease_ends_and_its_job_given_back_uncharged(outage):
    server, run, out = outage
    jobs, job = run("--exclusive")
    out.with_name("out.go").touch()
    time.sleep(1)
    assert "ended" not in out.read_text(), "the command is gone"
    server.start()
    ended = jobs.await_state(job)
    assert (ended["state"], ended["attempts"]) == ("completed", 1), ended
    assert [attempt["outcome"] for attempt in ended["history"]] == ["released", "succeeded"]
