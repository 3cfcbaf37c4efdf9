"""Stopping, starting again, and the data directory in between."""

import threading
import time

import pytest

from baton import Background, Connection, Refused, Server, data_of, eventually, parked, pop_path


@pytest.fixture
def stopping(tmp_path):
    with Server(tmp_path / "data") as server:
        yield server


def park(server, queue):
    """A long poll that waits, on a connection of its own."""
    connection = Connection(server.port)
    connection.http.connect()
    return Background(connection.call, "GET", pop_path(queue, wait=True, timeout=60000))


def test_a_parked_poll_is_answered_when_the_server_stops(stopping):
    polls = [park(stopping, f"quiet-{i % 5}") for i in range(50)]
    parked(stopping, 50)
    assert not any(poll.done() for poll in polls)
    started = time.monotonic()
    assert stopping.stop() == 0
    assert time.monotonic() - started < 15
    for poll in polls:
        assert poll.result().status in (204, 503)


def test_a_stopping_server_finishes_what_it_accepted(stopping):
    """Pushes go on while the server stops: every one that was accepted is there after the restart."""
    accepted = {i: [] for i in range(4)}
    begun = threading.Barrier(5)

    def produce(number):
        with Connection(stopping.port) as connection:
            begun.wait()
            for count in range(100_000):
                item = {"queue": "orders", "partition": f"p{number}", "payload": [number, count]}
                try:
                    answer = connection.call("POST", "/api/v1/push", {"items": [item]})
                except Exception:
                    return
                if answer.status != 201:
                    assert answer.status == 503, answer
                    return
                accepted[number].append([number, count])

    producers = [Background(produce, number) for number in range(4)]
    begun.wait()
    eventually(lambda: min(len(payloads) for payloads in accepted.values()) >= 20, every=0.01)
    assert stopping.stop() == 0
    for producer in producers:
        producer.result()

    stopping.start()
    for number, payloads in accepted.items():
        delivered = data_of(stopping.pop("orders", f"p{number}", batch=10000))
        assert delivered[: len(payloads)] == payloads
        assert len(delivered) <= len(payloads) + 1, "at most the one push whose answer was cut off"


def test_everything_is_as_it_was_after_a_restart(stopping):
    stopping.configure("orders", labels={"namespace": "billing", "task": "invoice"}, leaseTime=60, retryLimit=1)
    stopping.push("orders", *range(6), partition="p", ids=[f"t{i}" for i in range(6)])
    first = stopping.pop("orders", batch=6, consumerGroup="g")
    stopping.ack(first[:2], group="g")
    stopping.ack(first[2:3], status="dlq", group="g", error="no such customer")
    # A dead letter ends the lease; the rest is leased again.
    rest = stopping.pop("orders", batch=6, consumerGroup="g")
    stopping.pop("orders", batch=6, consumerGroup="late", subscriptionMode="new")

    assert stopping.stop() == 0
    stopping.start()

    options = stopping.get("/api/v1/resources/queues/orders").json
    assert (options["namespace"], options["task"]) == ("billing", "invoice")
    assert options["options"]["leaseTime"] == 60
    again = stopping.push("orders", "repeated", partition="p", ids=["t3"])
    assert again[0]["status"] == "duplicate"
    assert stopping.pop("orders", batch=6, consumerGroup="g") == [], "the lease is still held"
    assert [result["success"] for result in stopping.ack(rest, group="g")] == [True] * 3
    assert stopping.pop("orders", batch=6, consumerGroup="g") == []
    dead = stopping.get("/api/v1/dlq?queue=orders").json["messages"]
    assert [(letter["transactionId"], letter["errorMessage"]) for letter in dead] == [("t2", "no such customer")]
    stopping.push("orders", "fresh", partition="p")
    assert data_of(stopping.pop("orders", batch=6, consumerGroup="late")) == ["fresh"]
    assert data_of(stopping.pop("orders", batch=10, consumerGroup="other")) == [*range(6), "fresh"]


def test_a_second_server_on_the_same_directory_is_refused(stopping):
    stopping.push("orders", "kept")
    with pytest.raises(Refused) as refused:
        Server(stopping.data).start()
    assert refused.value.code not in (0, None)
    text = refused.value.output.lower()
    assert "panicked" not in text
    assert str(stopping.data).lower() in text
    assert any(word in text for word in ("in use", "lock", "another", "already")), text
    assert data_of(stopping.pop("orders")) == ["kept"]


def test_a_killed_server_leaves_no_lock_behind(stopping):
    stopping.push("orders", "kept")
    stopping.kill()
    stopping.start()
    assert data_of(stopping.pop("orders")) == ["kept"]


def test_a_data_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(Refused) as refused:
        Server(tmp_path / "data").start()
    assert refused.value.code not in (0, None)
    assert "panicked" not in refused.value.output
    assert "data" in refused.value.output
    assert (tmp_path / "data").read_text() == "not a directory"


def test_an_address_that_is_taken_is_refused(stopping, tmp_path):
    with pytest.raises(Refused) as refused:
        Server(tmp_path / "other", listen=f"127.0.0.1:{stopping.port}").start()
    assert refused.value.code not in (0, None)
    assert str(stopping.port) in refused.value.output
    assert "panicked" not in refused.value.output
