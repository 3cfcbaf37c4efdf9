"""What the pages tell a reader to type works as printed, line after line.

Left out are lines that need several machines: the pages about clusters, nodes and PostgreSQL name hosts that a reader puts
in, and have tests of their own. The page about shards has one beside the tests of shards.
"""

import json
import re
import subprocess
import sys
import textwrap

import pytest

from baton import ROOT, Server
from typed import commands, shell

PREAMBLE = """
set -euo pipefail
curl() { command curl --no-progress-meter --fail-with-body --max-time 60 "$@"; echo; }
# An election waits for others first, and a worker for jobs until it is told to end.
baton() {
    case "$1" in
        elect) command baton elect --fast "${@:2}" ;;
        worker) ended=0; timeout --signal=TERM 3 baton "$@" || ended=$?; [ $ended = 124 ] || return $((ended + 1)) ;;
        *) command baton "$@" ;;
    esac
}
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


@pytest.mark.parametrize("name, word", [("elections", "baton elect"), ("maintenance", "curl"), ("schedules", "curl"), ("workers", "baton job")])
def test_the_commands_of_other_pages_work_as_printed(tmp_path, name, word):
    lines = commands((ROOT / "docs" / f"{name}.md").read_text())
    assert any(word in line for line in lines)
    with Server(tmp_path / "data") as server:
        # What needs a directory that no server uses.
        answers = said([line for line in lines if "baton data" not in line], server, tmp_path)
        assert [answer for answer in answers if isinstance(answer, dict) and answer.get("code")] == []
        if name == "maintenance":
            server.push("q", 1)
            assert len(server.pop("q")) == 1, "the page leaves pushes and pops as they were"
    alone = [line.replace("./baton-data", str(tmp_path / "data")) for line in lines if "baton data" in line]
    if alone:
        (tmp_path / "bin" / "baton").unlink()
        (tmp_path / "bin").rmdir()
        done = shell(PREAMBLE, alone, tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["coming-from-queen", "streams"])
def test_the_python_of_a_page_works_as_printed(tmp_path, name):
    [sample] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    imports, _, body = sample.partition("\n\n")
    text = f"import asyncio\n{imports}\nasync def main():\n{textwrap.indent(body, '    ')}\nasyncio.run(main())\nprint('done')\n"
    with Server(tmp_path / "data") as server:
        server.push("orders", {"country": "it", "amount": 3})
        program = text.replace("http://localhost:6632", server.url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr


def test_the_page_about_tokens_makes_one_that_works(tmp_path):
    lines = commands((ROOT / "docs" / "security.md").read_text())
    first = lines.index("openssl rand -hex 32 > jwt.secret")
    last = next(at for at, line in enumerate(lines) if "Authorization: Bearer $BATON_TOKEN" in line)
    secret = tmp_path / "jwt.secret"
    secret.write_text("5d" * 32)
    with Server(tmp_path / "data", "--jwt-enabled", "true", "--jwt-secret", f"@{secret}") as server:
        [popped] = said(lines[first + 1 : last + 1], server, tmp_path)
    assert popped["messages"][0]["producerSub"] == "billing"


def test_the_page_about_security_makes_a_certificate_and_a_key_that_work(tmp_path):
    lines = commands((ROOT / "docs" / "security.md").read_text())
    first = next(at for at, line in enumerate(lines) if line.startswith("openssl req -x509"))
    uses = next(at for at, line in enumerate(lines) if "https://" in line)
    last = max(at for at, line in enumerate(lines) if "https://" in line)
    shell_of = lambda lines, **names: shell(PREAMBLE, lines, tmp_path, **names)
    done = shell_of(lines[first:uses])
    assert done.returncode == 0, done.stderr
    (tmp_path / "bin" / "baton").unlink()
    (tmp_path / "bin").rmdir()
    with Server(tmp_path / "data", "--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")) as server:
        done = shell_of([line.replace("localhost:6632", f"localhost:{server.port}") for line in lines[uses : last + 1]])
        assert done.returncode == 0 and "healthy" in done.stdout, done.stderr
    (tmp_path / "bin" / "baton").unlink()
    (tmp_path / "bin").rmdir()
    (tmp_path / "keys").write_text("5d" * 32 + "\n")
    with Server(tmp_path / "sealed", "--encryption-keys", f"@{tmp_path / 'keys'}") as server:
        [configured] = said([line for line in lines if "encryptionEnabled" in line], server, tmp_path)
    assert configured["options"]["encryptionEnabled"] is True
