"""A throw-away PostgreSQL as a process, guarded by the same script that the Rust tests use.

It ends with the tests that started it, because the script notices when its input ends.
"""

import os
import pwd
import socket
import struct
import subprocess
from pathlib import Path

from ports import free_port

SCRIPT = Path(__file__).resolve().parent.parent / "crates" / "testing-postgres" / "src" / "postgres.sh"


def binaries():
    """The newest installed PostgreSQL."""
    installed = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
    return max(installed, key=lambda path: int(path.parent.name))


def other_user():
    """Who runs it in place of root, which PostgreSQL refuses."""
    return pwd.getpwnam("postgres") if os.getuid() == 0 else None


class Postgres:
    """One that runs until it is closed; `stop` ends it at once, as a power cut would."""

    def __init__(self, options="", environment=None):
        self.environment = environment or {}
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
            env={**os.environ, **self.environment, "BATON_POSTGRES_OPTIONS": f"{os.environ.get('BATON_POSTGRES_OPTIONS', '')} {options}"},
            **({"user": user.pw_uid, "group": user.pw_gid} if user else {}),
        )
        ready, _, directory = self.hear().strip().partition(" ")
        self.directory = Path(directory)
        return ready == "ready"

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

    def log(self):
        """The lines of its log."""
        return (self.directory / "log").read_text().splitlines()

    def sql(self, statement):
        """Runs a statement and tells what it answered, one row per line."""
        command = [str(binaries() / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "baton", "-h", "127.0.0.1",
                   "-p", str(self.port), "-d", "postgres", "-c", statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def url(self):
        return self.url_over(self.port)

    def url_over(self, port):
        """Its address over a link."""
        return f"postgres://baton@127.0.0.1:{port}/postgres"

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


class Session:
    """One session that a test holds open, to be in the way of others. It ends with `close`."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        words = b"user\0baton\0database\0postgres\0\0"
        self.socket.sendall(struct.pack("!ii", 8 + len(words), 196608) + words)
        self._await_ready()

    def run(self, statement):
        text = statement.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", 4 + len(text)) + text)
        self._await_ready()

    def _await_ready(self):
        """Reads messages until it may speak again; an error is raised in the database's words."""
        refused = None
        while True:
            kind, length = struct.unpack("!ci", self._exactly(5))
            body = self._exactly(length - 4)
            if kind == b"E":
                refused = body.decode("utf-8", "replace").replace("\0", " ")
            if kind == b"Z" or (kind == b"E" and b"FATAL" in body):
                break
        if refused:
            raise ConnectionError(refused)

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the database ended the session")
            data += more
        return data

    def close(self):
        self.socket.close()


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
