"""What must hold over a history of faults, as far as it can be seen from outside.

| invariant | seen by |
|---|---|
| I1 what was accepted is never lost | every job that a server answered for is there, and has ended |
| I2 one accepted outcome of a job under a fence | diaries of workers against results |
| I3 fences, epochs and terms only rise | `Watcher`; begins of a job under ever higher fences |
| I4 one worker has a job | no two workers have a job at the same time, by the machine's clock |
| I5 who is stale changes nothing | `Watcher` (one owner of an epoch, one leader of a term); refused reports leave no result |
| I6 a nominal time has one job | `check_fires` |
| I7 what has ended stays so | ends that were seen are the same at the last |
| I8 attempts are charged once | attempts are one more than wanted failures |
| I9 every open job has a way forward | no job is open in the end |
| I10 a unique key has one holder | lives of holders do not overlap, by the store's clock |
| I11 so many jobs of a key at a time | spans in diaries, by the machine's clock |
| I12 logs without gap or repetition | lines of each log |
| I13 losing a server runs nothing again | a job begins once, and once more for each wanted failure |
| I14 everything ends, everybody serves | `Crew.done`; each server answers, and says the same |

Start at `check`.
"""

import contextlib
import itertools
from datetime import datetime

from baton import eventually
from job_load import KEY_LIMIT, RETRY

# Results, logs and ends that are looked at one by one.
SAMPLE = 200


def moment(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Ends:
    """Jobs that were seen to have ended, to be looked at again (I7)."""

    def __init__(self):
        self.seen = {}

    def look(self, crew, accepted):
        for job_id in accepted[-20:]:
            job = crew.any().json(f"/jobs/{job_id}")
            if job["endedAt"] and len(self.seen) < SAMPLE:
                self.seen[job_id] = ended(job)

    def check(self, jobs):
        for job_id, seen in self.seen.items():
            assert ended(jobs[job_id]) == seen, f"what had ended did not stay so: {seen}, {jobs[job_id]}"


def ended(job):
    return job["state"], job["endedAt"], job["fence"], job["executions"]


def check(crew, producer, ends=None, queue="q"):
    """All of the above but the fires; tells what it has seen."""
    accepted, expected = producer.accepted, producer.expected
    assert len(set(accepted)) == len(accepted), "a batch was accepted twice"
    found = crew.done(queue)
    assert found["completed"] == sum(found.values()), found
    member = crew.any()
    jobs = {job_id: member.json(f"/jobs/{job_id}") for job_id in accepted}
    told, begun, spans = diaries(crew.workers)
    unheard = 0
    for job_id, job in jobs.items():
        fails = expected[job_id]["args"].get("fails", 0)
        assert job["state"] == "completed", job
        assert job["attempts"] == 1 + fails <= RETRY["maxRetries"] + 1, job
        fences = [int(fence) for fence in begun.get(job_id, [])]
        assert len(fences) == len(set(fences)) == 1 + fails, f"losing a server ran a job again: {fences}, {job}"
        assert job["fence"] >= max(fences) and int(told[job_id]) == max(fences), job
        # A lease whose answer was lost with its server was never begun, and is given again.
        unheard += job["executions"] - len(fences)
    for job_id, fence in itertools.islice(told.items(), SAMPLE):
        assert member.json(f"/jobs/{job_id}/result") == f"{job_id}.{fence}"
    for job_id, fence, code in [line for worker in crew.workers for line in worker.lines("refused")]:
        # A failure that was reported, and again since its answer was lost: by then the job waits under another fence.
        is_again = job_id in jobs and expected[job_id]["args"].get("fails") and fence != told[job_id]
        assert is_again, f"a worker that had a job was refused: {job_id} {fence} {code}"
    check_spans(jobs, spans)
    check_unique(jobs)
    check_logs(member, [job_id for job_id in accepted if "lines" in expected[job_id]["args"]][:SAMPLE], told)
    if ends:
        ends.check(jobs)
    # Every node serves, and what they say is the same.
    for member in crew.running:
        assert member.json(f"/job-queues/{queue}")["counts"] == found
    return {"jobs": len(jobs), "unheard": unheard}


def diaries(workers):
    """Accepted fences, begun fences, and spans of having it, by job."""
    told, begun, spans = {}, {}, {}
    for worker in workers:
        assert not worker.lines("lost"), "a worker lost a job though it was heard"
        for job_id, fence, _ in worker.lines("ok"):
            assert told.setdefault(job_id, fence) == fence, f"{job_id} was accepted under two fences"
        for job_id, fence in worker.lines("begin"):
            begun.setdefault(job_id, []).append(fence)
        starts = {(job_id, fence): float(at) for job_id, fence, at in worker.lines("from")}
        for job_id, fence, at in worker.lines("to"):
            spans.setdefault(job_id, []).append((starts[job_id, fence], float(at)))
    return told, begun, spans


def check_spans(jobs, spans):
    """I4 and I11: of one job one at a time, of one key at most so many."""
    keys = {}
    for job_id, job in jobs.items():
        assert most_at_once(spans[job_id]) == 1, f"two workers had {job_id}: {spans[job_id]}"
        if job["concurrencyKey"]:
            keys.setdefault(job["concurrencyKey"], []).extend(spans[job_id])
    for key, list_ in keys.items():
        assert most_at_once(list_) <= KEY_LIMIT, f"too many jobs of {key} ran at a time"


def most_at_once(spans):
    edges = sorted(edge for start, end in spans for edge in ((start, 1), (end, -1)))
    return max(itertools.accumulate(step for _, step in edges))


def check_unique(jobs):
    """I10: a key is given to the next only after its holder has ended."""
    holders = {}
    for job in jobs.values():
        if job["uniqueKey"]:
            holders.setdefault(job["uniqueKey"], []).append((moment(job["createdAt"]), moment(job["endedAt"])))
    for key, lives in holders.items():
        lives.sort()
        for (_, end), (begin, _) in itertools.pairwise(lives):
            assert end <= begin, f"two jobs had the unique key {key}"


def check_logs(member, jobs, told):
    """I12: the lines of an execution are there, in order, each once."""
    for job_id in jobs:
        lines = member.json(f"/jobs/{job_id}/logs?limit=100")
        assert not lines["dropped"], lines
        assert [line["message"] for line in lines["lines"]] == [f"{told[job_id]} {number}" for number in range(1, 7)]


def fires(crew, schedule):
    """The jobs of a schedule: nominal time, and how many seconds later each was made, both by the store's clock."""
    jobs, cursor = [], ""
    while True:
        page = crew.any().json(f"/jobs?scheduleId={schedule}&limit=500{cursor}")
        jobs += [(moment(job["scheduledFor"]), moment(job["createdAt"])) for job in page["jobs"]]
        if not page["nextCursor"]:
            return sorted((nominal, made - nominal) for nominal, made in jobs)
        cursor = f"&cursor={page['nextCursor']}"


def check_fires(crew, schedule, cadence=1.0):
    """I6: no nominal time has two jobs, and none between the first and the last is missing. The latest of them, in
    seconds."""
    made = fires(crew, schedule)
    moments = [nominal for nominal, _ in made]
    assert len(set(moments)) == len(moments), "a nominal time was fired for twice"
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert all(abs(gap - cadence) < 0.01 for gap in gaps), "a nominal time was lost"
    return max(late for _, late in made)


def check_statuses(member, queue, accepted):
    """What was told of each job: in the order of its commits, each change once (I5, I12 for events)."""
    heard = {}

    def is_told():
        for partition, message in consume(member, queue):
            heard.setdefault(partition, []).append(message)
        return all(job_id in heard and heard[job_id][-1]["status"] == "completed" for job_id in accepted)

    with contextlib.suppress(AssertionError):
        eventually(is_told, 30)
    for job_id in accepted:
        told = [(message["fence"], message["status"], message["attempts"]) for message in heard.get(job_id, [])]
        assert told and told[-1][1] == "completed", f"{job_id} ended and nobody told: {told}"
        assert [fence for fence, _, _ in told] == sorted(fence for fence, _, _ in told), f"{job_id}: {told}"
        # Lines of a log are news of a job that runs on as it did.
        changes = [change for change, _ in itertools.groupby(told)]
        assert len(changes) == len(set(changes)), f"{job_id} was told of twice: {told}"
    return sum(len(told) for told in heard.values())


def consume(member, queue, group="observer"):
    """All messages of a queue, with their partitions, in order."""
    path = f"/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&batch=1000&partitions=100&autoAck=true"
    found = []
    while True:
        answer = member.get(path)
        if answer.status == 204:
            return found
        assert answer.status == 200, answer
        found += [(message["partition"], message["data"]) for message in answer.json["messages"]]
