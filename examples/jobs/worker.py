#!/usr/bin/env python3
"""A worker in plain Python: takes jobs, runs them, keeps their leases, and ends well at SIGTERM.

    BATON_URL=http://127.0.0.1:6632 python3 worker.py QUEUE
"""
import http.client, json, os, signal, sys, threading, time, urllib.error, urllib.request

URL = os.environ.get("BATON_URL", "http://127.0.0.1:6632") + "/api/v1"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('BATON_TOKEN', '')}"}
worker, running, stopping = {}, {}, threading.Event()

def greet(args, log, cancelled):
    """The work itself, by job type. A long job looks at `cancelled` now and then."""
    log(f"hello {args['name']}")
    return {"greeted": args["name"]}

HANDLERS = {"greet": greet}

def post(path, body):
    """Repeats the call while the server cannot be reached or asks for patience, but not when the worker is to stop."""
    while True:
        try:
            request = urllib.request.Request(URL + path, json.dumps(body).encode(), HEADERS)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException) as error:
            is_refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if is_refused or stopping.is_set():
                raise
            print(path, "failed, trying again:", error, file=sys.stderr)
            stopping.wait(1)

def register():
    worker.update(post("/workers", {"name": "worker.py", "queues": sys.argv[1:] or ["default"], "jobTypes": list(HANDLERS)}))

def about_worker(call, body):
    """A call of this worker. A server that does not know it any more has given its jobs to others: register again."""
    try:
        return post(f"/workers/{worker['workerId']}/{call}", body)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        register()
        return {"leases": [], "cancel": [], "lost": list(running)}

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
    try:
        [verdict] = post("/executions:report", {"items": [report]})["items"]
        if not verdict["ok"]:
            print(job["jobId"], "was given to another meanwhile:", verdict["code"])
    finally:
        del running[job["jobId"]]

def beat():
    """Keeps the leases of all running jobs, and hears which of them are to stop."""
    while running or not stopping.is_set():
        held = [{"jobId": id, "fence": one["fence"]} for id, one in list(running.items())]
        wait = 0 if stopping.is_set() else worker["heartbeatMs"] // 2
        try:
            heard = about_worker("heartbeat", {"incarnation": worker["incarnation"], "running": held, "waitMs": wait})
        except OSError as error:
            print("a heartbeat failed:", error, file=sys.stderr)
            heard = {"cancel": [], "lost": []}
        for id in heard["cancel"] + heard["lost"]:
            if id in running:
                running[id]["cancelled"].set()
        time.sleep(0.5)

for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, lambda *_: stopping.set())
register()
threading.Thread(target=beat).start()
while not stopping.is_set():
    try:
        leases = about_worker("lease", {"max": 4 - len(running), "waitMs": 1000})["leases"]
    except OSError as error:
        print("no jobs:", error, file=sys.stderr)
        stopping.wait(1)
        continue
    for job in leases:
        running[job["jobId"]] = {"fence": job["fence"], "cancelled": threading.Event()}
        threading.Thread(target=run, args=[job]).start()
    while len(running) >= 4:
        time.sleep(0.05)
