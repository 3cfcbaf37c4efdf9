"""A damaged file is reported; a wrong payload is never served."""

import json
import shutil
import time

import pytest

from baton import Refused, Server

QUEUES = 3
PARTITIONS = 4
MESSAGES = 120
TRIALS = 24


def text_of(queue, partition, number):
    """A payload that can be told from every other, and that a flipped bit would change."""
    return f"{queue}/{partition}/{number}/" + f"{number * 7919 % 65536:04x}" * 200


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A data directory with messages in it, left by a server that stopped well after one restart."""
    data = tmp_path_factory.mktemp("filled") / "data"
    with Server(data) as server:
        for half in range(2):
            for queue in range(QUEUES):
                for partition in range(PARTITIONS):
                    numbers = range(half * MESSAGES // 2, (half + 1) * MESSAGES // 2)
                    texts = [text_of(queue, partition, number) for number in numbers]
                    server.push(f"q{queue}", *texts, partition=f"p{partition}")
            assert server.stop() == 0
            server.start()
        assert server.stop() == 0
    return data


def files_of(data):
    paths = (path for path in data.rglob("*") if path.is_file() and path.stat().st_size > 0)
    return sorted(path for path in paths if path.name != "ballast")


def flip(path, rng):
    """Flips bits of some bytes somewhere in the middle of a file."""
    contents = bytearray(path.read_bytes())
    size = len(contents)
    at = rng.randrange(size // 4, max(size // 4 + 1, 3 * size // 4))
    for i in range(at, min(size, at + rng.choice([1, 4, 64]))):
        contents[i] ^= rng.randrange(1, 256)
    path.write_bytes(contents)
    return at


def erase(path, at):
    """Overwrites one block of a file with zeroes, as a write that never reached the disk leaves it."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes(min(4096, path.stat().st_size - at)))


def read_all(server):
    """Every text that can be read, and the errors answered on the way."""
    texts, errors = {}, []
    for queue in range(QUEUES):
        for partition in range(PARTITIONS):
            read = texts.setdefault((queue, partition), [])
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                answer = server.get(f"/api/v1/pop/queue/q{queue}/partition/p{partition}?batch=50&autoAck=true")
                if answer.status == 204:
                    break
                if answer.status >= 500:
                    errors.append(answer.error)
                    break
                assert answer.status == 200, answer
                read.extend(message["data"] for message in answer.json["messages"])
    return texts, errors


def expected():
    return {
        (queue, partition): [text_of(queue, partition, number) for number in range(MESSAGES)]
        for queue in range(QUEUES)
        for partition in range(PARTITIONS)
    }


def test_an_undamaged_copy_reads_back_whole(filled, tmp_path):
    shutil.copytree(filled, tmp_path / "data")
    with Server(tmp_path / "data") as server:
        assert read_all(server) == (expected(), [])


def test_a_flipped_byte_is_reported_and_never_served(filled, tmp_path, rng):
    files = files_of(filled)
    weights = [path.stat().st_size for path in files]
    told = 0
    for trial in range(TRIALS):
        data = tmp_path / f"data-{trial}"
        shutil.copytree(filled, data)
        # Every file in turn first, then by size, since most of a directory is payload.
        chosen = files[trial] if trial < min(len(files), TRIALS // 2) else rng.choices(files, weights)[0]
        victim = data / chosen.relative_to(filled)
        at = flip(victim, rng)
        where = f"{chosen.relative_to(filled)} ({victim.stat().st_size} bytes) at {at}"
        server = Server(data)
        try:
            server.start()
        except Refused as refused:
            assert refused.code not in (0, None), where
            assert "panicked" not in refused.output, (where, refused.output)
            assert len(refused.output.strip()) > 20, (where, refused.output)
            told += 1
            continue
        with server:
            texts, errors = read_all(server)
            for key, read in texts.items():
                wrong = [text for text in read if text not in set(expected()[key])]
                assert not wrong, (where, json.dumps(wrong)[:200])
            if texts != expected():
                assert errors, f"{where}: messages are missing and nothing was said\n{server.text()}"
                told += 1
        shutil.rmtree(data)
    assert told > 0, "no flipped byte made a difference: the test does not reach the data"


def test_a_block_of_zeroes_is_reported_and_not_taken_for_the_end(filled, tmp_path):
    largest = max(files_of(filled), key=lambda path: path.stat().st_size)
    size = largest.stat().st_size
    silent = []
    for trial in range(12):
        data = tmp_path / f"data-{trial}"
        shutil.copytree(filled, data)
        at = trial * size // 12 // 4096 * 4096
        erase(data / largest.relative_to(filled), at)
        server = Server(data)
        try:
            server.start()
        except Refused:
            continue
        with server:
            texts, errors = read_all(server)
            if texts != expected() and not errors:
                left = sum(map(len, texts.values()))
                silent.append(f"zeroes at {at} of {size}: {left} of {QUEUES * PARTITIONS * MESSAGES} messages are left")
    assert silent == []
