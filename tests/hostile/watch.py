"""What a request may cost: the peak of the server's memory, and how long others wait meanwhile."""

import os
import threading
import time
from pathlib import Path

from baton import Connection

MIB = 1 << 20
# Answers of a server that is busy with nothing else take a millisecond; test machines are busy.
HEALTH_SECONDS_MAX = 5


def slowdown():
    """How many times longer than alone a program takes now: the processes that want to run for each processor."""
    return max(1.0, os.getloadavg()[0] / os.cpu_count())


class Watch:
    """Measures a server from its beginning to its end."""

    def __init__(self, server):
        self.server = server
        self.slowest = 0
        self.failure = None
        self.over = threading.Event()

    def __enter__(self):
        # Forgets the peak so far.
        self._proc("clear_refs").write_text("5")
        self.before = self._kib("VmRSS")
        self.thread = threading.Thread(target=self._poll, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.grown = (self._kib("VmHWM") - self.before) * 1024

    def check(self, body_bytes, times=10):
        """Insists that the server took less than so many times the bytes, and answered others meanwhile."""
        assert self.failure is None, self.failure
        assert self.grown < times * body_bytes, f"{self.grown // MIB} MiB for a body of {body_bytes / MIB:.1f} MiB"
        allowed = HEALTH_SECONDS_MAX * slowdown()
        assert self.slowest < allowed, f"/health took {self.slowest:.1f} s, allowed are {allowed:.1f} s"

    def _proc(self, name):
        return Path(f"/proc/{self.server.process.pid}/{name}")

    def _kib(self, name):
        for line in self._proc("status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise AssertionError(f"no {name}")

    def _poll(self):
        try:
            with Connection(self.server.port) as connection:
                while not self.over.is_set():
                    began = time.monotonic()
                    assert connection.call("GET", "/health").status == 200
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    time.sleep(0.01)
        except Exception as failure:  # handed to `check`
            self.failure = failure
