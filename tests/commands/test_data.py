"""baton data: a directory that no server uses."""

import subprocess

from baton import Server, binary, data_of, plain


def reset_clock(server):
    command = [str(binary()), "data", "reset-clock", "--data", str(server.data)]
    return subprocess.run(command, capture_output=True, text=True, env=plain(), timeout=60)


def test_the_clock_is_reset_only_while_no_server_uses_the_directory(tmp_path):
    with Server(tmp_path / "data") as server:
        server.push("q", 1)
        refused = reset_clock(server)
        assert refused.returncode != 0 and "another process is using it" in refused.stderr, refused
        assert server.stop() == 0
        done = reset_clock(server)
        assert done.returncode == 0 and "the store's time is 2" in done.stdout, done
        server.start()
        assert data_of(server.pop("q")) == [1]
