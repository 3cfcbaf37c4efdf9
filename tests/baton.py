"""A Baton server as a process, and the plainest way to speak HTTP to it.

The process-level tests look at the server as its users do: a program that is started, spoken to over sockets,
stopped and killed. Nothing here knows how it is built. Always: a server that was started here is ended here, by
its own process id. Not here: retries, pools or anything else that would hide what the server really answered.
Start at `Server`.
"""

import hashlib
import http.client
import json
import os
import queue as queues
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import postgres
from ports import free_port

ROOT = Path(__file__).resolve().parent.parent
LISTENING = re.compile(r"^baton is listening on (https?)://[\d.]+:(\d+)\s*$")
START_SECONDS = 30
STOP_SECONDS = 30
CALL_SECONDS = 30

# Prefixes of variables that a server would take its settings from.
SETTINGS = ("BATON_", "QUEEN_", "POP_WAIT_", "DEFAULT_", "JWT_")

# A body that is absent, which is something else than a body that is `null`.
ABSENT = object()


def binary():
    """The program under test."""
    return Path(os.environ.get("BATON_BIN", ROOT / "target" / "debug" / "baton"))


def plain():
    """The environment without settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}


def store_arguments(data):
    """With BATON_TEST_STORE=postgres every server works on PostgreSQL: what would be a directory is a schema."""
    if os.environ.get("BATON_TEST_STORE") != "postgres":
        return []
    schema = "test_" + hashlib.sha256(str(data).encode()).hexdigest()[:24]
    return ["--store", postgres.shared(), "--store-schema", schema]


class Refused(Exception):
    """The server ended before it listened."""

    def __init__(self, code, output):
        super().__init__(f"exit code {code}:\n{output}")
        self.code = code
        self.output = output


class Answer(NamedTuple):
    """What came back for one request."""

    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The text under `error`, which every refusal has."""
        assert self.headers.get("content-type", "").startswith("application/json"), self
        return self.json["error"]


class Server:
    """One server process on a data directory; it can be stopped, killed and started again, and keeps its port."""

    def __init__(self, data, *args, listen=None, environment=None):
        self.data = Path(data)
        self.args = args
        self.store = [] if "--store" in args else store_arguments(self.data)
        self.listen = listen or f"127.0.0.1:{free_port()}"
        self.environment = environment or {}
        self.program = None
        self.port = int(self.listen.rsplit(":", 1)[1])
        self.scheme = None
        self.process = None
        self.lines = None
        self.output = []

    def start(self):
        """Starts the process and returns once it listens."""
        self.launch()
        return self.await_listening()

    def launch(self):
        """Starts the process and does not wait."""
        command = [str(self.program or binary()), "serve", "--listen", self.listen, "--data", str(self.data), *self.store, *self.args]
        self.output = []
        self.lines = queues.Queue()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=plain() | self.environment,
            cwd=self.data.parent,
        )
        self.readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, None), daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def await_listening(self):
        try:
            first = self.lines.get(timeout=START_SECONDS)
        except queues.Empty:
            self.kill()
            raise TimeoutError(f"no line on stdout after {START_SECONDS} s:\n{self.text()}") from None
        if first is None:
            code = self.process.wait(STOP_SECONDS)
            self._join()
            raise Refused(code, self.text())
        listening = LISTENING.match(first)
        if not listening:
            self.kill()
            raise AssertionError(f"the first line on stdout is {first!r}")
        self.scheme = listening.group(1)
        self.port = int(listening.group(2))
        return self

    def _read(self, stream, lines):
        for line in stream:
            line = line.decode("utf-8", "replace")
            self.output.append(line)
            if lines is not None:
                lines.put(line)
        stream.close()
        if lines is not None:
            lines.put(None)

    def _join(self):
        for reader in self.readers:
            reader.join(STOP_SECONDS)

    def text(self):
        """Everything the process has printed so far."""
        return "".join(self.output)

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def running(self):
        return self.process is not None and self.process.poll() is None

    def terminate(self):
        """Asks the process to stop, and does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds=STOP_SECONDS):
        """Waits for the end of the process and returns its exit code."""
        code = self.process.wait(seconds)
        self._join()
        return code

    def stop(self):
        """Asks the process to stop and returns its exit code."""
        self.terminate()
        return self.wait()

    def kill(self):
        """Ends the process as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        return self.wait()

    def __enter__(self):
        return self if self.running() else self.start()

    def __exit__(self, *_):
        if self.running():
            self.kill()

    # Requests, each on a connection of its own.

    def call(self, method, path, body=ABSENT, **options):
        with Connection(self.port) as connection:
            return connection.call(method, path, body, **options)

    def get(self, path, **options):
        return self.call("GET", path, **options)

    def post(self, path, body=ABSENT, **options):
        return self.call("POST", path, body, **options)

    def delete(self, path, **options):
        return self.call("DELETE", path, **options)

    # The four calls that most tests are made of; each insists on success.

    def configure(self, queue, labels=None, **options):
        answer = self.post("/api/v1/configure", {"queue": queue, **(labels or {}), "options": options})
        assert answer.status == 200, answer
        return answer.json

    def push(self, queue, *payloads, partition=None, ids=None):
        """Pushes payloads in one request; `ids` are their transaction ids."""
        items = []
        for i, payload in enumerate(payloads):
            item = {"queue": queue, "payload": payload}
            if partition is not None:
                item["partition"] = partition
            if ids is not None:
                item["transactionId"] = ids[i]
            items.append(item)
        answer = self.post("/api/v1/push", {"items": items})
        assert answer.status == 201, answer
        return answer.json

    def pop(self, queue, partition=None, **params):
        """The messages of one pop; none is an empty list."""
        answer = self.get(pop_path(queue, partition, **params))
        if answer.status == 204:
            assert answer.body == b"", answer
            return []
        assert answer.status == 200, answer
        return answer.json["messages"]

    def ack(self, messages, status="completed", group=None, **fields):
        """Acks messages in one batch, under their leases."""
        acks = [{**ack_of(message), "status": status, **fields} for message in messages]
        body = {"acknowledgments": acks}
        if group is not None:
            body["consumerGroup"] = group
        answer = self.post("/api/v1/ack/batch", body)
        assert answer.status == 200, answer
        return answer.json


class Connection:
    """One keep-alive connection."""

    def __init__(self, port, timeout=CALL_SECONDS):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def call(self, method, path, body=ABSENT, headers=None, timeout=None):
        headers = dict(headers or {})
        if body is ABSENT:
            data = None
        elif isinstance(body, (bytes, bytearray)):
            data = bytes(body)
        else:
            data = json.dumps(body).encode()
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        if timeout is not None:
            self.http.timeout = timeout
            if self.http.sock is not None:
                self.http.sock.settimeout(timeout)
        self.http.request(method, path, body=data, headers=headers)
        response = self.http.getresponse()
        payload = response.read()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, payload)

    def close(self):
        self.http.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Wire:
    """A bare socket, for requests that no HTTP library would send."""

    def __init__(self, port, timeout=CALL_SECONDS, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def send(self, data):
        self.socket.sendall(data)

    def answer(self):
        """Reads one whole answer; None when the server closed the connection instead."""
        while b"\r\n\r\n" not in self.buffer:
            if not self._more():
                return None
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        while len(self.buffer) < length:
            if not self._more():
                return None
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return Answer(int(status_line.split()[1]), headers, body)

    def _more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return False
        self.buffer += data
        return bool(data)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def request_bytes(method, target, body=b"", headers=()):
    """A request as bytes; `target` goes out exactly as given."""
    if isinstance(target, str):
        target = target.encode()
    lines = [method.encode() + b" " + target + b" HTTP/1.1", b"Host: localhost"]
    lines += [header.encode() for header in headers]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def pop_path(queue, partition=None, **params):
    path = f"/api/v1/pop/queue/{quote(queue, safe='')}"
    if partition is not None:
        path += f"/partition/{quote(partition, safe='')}"
    params = {k: str(v).lower() if isinstance(v, bool) else v for k, v in params.items()}
    return f"{path}?{urlencode(params)}" if params else path


def ack_of(message):
    """What an ack of a popped message says about it."""
    fields = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    if message.get("leaseId"):
        fields["leaseId"] = message["leaseId"]
    return fields


def data_of(messages):
    return [message["data"] for message in messages]


def eventually(check, seconds=10, every=0.05):
    """Waits until `check` returns something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {seconds} s; last seen: {result!r}")
        time.sleep(every)


def parked(server, polls):
    """Waits until at least so many polls wait on the server."""
    eventually(lambda: server.get("/health").json["popWait"]["waiters"] >= polls, seconds=20)


def nobody_parked(server):
    """Waits until the server has noticed that all who waited are gone."""
    eventually(lambda: server.get("/health").json["popWait"]["waiters"] == 0, seconds=20)


class Background:
    """A call that runs beside the test; `result` waits for it."""

    def __init__(self, function, *args, **kwargs):
        self.value = None
        self.failure = None
        self.thread = threading.Thread(target=self._run, args=(function, args, kwargs), daemon=True)
        self.thread.start()

    def _run(self, function, args, kwargs):
        try:
            self.value = function(*args, **kwargs)
        except BaseException as failure:  # handed to the caller of `result`
            self.failure = failure

    def done(self):
        return not self.thread.is_alive()

    def result(self, seconds=CALL_SECONDS):
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"still running after {seconds} s"
        if self.failure is not None:
            raise self.failure
        return self.value
