"""GET and POST /api/v1/system/maintenance and /maintenance/pop, and what the modes do to pushes and pops"""

import http.client
import threading
import time

import pytest

from baton import Background, Server, ack_of, data_of, eventually

PUSH = "/api/v1/system/maintenance"
POP = "/api/v1/system/maintenance/pop"


@pytest.fixture
def own(tmp_path):
    """A server of the test's own: the modes concern everybody."""
    with Server(tmp_path / "data") as server:
        yield server
        assert "panicked" not in server.text(), server.text()


def switch(server, path, on):
    answer = server.post(path, {"enabled": on})
    assert answer.status == 200, answer
    return answer.json


def drained(server):
    state = server.get(PUSH).json
    return not state["draining"] and state["bufferedMessages"] == 0


def test_the_answers_have_the_words_that_tools_look_for(own):
    assert switch(own, PUSH, True) == {
        "maintenanceMode": True,
        "bufferedMessages": 0,
        "bufferHealthy": True,
        "message": "Maintenance mode ENABLED. All PUSHes routing to file buffer.",
    }
    assert switch(own, PUSH, False) == {
        "maintenanceMode": False,
        "bufferedMessages": 0,
        "bufferHealthy": True,
        "message": "Maintenance mode DISABLED. Background processor will drain buffer to DB.",
    }
    assert own.get(POP).json == {
        "popMaintenanceMode": False,
        "message": "Pop maintenance mode is OFF. Normal operation.",
    }
    assert switch(own, POP, True) == {
        "popMaintenanceMode": True,
        "message": "Pop maintenance mode ENABLED. All POP operations will return empty arrays.",
    }
    assert own.get(POP).json == {
        "popMaintenanceMode": True,
        "message": "Pop maintenance mode is ON. All POP operations return empty arrays.",
    }
    assert switch(own, POP, False) == {
        "popMaintenanceMode": False,
        "message": "Pop maintenance mode DISABLED. Normal operation resumed.",
    }


@pytest.mark.parametrize("path", [PUSH, POP])
@pytest.mark.parametrize("body", [{}, {"enabled": "true"}, {"enabled": 1}, {"enabled": None}, []])
def test_a_switch_must_say_on_or_off(server, path, body):
    answer = server.post(path, body)
    assert (answer.status, answer.error) == (400, "enabled (boolean) is required")


def test_a_spooled_push_is_answered_buffered_and_hidden_until_the_mode_ends(own, queue):
    own.push(queue, "before", partition="p")
    switch(own, PUSH, True)
    items = [
        {"queue": queue, "partition": "p", "payload": 1, "transactionId": "t1"},
        {"queue": queue, "partition": "other", "payload": 2},
    ]
    answer = own.post("/api/v1/push", {"items": items})
    assert answer.status == 201
    first, second = answer.json
    assert {"status": "buffered", "queue": queue, "partition": "p", "transactionId": "t1"}.items() <= first.items()
    assert second["status"] == "buffered" and "transactionId" not in second and "message_id" not in second
    assert own.pop(queue, batch=10, partitions=10)[0]["data"] == "before"
    assert own.pop(queue, batch=10, partitions=10) == [], "the rest waits"

    state = own.get(PUSH).json
    assert state["maintenanceMode"] is True and state["popMaintenanceMode"] is False
    assert (state["bufferedMessages"], state["bufferStats"]["pendingCount"]) == (2, 2)
    assert state["bufferHealthy"] is True and state["bufferStats"]["dbHealthy"] is True
    assert set(state["bufferStats"]) == {"pendingCount", "failedCount", "dbHealthy", "failedFiles"}
    buffers = own.get("/api/v1/status/buffers").json
    assert {"pending": 2, "failed": 0, "dbHealthy": True}.items() <= buffers.items() and "worker" in buffers
    names = [row["name"] for row in own.get("/api/v1/resources/queues").json["queues"]]
    assert names == [queue], "the spool shows nowhere"
    assert own.get("/api/v1/resources/overview").json["messages"]["total"] == 1

    assert switch(own, PUSH, False)["maintenanceMode"] is False
    eventually(lambda: drained(own))
    assert data_of(own.pop(queue, "other", batch=10)) == [2]
    assert [row["name"] for row in own.get("/api/v1/resources/queues").json["queues"]] == [queue]
    assert own.push(queue, 3)[0]["status"] == "queued"


def test_the_spool_wakes_pops_that_wait(own, queue):
    switch(own, PUSH, True)
    own.push(queue, 1)
    waiting = Background(own.pop, queue, wait=True, timeout=20000)
    eventually(lambda: own.get("/health").json["popWait"]["waiters"] == 1)
    switch(own, PUSH, False)
    assert data_of(waiting.result()) == [1]


def test_a_transaction_id_is_stored_once_whether_spooled_or_not(own, queue):
    assert own.push(queue, "first", ids=["a"])[0]["status"] == "queued"
    switch(own, PUSH, True)
    own.push(queue, "again", "new", "twice", ids=["a", "b", "b"])
    own.push(queue, "third time", ids=["b"])
    switch(own, PUSH, False)
    eventually(lambda: drained(own))
    assert data_of(own.pop(queue, batch=10)) == ["first", "new"]


def test_what_comes_later_waits_behind_what_is_spooled_for_its_partition(own, queue):
    """Pushes keep coming in order while the mode goes on and off; the order of the partition is theirs."""
    sent, statuses = 0, set()
    for round in range(6):
        switch(own, PUSH, round % 2 == 0)
        for _ in range(20):
            statuses.add(own.push(queue, sent, partition="p")[0]["status"])
            sent += 1
    switch(own, PUSH, False)
    eventually(lambda: drained(own))
    statuses.add(own.push(queue, sent, partition="p")[0]["status"])
    assert statuses == {"queued", "buffered"}
    assert data_of(own.pop(queue, "p", batch=1000)) == list(range(sent + 1))


def test_transactions_go_on_but_not_past_what_is_spooled(own, queue):
    own.push(queue, "in")
    (message,) = own.pop(queue)
    switch(own, PUSH, True)
    own.push(f"{queue}-out", "spooled", partition="p")
    operations = [
        {"type": "ack", **ack_of(message)},
        {"type": "push", "items": [{"queue": f"{queue}-out", "partition": "p", "payload": "behind"}]},
        {"type": "push", "items": [{"queue": f"{queue}-out", "partition": "free", "payload": "at once"}]},
    ]
    answer = own.post("/api/v1/transaction", {"operations": operations}).json
    assert answer["success"] is True, answer
    assert answer["results"][1]["status"] == "buffered" and answer["results"][2]["messageId"]
    assert data_of(own.pop(f"{queue}-out", batch=10, partitions=10)) == ["at once"]
    switch(own, PUSH, False)
    eventually(lambda: drained(own))
    assert data_of(own.pop(f"{queue}-out", "p", batch=10)) == ["spooled", "behind"]


def test_a_full_queue_keeps_its_messages_in_the_spool_until_there_is_room(own, queue):
    own.configure(queue, maxSize=2)
    switch(own, PUSH, True)
    for payload in range(2):
        own.push(queue, payload, partition=str(payload))
    own.push(queue, 2, partition="0")
    own.push(f"{queue}-other", "free")
    switch(own, PUSH, False)
    eventually(lambda: own.get(PUSH).json["bufferedMessages"] <= 2)
    assert data_of(eventually(lambda: own.pop(f"{queue}-other", autoAck=True))) == ["free"]
    seen = []

    def all_seen():
        seen.extend(data_of(own.pop(queue, batch=10, partitions=10, autoAck=True)))
        return len(seen) == 3

    eventually(all_seen, seconds=20)
    assert sorted(seen) == [0, 1, 2] and seen.index(0) < seen.index(2)
    eventually(lambda: drained(own))


def test_what_is_spooled_for_a_queue_goes_with_it(own, queue):
    switch(own, PUSH, True)
    for name in ("deleted", "cleared", "kept"):
        for partition in ("p", "r"):
            own.push(f"{queue}-{name}", name, partition=partition)
    own.configure(f"{queue}-cleared")
    own.delete(f"/api/v1/resources/queues/{queue}-deleted")
    assert own.delete(f"/api/v1/queues/{queue}-cleared/clear?partition=p").status == 200
    assert own.get(PUSH).json["bufferedMessages"] == 3
    switch(own, PUSH, False)
    eventually(lambda: drained(own))
    assert own.get(f"/api/v1/resources/queues/{queue}-deleted").status == 404
    assert own.pop(f"{queue}-cleared", "p") == [] and data_of(own.pop(f"{queue}-cleared", "r")) == ["cleared"]
    assert data_of(own.pop(f"{queue}-kept", batch=9, partitions=9)) == ["kept", "kept"]


def test_both_modes_and_the_spool_survive_a_restart(own, queue):
    switch(own, PUSH, True)
    switch(own, POP, True)
    own.push(queue, 1, 2)
    assert own.stop() == 0
    own.start()
    state = own.get(PUSH).json
    assert (state["maintenanceMode"], state["popMaintenanceMode"], state["bufferedMessages"]) == (True, True, 2)
    assert own.push(queue, 3)[0]["status"] == "buffered"
    assert own.pop(queue, wait=True, timeout=20000) == []
    switch(own, POP, False)
    switch(own, PUSH, False)
    eventually(lambda: drained(own))
    assert data_of(own.pop(queue, batch=10)) == [1, 2, 3]


def test_a_kill_in_the_middle_of_draining_loses_and_doubles_nothing(own, queue, rng):
    """The spool is larger than one step of draining; rounds go on until a kill came between two steps."""
    partitions, each = [f"p{i}" for i in range(8)], 300
    for round in range(20):
        name = f"{queue}-{round}"
        left_at_kills = drain_over_kills(own, name, partitions, each, rng)
        for partition in partitions:
            seen = data_of(own.pop(name, partition, batch=1000))
            assert [message["n"] for message in seen] == list(range(each))
        if any(0 < left < len(partitions) * each for left in left_at_kills):
            return
    raise AssertionError("no kill came in the middle of draining")


def drain_over_kills(server, queue, partitions, each, rng):
    """Spools messages and drains them, killing the server meanwhile; how many were left at each kill."""
    switch(server, PUSH, True)
    for start in range(0, each, 100):
        for partition in partitions:
            payloads = [{"n": n, "pad": "x" * 4000} for n in range(start, start + 100)]
            server.push(queue, *payloads, partition=partition)
    assert server.get(PUSH).json["bufferedMessages"] == len(partitions) * each
    switch(server, PUSH, False)
    left_at_kills = []
    while not drained(server):
        left_at_kills.append(server.get(PUSH).json["bufferedMessages"])
        server.kill()
        server.start()
        assert len(left_at_kills) < 200, "it gets on between the kills"
        time.sleep(rng.uniform(0, 0.1))
    return left_at_kills


def test_while_pops_are_stopped_each_answers_empty_at_once_and_acks_go_on(own, queue):
    own.push(queue, 1, 2)
    (message,) = own.pop(queue)
    switch(own, POP, True)
    started = time.monotonic()
    assert own.pop(queue, wait=True, timeout=20000) == []
    assert own.pop(queue, autoAck=True) == []
    assert own.pop(queue, "Default") == []
    assert time.monotonic() - started < 10
    assert own.ack([message])[0]["success"] is True
    switch(own, POP, False)
    assert data_of(own.pop(queue)) == [2]


def test_pops_that_wait_are_answered_when_pops_are_stopped(own, queue):
    waiting = [Background(own.pop, f"{queue}-{i}", wait=True, timeout=25000) for i in range(5)]
    eventually(lambda: own.get("/health").json["popWait"]["waiters"] == 5)
    switch(own, POP, True)
    assert [pop.result(10) for pop in waiting] == [[]] * 5


def test_nobody_can_reach_the_spool_by_its_name(own, queue):
    switch(own, PUSH, True)
    own.push(queue, 1)
    spool = "__baton_spool__"
    assert own.post("/api/v1/push", {"items": [{"queue": spool, "payload": 1}]}).status == 400
    assert own.post("/api/v1/configure", {"queue": spool}).status == 400
    assert own.get(f"/api/v1/pop/queue/{spool}?autoAck=true").status == 400
    assert own.get(f"/api/v1/resources/queues/{spool}").status == 404
    assert own.delete(f"/api/v1/queues/{spool}/clear").status == 404
    assert own.delete(f"/api/v1/resources/queues/{spool}").json["existed"] is False
    seek = own.post(f"/api/v1/consumer-groups/g/queues/{spool}/seek", {"toEnd": True})
    assert seek.status == 404
    assert own.get("/api/v1/pop?namespace=&task=").status == 400
    assert own.get(PUSH).json["bufferedMessages"] == 1


@pytest.mark.parametrize(
    "path",
    ["/api/v1/system/shared-state", "/internal/api/shared-state/stats", "/internal/api/inter-instance/stats"],
)
def test_a_server_that_is_alone_shares_nothing(server, path):
    body = server.get(path).json
    assert set(body) == {
        "enabled", "running", "server_id", "transport", "queue_config_cache", "server_health",
        "maintenance_mode", "pop_maintenance_mode", "local_sidecars", "group_backoff",
    }  # fmt: skip
    assert (body["enabled"], body["maintenance_mode"], body["pop_maintenance_mode"]) == (False, False, False)
    assert set(body["queue_config_cache"]) == {"size", "hits", "misses", "hit_rate"}
    assert body["server_health"]["servers_dead"] == 0


def test_a_notice_is_taken_for_any_queue_and_must_name_one(server, queue):
    for body in ({"queue": queue}, {"queue": queue, "partition": "p"}):
        answer = server.post("/internal/api/notify", body)
        assert (answer.status, answer.json) == (200, {"status": "ok"})
    answer = server.post("/internal/api/notify", {"partition": "p"})
    assert (answer.status, answer.error) == (400, "queue is required")


def test_order_holds_for_many_producers_while_the_mode_flips_and_the_server_is_killed(own, queue, rng):
    """Each producer repeats what was not answered, under the same id; so each message is there once, and in order."""
    stop, statuses = threading.Event(), [[] for _ in range(4)]

    def produce(producer):
        n = 0
        while not stop.is_set():
            item = {"queue": queue, "partition": f"p{producer}", "payload": n, "transactionId": f"{producer}-{n}"}
            try:
                answer = own.post("/api/v1/push", {"items": [item]})
            except (OSError, http.client.HTTPException):
                continue
            assert answer.status == 201, answer
            statuses[producer].append(answer.json[0]["status"])
            n += 1
        return n

    producers = [Background(produce, producer) for producer in range(len(statuses))]
    for round in range(12):
        switch(own, PUSH, round % 2 == 0)
        time.sleep(rng.uniform(0, 0.3))
        if round % 3 == 2:
            own.kill()
            own.start()
    time.sleep(0.2)
    stop.set()
    sent = [producer.result() for producer in producers]
    switch(own, PUSH, False)
    eventually(lambda: drained(own), seconds=30)
    for producer, count in enumerate(sent):
        assert {"queued", "buffered"} <= set(statuses[producer]), "both ways were taken"
        seen = []
        while batch := own.pop(queue, f"p{producer}", batch=10000, autoAck=True):
            seen.extend(data_of(batch))
        assert seen == list(range(count))


def test_a_queue_that_comes_to_be_encrypted_gets_what_was_spooled_for_it_encrypted(tmp_path, queue):
    secret = "nobody else may read this"
    environment = {"BATON_ENCRYPTION_KEYS": "11" * 32}
    with Server(tmp_path / "data", environment=environment) as server:
        server.configure(f"{queue}-before", encryptionEnabled=True)
        switch(server, PUSH, True)
        server.push(f"{queue}-before", secret)
        server.push(f"{queue}-after", secret)
        server.configure(f"{queue}-after", encryptionEnabled=True)
        server.push(f"{queue}-after", secret)
        switch(server, PUSH, False)
        eventually(lambda: drained(server))
        for name, count in (("before", 1), ("after", 2)):
            messages = server.pop(f"{queue}-{name}", batch=9, autoAck=True)
            assert data_of(messages) == [secret] * count
            detail = server.get(f"/api/v1/messages/{messages[0]['partitionId']}/{messages[0]['transactionId']}")
            assert detail.json["isEncrypted"] is True
            traced = {"transactionId": messages[0]["transactionId"], "partitionId": messages[0]["partitionId"]}
            server.post("/api/v1/traces", {**traced, "traceNames": name, "data": {}})
            (row,) = server.get(f"/api/v1/traces/by-name/{name}").json["traces"]
            assert row["message_payload"] == secret
