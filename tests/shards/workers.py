"""Workers as tests want them: on a socket of their own, beating by themselves, and telling what they were told."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import zmq
from baton import Server, eventually

HERE = Path(__file__).resolve().parent
SHARDS = re.compile(r"^baton is listening for workers of shards on (tcp://\S+)", re.MULTILINE)
CONTEXT = zmq.Context()

# Long enough for a busy machine, short enough for a test.
TIMEOUT_SECONDS = 3
BEAT_SECONDS = 0.5


def shard_server(data, *args, port=0, **options):
    """A server with a ZeroMQ socket on which workers may be silent for a few seconds only."""
    return Server(
        data,
        "--shards-listen",
        f"127.0.0.1:{port}",
        "--shards-heartbeat-timeout-seconds",
        str(TIMEOUT_SECONDS),
        "--shards-heartbeat-check-interval-seconds",
        "0.3",
        *args,
        **options,
    )


def address(server):
    """Where the ZeroMQ socket is."""
    return eventually(lambda: SHARDS.search(server.text()), seconds=30).group(1)


def numbers(ranges):
    return [number for first, last in ranges for number in range(first, last + 1)]


class Worker:
    """A worker in this process. Without a session it speaks the plain protocol."""

    def __init__(self, address, service, name, count, session=None, beats=True, keys=None, **says):
        self.service, self.name, self.count, self.session, self.says = service, name, count, session, says
        self.assignments, self.errors = [], []
        self.beats, self.closing, self.slow = beats, False, threading.Event()
        self.slow.set()
        self.held, self.generation = {}, 0
        self.keys = keys or {}
        self.lock = threading.Lock()
        self.outbox = []
        self.thread = threading.Thread(target=self._run, args=(address,), daemon=True)
        self.thread.start()

    def message(self, kind, **more):
        data = {"serviceName": self.service, "workerId": self.name, "maxShardCount": self.count, **self.says}
        if self.session:
            data |= {"sessionId": self.session, "generation": self.generation}
            data["ranges"] = [[shard, shard] for shard in sorted(self.held)]
        elif kind == "heartbeat":
            data["assignedShards"] = self.shards
        return {"type": kind, "data": data | more}

    def send(self, kind, **more):
        with self.lock:
            self.outbox.append(self.message(kind, **more))

    def _run(self, address):
        socket = CONTEXT.socket(zmq.DEALER)
        socket.linger = 200
        for name, key in self.keys.items():
            setattr(socket, name, key)
        socket.connect(address)
        self.send("register")
        due = time.monotonic() + BEAT_SECONDS
        while not self.closing:
            with self.lock:
                sending, self.outbox = self.outbox, []
            for message in sending:
                socket.send_json(message)
            if time.monotonic() >= due:
                due += BEAT_SECONDS
                if self.beats:
                    socket.send_json(self.message("heartbeat"))
            if socket.poll(20):
                self._hear(json.loads(socket.recv()))
        socket.close()

    def _hear(self, message):
        if message["type"] == "error":
            self.errors.append(message["data"])
            return
        data = message["data"]
        if self.session and message["type"] == "assignment" and data["generation"] >= self.generation:
            self.generation = data["generation"]
            granted = {n: g["token"] for g in data["grants"] for n in range(g["from"], g["to"] + 1)}
            keeps = self.held if not self.slow.is_set() else {}
            self.held = {**keeps, **granted}
            if data["revoking"] and self.slow.is_set():
                self.send("heartbeat")
        self.assignments.append(message)

    def stop_slowly(self):
        """From now on shards that are to be given up are still used, until `finish`."""
        self.slow.clear()

    def finish(self):
        self.slow.set()
        last = self.assignments[-1]["data"]
        self.held = {n: g["token"] for g in last["grants"] for n in range(g["from"], g["to"] + 1)}
        self.send("heartbeat")

    @property
    def shards(self):
        """What it was last told."""
        if not self.assignments:
            return None
        data = self.assignments[-1]["data"]
        if not self.session:
            return data["assignedShards"]
        return sorted(n for g in data["grants"] for n in range(g["from"], g["to"] + 1))

    def awaits(self, shards, seconds=30):
        expected = list(shards)
        eventually(lambda: self.shards == expected or None, seconds=seconds)

    def close(self):
        """Goes away without a word."""
        self.closing = True
        self.thread.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Program:
    """A worker as a process of its own."""

    def __init__(self, kind, address, service, name, count):
        command = ["node", str(HERE / "worker.mjs")] if kind == "node" else [sys.executable, str(HERE / "worker.py")]
        arguments = [address, service, name, str(count), str(int(BEAT_SECONDS * 1000))]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, cwd=HERE)
        self.shards = json.loads(self.process.stdout.readline())

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(30)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


def spread(server, service):
    """Who has what, as the server sees it: {worker: shards} of those that are there."""
    answer = server.get(f"/api/v1/shards/{service}")
    if answer.status == 404:
        return {}
    rows = answer.json["assignments"]
    return {row["workerId"]: numbers(row["shards"]) for row in rows if row["status"] == "active"}
