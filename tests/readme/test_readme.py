"""What the README tells a reader to type works as printed.

Left out are only the lines that start a server, since the test has one of its own, and those that build it. A watch
would never end: it must show a message, and end well when it is told to.
"""

import os
import socket

import pytest

from baton import ROOT, Server
from typed import commands, shell

DEFAULT_PORT = 6632

# What is different from a reader's shell: nothing may fail or take for ever, and nobody waits for an election's usual
# twenty seconds.
PREAMBLE = """
set -euo pipefail
curl() { command curl --fail-with-body --max-time 60 "$@"; }
baton() {
    case "$1" in
        tail) watch "$@" ;;
        elect) command baton elect --fast "${@:2}" ;;
        *) command baton "$@" ;;
    esac
}
watch() {
    touch watched told
    timeout 60 baton "$@" >watched 2>told &
    until grep -q watching told; do kill -0 $!; sleep 0.1; done
    command baton push "$2" '"seen by the watch"'
    until grep "seen by the watch" watched; do kill -0 $!; sleep 0.1; done
    kill -INT $!
    wait $!
}
"""


def ensure_free(port):
    """Skips the test when somebody else has the port; in CI nobody should, and nobody would notice."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            give_up = pytest.fail if os.environ.get("CI") else pytest.skip
            give_up(f"something else listens on the default port {port}")


def test_the_blocks_are_found_without_prompts_and_servers():
    blocks = ["sh\ncargo run", "sh\nbaton serve &\n$ curl -s x | \\\n  cat\n$ baton queues", "json\ncurl"]
    readme = "a\n" + "".join(f"```{block}\n```\n" for block in blocks)
    assert commands(readme) == ["curl -s x | \\", "  cat", "baton queues"]


@pytest.mark.parametrize("ci, outcome", [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_taken_port_is_a_failure_in_ci_alone(monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(outcome):
        ensure_free(taken.getsockname()[1])


def test_the_commands_of_the_readme_work_as_printed(tmp_path):
    lines = commands((ROOT / "README.md").read_text())
    for word in ("curl ", "baton push ", "baton pop ", "baton tail ", "baton queues", "baton elect "):
        assert any(line.startswith(word) for line in lines), f"{word}is no longer in the README, or not found in it"
    ensure_free(DEFAULT_PORT)
    with Server(tmp_path / "data", listen=f"127.0.0.1:{DEFAULT_PORT}"):
        done = shell(PREAMBLE, lines, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert '"error":"' not in done.stdout.replace(" ", ""), done.stdout
    assert "no message in" not in done.stderr, "a pop found nothing"
    assert "this machine cleans up" in done.stdout
