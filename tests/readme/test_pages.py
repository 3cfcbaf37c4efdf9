"""What the pages about queues, records, jobs and tokens tell a reader to type works as printed, line after line."""

import json

import pytest

from baton import ROOT, Server
from typed import commands, shell

PREAMBLE = """
set -euo pipefail
curl() { command curl --no-progress-meter --fail-with-body --max-time 60 "$@"; echo; }
"""


def said(page, server, directory):
    """The answers of the page's calls, each JSON value on a line of its own."""
    here = f"127.0.0.1:{server.port}"
    lines = [line.replace("localhost:6632", here).replace("127.0.0.1:6632", here) for line in page]
    done = shell(PREAMBLE, lines, directory, BATON_URL=f"http://{here}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]


@pytest.mark.parametrize(
    "name, routes",
    [
        ("queues", ["push", "pop", "/ack ", "ack/batch", "extend", "configure", "dlq", "retry", "dlq/errors", "dlq:replay", "dlq:purge", "transaction", "seek"]),
        ("records", ["kv", "locks", "timers", "transaction", "fetch", "fetch/offsets", "partitions/changed", "depth"]),
        ("examples", ["messages", "positions", "traces", "streams", "workers", "schedules", "shards", "elections", "analytics"]),
        ("jobs", ["jobs", "workers", "lease", "executions:report"]),
    ],
)
def test_the_commands_of_a_page_work_as_printed(tmp_path, name, routes):
    lines = commands((ROOT / "docs" / f"{name}.md").read_text())
    for route in routes:
        assert any("curl" in line and route in line for line in lines), f"{name}.md has no example of {route}"
    with Server(tmp_path / "data") as server:
        answers = said(lines, server, tmp_path)
    assert len(answers) >= 2
    assert [answer for answer in answers if isinstance(answer, dict) and answer.get("code")] == []
    if name == "queues":
        [letters] = [answer for answer in answers if isinstance(answer, dict) and "messages" in answer and "total" in answer]
        assert [letter["transactionId"] for letter in letters["messages"]] == ["order-2"]
        [moved] = [answer for answer in answers if isinstance(answer, dict) and "transactionId" in answer and "results" in answer]
        assert moved["success"] is True, moved
    if name == "records":
        locks = [one for answer in answers if isinstance(answer, dict) for one in answer.get("results", [])]
        assert [one["released"] for one in locks if "released" in one] == [True]
        depth = answers[-1]
        assert "error" not in depth


def test_the_page_about_tokens_makes_one_that_works(tmp_path):
    lines = commands((ROOT / "docs" / "security.md").read_text())
    first = lines.index("openssl rand -hex 32 > jwt.secret")
    last = next(at for at, line in enumerate(lines) if "Authorization: Bearer $BATON_TOKEN" in line)
    secret = tmp_path / "jwt.secret"
    secret.write_text("5d" * 32)
    with Server(tmp_path / "data", "--jwt-enabled", "true", "--jwt-secret", f"@{secret}") as server:
        [popped] = said(lines[first + 1 : last + 1], server, tmp_path)
    assert popped["messages"][0]["producerSub"] == "billing"
