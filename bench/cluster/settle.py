#!/usr/bin/env python3
"""Whether a cluster comes to rest: three real servers under a steady, skewed load, and when a key last moved.

    bench/cluster/settle.py [--seconds N] [--pinned] [--json]

Producers and consumers of many queues, a few of which have most of the traffic, never rest; most of them talk to the
first server, which therefore has to give keys away. Every second each server is asked where it sends which key. Ends
with 1 if a key was moved after 30 seconds of that load, or more than twice. With --pinned the first server is also kept
busy for good by requests that it must serve itself, so that every key should leave it. BATON_BIN names the program.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
import uuid
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests" / part) for part in ("", "cluster")]

import postgres  # noqa: E402
from baton import Server, eventually  # noqa: E402
from ports import free_port  # noqa: E402

NAMES = "abc"
# Through which server a consumer polls.
SHARES = {"a": 0.7, "b": 0.2, "c": 0.1}
KEYS = 40
CONSUMERS = 200
POLL_MS = 1500
PRODUCERS = 200
# Consumers that wait on the first server, whatever it does.
PINNED = 260
# A load comes to rest within this.
REST_SECONDS = 30
MOVES_MAX = 2


# A request with this is served where it arrives.
STAY = "X-Forwarded-By: bench\r\n"


def push(queue, partition, headers):
    item = {"queue": queue, "partition": str(partition), "payload": 1, "transactionId": uuid.uuid4().hex}
    body = json.dumps({"items": [item]})
    return f"POST /api/v1/push HTTP/1.1\r\nHost: baton\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()


class Load(threading.Thread):
    """Consumers that poll until they are stopped."""

    def __init__(self, nodes, pinned):
        super().__init__(daemon=True)
        self.nodes, self.pinned = nodes, pinned
        self.stopping = threading.Event()
        self.answers = 0

    def run(self):
        asyncio.run(self._all())

    async def _all(self):
        dice = random.Random(1)
        # A few queues have most of the traffic.
        weights = [1 / (number + 1) for number in range(KEYS)]
        stay = STAY if self.pinned else ""
        tasks = []
        for number in range(CONSUMERS + PRODUCERS):
            key, = dice.choices(range(KEYS), weights)
            through, = dice.choices(list(SHARES), list(SHARES.values()))
            if number < CONSUMERS:
                tasks.append(self._poll(through, f"steady-{key}", f"group-{key}", ""))
            else:
                through = "a" if self.pinned else through
                queue = "pinned" if self.pinned else f"steady-{key}"
                tasks.append(self._repeat(through, partial(push, queue, number % 16, stay)))
        if self.pinned:
            tasks += [self._poll("a", "waiting", f"pinned-{number % 8}", stay) for number in range(PINNED)]
        await asyncio.gather(*tasks)

    def _poll(self, through, queue, group, headers):
        query = f"wait=true&timeout={POLL_MS}&batch=100&autoAck=true&consumerGroup={group}&subscriptionMode=new"
        request = f"GET /api/v1/pop/queue/{queue}?{query} HTTP/1.1\r\nHost: baton\r\n{headers}\r\n".encode()
        return self._repeat(through, lambda: request)

    async def _repeat(self, through, request):
        await asyncio.sleep(random.random() * POLL_MS / 1000)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.nodes[through].port)
        while not self.stopping.is_set():
            writer.write(request())
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            if length:
                await reader.readexactly(int(length[0]))
            self.answers += 1
        writer.close()


def observe(nodes, seconds):
    """Where each server sent each key, second by second: {(server, key): [(when, to), …]}, changes only, and loads."""
    places, loads = collections.defaultdict(list), []
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        for name, node in nodes.items():
            seen = node.get("/api/v1/cluster").json
            for one in seen["affinities"]["busiest"]:
                places_of = places[name, one["key"]]
                if not places_of or places_of[-1][1] != one["server_id"]:
                    places_of.append((round(now, 1), one["server_id"]))
            if name == "a":
                loads.append({one["server_id"]: one["load_score"] for one in seen["servers"]})
        time.sleep(max(0, 1 - (time.monotonic() - began - now)))
    return places, loads


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    schema = f"settle_{uuid.uuid4().hex[:12]}"
    ports = {name: free_port() for name in NAMES}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        nodes = {}
        for name in NAMES:
            peers = ",".join(f"127.0.0.1:{ports[other]}" for other in NAMES if other != name)
            node = Server(
                Path(directory) / name, "--node-id", name, "--store", postgres.shared(), "--store-schema", schema,
                "--coordinator-enabled", "true", "--gossip-listen", f"127.0.0.1:{ports[name]}", "--peers", peers,
            )  # fmt: skip
            nodes[name] = stack.enter_context(node)
        for node in nodes.values():
            eventually(lambda: sum(one["alive"] for one in node.get("/api/v1/cluster").json["servers"]) == 3, seconds=30)
        load = Load(nodes, args.pinned)
        load.start()
        places, loads = observe(nodes, args.seconds)
        load.stopping.set()
        load.join(POLL_MS / 1000 + 5)
        answers = load.answers
    moves = {key: where[1:] for key, where in places.items() if len(where) > 1}
    last = max((when for where in moves.values() for when, _ in where), default=0.0)
    most = max((len(where) for where in moves.values()), default=0)
    result = {
        "seconds": args.seconds,
        "answers_a_second": round(answers / args.seconds),
        "keys_seen": len({key for _, key in places}),
        "moves": sum(map(len, moves.values())),
        "moves_by_ten_seconds": dict(sorted(collections.Counter(int(when // 10) * 10 for where in moves.values() for when, _ in where).items())),
        "last_move_after_seconds": last,
        "most_moves_of_one_key": most,
        "highest_load_of_a": max(one.get("a", 0) for one in loads),
        "load_every_ten_seconds": loads[::10],
    }
    print(json.dumps(result, indent=2) if args.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    sys.exit(last > REST_SECONDS or most > MOVES_MAX)


if __name__ == "__main__":
    main()
