"""A throw-away PostgreSQL as a process, guarded by the same script that the Rust tests use.

It ends with the tests that started it, because the script notices when its input ends.
"""

import os
import pwd
import socket
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "crates" / "testing-postgres" / "src" / "postgres.sh"


def binaries():
    """The newest installed PostgreSQL."""
    installed = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
    return max(installed, key=lambda path: int(path.parent.name))


def other_user():
    """Who runs it in place of root, which PostgreSQL refuses."""
    return pwd.getpwnam("postgres") if os.getuid() == 0 else None


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Postgres:
    """One that runs until it is closed; `stop` ends it at once, as a power cut would."""

    def __init__(self, options=""):
        # Another process may take the port that was free a moment ago.
        assert any(self._begin(options) for _ in range(5)), "PostgreSQL did not start"

    def _begin(self, options):
        self.port = free_port()
        user = other_user()
        self.process = subprocess.Popen(
            ["sh", str(SCRIPT), str(binaries()), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/tmp",
            start_new_session=True,
            env={**os.environ, "BATON_POSTGRES_OPTIONS": f"{os.environ.get('BATON_POSTGRES_OPTIONS', '')} {options}"},
            **({"user": user.pw_uid, "group": user.pw_gid} if user else {}),
        )
        return self.hear().startswith("ready")

    def hear(self):
        return self.process.stdout.readline()

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.hear()

    def stop(self):
        self.say("stop")

    def start(self):
        self.say("start")

    def sql(self, statement):
        """Runs a statement and tells what it answered, one row per line."""
        command = [str(binaries() / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "baton", "-h", "127.0.0.1",
                   "-p", str(self.port), "-d", "postgres", "-c", statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def url(self):
        return f"postgres://baton@127.0.0.1:{self.port}/postgres"

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


_shared = None


def shared():
    """The address of one that all tests share: the one that BATON_TEST_POSTGRES names, or one of our own."""
    global _shared
    port = os.environ.get("BATON_TEST_POSTGRES")
    if port:
        return f"postgres://baton@127.0.0.1:{port}/postgres"
    if _shared is None:
        _shared = Postgres()
    return _shared.url
