#!/usr/bin/env python3
"""What a cluster costs and gains, in one run on one machine, with real servers and a throw-away PostgreSQL.

    bench/cluster/measure.py [--rounds N] [--json]

Measured with one request at a time over kept-alive connections, alternating between what is compared, so that a busy
machine slows all of them down alike: a local pop and a local push with the coordinator off, on, and on a server without
peers; a pop and a push that are passed on; and how long a consumer that waits on one server takes to hold a message
that was pushed on another. BATON_BIN names the program.
"""

import argparse
import contextlib
import json
import random
import socket
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests" / part) for part in ("", "cluster")]

import postgres  # noqa: E402
from baton import Server, eventually  # noqa: E402
from nodes import Waiting, busy  # noqa: E402
from ports import free_port  # noqa: E402


class Line:
    """A kept-alive connection that sends prepared bytes and reads one answer."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request):
        self.socket.sendall(request)

    def answer(self):
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.socket.recv(65536)
        head, body = data.split(b"\r\n\r\n", 1)
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        while len(body) < length:
            body += self.socket.recv(65536)
        return head

    def took(self, request):
        began = time.perf_counter()
        self.send(request)
        self.answer()
        return time.perf_counter() - began


def get(path, headers=""):
    return f"GET {path} HTTP/1.1\r\nHost: baton\r\n{headers}\r\n".encode()


def push(queue, partition="Default"):
    item = {"queue": queue, "partition": partition, "payload": {"n": 1}, "transactionId": uuid.uuid4().hex}
    body = json.dumps({"items": [item]})
    return f"POST /api/v1/push HTTP/1.1\r\nHost: baton\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


class Node(Server):
    def __init__(self, directory, name, schema, port, peers, routes):
        cluster = ["--gossip-listen", f"127.0.0.1:{port}", "--peers", ",".join(f"127.0.0.1:{p}" for p in peers)]
        super().__init__(
            directory / name, "--node-id", name, "--store", postgres.shared(), "--store-schema", schema,
            "--coordinator-enabled", str(routes).lower(), *(cluster if peers else []),
        )  # fmt: skip
        self.name = name

    def seen(self, name):
        servers = self.get("/api/v1/cluster").json["servers"]
        return next((one for one in servers if one["server_id"] == name), None)


def alternate(rounds, measured):
    """The times of each of some measurements, taken in turns, each time in another order."""
    times, turns = {name: [] for name in measured}, list(measured.items())
    for number in range(-rounds // 10, rounds):
        random.shuffle(turns)
        for name, measure in turns:
            took = measure()
            if number >= 0:
                times[name].append(took)
    return times


def millis(times):
    ordered = sorted(times)
    return {
        "quarter_ms": round(1000 * ordered[len(ordered) // 4], 3),
        "median_ms": round(1000 * statistics.median(ordered), 3),
        "p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)], 3),
        "samples": len(ordered),
    }


def local_and_forwarded(nodes, rounds):
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    off, on, alone = (Line(nodes[name].port) for name in ("off", "a", "alone"))
    results = {}
    pops = {
        "local pop, coordinator off": lambda: off.took(get(f"/api/v1/pop/queue/{queue}-off")),
        "local pop, coordinator on, no peers": lambda: alone.took(get(f"/api/v1/pop/queue/{queue}-alone")),
        "local pop, coordinator on": lambda: on.took(get(f"/api/v1/pop/queue/{queue}-on")),
    }
    pushes = {
        "local push, coordinator off": lambda: off.took(push(f"{queue}-off")),
        "local push, coordinator on, no peers": lambda: alone.took(push(f"{queue}-alone")),
        "local push, coordinator on": lambda: on.took(push(f"{queue}-on")),
    }
    for measured in (pops, pushes):
        results |= alternate(rounds, measured)

    direct = Line(nodes["b"].port)
    with busy(nodes["a"], nodes["a"]):
        head = on
        head.send(get(f"/api/v1/pop/queue/{queue}-far"))
        assert b"x-served-by: a" not in head.answer()
    measured = {
        "pop at the server that serves it": lambda: direct.took(get(f"/api/v1/pop/queue/{queue}-near")),
        "the same, forwarded to it": lambda: on.took(get(f"/api/v1/pop/queue/{queue}-far")),
    }
    results |= alternate(rounds, measured)
    # Who waits for a partition that nothing is pushed to goes on waiting.
    with Waiting(nodes["b"], f"{queue}-wait/partition/empty", 1, seconds=60):
        eventually(lambda: nodes["a"].seen("b")["waiting_groups"] > 0)
        on.send(push(f"{queue}-wait"))
        assert b"x-served-by: b" in on.answer(), "the push is forwarded"
        measured = {
            "push at the server that stores it": lambda: direct.took(push(f"{queue}-wait")),
            "the same, forwarded": lambda: on.took(push(f"{queue}-wait")),
        }
        results |= alternate(rounds, measured)
    return results


def wake_up(nodes, rounds):
    """From just before the push on one server until the consumer that waits on another holds the message."""
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    stay = "X-Forwarded-By: bench\r\n"
    results = {}
    for name, waits_on, pushed_on, headers in [
        ("wake-up on the same server", "off", "off", ""),
        ("wake-up by a push on another server", "off", "off2", ""),
        ("wake-up by a push that is forwarded", "b", "a", stay),
    ]:
        consumer, producer = Line(nodes[waits_on].port), Line(nodes[pushed_on].port)
        path = f"/api/v1/pop/queue/{queue}-{pushed_on}?wait=true&timeout=20000"
        times = []
        for number in range(rounds):
            consumer.send(get(path, headers))
            time.sleep(0.02)
            began = time.perf_counter()
            # A partition of its own, since nothing is acked.
            producer.send(push(f"{queue}-{pushed_on}", str(number)))
            consumer.answer()
            times.append(time.perf_counter() - began)
            producer.answer()
        results[name] = times[5:]
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    schema = f"measure_{uuid.uuid4().hex[:12]}"
    ports = [free_port() for _ in range(4)]
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        made = {
            "off": Node(Path(directory), "off", schema, ports[0], [ports[1]], False),
            "off2": Node(Path(directory), "off2", schema, ports[1], [ports[0]], False),
            "a": Node(Path(directory), "a", schema, ports[2], [ports[3]], True),
            "b": Node(Path(directory), "b", schema, ports[3], [ports[2]], True),
            "alone": Node(Path(directory), "alone", schema, 0, [], True),
        }
        nodes = {name: stack.enter_context(node) for name, node in made.items()}
        eventually(lambda: (nodes["a"].seen("b") or {}).get("alive") and (nodes["off"].seen("off2") or {}).get("alive"))
        results = wake_up(nodes, args.rounds) | local_and_forwarded(nodes, args.rounds)
    shown = {name: millis(times) for name, times in results.items()}
    if args.json:
        print(json.dumps(shown, indent=2))
        return
    for name, row in shown.items():
        print(f"{name:38} 25% {row['quarter_ms']:7.3f} ms   median {row['median_ms']:7.3f} ms   99% {row['p99_ms']:7.3f} ms")


if __name__ == "__main__":
    main()
