"""The stores that elections are held on, each started once as the real thing on a port of loopback.

Not here: anything that stands in for a store. What cannot be installed fails its tests. Start at `STORES`.
"""

import atexit
import base64
import contextlib
import hmac
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from email.utils import formatdate
from pathlib import Path

from baton import Server, eventually
from ports import free_port

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
START_SECONDS = 60

# The account that Azurite has for everybody; it is in its documentation and protects nothing.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def node_modules():
    """Where the Node packages are that `package.json` names."""
    return Path(os.environ.get("BATON_NODE_MODULES", HERE / "node_modules"))


class Store:
    """A store that participants can be pointed at by `url` and `environment`."""

    def __init__(self, url, environment=None, process=None, stop_signal=signal.SIGTERM):
        self.url = url
        self.environment = environment or {}
        self.process = process
        self.stop_signal = stop_signal

    def pause(self):
        """Lets the store answer nothing."""
        self._signal_all(signal.SIGSTOP)

    def resume(self):
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in (self.process.pid, *map(int, children.split())):
            # One that has ended meanwhile answers nothing either.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def launch(command, port, output, **options):
    """Starts a server and returns once its port answers."""
    with open(output, "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                said = Path(output).read_text(errors="replace")
                raise AssertionError(f"{command[0]} does not listen on {port}:\n{said}") from None
            time.sleep(0.05)


def s3(port, bucket, process):
    """An S3 store on loopback, with the bucket made."""
    url = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ENDPOINT": url,
        "AWS_ACCESS_KEY_ID": "S3RVER",
        "AWS_SECRET_ACCESS_KEY": "S3RVER",
        "AWS_REGION": "us-east-1",
    }
    return Store(f"s3://{bucket}/elections", environment, process)


def moto(directory):
    """S3 as moto speaks it, one request at a time, for with threads it lets two writers win."""
    port = free_port()
    process = launch([sys.executable, str(HERE / "moto_server.py"), str(port)], port, directory / "moto.log")
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/elections", method="PUT")).close()
    return s3(port, "elections", process)


def azurite(directory):
    """Azure Blob Storage as Azurite speaks it."""
    port = free_port()
    command = ["node", str(node_modules() / "azurite" / "dist" / "src" / "blob" / "main.js")]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory)]
    command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    process = launch(command, port, directory / "azurite.log")
    make_container(port, "elections")
    environment = {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
    }
    return Store("az://elections/elections", environment, process)


def make_container(port, container):
    """Makes a container; Azure wants that signed."""
    path = f"/{AZURE_ACCOUNT}/{container}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    described = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = f"PUT{chr(10) * 12}{described}/{AZURE_ACCOUNT}{path}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")).decode()
    headers |= {"Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}", "Content-Length": "0"}
    url = f"http://127.0.0.1:{port}{path}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


def s3rver(directory):
    """A server that speaks S3 and ignores conditions."""
    port = free_port()
    command = ["node", str(node_modules() / "s3rver" / "bin" / "s3rver.js"), "--directory", str(directory)]
    command += ["--address", "127.0.0.1", "--port", str(port), "--configure-bucket", "elections", "--silent"]
    return s3(port, "elections", launch(command, port, directory / "s3rver.log"))


def s3s_fs(directory):
    """A server that speaks S3, and checks conditions first and writes later."""
    port = free_port()
    (directory / "files" / "elections").mkdir(parents=True)
    command = [str(ROOT / "target" / "tools" / "bin" / "s3s-fs"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--access-key", "S3RVER", "--secret-key", "S3RVER", str(directory / "files")]
    return s3(port, "elections", launch(command, port, directory / "s3s-fs.log"))


def postgres(directory):
    """A database cluster of its own, which cannot belong to root."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    tool = lambda name: str(programs[-1] / name) if programs else name  # noqa: E731
    owner = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    if owner:
        # Its owner may not look into the directories of root.
        directory = Path(tempfile.mkdtemp(prefix="baton-postgres-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        shutil.chown(directory, "postgres", "postgres")
    data = str(directory / "data")
    make = [tool("initdb"), "--pgdata", data, "--username", "baton", "--auth", "trust", "--no-sync"]
    subprocess.run(make, check=True, capture_output=True, cwd=directory, **owner)
    port = free_port()
    command = [tool("postgres"), "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    command += ["-c", "unix_socket_directories=", "-c", "fsync=off"]
    process = launch(command, port, directory / "postgres.log", cwd=directory, **owner)
    ready = [tool("pg_isready"), "--quiet", "--host", "127.0.0.1", "--port", str(port)]
    eventually(lambda: subprocess.run(ready).returncode == 0, START_SECONDS)
    return Store(f"postgres://baton@127.0.0.1:{port}/postgres", process=process, stop_signal=signal.SIGINT)


def server(directory):
    """A Baton server."""
    started = Server(directory / "data").start()
    return Store(started.url, process=started.process)


def folder(directory):
    """A directory."""
    return Store(f"file://{directory}")


# What every behaviour is shown on.
STORES = {"directory": folder, "s3": moto, "azure": azurite, "postgres": postgres, "server": server}
