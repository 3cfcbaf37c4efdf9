"""A worker as a process of its own, to be stopped and killed: python job_worker.py PORT[,PORT...] QUEUE DIARY [MAX].

It takes up to MAX jobs at a time (one unless given), keeps them with heartbeats for as long as each says, writes as many
lines into their logs and fails as often as each wants, reports, and writes every step into its diary: `from` and `to`
with the machine's own time, between which it surely had the job. A server that does not answer is asked again with the
same words, or, where there are several, another one is. It ends when it is told to by a signal.
"""

import http.client
import json
import sys
import time

PORTS, QUEUE, DIARY = [int(port) for port in sys.argv[1].split(",")], sys.argv[2], sys.argv[3]
MAX = int(sys.argv[4]) if len(sys.argv) > 4 else 1


def note(*words):
    with open(DIARY, "a") as diary:
        diary.write(" ".join(str(word) for word in words) + "\n")


def call(path, body):
    """The answer; asked again until there is one."""
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORTS[0], timeout=30 if len(PORTS) == 1 else 5)
            connection.request("POST", "/api/v1" + path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
            connection.close()
            if answer.status < 500:
                return answer.status, json.loads(text)
        except (OSError, http.client.HTTPException):
            pass
        PORTS.append(PORTS.pop(0))
        time.sleep(0.05)


def register():
    _, worker = call("/workers", {"name": "crash", "queues": [QUEUE]})
    return worker["workerId"]


def held(leases):
    return {"running": [{"jobId": lease["jobId"], "fence": lease["fence"]} for lease in leases]}


def fails(lease):
    return lease["attempt"] <= lease["args"].get("fails", 0)


def outcome(lease):
    job, fence = lease["jobId"], lease["fence"]
    if fails(lease):
        return {"jobId": job, "fence": fence, "outcome": "failed", "error": {"type": "wanted", "message": "as told"}}
    return {"jobId": job, "fence": fence, "outcome": "succeeded", "result": f"{job}.{fence}"}


def report(leases):
    """Says that these are done."""
    for lease in leases:
        write_log(lease, 2)
        note("to", lease["jobId"], lease["fence"], time.monotonic())
    _, answer = call("/executions:report", {"items": [outcome(lease) for lease in leases]})
    for lease, item in zip(leases, answer["items"], strict=True):
        word = "refused" if not item["ok"] else "failed" if fails(lease) else "ok"
        note(word, lease["jobId"], lease["fence"], item.get("code", item.get("state")))


def write_log(lease, part):
    """The first or the second half of the lines that a job wants."""
    count = lease["args"].get("lines", 0)
    numbers = range(1, count // 2 + 1) if part == 1 else range(count // 2 + 1, count + 1)
    if numbers:
        lines = [{"message": f"{lease['fence']} {number}"} for number in numbers]
        call(f"/executions/{lease['executionId']}/logs", {"firstSeq": numbers[0], "lines": lines})


def run(worker, leases):
    now = time.monotonic()
    ends = {lease["jobId"]: now + lease["args"]["seconds"] for lease in leases}
    for lease in leases:
        note("begin", lease["jobId"], lease["fence"])
        note("from", lease["jobId"], lease["fence"], now)
        write_log(lease, 1)
    while leases:
        done = [lease for lease in leases if ends[lease["jobId"]] <= time.monotonic()]
        leases = [lease for lease in leases if lease not in done]
        if done:
            report(done)
        if not leases:
            return
        time.sleep(min(0.2, max(0, min(ends[lease["jobId"]] for lease in leases) - time.monotonic())))
        _, heard = call(f"/workers/{worker}/heartbeat", held(leases))
        lost = [lease for lease in leases if lease["jobId"] in heard.get("lost", [])]
        for lease in lost:
            note("lost", lease["jobId"], lease["fence"])
        # What is lost is reported all the same: it must be refused.
        if lost:
            report(lost)
            leases = [lease for lease in leases if lease not in lost]


worker = register()
note("ready", worker)
while True:
    status, answer = call(f"/workers/{worker}/lease", {"max": MAX, "waitMs": 500})
    if status == 404:
        worker = register()
        continue
    if answer["leases"]:
        run(worker, answer["leases"])
