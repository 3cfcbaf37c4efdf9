"""Servers with jobs, and what they say about them."""

from baton import eventually

TERMINAL = ("completed", "failed", "timed_out", "cancelled")

# Short, so that a dead worker is noticed and a cancelled job stops while somebody watches.
QUICK = ("--job-lease-ms", "5000", "--job-heartbeat-ms", "500")


class Jobs:
    """Jobs of one server; every call insists on success."""

    def __init__(self, server):
        self.server = server

    def call(self, method, path, body=None, **options):
        arguments = () if body is None else (body,)
        answer = self.server.call(method, f"/api/v1{path}", *arguments, **options)
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    def enqueue(self, job_type, args=None, **fields):
        return self.call("POST", "/jobs", {"jobType": job_type, "args": args, **fields})["jobId"]

    def get(self, job_id):
        return self.call("GET", f"/jobs/{job_id}")

    def result(self, job_id):
        return self.call("GET", f"/jobs/{job_id}/result")

    def await_state(self, job_id, *states, seconds=60):
        """The job, once it is in one of these states."""

        def look():
            job = self.get(job_id)
            return job["state"] in (states or TERMINAL) and job

        return eventually(look, seconds, every=0.2)

    def messages(self, job_id):
        """The lines of a job's log."""
        return [line["message"] for line in self.call("GET", f"/jobs/{job_id}/logs?limit=1000")["lines"]]

    def put_schedule(self, schedule, **fields):
        return self.call("PUT", f"/schedules/{schedule}", fields)

    def schedule(self, schedule):
        return self.call("GET", f"/schedules/{schedule}")

    def of_schedule(self, schedule):
        """All jobs of a schedule."""
        found, cursor = [], ""
        while True:
            page = self.call("GET", f"/jobs?scheduleId={schedule}&limit=500{cursor}")
            found += page["jobs"]
            if not page["nextCursor"]:
                return found
            cursor = f"&cursor={page['nextCursor']}"
