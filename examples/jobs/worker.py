#!/usr/bin/env python3
"""A worker in plain Python: takes jobs, runs them, keeps their leases, and ends well at SIGTERM.

    BATON_URL=http://127.0.0.1:6632 python3 worker.py QUEUE
"""
import json, os, signal, sys, threading, time, urllib.request

URL = os.environ.get("BATON_URL", "http://127.0.0.1:6632") + "/api/v1"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('BATON_TOKEN', '')}"}
running, stopping = {}, threading.Event()

def greet(args, log, cancelled):
    """The work itself, by job type. A long job looks at `cancelled` now and then."""
    log(f"hello {args['name']}")
    return {"greeted": args["name"]}

HANDLERS = {"greet": greet}

def post(path, body):
    with urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode(), HEADERS), timeout=30) as answer:
        return json.loads(answer.read() or b"null")

def run(job):
    seq = iter(range(1, sys.maxsize))

    def log(message):
        lines = [{"level": "info", "message": message}]
        post(f"/executions/{job['executionId']}/logs", {"firstSeq": next(seq), "lines": lines})

    report = {"jobId": job["jobId"], "executionId": job["executionId"], "fence": job["fence"]}
    try:
        result = HANDLERS[job["jobType"]](job["args"], log, running[job["jobId"]]["cancelled"])
        report |= {"outcome": "succeeded", "result": result}
    except Exception as error:
        what = {"type": type(error).__name__, "message": str(error), "retryable": True}
        report |= {"outcome": "failed", "error": what}
    [verdict] = post("/executions:report", {"items": [report]})["items"]
    if not verdict["ok"]:
        print(job["jobId"], "was given to another meanwhile:", verdict["code"])
    del running[job["jobId"]]

def beat(worker):
    """Keeps the leases of all running jobs, and hears which of them are to stop."""
    while running or not stopping.is_set():
        held = [{"jobId": id, "fence": one["fence"]} for id, one in list(running.items())]
        heard = post(f"/workers/{worker['workerId']}/heartbeat", {"incarnation": worker["incarnation"], "running": held})
        for id in heard["cancel"] + heard["lost"]:
            if id in running:
                running[id]["cancelled"].set()
        stopping.wait(worker["heartbeatMs"] / 1000) and time.sleep(0.5)

for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, lambda *_: stopping.set())
worker = post("/workers", {"name": "worker.py", "queues": sys.argv[1:] or ["default"], "jobTypes": list(HANDLERS)})
threading.Thread(target=beat, args=[worker]).start()
while not stopping.is_set():
    for job in post(f"/workers/{worker['workerId']}/lease", {"max": 4 - len(running), "waitMs": 1000})["leases"]:
        running[job["jobId"]] = {"fence": job["fence"], "cancelled": threading.Event()}
        threading.Thread(target=run, args=[job]).start()
    while len(running) >= 4:
        time.sleep(0.05)
