"""Participants of an election as processes, and what their own words say about who coordinated when.

Each participant is the example program of the library; it prints one JSON line for everything that happens. A
`Group` starts several, and when it ends it reads all lines together: nobody may ever have claimed to coordinate at
a time that another one claimed too. Times are those that the processes print, which share one machine's clock.
Start at `Group`.
"""

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent

# What a loaded machine may add to anything.
SLACK_SECONDS = 20

# With these reasons a coordinator has stopped before anybody else may begin, whatever its lease says.
GIVEN_UP = ("stopped", "requested", "handed-over")


def binary():
    """The program under test."""
    return Path(os.environ.get("BATON_PARTICIPANT", ROOT / "target" / "debug" / "examples" / "participant"))


class Participant:
    """One process. What it has printed so far is in `lines`."""

    def __init__(self, url, group, worker_id, settings=None, environment=None, probe=False):
        self.worker_id = worker_id
        self.lines = []
        self.errors = ""
        self.news = threading.Condition()
        self.ended = False
        command = [str(binary()), url, group, "--fast", "--worker-id", worker_id]
        command += [] if probe else ["--no-probe"]
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={json.dumps(value)}"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | (environment or {}),
        )
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(json.loads(line))
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def _read_errors(self):
        self.errors = self.process.stderr.read().decode("utf-8", "replace")

    def wait_for(self, event, seconds=SLACK_SECONDS, since=0, **fields):
        """The first line about `event` with these fields, at or after line number `since`."""
        deadline = time.monotonic() + seconds
        with self.news:
            while True:
                for line in self.lines[since:]:
                    if line["event"] == event and all(line.get(k) == v for k, v in fields.items()):
                        return line
                left = deadline - time.monotonic()
                if self.ended or left <= 0:
                    shown = [line for line in self.lines[since:] if line["event"] not in ("work",)]
                    raise AssertionError(f"{self.worker_id} did not say {event} {fields}: {shown}\n{self.errors}")
                self.news.wait(left)

    def mark(self):
        """The number of lines so far: what comes later is `since` this."""
        with self.news:
            return len(self.lines)

    def count(self, event, since=0, **fields):
        with self.news:
            lines = self.lines[since:]
        return sum(line["event"] == event and all(line.get(k) == v for k, v in fields.items()) for line in lines)

    def order(self, text):
        """Gives an order, and does not wait."""
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def status(self):
        since = self.mark()
        self.order("status")
        return self.wait_for("status", since=since)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """Ends the process as a power cut would; returns when that was, in milliseconds."""
        killed = time.time() * 1000
        self.process.kill()
        self.process.wait(SLACK_SECONDS)
        return killed

    def terminate(self):
        """Asks the process to stop; returns when that was, in milliseconds."""
        asked = time.time() * 1000
        self.process.terminate()
        return asked

    def wait(self):
        """Waits for the end of the process and returns its exit code."""
        code = self.process.wait(SLACK_SECONDS)
        for reader in self.readers:
            reader.join(SLACK_SECONDS)
        return code

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass


class Group:
    """Participants of one group of their own on a store."""

    def __init__(self, store, **settings):
        self.store = store
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        # Often enough that the last claim of a coordinator shows nearly all of its lease.
        self.settings = {"workInterval": 100} | settings
        self.members = {}

    def start(self, *worker_ids, probe=False, **settings):
        for worker_id in worker_ids:
            self.members[worker_id] = Participant(
                self.store.url, self.name, worker_id, self.settings | settings, self.store.environment, probe
            )
        for worker_id in worker_ids:
            self.members[worker_id].wait_for("started")

    def settle(self, coordinator, *followers):
        """Starts one, then the others when it coordinates; returns when all of them know it."""
        self.start(coordinator)
        leader = self[coordinator]
        became = leader.wait_for("became")
        self.start(*followers)
        for follower in followers:
            self[follower].wait_for("coord:coordinator-elected", workerId=coordinator)
        return leader, became

    def __getitem__(self, worker_id):
        return self.members[worker_id]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for member in self.members.values():
            member.close()
        if kind is None:
            assert not (problems := overlaps(self.terms())), problems

    def bounds(self):
        return next(iter(self.members.values())).wait_for("started")["bounds"]

    def terms(self):
        return sorted(term for member in self.members.values() for term in terms(member.lines))


class Term(NamedTuple):
    """That `worker` coordinates, by its own words, under `token` from `begin` to `end`, in milliseconds."""

    begin: int
    end: int
    worker: str
    token: int


def terms(lines):
    """The terms that one participant's lines claim."""
    found = {}
    for line in lines:
        token = line.get("token")
        if line["isCoordinator"]:
            begin, end = found.get(token, (line["at"], line["at"]))
            found[token] = (begin, max(end, line["at"] + line["remainingMs"]))
        if line["event"] == "stopped" and line["reason"] in GIVEN_UP and found:
            token = max(found)
            begin, end = found[token]
            found[token] = (begin, min(end, line["at"]))
    return [Term(begin, end, lines[0]["self"], token) for token, (begin, end) in found.items()]


def overlaps(claimed):
    """What is wrong with terms sorted by their beginnings: two at a time, or tokens that do not rise."""
    wrong = []
    for i, other in enumerate(claimed):
        for one in claimed[:i]:
            if other.begin < one.end:
                wrong.append(f"two at a time: {one} and {other}")
            if other.token <= one.token:
                wrong.append(f"the token does not rise: {one} and then {other}")
    return wrong
