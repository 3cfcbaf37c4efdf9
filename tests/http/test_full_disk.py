"""A disk that fills up: pushes are refused in time, and everything else goes on."""

import os
import subprocess
import time

import pytest

from baton import Server, ack_of, data_of

DISK_BYTES = 96 << 20
FLOOR_BYTES = 32 << 20
RESERVE_BYTES = FLOOR_BYTES // 4


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


def test_a_disk_that_is_really_full_refuses_and_recovers(small_disk):
    """No floor at all: the disk itself says no. The server lives, and what was answered is there."""
    with Server(small_disk / "data", "--min-free-disk", "0") as server:
        accepted, refusal = fill(server, "q", 2000)
        assert (refusal.status, refusal.json["code"]) == (507, "storage_full"), refusal
        time.sleep(1)
        assert server.process.poll() is None
        subprocess.run(["mount", "-o", f"remount,size={DISK_BYTES * 2}", str(small_disk)], check=True)
        until(lambda: server.post("/api/v1/push", {"items": [{"queue": "r", "payload": 1}]}).status == 201)
        assert server.get("/health").status == 200
        for restarted in (False, True):
            if restarted:
                server.kill()
                server.start()
            group = {"consumerGroup": f"g{restarted}", "subscriptionMode": "all"}
            seen = []
            while messages := server.pop("q", batch=10, autoAck=True, **group):
                seen += data_of(messages)
            assert seen == accepted


def test_a_program_that_takes_the_last_space_at_once_does_not_stop_the_server(small_disk):
    filler = small_disk / "filler"
    with Server(small_disk / "data", "--min-free-disk", str(FLOOR_BYTES)) as server:
        accepted, refused = [], 0
        for turn in range(5):
            with open(filler, "wb") as file:
                # Faster than the server looks.
                os.posix_fallocate(file.fileno(), 0, free_bytes(small_disk) - (64 << 10))
            for i in range(3):
                payload = f"{turn}/{i}/" + "x" * (256 << 10)
                answer = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": payload}]})
                assert answer.status in (201, 503, 507), answer
                refused += answer.status != 201
                if answer.status == 201:
                    accepted.append(payload)
            filler.unlink()
            until(lambda: server.post("/api/v1/push", {"items": [{"queue": "r", "payload": 1}]}).status == 201)
        assert refused > 0
        assert server.process.poll() is None
        seen = []
        while messages := server.pop("q", batch=10, autoAck=True):
            seen += data_of(messages)
        assert seen == accepted
        assert server.stop() == 0


def occupy(path, leave):
    """Fills the disk with a file, but for so many bytes."""
    path.write_bytes(b"x" * max(0, free_bytes(path.parent) - leave))


def free_bytes(path):
    free = os.statvfs(path)
    return free.f_bavail * free.f_frsize


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_below_the_reserve_only_what_frees_space_goes_on(small_disk):
    filler = small_disk / "filler"
    with Server(small_disk / "data", "--min-free-disk", str(FLOOR_BYTES)) as server:
        server.push("waiting", 1)
        fill(server, "q", 2000)
        held = server.pop("q")
        occupy(filler, RESERVE_BYTES // 2)
        # A pop before the server has looked at the disk would take the message.
        push = {"items": [{"queue": "q", "payload": 1}]}
        until(lambda: server.post("/api/v1/push", push).status == 507 and not (small_disk / "data" / "ballast").exists())
        refused = server.post("/api/v1/ack", ack_of(held[0]))
        assert refused.status == 507, refused
        assert refused.json["code"] == "storage_full"
        # It does not matter how often it is asked for.
        before = free_bytes(small_disk)
        for _ in range(200):
            assert server.get("/api/v1/pop/queue/waiting").status == 507
        assert free_bytes(small_disk) >= before - (1 << 20)
        assert server.get("/api/v1/resources/queues").status == 200
        assert server.delete("/api/v1/resources/queues/q").status == 200
        until(lambda: server.post("/api/v1/push", {"items": [{"queue": "r", "payload": 1}]}).status == 201)
        assert data_of(server.pop("waiting")) == [1]
        assert server.stop() == 0


def test_a_start_on_a_full_disk_frees_what_is_deleted(small_disk):
    filler = small_disk / "filler"
    with Server(small_disk / "data", "--min-free-disk", str(FLOOR_BYTES)) as server:
        accepted, _ = fill(server, "q", 2000)
        server.kill()
        occupy(filler, 0)
        assert free_bytes(small_disk) == 0
        server.start()
        assert server.get("/api/v1/pop/queue/q").status == 507
        assert server.delete("/api/v1/resources/queues/q").status == 200
        until(lambda: free_bytes(small_disk) > len(accepted) * (128 << 10))
        until(lambda: server.post("/api/v1/push", {"items": [{"queue": "r", "payload": 1}]}).status == 201)
        until(lambda: (small_disk / "data" / "ballast").exists())
        assert server.stop() == 0
