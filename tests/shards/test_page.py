"""What docs/shards.md tells a reader to type works as printed, line after line.

Left out are only the lines that start a server: each is tried by itself, on free ports. A stream of events would never
end: it must show one.
"""

import json
import os
import shlex
import sys
from pathlib import Path

from baton import ROOT, Server
from typed import LEFT_OUT, commands, shell, typed
from workers import Worker, address

PAGE = (ROOT / "docs" / "shards.md").read_text()

PREAMBLE = """
set -euo pipefail
curl() {
    case "$*" in
        *text/event-stream*) watch "$@" ;;
        *) command curl --no-progress-meter --fail-with-body --max-time 60 "$@"; echo ;;
    esac
}
watch() {
    touch watched
    timeout 60 curl --no-progress-meter "$@" >watched &
    until grep -q '^event: assignment' watched; do kill -0 $!; sleep 0.1; done
    kill $!
    wait $! || true
}
"""


def answers(printed):
    """The JSON objects of what the page's calls printed, each on a line of its own."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def served():
    """The arguments of each server that the page starts, on a free port of this machine."""
    for line in filter(LEFT_OUT.match, typed(PAGE)):
        arguments = shlex.split(line)
        assert arguments[:3] == ["baton", "serve", "--shards-listen"], line
        yield ["--shards-listen", "127.0.0.1:0", *arguments[4:]]


def test_the_commands_of_the_page_work_as_printed(tmp_path, queue):
    # Long enough for a busy machine between two lines.
    with Server(tmp_path / "data", "--shards-heartbeat-timeout-seconds", "600") as server:
        # The page's server is the default one; this one is on a free port.
        here = f"127.0.0.1:{server.port}"
        lines = [line.replace("localhost:6632", here) for line in commands(PAGE)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
        done = shell(PREAMBLE, lines, tmp_path, BATON_URL=f"http://{here}", PATH=path)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert server.get("/api/v1/shards/orders").status == 404, "it is deleted at the end"
    said = answers(done.stdout)
    first, second, waited, confirmed, granted = said[:5]
    assert [answer.get("sequence") for answer in said[:5]] == [1, 1, None, 2, 2]
    assert first["grants"] == [{"from": 0, "to": 99, "token": 1}] and second["grants"] == []
    assert (waited["generation"], waited["revoking"]) == (2, [[50, 99]])
    assert confirmed["revoking"] == [] and confirmed["grants"] == [{"from": 0, "to": 49, "token": 1}]
    assert granted["grants"] == [{"from": 50, "to": 99, "token": 3}]
    assert said[-1] == {"left": True}
    # The servers of the page run with the keys that it has made, and its worker can take part.
    for arguments in served():
        with Server(tmp_path / "data", *arguments) as server:
            keys = {}
            if "--shards-curve-secret-key" in arguments:
                public, secret = (tmp_path / "worker.keys").read_bytes().split()
                known = (tmp_path / "server.keys").read_bytes().split()[0]
                keys = {"curve_publickey": public, "curve_secretkey": secret, "curve_serverkey": known}
            with Worker(address(server), queue, "w", 2, keys=keys) as worker:
                worker.awaits([0, 1])
