"""The twin of worker.mjs in Python, with pyzmq: registers, reads one assignment, and from then on only beats."""

import json
import signal
import sys
import time

import zmq

address, service, worker, count, beat_ms = sys.argv[1:]
socket = zmq.Context().socket(zmq.DEALER)
socket.linger = 0
socket.connect(address)


def send(kind, **data):
    said = {"serviceName": service, "workerId": worker, "maxShardCount": int(count), **data}
    # Without the spaces that Python puts in, as JSON.stringify has it.
    socket.send(json.dumps({"type": kind, "data": said}, separators=(",", ":")).encode())


signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
send("register")
message = {"type": None}
while message["type"] != "assignment":
    message = socket.recv_json()
shards = message["data"]["assignedShards"]
print(json.dumps(shards), flush=True)
while True:
    time.sleep(int(beat_ms) / 1000)
    send("heartbeat", assignedShards=shards)
