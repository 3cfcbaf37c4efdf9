"""`baton push`, `baton pop`, `baton tail` and `baton queues`, as somebody would type them."""

import http.server
import json
import os
import signal
import subprocess
import threading

import pytest

from baton import Refused, Server, binary, data_of, eventually, nobody_parked, parked, plain
from ports import free_port
from programs import Programs
from tokens import SECRET, hs256


def payloads(lines):
    """The payloads of messages that were printed for people, as they were printed."""
    return [line.split("  ", 2)[2] for line in lines.splitlines()]


def counts(programs, queue):
    """What a queue says of all its messages."""
    [shown] = programs.json("queues", queue)
    return shown["totals"]


def cells(table):
    """The rows of a table, each as its words; its frame is left out."""
    rows = [line.strip("│ ").split() for line in table.splitlines() if line.startswith("│")]
    assert rows, table
    return rows


def mistake(programs, *words, given=""):
    """What is said about a mistake: on stderr alone, as an error and not as a panic, with the code for it."""
    code, out, err = programs.baton(*words, given=given)
    assert out == "" and "panicked" not in err, (words, out, err)
    assert err.startswith("error: "), (words, err)
    return code, err


class Watch:
    """A `baton tail` that runs beside the test, and what it has printed."""

    def __init__(self, programs, directory, *args):
        self.out, self.err = directory / "out", directory / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = programs.start(binary(), "tail", *args, stdout=out, stderr=err)

    def begun(self):
        """Waits until it watches: what is pushed from now on is new to it."""
        eventually(lambda: self.err.read_text().endswith("Ctrl-C ends it\n"), 30)
        return self

    def shown(self, count):
        """The payloads that it has shown, once there are so many."""

        def whole_lines():
            shown = payloads(self.out.read_text().rpartition("\n")[0])
            return len(shown) >= count and shown

        return eventually(whole_lines, 30)

    def ended(self):
        """Its exit code, once it has ended."""
        return self.process.wait(30)


# Push.


def test_a_message_is_pushed_byte_for_byte(programs, queue):
    assert programs.said("push", queue, '{"number":  1.50}') == f"pushed 1 message to {queue}\n"
    assert payloads(programs.said("pop", queue)) == ['{"number":  1.50}']


def test_several_messages_are_pushed_in_order(server, programs, queue):
    said = programs.said("push", queue, "1", '"two"', "null", "[4]", "-5.5", "--batch", "3")
    assert said == f"pushed 5 messages to {queue}\n"
    assert data_of(server.pop(queue, batch=10)) == [1, "two", None, [4], -5.5]


def test_each_message_has_a_line_of_json(server, programs, queue):
    pushed = programs.json("push", queue, "1", "2")
    popped = server.pop(queue, batch=10)
    assert [line["status"] for line in pushed] == ["queued", "queued"]
    assert [line["transactionId"] for line in pushed] == [message["transactionId"] for message in popped]


def test_a_message_goes_to_its_partition(server, programs, queue):
    programs.said("push", queue, "1", "--partition", "customer-42")
    assert server.pop(queue, "other") == []
    assert data_of(server.pop(queue, "customer-42")) == [1]


def test_a_repeated_push_with_a_transaction_id_is_told_and_stored_once(programs, queue):
    push = ["push", queue, "1", "--transaction-id", "order-1"]
    assert programs.said(*push) == f"pushed 1 message to {queue}\n"
    assert programs.said(*push) == f"pushed 0 messages to {queue}, 1 had been there already\n"
    [again] = programs.json(*push)
    assert (again["status"], again["transactionId"]) == ("duplicate", "order-1")
    assert counts(programs, queue)["total"] == 1


@pytest.mark.parametrize("source", [["--file", "FILE"], ["--file", "-"], []])
def test_every_line_of_a_file_or_of_stdin_is_a_message(server, programs, queue, tmp_path, source):
    lines, file = '1\n\n{"b": 2}\r\n"last"', tmp_path / "messages.jsonl"
    file.write_text(lines)
    words = [str(file) if word == "FILE" else word for word in source]
    given = "" if "FILE" in source else lines
    assert programs.said("push", queue, *words, "--batch", "2", given=given) == f"pushed 3 messages to {queue}\n"
    assert data_of(server.pop(queue, batch=10)) == [1, {"b": 2}, "last"]


def test_lines_are_pushed_as_they_come(server, programs, queue):
    reading, writing = os.pipe()
    with os.fdopen(reading) as source, os.fdopen(writing, "w", buffering=1) as feed:
        push = programs.start(binary(), "push", queue, stdin=source)
        for number in (1, 2):
            feed.write(f"{number}\n")
            assert data_of(server.pop(queue, wait=True, timeout=30_000, autoAck=True)) == [number]
        assert push.poll() is None
    assert push.communicate(timeout=30) == (f"pushed 2 messages to {queue}\n", None)
    assert push.returncode == 0


def test_lines_before_a_bad_one_are_pushed_and_none_after_it(server, programs, queue):
    code, err = mistake(programs, "push", queue, given="1\n2\nbad\n4\n")
    assert code == 1
    assert "stopped after 2 pushed messages: line 3 is no JSON: bad (a text needs quotes" in err
    assert data_of(server.pop(queue, batch=10)) == [1, 2]


def test_of_arguments_with_a_bad_one_none_is_pushed(programs, queue):
    code, err = mistake(programs, "push", queue, "1", "hello")
    assert code == 1 and "message 2 is no JSON: hello (a text needs quotes: '\"text\"')" in err
    code, err = mistake(programs, "queues", queue)
    assert code == 1 and "Queue not found" in err


# Pop.


def test_what_is_popped_is_finished(programs, queue):
    programs.said("push", queue, "1", "2", "3")
    assert payloads(programs.said("pop", queue)) == ["1"]
    assert payloads(programs.said("pop", queue, "--batch", "10")) == ["2", "3"]
    seen = counts(programs, queue)
    assert (seen["completed"], seen["processing"], seen["pending"]) == (3, 0, 0)


def test_what_is_not_acked_comes_again_when_its_lease_is_over(server, programs, queue):
    server.configure(queue, leaseTime=1)
    programs.said("push", queue, "1")
    [first] = programs.json("pop", queue, "--no-ack")
    [again] = programs.json("pop", queue, "--wait", "30")
    assert (first["id"], first["data"]) == (again["id"], 1)
    assert counts(programs, queue)["completed"] == 1


def test_a_popped_message_as_json_says_where_it_is_from(programs, queue):
    [pushed] = programs.json("push", queue, '{"a": [1]}', "--partition", "p", "--transaction-id", "t")
    [popped] = programs.json("pop", queue, "--group", "billing")
    expected = {
        "id": pushed["messageId"],
        "transactionId": "t",
        "queue": queue,
        "partition": "p",
        "partitionId": pushed["partitionId"],
        "offset": pushed["offset"],
        "consumerGroup": "billing",
        "deliveryAttempt": 1,
        "data": {"a": [1]},
    }
    assert {name: popped[name] for name in expected} == expected


def test_every_group_gets_every_message(programs, queue):
    programs.said("push", queue, "1", "2")
    for group in ("billing", "mail"):
        assert payloads(programs.said("pop", queue, "--group", group, "--batch", "10")) == ["1", "2"]
    assert programs.said("pop", queue, "--group", "billing") == ""


def test_a_new_group_starts_where_it_is_told(programs, queue):
    programs.said("push", queue, "1")
    late = ["pop", queue, "--group", "late", "--subscription", "new"]
    assert programs.said(*late) == ""
    programs.said("push", queue, "2")
    assert payloads(programs.said(*late)) == ["2"]
    assert payloads(programs.said("pop", queue, "--group", "early", "--subscription", "2020-01-01T00:00:00Z")) == ["1"]


def test_one_partition_or_several_are_popped(programs, queue):
    for partition in ("a", "b", "c"):
        programs.said("push", queue, f'"{partition}"', "--partition", partition)
    assert payloads(programs.said("pop", queue, "--partition", "b")) == ['"b"']
    rest = programs.json("pop", queue, "--batch", "10", "--partitions", "10")
    assert sorted(message["data"] for message in rest) == ["a", "c"]


def test_a_pop_waits_for_a_message(server, programs, queue):
    nobody_parked(server)
    pop = programs.start(binary(), "pop", queue, "--wait", "60")
    parked(server, 1)
    server.push(queue, "late")
    said, _ = pop.communicate(timeout=30)
    assert pop.returncode == 0 and payloads(said) == ['"late"']
    assert counts(programs, queue)["completed"] == 1


@pytest.mark.parametrize("wait", [[], ["--wait", "0.2"]])
def test_nothing_to_pop_is_told_to_people_and_is_no_failure(programs, queue, wait):
    assert programs.baton("pop", queue, *wait) == (0, "", f"no message in {queue}\n")
    assert programs.baton("pop", queue, *wait, "--json") == (0, "", "")


# Tail.


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_shows_what_comes_until_it_is_told_to_end(server, programs, queue, tmp_path, end):
    server.push(queue, "before")
    watch = Watch(programs, tmp_path, queue).begun()
    assert watch.err.read_text() == f"watching {queue}; Ctrl-C ends it\n"
    server.push(queue, 1)
    assert watch.shown(1) == ["1"]
    server.push(queue, 2, partition="another")
    assert watch.shown(2) == ["1", "2"]
    watch.process.send_signal(end)
    assert watch.ended() == 0
    assert "stays behind" not in watch.err.read_text()


def test_a_watch_takes_nothing_and_leaves_no_group(server, programs, queue):
    server.push(queue, 1, 2, 3)
    assert payloads(programs.said("tail", queue, "--from", "all", "--limit", "2")) == ["1", "2"]
    assert data_of(server.pop(queue, batch=10)) == [1, 2, 3]
    groups = [group for group in server.get("/api/v1/consumer-groups").json if group["queueName"] == queue]
    assert [group["name"] for group in groups if group["name"].startswith("tail-")] == []


def test_a_limit_counts_what_comes_later_too(server, programs, queue, tmp_path):
    server.push(queue, 1)
    watch = Watch(programs, tmp_path, queue, "--from", "all", "--limit", "2").begun()
    assert watch.shown(1) == ["1"]
    assert watch.process.poll() is None
    server.push(queue, 2)
    assert watch.ended() == 0
    assert watch.shown(2) == ["1", "2"]


def test_a_watch_of_a_partition_shows_json(server, programs, queue):
    server.push(queue, "a", partition="a")
    server.push(queue, {"b": 1}, partition="b")
    [shown] = programs.json("tail", queue, "--partition", "b", "--from", "all", "--limit", "1")
    assert (shown["queue"], shown["partition"], shown["data"]) == (queue, "b", {"b": 1})


def test_a_watch_goes_on_when_its_server_is_back(queue, tmp_path):
    with Server(tmp_path / "data") as server:
        programs = Programs(server.url)
        try:
            watch = Watch(programs, tmp_path, queue).begun()
            server.push(queue, 1)
            watch.shown(1)
            server.kill()
            eventually(lambda: "trying again" in watch.err.read_text(), 30)
            server.start()
            server.push(queue, 2)
            assert watch.shown(2) == ["1", "2"]
            watch.process.send_signal(signal.SIGINT)
            assert watch.ended() == 0
        finally:
            programs.close()


# Queues.


def test_queues_are_listed_with_how_much_waits_in_them(server, programs, queue):
    server.push(queue, 1, 2)
    server.push(queue, 3, partition="p")
    server.pop(queue, "p")
    header, *rows = cells(programs.said("queues"))
    assert header == ["queue", "partitions", "pending", "processing", "total"]
    assert [queue, "2", "2", "1", "3"] in rows
    names = [listed["name"] for listed in programs.json("queues")]
    assert [row[0] for row in rows] == names == sorted(names)


def test_one_queue_is_shown_with_partitions_and_options(server, programs, queue):
    server.configure(queue, leaseTime=77)
    server.push(queue, 1, partition="a")
    server.push(queue, 2, 3, partition="b")
    rows = cells(programs.said("queues", queue))
    assert [row[:6] for row in rows if row[0] in ("a", "b", "all")] == [
        ["a", "1", "0", "0", "0", "1"],
        ["b", "2", "0", "0", "0", "2"],
        ["all", "3", "0", "0", "0", "3"],
    ]
    assert ["leaseTime", "77"] in rows
    [shown] = programs.json("queues", queue)
    assert (shown["name"], shown["options"]["leaseTime"]) == (queue, 77)


def test_a_server_without_queues_tells_how_to_make_one(tmp_path):
    with Server(tmp_path / "data") as server:
        programs = Programs(server.url)
        assert "`baton push QUEUE" in programs.said("queues")
        assert programs.json("queues") == []


def test_a_queue_is_deleted_only_with_its_name(server, programs, queue):
    server.push(queue, 1, 2)
    code, out, err = programs.baton("queues", queue, "--delete")
    assert code == 1 and out == "" and "its 2 messages" in err and f"--confirm {queue}" in err
    code, out, err = programs.baton("queues", queue, "--delete", "--confirm", "orders")
    assert code == 1 and "nothing was deleted" in err
    assert counts(programs, queue)["total"] == 2
    assert programs.said("queues", queue, "--delete", "--confirm", queue) == f"deleted {queue}\n"
    code, out, err = programs.baton("queues", queue, "--delete", "--confirm", queue)
    assert code == 1 and "Queue not found" in err


# Mistakes.


@pytest.mark.parametrize("words", [["push", "q", "1"], ["push", "q"], ["pop", "q"], ["tail", "q"], ["queues"]])
def test_without_a_server_one_is_told_how_to_start_or_name_it(words):
    url = f"http://127.0.0.1:{free_port()}"
    code, err = mistake(Programs(url), *words, given="1\n")
    assert code == 1 and url in err
    assert "`baton serve`" in err and "--url or BATON_URL" in err


# Code 2 is for words that make no sense, 1 for what was found out later.
@pytest.mark.parametrize(
    "words, code, hint",
    [
        (["queues", "orders"], 1, "cannot show orders: Queue not found"),
        (["push", "orders", "{broken"], 1, "message 1 is no JSON: {broken"),
        (["push", "orders", "--file", "missing.jsonl"], 1, "cannot read missing.jsonl"),
        (["push", "orders", "1", "2", "--transaction-id", "t"], 1, "names one message, but there are 2"),
        (["push", "orders", "--transaction-id", "t"], 1, "give that message as an argument"),
        (["push", "orders", "1", "--file", "f"], 2, "cannot be used with"),
        (["push", "orders", "1", "--batch", "0"], 2, "0 is not in 1..="),
        (["push"], 2, "<QUEUE>"),
        (["pop", "orders", "--batch", "0"], 1, "batch is between 1 and"),
        (["pop", "orders", "--partitions", "0"], 1, "partitions is between 1 and"),
        (["pop", "orders", "--wait", "1e18"], 1, "a pop waits at most"),
        (["pop", "orders", "--wait", "soon"], 2, "give seconds, such as 10 or 0.5"),
        (["pop", "orders", "--wait=-1"], 2, "give a positive number of seconds"),
        (["pop", "orders", "--subscription", "yesterday"], 2, "give `new`, `all`, or a time such as"),
        (["tail", "orders", "--from", "yesterday"], 2, "give `new`, `all`, or a time such as"),
        (["tail", "orders", "--limit", "few"], 2, "--limit"),
        (["queues", "--bogus"], 2, "--help"),
        (["queues", "--url", "nowhere"], 1, "must start with http:// or https://, such as"),
        (["pol", "orders"], 2, "'pop'"),
    ],
)
def test_what_is_wrong_is_said(programs, queue, words, code, hint):
    ended, err = mistake(programs, *(queue if word == "orders" else word for word in words))
    assert ended == code and hint.replace("orders", queue) in err, err


def test_who_may_not_is_told_which_token_to_give(tmp_path):
    with Server(tmp_path / "data", environment={"JWT_ENABLED": "true", "JWT_SECRET": SECRET}) as guarded:
        programs = Programs(guarded.url)
        for words in (["queues"], ["queues", "--token", "forged"]):
            code, err = mistake(programs, *words)
            assert code == 1 and "Give a token with --token or BATON_TOKEN." in err, err
        code, err = mistake(programs, "push", "orders", "1", "--token", hs256("read-only"))
        assert code == 1 and "its role does not allow this" in err, err
        programs.environment["BATON_TOKEN"] = hs256()
        assert programs.said("push", "orders", "1") == "pushed 1 message to orders\n"


@pytest.fixture
def closed_pipe():
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("words", [["queues"], ["tail", "orders", "--from", "all"], ["completions", "bash"]])
def test_a_reader_that_goes_away_is_no_failure(server, programs, queue, closed_pipe, words):
    server.push(queue, 1)
    words = [queue if word == "orders" else word for word in words]
    ended = programs.start(binary(), *words, stdout=closed_pipe, stderr=subprocess.PIPE)
    _, err = ended.communicate(timeout=30)
    assert ended.returncode == 0 and "error" not in err and "panicked" not in err, err


def test_a_message_that_nobody_could_read_is_not_finished(server, programs, queue, closed_pipe):
    server.push(queue, 1)
    programs.start(binary(), "pop", queue, stdout=closed_pipe).wait(30)
    seen = counts(programs, queue)
    assert (seen["completed"], seen["processing"]) == (0, 1)


# What goes wrong on the way, and who stops reading.


def test_a_push_during_maintenance_is_said_to_be_buffered(tmp_path, queue):
    with Server(tmp_path / "data") as server:
        programs = Programs(f"http://127.0.0.1:{server.port}")
        server.post("/api/v1/system/maintenance", {"enabled": True})
        said = programs.said("push", queue, "1")
        assert said.startswith(f"pushed 1 message to {queue}, 1 buffered until "), said


def test_a_watch_ends_when_nothing_reads_it_any_more(server, programs, queue):
    programs.said("push", queue, "1")
    reading, writing = os.pipe()
    watch = programs.start(binary(), "tail", queue, "--from", "all", stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as source:
        assert source.readline().endswith("1\n")
    assert watch.wait(30) == 0
    groups = server.get(f"/api/v1/consumer-groups").json
    assert [group["name"] for group in groups if group["name"].startswith("tail-")] == []


def test_an_address_from_the_environment_is_not_shown_as_required(programs):
    code, out, err = programs.baton("push")
    assert code == 2 and "push <QUEUE> [JSON]..." in err, err


def test_an_address_that_is_taken_is_said_once(server, tmp_path):
    listen = f"127.0.0.1:{server.port}"
    with pytest.raises(Refused) as refused:
        Server(tmp_path / "data", listen=listen).start()
    assert refused.value.output.count("Address already in use") == 1


def test_a_name_without_an_address_is_explained():
    code, out, err = Programs("http://no-such-host.invalid:1").baton("queues")
    assert code == 1 and "No address is known for that name" in err, err


def test_plain_http_is_explained_to_who_asks_for_tls(server):
    code, out, err = Programs(f"https://127.0.0.1:{server.port}").baton("queues")
    assert code == 1 and "its address begins with http://" in err, err


def test_a_log_that_is_followed_goes_on_after_its_server_was_away(tmp_path, queue):
    with Server(tmp_path / "data") as server:
        programs = Programs(f"http://127.0.0.1:{server.port}")
        try:
            job = server.post("/api/v1/jobs", {"jobType": "x", "queue": queue}).json["jobId"]
            worker = server.post("/api/v1/workers", {"name": "w", "queues": [queue]}).json["workerId"]
            [lease] = server.post(f"/api/v1/workers/{worker}/lease", {"max": 1, "waitMs": 20_000}).json["leases"]
            lines = {"firstSeq": 1, "lines": [{"level": "info", "message": "begun"}]}
            assert server.post(f"/api/v1/executions/{lease['executionId']}/logs", lines).status == 200
            told, shown = tmp_path / "told", tmp_path / "shown"
            with told.open("w") as err, shown.open("w") as out:
                follow = programs.start(binary(), "job", "logs", "-f", job, stdout=out, stderr=err)
            eventually(lambda: "begun" in shown.read_text(), 60)
            server.stop()
            eventually(lambda: "trying again" in told.read_text(), 60)
            server.start()
            assert server.post(f"/api/v1/jobs/{job}/cancel", {"force": True}).status == 200
            assert follow.wait(60) == 0, told.read_text()
        finally:
            programs.close()


class Older(http.server.BaseHTTPRequestHandler):
    """A server that does not know all that is sent to it."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps([{"index": 0, "status": "queued", "messageId": "m", "transactionId": "t", "offset": 0}]).encode()
        self.send_response(201)
        self.send_header("Baton-Ignored", "payload, dely")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_what_the_server_ignored_is_a_warning():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Older) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [binary(), "push", "q", "1", "--url", f"http://127.0.0.1:{server.server_port}"]
        run = subprocess.run(command, env=plain(), capture_output=True, text=True, timeout=30)
        server.shutdown()
    assert "WARN" in run.stderr and "payload, dely" in run.stderr and "/api/v1/push" in run.stderr, run
