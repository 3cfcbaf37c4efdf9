"""Starts one server at a time, each on an empty directory and a free port, and ends it by its process."""

import contextlib
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass

START_SECONDS_MAX = 30


@dataclass
class Running:
    url: str
    pid: int


@contextlib.contextmanager
def directory(parent):
    """An empty directory that is gone afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    path = pathlib.Path(tempfile.mkdtemp(dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(command, log, **options):
    """A process that is ended afterwards: asked first, killed when it does not listen."""
    with open(log, "ab") as output:
        child = subprocess.Popen(command, stderr=output, **{"stdout": output, **options})
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout:
            child.stdout.close()


def wait_for_port(child, port, log):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and child.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")


@contextlib.contextmanager
def baton(tools, parent):
    with directory(parent) as path:
        log = path / "server.log"
        command = [tools.baton, "serve", "--listen", "127.0.0.1:0", "--data", path / "data"]
        with process(command, log, stdout=subprocess.PIPE, text=True) as child:
            first = child.stdout.readline().strip()
            url = first.removeprefix("baton is listening on ")
            if url == first:
                raise RuntimeError(f"the server said {first!r}: {log.read_text()[-2000:]}")
            yield Running(url, child.pid)


@contextlib.contextmanager
def redis(tools, parent):
    with directory(parent) as path:
        log, port = path / "server.log", free_port()
        command = [tools.redis, "--port", str(port), "--bind", "127.0.0.1", "--dir", path, "--save", "",
                   "--appendonly", "yes", "--appendfsync", "always"]
        with process(command, log) as child:
            wait_for_port(child, port, log)
            yield Running(f"redis://127.0.0.1:{port}", child.pid)


@contextlib.contextmanager
def nats(tools, parent, sync="sync_interval: always"):
    with directory(parent) as path:
        log, port, config = path / "server.log", free_port(), path / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{path}/data"\n  {sync}\n}}\n')
        with process([tools.nats, "-c", config], log) as child:
            wait_for_port(child, port, log)
            yield Running(f"nats://127.0.0.1:{port}", child.pid)


def version(command):
    found = subprocess.run([command, "--version"], capture_output=True, text=True)
    return (found.stdout.strip() or "unknown").splitlines()[0]
