"""`baton bench`: every scenario in small, against a server of the test's own.

Whether a figure is any good is not asked here, only whether it is of as many messages as were wanted, whether the
server says the same, and whether a run that was disturbed gives none.
"""

import os
import re
import signal
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from baton import Server, binary, eventually
from ports import free_port
from programs import Programs

SMALL = ("--connections", "4", "--batch", "10", "--partitions", "4")
MESSAGES = ("--messages", "200")
BRIEF = ("--duration", "0.5")
# For as many as there was time for.
SOME = None

# What each scenario is told, and the rows that it must print with the messages that each of them is about.
SCENARIOS = {
    "push": (MESSAGES, [("push", 200)]),
    # With four connections, and with one that does everything in turn.
    "pipeline": ((*MESSAGES, "--connections", "1"), [("pipeline", 200), ("pipeline", 200)]),
    "fan-out": ((*MESSAGES, "--groups", "1,3"), [("fan-out", 200), ("fan-out", 600)]),
    "wake-up": (("--samples", "3"), [("wake-up", 3)]),
    "many-waiters": (("--waiters", "10", "--quick"), [("many-waiters", 10)]),
    "drain": (MESSAGES, [("drain", 200)]),
    "restart": (MESSAGES, [("restart", 200)]),
    "jobs": (
        (*MESSAGES, *BRIEF, "--samples", "3"),
        [("jobs-enqueue", 200), ("jobs-burn-down", 200), ("jobs-steady", SOME), ("jobs-keys", SOME), ("jobs-pickup", 3)],
    ),
    "jobs-steady": (BRIEF, [("jobs-steady", SOME)]),
    "jobs-tomorrow": ((*MESSAGES, *BRIEF), [("jobs-before", SOME), ("jobs-tomorrow", 200), ("jobs-beside", SOME)]),
}


def bench(programs, url, scenario, *args):
    """The rows of a run, which must end well."""
    # It kills the server, so it takes none but its own.
    target = () if scenario == "restart" else ("--url", url)
    return programs.json("bench", scenario, *target, *args)


def queues(programs):
    """The queues of runs, by name."""
    return {queue["name"]: queue for queue in programs.json("queues") if queue["name"].startswith("bench-")}


def labels(picture):
    """The texts in a picture, which must be one."""
    root = xml.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return [text.text.strip() for text in root.iter("{http://www.w3.org/2000/svg}text")]


def children(pid):
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_every_scenario_is_measured_here(programs):
    code, _, err = programs.baton("bench", "nothing")
    [named] = re.findall(r"possible values: ([\w,\s-]+)]", err)
    assert code == 2 and set(re.split(r",\s+", named)) == {"all", *SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_measures_what_it_was_told_and_loses_nothing(server, programs, tmp_path, scenario):
    told, expected = SCENARIOS[scenario]
    picture, before = tmp_path / "plot.svg", queues(programs)
    data = tmp_path / "own"
    rows = bench(programs, server.url, scenario, *SMALL, *told, "--data", data, "--plot", picture)
    assert [row["scenario"] for row in rows] == [name for name, _ in expected]
    for row, (_, messages) in zip(rows, expected):
        assert row["messages"] == messages if messages else row["messages"] > 0, row
        assert row["verified"] is True and row["seconds"] > 0, row
    assert any(label.startswith(expected[-1][0]) for label in labels(picture))
    # The server says that it was given that many, and that none is left.
    if not scenario.startswith(("jobs", "restart")):
        used = [queue["messages"] for name, queue in queues(programs).items() if name not in before]
        pushed = sum(row["messages"] // row.get("groups", 1) for row in rows)
        assert sum(counts["total"] for counts in used) >= pushed
        assert [(counts["pending"], counts["processing"]) for counts in used] == [(0, 0)] * len(used)
    assert not data.exists() or os.listdir(data) == [], "a server of its own is gone without a trace"


def test_people_get_a_table(server, programs):
    said = programs.said("bench", "push", "--url", server.url, *SMALL, *MESSAGES)
    header, row = [line.split() for line in said.splitlines() if re.match(r" \w", line)]
    assert header[:6] == ["scenario", "conns", "batch", "partitions", "groups", "messages"]
    assert row[:5] == ["push", "4", "10", "4", "200"]


def test_memory_and_processor_time_of_a_named_process_are_told(server, programs):
    pid = server.process.pid
    [row] = bench(programs, server.url, "push", *SMALL, *MESSAGES, "--server-pid", pid)
    assert row["server_memory_bytes"] > 1 << 20 and row["server_cpu_us_per_message"] >= 0


def test_a_message_that_comes_twice_is_noticed_and_there_is_no_figure(server, programs):
    before = queues(programs)
    run = programs.start(binary(), "bench", "pipeline", "--url", server.url, *SMALL, "--duration", "60", "--json")
    [queue] = eventually(lambda: queues(programs).keys() - before.keys(), 30)
    [message] = eventually(lambda: server.pop(queue, consumerGroup="spy", subscriptionMode="all", autoAck=True), 30)
    server.push(queue, message["data"], partition=message["partition"])
    said, _ = run.communicate(timeout=50)
    assert run.returncode == 1
    [line] = said.splitlines()
    assert re.match(r"error: partition \d gave message \d+ of producer \d after \d+", line), line


def test_a_server_that_goes_away_ends_the_run_without_a_figure(tmp_path):
    with Server(tmp_path / "data") as server:
        programs = Programs(server.url)
        try:
            run = programs.start(binary(), "bench", "pipeline", "--url", server.url, *SMALL, "--duration", "60", "--json")
            eventually(lambda: queues(programs), 30)
            server.kill()
            said, _ = run.communicate(timeout=50)
        finally:
            programs.close()
    assert run.returncode == 1 and said.startswith("error: "), said


# Mistakes.


@pytest.mark.parametrize(
    "words, code, hint",
    [
        (["push", "--batch", "0"], 1, "start at 1"),
        (["push", "--payload-bytes", "1000000"], 1, "at most 512 KiB"),
        (["push", "--url", "nowhere"], 1, "does not begin with http://"),
        (["restart", "--url", "http://nowhere"], 1, "leave --url out"),
        (["push", "--server-pid", "1"], 2, "--url"),
        (["push", "--messages", "few"], 2, "--messages"),
    ],
)
def test_what_is_wrong_is_said(programs, words, code, hint):
    ended, out, err = programs.baton("bench", *words)
    assert (ended, out) == (code, "")
    assert err.startswith("error: ") and hint in err and "panicked" not in err, err


@pytest.mark.parametrize("seconds", ["-1", "nan", "1e30"])
def test_a_duration_that_is_none_is_refused(server, programs, seconds):
    code, out, err = programs.baton("bench", "push", "--url", server.url, *SMALL, f"--duration={seconds}")
    assert code in (1, 2) and out == "" and "duration" in err and "panicked" not in err, err


def test_without_a_server_its_address_is_told():
    host = f"127.0.0.1:{free_port()}"
    code, out, err = Programs(f"http://{host}").baton("bench", "push", "--url", f"http://{host}")
    assert (code, out) == (1, "") and err.startswith(f"error: cannot connect to {host}: "), err


def test_without_a_server_one_is_told_how_to_start_it():
    url = f"http://127.0.0.1:{free_port()}"
    _, _, err = Programs(url).baton("bench", "push", "--url", url)
    assert "`baton serve`" in err, err


def test_a_run_that_is_told_to_end_takes_its_own_server_along(programs, tmp_path):
    run = programs.start(binary(), "bench", "wake-up", "--samples", "100000", "--data", tmp_path)
    own = eventually(lambda: children(run.pid), 30)
    eventually(lambda: list(tmp_path.glob("*/data")), 30)
    run.terminate()
    run.wait(30)
    left = [pid for pid in own if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert (left, os.listdir(tmp_path)) == ([], [])
