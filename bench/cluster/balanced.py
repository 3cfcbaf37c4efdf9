#!/usr/bin/env python3
"""Three servers behind a plain balancer beside one: producers push to ten queues per call, consumers wait on all servers.

    bench/cluster/balanced.py [--seconds N] [--json]

Every client sends its requests to the servers in turn, as a round-robin balancer would. The same load goes to one server, to
three that know each other, and to three without peers, each on a schema of its own of a throw-away PostgreSQL.
BATON_BIN names the program.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import re
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests" / part) for part in ("", "cluster")]

import postgres  # noqa: E402
from baton import Server, eventually  # noqa: E402
from ports import free_port  # noqa: E402

QUEUES = 10
PRODUCERS = 6
CONSUMERS = 30
PAUSE_S = 0.05


class Balancer:
    """One client's kept-alive connections, used in turn."""

    def __init__(self, ports, first):
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for port in ports]
        first %= len(ports)
        self.turns = itertools.cycle(connections[first:] + connections[:first])

    def call(self, method, path, body=None):
        connection = next(self.turns)
        connection.request(method, path, body)
        answer = connection.getresponse()
        read = answer.read()
        return answer.status, json.loads(read) if read else None


class Load:
    def __init__(self, ports):
        self.ports, self.stop = ports, threading.Event()
        self.pushes, self.deliveries, self.refused = [], [], []

    def produce(self, number):
        client = Balancer(self.ports, number)
        while not self.stop.is_set():
            began = time.perf_counter()
            items = [
                {"queue": f"q{index}", "payload": began, "transactionId": uuid.uuid4().hex} for index in range(QUEUES)
            ]
            status, _ = client.call("POST", "/api/v1/push", json.dumps({"items": items}))
            (self.pushes if status < 300 else self.refused).append(time.perf_counter() - began)
            time.sleep(PAUSE_S)

    def consume(self, number):
        client = Balancer(self.ports, number)
        path = f"/api/v1/pop/queue/q{number % QUEUES}?consumerGroup=g&batch=100&wait=true&timeout=2000&autoAck=true"
        while not self.stop.is_set():
            status, answer = client.call("GET", path)
            if status >= 300:
                self.refused.append(status)
            for message in (answer or {}).get("messages", []):
                self.deliveries.append(time.perf_counter() - message["data"])

    def run(self, seconds):
        work = [(self.consume, number) for number in range(CONSUMERS)] + [(self.produce, n) for n in range(PRODUCERS)]
        threads = [threading.Thread(target=target, args=(number,), daemon=True) for target, number in work]
        for thread in threads:
            thread.start()
        time.sleep(3)
        # What came while connections were made and queues were created does not count.
        self.pushes, self.deliveries, self.refused = [], [], []
        time.sleep(seconds)
        pushes, deliveries, refused = self.pushes, self.deliveries, self.refused
        self.stop.set()
        for thread in threads:
            thread.join(10)
        return {
            "messages_per_s": round(len(deliveries) / seconds, 1),
            "push_p50_ms": percentile(pushes, 0.5),
            "push_p99_ms": percentile(pushes, 0.99),
            "delivery_p50_ms": percentile(deliveries, 0.5),
            "delivery_p99_ms": percentile(deliveries, 0.99),
            "refused": len(refused),
        }


def percentile(times, part):
    return round(1000 * sorted(times)[int(len(times) * part)], 1) if times else None


def counted(servers, name):
    pages = [server.get("/metrics/prometheus").body.decode() for server in servers]
    return sum(int(re.search(rf"^{name} (\d+)", page, re.M)[1]) for page in pages)


def measure(directory, count, peers, seconds):
    schema = f"balanced_{uuid.uuid4().hex[:12]}"
    gossip = [free_port() for _ in range(count)]
    with contextlib.ExitStack() as stack:
        servers = []
        for index, port in enumerate(gossip):
            known = ",".join(f"127.0.0.1:{other}" for other in gossip)
            cluster = ["--gossip-listen", f"127.0.0.1:{port}", "--peers", known, "--coordinator-enabled", "true"]
            server = Server(
                Path(directory) / f"{schema}-{index}", "--node-id", f"n{index}", "--store", postgres.shared(),
                "--store-schema", schema, *(cluster if peers else []),
            )  # fmt: skip
            servers.append(stack.enter_context(server))
        if peers:
            seen = lambda server: server.get("/api/v1/cluster").json["servers"]  # noqa: E731
            eventually(lambda: all(sum(one["alive"] for one in seen(server)) == count for server in servers))
        result = Load([server.port for server in servers]).run(seconds)
        result["deadlocks"] = counted(servers, "baton_store_deadlocks_total")
        result["repeats"] = counted(servers, "baton_store_repeats_total")
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each of them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = {
            "one server": measure(directory, 1, False, args.seconds),
            "three that know each other": measure(directory, 3, True, args.seconds),
            "three without peers": measure(directory, 3, False, args.seconds),
        }
    if args.json:
        for name, row in results.items():
            print(json.dumps({"scenario": "balanced", "servers": name, "seconds": args.seconds, **row}))
        return
    for name, row in results.items():
        print(f"{name:28}", "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
