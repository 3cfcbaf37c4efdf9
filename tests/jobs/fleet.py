"""Servers with jobs, and the commands of the program as somebody would type them."""

import json
import os
import signal
import subprocess

from baton import SETTINGS, binary, eventually

TERMINAL = ("completed", "failed", "timed_out", "cancelled")

# Short, so that a dead worker is noticed and a cancelled job stops while somebody watches.
QUICK = ("--job-lease-ms", "5000", "--job-heartbeat-ms", "500")


def plain():
    """The environment without settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}


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


class Programs:
    """Processes that talk to a server, ended with the test."""

    def __init__(self, url):
        self.environment = plain() | {"BATON_URL": url}
        self.processes = []

    def start(self, *command, **options):
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            text=True,
            **options,
        )
        self.processes.append(process)
        return process

    def worker(self, command, *args):
        return self.start(binary(), "worker", "--exec", command, *args)

    def baton(self, *args):
        """Runs a command to its end; its exit code and what it printed."""
        command = [str(binary()), *(str(arg) for arg in args)]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=self.environment, text=True, timeout=120
        )
        return ended.returncode, ended.stdout, ended.stderr

    def json(self, *args):
        code, out, err = self.baton(*args, "--json")
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate(timeout=30)
