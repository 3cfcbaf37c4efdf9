"""Datagrams of strangers: recorded, forged, and many of them."""

import os
import socket

from baton import eventually
from watch import MIB, Watch

# Of a server that keeps nothing of what it refuses.
GROWTH_MAX = 64 * MIB
FLOOD = 20_000


def recording(wire):
    """A list of all datagrams that the wire carries from now on."""
    heard, outlet = [], wire.outlet

    class Tapped:
        def sendto(self, data, address):
            heard.append(data)
            return outlet.sendto(data, address)

        def close(self):
            outlet.close()

    wire.outlet = Tapped()
    return heard


def test_a_recording_of_a_server_does_not_speak_for_it_to_one_that_has_just_started(cluster):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    heard = recording(nodes.wires["b", "a"])
    eventually(lambda: len(heard) >= 5)
    b.kill()
    recorded = list(heard)
    assert a.stop() == 0
    a.start()
    rejected = lambda reason: a.metric("baton_cluster_datagrams_rejected_total", reason=reason)
    to = ("127.0.0.1", nodes.ports["a"])
    with Watch(a) as watch, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as elsewhere:
        elsewhere.bind(("127.0.0.2", 0))
        for datagram in recorded:
            elsewhere.sendto(datagram, to)
        eventually(lambda: rejected("source") >= len(recorded))
        assert a.seen("b") is None, "nothing that is not from a peer is even looked at"
    watch.check(GROWTH_MAX, times=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as neighbour:
        for datagram in recorded:
            neighbour.sendto(datagram, to)
        eventually(lambda: rejected("unproven") >= 1)
        assert not a.sees("b"), a.seen("b")
    assert "its sender is not among the peers" in a.text()
    b.start()
    eventually(lambda: a.sees("b") and b.sees("a"), seconds=30)


def test_strangers_are_not_believed(cluster):
    nodes = cluster("ab")
    a = nodes["a"]
    heard = recording(nodes.wires["b", "a"])
    eventually(lambda: len(heard) >= 3)
    rejected = lambda reason: a.metric("baton_cluster_datagrams_rejected_total", reason=reason)
    before = rejected("replayed")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        to = ("127.0.0.1", nodes.ports["a"])
        stranger.sendto(b"", to)
        stranger.sendto(os.urandom(1400), to)
        stranger.sendto(heard[0], to)
        stranger.sendto(heard[-1][:-1] + bytes([heard[-1][-1] ^ 1]), to)
        eventually(lambda: rejected("malformed") >= 1 and rejected("forged") >= 1 and rejected("replayed") > before)
    assert a.sees("b")


def test_a_flood_of_datagrams_holds_up_nothing(cluster):
    nodes = cluster("ab")
    a = nodes["a"]
    heard = recording(nodes.wires["b", "a"])
    eventually(lambda: len(heard) >= 3)
    with Watch(a) as watch, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for number in range(FLOOD):
            stranger.sendto((os.urandom(1400), heard[number % 3])[number % 2], ("127.0.0.1", nodes.ports["a"]))
    watch.check(GROWTH_MAX, times=1)
    assert a.sees("b")
