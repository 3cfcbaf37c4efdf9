"""What the README tells a reader to type works as printed."""

import os
import re
import socket
import subprocess

import pytest

from baton import ROOT, Server, binary

DEFAULT_PORT = 6632
FENCE = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVE = re.compile(r"^(\S*/)?baton serve\b")


def commands(readme):
    """The lines of the shell blocks that use curl, without prompts and without the line that starts the server."""
    lines = []
    for block in FENCE.findall(readme):
        if "curl" not in block:
            continue
        for line in block.splitlines():
            line = line.removeprefix("$ ")
            if not SERVE.match(line):
                lines.append(line)
    return lines


def test_the_blocks_are_found_without_prompts_and_servers():
    readme = "a\n```sh\n$ baton serve\n```\n```sh\nbaton serve &\n$ curl -s x | \\\n  cat\n```\n```json\ncurl\n```\n"
    assert commands(readme) == ["curl -s x | \\", "  cat"]


def test_the_commands_of_the_readme_work_as_printed(tmp_path):
    readme = ROOT / "README.md"
    lines = commands(readme.read_text()) if readme.exists() else []
    if not lines:
        pytest.skip("the README has no curl commands yet")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            pytest.skip(f"something else listens on the default port {DEFAULT_PORT}")
    with Server(tmp_path / "data", listen=f"127.0.0.1:{DEFAULT_PORT}"):
        script = "set -euo pipefail\ncurl() { command curl --fail-with-body --max-time 60 \"$@\"; }\n"
        script += "\n".join(lines)
        path = f"{binary().parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert '"error":"' not in done.stdout.replace(" ", ""), done.stdout
