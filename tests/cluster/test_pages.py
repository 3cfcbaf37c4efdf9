"""What the pages about several servers tell a reader to type works as printed, with the names of hosts put in."""

import postgres
import pytest

from baton import ROOT, eventually
from typed import commands, shell

PREAMBLE = """
set -euo pipefail
# A stream of events goes on until the reader ends it.
curl() {
    local ended=0
    case "$*" in
        *event-stream*) timeout 2 curl --no-progress-meter --fail-with-body "$@" || ended=$?; [ $ended = 124 ] ;;
        *) command curl --no-progress-meter --fail-with-body --max-time 60 "$@"; echo ;;
    esac
}
"""


def page(name):
    return commands((ROOT / "docs" / f"{name}.md").read_text())


@pytest.mark.parametrize(
    "name, names, words",
    [
        ("cluster", ("host-1", "host-2", "host-3"), ("2 of 2 configured peers heard", "host-2 is drained", "host-2 takes requests again")),
        ("nodes", ("node-1", "node-2", "node-3"), ("was asked to be draining",)),
    ],
)
def test_the_commands_about_several_servers_work_as_printed(cluster, tmp_path, name, names, words):
    nodes = cluster(names)
    first = nodes[names[0]]
    eventually(lambda: len(first.get("/api/v1/nodes").json["nodes"]) == 3, seconds=30)
    lines = [line for line in page(name) if not line.startswith("export ")]
    for node in nodes.nodes.values():
        lines = [line.replace(f"http://{node.name}:6632", node.url) for line in lines]
    lines = [line.replace("http://127.0.0.1:6632", first.url) for line in lines]
    assert any("--drain" in line for line in lines) and any("curl" in line for line in lines)
    done = shell(PREAMBLE, lines, tmp_path, BATON_URL=first.url)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for word in words:
        assert word in done.stdout, done.stdout


def test_the_commands_about_the_schema_work_as_printed(tmp_path):
    lines = page("postgres")
    url = "postgres://baton:secret@db.internal/baton"
    assert any(url in line for line in lines) and any("baton migrate" in line for line in lines)
    lines = [line.replace(url, postgres.shared()) for line in lines]
    done = shell("set -euo pipefail\n", lines, tmp_path, BATON_STORE_SCHEMA=f"page_{tmp_path.name}")
    assert done.returncode == 0 and done.stdout.count("is up to date") == 2, f"{done.stdout}\n{done.stderr}"
