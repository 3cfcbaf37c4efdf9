"""The stores that elections are held on, each started once as the real thing on a port of loopback.

Not here: anything that stands in for a store. What cannot be installed fails its tests. Start at `STORES`.
"""

import base64
import hmac
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from email.utils import formatdate
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
START_SECONDS = 60

# The account that Azurite has for everybody; it is in its documentation and protects nothing.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def node_modules():
    """Where the Node packages are that `package.json` names."""
    return Path(os.environ.get("BATON_NODE_MODULES", HERE / "node_modules"))


class Store:
    """A store that participants can be pointed at by `url` and `environment`."""

    def __init__(self, url, environment=None, process=None):
        self.url = url
        self.environment = environment or {}
        self.process = process

    def pause(self):
        """Lets the store answer nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        if self.process is not None:
            self.resume()
            self.process.terminate()
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


def folder(directory):
    """A directory."""
    return Store(f"file://{directory}")


# What every behaviour is shown on.
STORES = {"directory": folder, "s3": moto, "azure": azurite}
