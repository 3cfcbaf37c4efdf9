"""`baton job`, `baton schedule` and `baton workers`, as somebody would type them."""

import time

from baton import binary, eventually


def test_a_job_from_the_command_line_to_its_end(jobs, programs, name):
    code, said, err = programs.baton("job", "enqueue", "t", '{"a": 1}', "--queue", name, "--tag", name)
    assert code == 0, err
    job = said.strip()
    [listed] = programs.json("job", "list", "--tag", name)
    assert (listed["jobId"], listed["state"]) == (job, "dispatched")
    _, shown, _ = programs.baton("job", "show", job)
    assert job in shown and '{"a":1}' in shown.replace(" ", "")
    follower = programs.start(binary(), "job", "logs", "-f", job)
    programs.worker("echo one; sleep 0.5; echo two", "--queue", name)
    said, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0, said
    assert [line.split()[-1] for line in said.splitlines()] == ["one", "two"]
    code, said, _ = programs.baton("job", "retry", job)
    assert code == 0
    assert jobs.await_state(job)["state"] == "completed"
    assert len(jobs.get(job)["history"]) == 2


def test_waiting_for_a_job_ends_with_its_outcome(programs, name):
    programs.worker("exit $(grep -o '[0-9]')", "--queue", name)
    enqueue = ["job", "enqueue", "t", "--queue", name, "--retries", "0", "--wait", "60"]
    code, said, _ = programs.baton(*enqueue, '{"code": 0}')
    assert (code, said) == (0, "completed\n")
    code, said, err = programs.baton(*enqueue, '{"code": 3}')
    assert (code, said) == (1, "failed\n")
    assert "the job is failed" in err


def test_what_is_wrong_is_said(programs, name):
    for words in (
        ["job", "show", "0199aaaa-0000-7000-8000-000000000000"],
        ["job", "enqueue", "t", "{broken"],
        ["schedule", "show", name],
        ["schedule", "put", name, "--cron", "0 3 * *", "--type", "t"],
        ["schedule", "put", name, "--cron", "@daily", "--zone", "Berlin", "--type", "t"],
    ):
        code, said, err = programs.baton(*words)
        assert code == 1 and said == "" and err.startswith("error: "), (words, code, said, err)
    assert "did you mean Europe/Berlin?" in err


def test_a_schedule_from_the_command_line(jobs, programs, name):
    put = ["schedule", "put", name, '{"a": 1}', "--type", "t", "--queue", name]
    [put_] = programs.json(*put, "--cron", "30 2 * * *", "--zone", "America/New_York")
    assert len(put_["nextFires"]) == 5
    _, shown, _ = programs.baton("schedule", "show", name)
    assert put_["nextFires"][0] in shown and "America/New_York" in shown
    assert name in programs.baton("schedule", "list")[1]
    code, said, err = programs.baton("schedule", "trigger", name)
    assert code == 0, err
    assert jobs.get(said.strip())["scheduleId"] == name
    dry = ["--from", "2026-03-07T00:00:00Z", "--to", "2026-03-09T12:00:00Z"]
    _, said, _ = programs.baton("schedule", "backfill", name, *dry, "--dry-run")
    assert said.split() == ["2026-03-07T07:30:00.000Z", "2026-03-08T07:30:00.000Z", "2026-03-09T06:30:00.000Z"]
    assert len(jobs.of_schedule(name)) == 1
    programs.baton("schedule", "pause", name)
    assert jobs.schedule(name)["enabled"] is False
    programs.baton("schedule", "resume", name)
    assert programs.baton("schedule", "delete", name)[0] == 0
    assert programs.baton("schedule", "show", name)[0] == 1


def test_workers_are_listed(programs, name):
    programs.worker("true", "--queue", name, "--type", "x", "--name", name)

    def listed():
        return [worker for worker in programs.json("workers") if worker["name"] == name]

    [worker] = eventually(listed, 30)
    assert (worker["queues"], worker["jobTypes"]) == ([name], ["x"])
    assert name in programs.baton("workers")[1]


def test_a_schedule_feeds_a_worker(jobs, programs, name):
    jobs.put_schedule(name, kind="interval", everyMs=1000, job={"jobType": "t", "queue": name})
    programs.worker('echo "$BATON_SCHEDULE_ID"', "--queue", name)
    began = time.monotonic()
    ended = eventually(lambda: [job for job in jobs.of_schedule(name) if job["state"] == "completed"][1:], 60)
    assert time.monotonic() - began < 60
    assert jobs.messages(ended[0]["jobId"]) == [name]
    jobs.call("DELETE", f"/schedules/{name}")


def test_a_server_that_is_alone_says_why_it_cannot_hand_its_jobs_over(programs):
    [shown] = programs.json("nodes")
    code, said, err = programs.baton("nodes", "--drain", shown["nodes"][0]["nodeId"])
    assert (code, said) == (1, "") and "the only one on its store" in err, err
