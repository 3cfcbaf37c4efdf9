"""`baton dead-letters` and `baton purge`, as an operator would type them."""


def give_up(server, queue, *payloads, error="refused"):
    server.push(queue, *payloads)
    server.ack(server.pop(queue, batch=100), status="dlq", error=error)


def test_dead_letters_are_shown_replayed_and_purged(server, programs, queue):
    give_up(server, queue, 1, 2)
    give_up(server, queue, 3, error="timed out")
    rows = programs.json("dead-letters", "errors", "--queue", queue)
    assert [(row["error"], row["count"]) for row in rows] == [("refused", 2), ("timed out", 1)]
    code, out, err = programs.baton("dead-letters", "errors", "--queue", queue)
    assert code == 0 and "timed out" in out, err
    code, out, err = programs.baton("dead-letters", "replay", "--queue", queue, "--dry-run")
    assert (code, out) == (0, "3 dead letters would be replayed\n"), err
    code, out, err = programs.baton("dead-letters", "replay", "--queue", queue, "--error", "refused")
    assert (code, out) == (0, "replayed 2 dead letters\n"), err
    assert [message["data"] for message in server.pop(queue, batch=10)] == [1, 2]
    [purged] = programs.json("dead-letters", "purge", "--queue", queue)
    assert purged["purged"] == 1
    code, out, err = programs.baton("dead-letters", "errors", "--queue", queue)
    assert (code, out) == (0, "No dead letters.\n"), err


def test_all_dead_letters_are_meant_only_by_all(programs):
    code, out, err = programs.baton("dead-letters", "purge")
    assert code != 0 and out == "" and "--all" in err


def test_a_queue_is_purged_only_with_its_name(server, programs, queue):
    server.push(queue, 1, 2)
    server.push(queue, 3, partition="other")
    code, out, err = programs.baton("purge", queue)
    assert code != 0 and out == "" and "3 messages" in err and f"--confirm {queue}" in err
    code, out, err = programs.baton("purge", queue, "--confirm", "orders")
    assert code != 0 and "nothing was deleted" in err
    code, out, err = programs.baton("purge", queue, "--partition", "other", "--confirm", queue)
    assert (code, out) == (0, f"purged {queue}: 1 partitions are empty\n"), err
    assert [message["data"] for message in server.pop(queue, batch=10, partitions=10, autoAck=True, consumerGroup="g")] == [1, 2]
    [purged] = programs.json("purge", queue, "--confirm", queue)
    assert purged["partitionsCleared"] == 2
    assert server.pop(queue, batch=10, partitions=10, consumerGroup="h") == []
