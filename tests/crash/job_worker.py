"""A worker as a process of its own, to be stopped and killed: python job_worker.py PORT QUEUE DIARY.

It takes one job at a time, keeps it with heartbeats for as long as the job says, reports, and writes every step into
its diary. A server that does not answer is asked again, with the same words. It ends when it is told to by a signal.
"""

import http.client
import json
import sys
import time

PORT, QUEUE, DIARY = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def note(*words):
    with open(DIARY, "a") as diary:
        diary.write(" ".join(str(word) for word in words) + "\n")


def call(path, body):
    """The answer; asked again until there is one."""
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
            connection.request("POST", "/api/v1" + path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
            connection.close()
            if answer.status < 500:
                return answer.status, json.loads(text)
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)


def register():
    _, worker = call("/workers", {"name": "crash", "queues": [QUEUE]})
    return worker["workerId"]


def run(worker, lease):
    job, fence = lease["jobId"], lease["fence"]
    note("begin", job, fence)
    end = time.monotonic() + lease["args"]["seconds"]
    while time.monotonic() < end:
        time.sleep(min(0.2, max(0, end - time.monotonic())))
        _, heard = call(f"/workers/{worker}/heartbeat", {"running": [{"jobId": job, "fence": fence}]})
        if job in heard.get("lost", []):
            note("lost", job, fence)
            break
    item = {"jobId": job, "fence": fence, "outcome": "succeeded", "result": f"{job}.{fence}"}
    _, answer = call("/executions:report", {"items": [item]})
    item = answer["items"][0]
    note("ok" if item["ok"] else "refused", job, fence, item.get("code", item.get("state")))


worker = register()
note("ready", worker)
while True:
    status, answer = call(f"/workers/{worker}/lease", {"max": 1, "waitMs": 500})
    if status == 404:
        worker = register()
        continue
    for lease in answer["leases"]:
        run(worker, lease)
