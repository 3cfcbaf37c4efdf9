"""A disk that fills up: pushes are refused in time, and everything else goes on."""

import os
import subprocess
import time

import pytest

from baton import Server, data_of

DISK_BYTES = 96 << 20
FLOOR_BYTES = 32 << 20


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, small enough to fill."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"this machine does not allow mounting: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(server, queue, pushes):
    """Pushes until refused; returns the payloads that were accepted and the refusal."""
    accepted = []
    for i in range(pushes):
        payload = f"{i}:" + f"{i * 7919 % 65536:04x}" * (64 << 10)
        answer = server.post("/api/v1/push", {"items": [{"queue": queue, "payload": payload}]})
        if answer.status != 201:
            return accepted, answer
        accepted.append(payload)
    raise AssertionError(f"{pushes} pushes were accepted and none refused")


def test_pushes_are_refused_below_the_floor_while_pops_and_acks_go_on(small_disk):
    with Server(small_disk / "data", "--min-free-disk", str(FLOOR_BYTES)) as server:
        accepted, refusal = fill(server, "q", 2000)
        assert len(accepted) > 20
        assert refusal.status in (503, 507)
        assert "disk" in refusal.error.lower() or "space" in refusal.error.lower()
        for payload in accepted:
            messages = server.pop("q")
            assert data_of(messages) == [payload]
            assert server.ack(messages)[0]["success"] is True
        assert server.pop("q") == []
        assert server.get("/health").status in (200, 503)
        assert server.stop() == 0


def test_everything_accepted_survives_a_restart_on_a_nearly_full_disk(small_disk):
    with Server(small_disk / "data", "--min-free-disk", str(FLOOR_BYTES)) as server:
        accepted, _ = fill(server, "q", 2000)
        server.kill()
        server.start()
        answer = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": "x" * (8 << 20)}]})
        assert answer.status in (201, 503, 507), answer
        seen = []
        while messages := server.pop("q", batch=10, autoAck=True):
            seen += data_of(messages)
        assert seen[: len(accepted)] == accepted


def test_pushes_are_taken_again_once_there_is_room(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (DISK_BYTES - FLOOR_BYTES + (4 << 20)))
    try:
        with Server(small_disk / "data", "--min-free-disk", str(FLOOR_BYTES)) as server:
            answer = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
            assert answer.status in (503, 507), answer
            ballast.unlink()
            for _ in range(100):
                answer = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
                if answer.status == 201:
                    break
                time.sleep(0.1)
            assert answer.status == 201
            assert data_of(server.pop("q")) == [1]
    finally:
        ballast.unlink(missing_ok=True)


def test_a_disk_that_is_really_full_loses_nothing_that_was_accepted(small_disk):
    """No floor at all: the disk itself says no. What was answered is there once there is room again."""
    with Server(small_disk / "data", "--min-free-disk", "0") as server:
        accepted, refusal = fill(server, "q", 2000)
        assert refusal.status >= 500
        assert refusal.error
        server.kill()
        subprocess.run(["mount", "-o", f"remount,size={DISK_BYTES * 2}", str(small_disk)], check=True)
        server.start()
        seen = []
        while messages := server.pop("q", batch=10, autoAck=True):
            seen += data_of(messages)
        assert seen[: len(accepted)] == accepted
        assert len(seen) <= len(accepted) + 1
