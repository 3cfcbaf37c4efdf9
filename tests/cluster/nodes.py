"""Servers on one PostgreSQL that know each other.

Datagrams and forwarded requests go through links that a test can cut. Times are shorter than usual, so that a test
need not wait for the usual ones. Start at `Cluster`.
"""

import re
import signal
import socket
import uuid
from urllib.parse import urlencode

import pytest

import postgres
from baton import Server, eventually
from links import Gate, Wire
from ports import free_port

# A request with this is served where it arrives.
STAY = {"X-Forwarded-By": "a-test"}

HEARTBEAT_MS = 200
DEAD_AFTER_MS = 1500
TIMEOUT_MS = 1500
CIRCUIT_RETRY_MS = 1000


class Node(Server):
    """One server of a cluster."""

    def __init__(self, directory, name, arguments, gate, environment=None):
        arguments = list(arguments)
        named = () if "--node-id" in arguments else ("--node-id", name)
        super().__init__(directory / name, *named, *arguments, environment=environment)
        self.name = name
        self.gate = gate

    def start(self):
        super().start()
        self.gate.target = self.port
        return self

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def cluster(self):
        return self.get("/api/v1/cluster").json

    def seen(self, name):
        """How this server sees another one."""
        return next((one for one in self.cluster()["servers"] if one["server_id"] == name), None)

    def sees(self, name, alive=True):
        seen = self.seen(name)
        return seen is not None and seen["alive"] == alive

    def metric(self, name, **labels):
        """The sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in self.get("/metrics/prometheus").body.decode().splitlines():
            found = re.match(r"^(\w+)(?:\{(.*)\})? (\S+)$", line)
            if found and found.group(1) == name:
                given = dict(re.findall(r'(\w+)="([^"]*)"', found.group(2) or ""))
                if all(given.get(label) == value for label, value in labels.items()):
                    total += float(found.group(3))
        return total


class Cluster:
    """Some servers, each of which knows the others.

    With `alone` nothing that one says reaches another until `connect`. `of` gives arguments to single servers.
    """

    def __init__(
        self, directory, schema, names="abc", routes=True, extra=(), environment=None, timeout_ms=TIMEOUT_MS,
        alone=False, of=None,
    ):  # fmt: skip
        self.alone = alone
        self.ports = {name: free_port() for name in names}
        self.gates = {name: Gate() for name in names}
        # By sender and receiver.
        self.wires = {(a, b): Wire(self.ports[b]) for a in names for b in names if a != b}
        for wire in self.wires.values():
            wire.cut = alone
        self.nodes = {}
        for name in names:
            peers = [f"127.0.0.1:{self.wires[name, other].port}" for other in names if other != name]
            arguments = [
                "--store", postgres.shared(), "--store-schema", schema,
                "--gossip-listen", f"127.0.0.1:{self.ports[name]}", "--peers", ",".join(peers),
                "--advertise", f"http://127.0.0.1:{self.gates[name].port}",
                "--coordinator-enabled", str(routes).lower(), "--pop-creates-queue", "true",
                "--gossip-heartbeat-ms", HEARTBEAT_MS, "--gossip-dead-after-ms", DEAD_AFTER_MS,
                "--coordinator-timeout-ms", timeout_ms, "--coordinator-circuit-retry-ms", CIRCUIT_RETRY_MS,
                *extra, *(of or {}).get(name, ()),
            ]  # fmt: skip
            self.nodes[name] = Node(directory, name, map(str, arguments), self.gates[name], environment)

    def __getitem__(self, name):
        return self.nodes[name]

    def start(self):
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.await_listening()
            node.gate.target = node.port
        if not self.alone:
            self.await_all()
        return self

    def connect(self):
        """Lets datagrams through between all servers."""
        for wire in self.wires.values():
            wire.cut = False

    def await_all(self):
        """Waits until every server sees every other one."""
        for node in self.nodes.values():
            for other in self.nodes:
                if other != node.name:
                    eventually(lambda: node.sees(other), seconds=30)

    def cut(self, name):
        """Cuts a server off from the others."""
        self._set(name, True)

    def heal(self, name):
        self._set(name, False)

    def _set(self, name, cut):
        self.gates[name].mode = "cut" if cut else "pass"
        for pair, wire in self.wires.items():
            if name in pair:
                wire.cut = cut

    def stop(self):
        for node in self.nodes.values():
            if node.running():
                node.resume()
                node.kill()
        for link in [*self.gates.values(), *self.wires.values()]:
            link.close()
        for node in self.nodes.values():
            assert "panicked" not in node.text(), node.text()


class Waiting:
    """Pops that wait on a server, to make it busy or to be there for a queue."""

    def __init__(self, node, queue, count, group="waiting", seconds=60):
        query = urlencode({"wait": "true", "timeout": seconds * 1000, "consumerGroup": group, "subscriptionMode": "new"})
        head = f"GET /api/v1/pop/queue/{queue}?{query} HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-By: a-test\r\n\r\n"
        self.sockets = []
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", node.port))
            connection.sendall(head.encode())
            self.sockets.append(connection)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.sockets:
            connection.close()


def busy(node, of):
    """Makes a server so busy that the others, as `of` sees them, are better by far; use it in a `with`."""
    waiting = Waiting(node, "busy", 180)

    def is_busy():
        seen = of.seen(node.name)
        return seen is not None and seen["load_score"] > 0.2

    eventually(is_busy, seconds=60)
    return waiting


@pytest.fixture
def cluster(tmp_path):
    """Makes clusters of a test's own, and ends them with the test."""
    made = []

    def make(*args, **options):
        schema = f"cluster_{uuid.uuid4().hex[:16]}"
        made.append(Cluster(tmp_path, schema, *args, **options))
        return made[-1].start()

    yield make
    for one in made:
        one.stop()
