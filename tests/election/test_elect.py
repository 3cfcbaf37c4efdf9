"""`baton elect` and the examples, as somebody would type them."""

import os
import re
import signal
import subprocess

import pytest
import stores
from baton import ROOT, Server, binary, eventually, plain

EXAMPLES = ROOT / "examples" / "elections"

# Writes down what happens to it, and goes on until it is told to end.
JOB = """
echo $$ >> "$OUT.pids"
trap 'echo "$WHO ends" >> "$OUT"; exit 0' TERM
echo "$WHO begins under $BATON_ELECTION_TOKEN" >> "$OUT"
while :; do sleep 0.1; done
"""

# The same, but it cannot be asked.
STUBBORN = """
echo $$ >> "$OUT.pids"
trap 'echo "$WHO is asked to end" >> "$OUT"' TERM
echo "$WHO begins under $BATON_ELECTION_TOKEN" >> "$OUT"
while :; do sleep 0.1; done
"""


# It ends at once when asked; what it started ignores that.
LEAVING = """
sh -c 'trap "" TERM; echo $$ >> "$OUT.pids"; echo "$WHO goes on" >> "$OUT"; exec sleep 600' &
echo "$WHO begins under $BATON_ELECTION_TOKEN" >> "$OUT"
wait
"""


class Elected:
    """Processes of `baton elect` on one directory, and what their commands wrote down."""

    def __init__(self, directory):
        self.store = f"file://{directory / 'store'}"
        self.out = directory / "out"
        self.out.touch()
        self.pids = directory / "out.pids"
        self.processes = []

    def start(self, who, script, *args):
        command = [str(binary()), "elect", "job", "--store", self.store, "--fast", "--worker-id", who, *args]
        process = subprocess.Popen(
            [*command, "--", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=plain() | {"WHO": who, "OUT": str(self.out)},
        )
        self.processes.append(process)
        return process

    def wrote(self):
        return self.out.read_text().splitlines()

    def wait_for(self, line):
        eventually(lambda: line in self.wrote(), 20)

    def commands(self):
        """The process ids of all commands so far."""
        return [int(pid) for pid in self.pids.read_text().split()]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            process.wait(20)
        # A command outlives a supervisor that was killed.
        for pid in self.commands() if self.pids.exists() else ():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def elected(tmp_path):
    elected = Elected(tmp_path)
    yield elected
    elected.close()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_command_runs_on_one_and_moves_when_that_one_is_stopped(elected):
    first = elected.start("a", JOB)
    elected.wait_for("a begins under 1")
    second = elected.start("b", JOB)
    first.terminate()
    elected.wait_for("b begins under 2")
    assert first.wait(20) == 0
    second.terminate()
    assert second.wait(20) == 0
    assert elected.wrote() == ["a begins under 1", "a ends", "b begins under 2", "b ends"]


def test_the_command_begins_elsewhere_when_its_supervisor_is_killed(elected):
    first = elected.start("a", JOB)
    elected.wait_for("a begins under 1")
    second = elected.start("b", JOB)
    first.kill()
    elected.wait_for("b begins under 2")
    second.terminate()
    assert second.wait(20) == 0


def test_a_supervisor_that_was_paused_ends_its_command_when_it_wakes_up(elected):
    first = elected.start("a", STUBBORN)
    elected.wait_for("a begins under 1")
    [command] = elected.commands()
    elected.start("b", JOB)
    first.send_signal(signal.SIGSTOP)
    elected.wait_for("b begins under 2")
    first.send_signal(signal.SIGCONT)
    eventually(lambda: not is_alive(command), 20)
    assert first.poll() is None


def test_a_command_that_does_not_end_is_killed(elected):
    process = elected.start("a", STUBBORN, "--grace", "0.3")
    elected.wait_for("a begins under 1")
    [command] = elected.commands()
    process.terminate()
    assert process.wait(20) == 0
    assert not is_alive(command)
    assert "a is asked to end" in elected.wrote()


def test_what_a_command_started_ends_with_the_term(elected):
    process = elected.start("a", LEAVING, "--grace", "0.3")
    elected.wait_for("a goes on")
    [command] = elected.commands()
    process.terminate()
    assert process.wait(20) == 0
    assert not is_alive(command)
    # A command that ends by itself leaves nothing behind either, which would work beside the next coordinator's.
    ending = elected.start("b", LEAVING.replace("wait", 'until grep -q "b goes on" "$OUT"; do sleep 0.1; done'))
    assert ending.wait(30) == 0
    eventually(lambda: not any(is_alive(pid) for pid in elected.commands()), 20)


def test_the_exit_code_of_the_command_is_passed_on(elected):
    assert elected.start("a", "exit 7").wait(20) == 7
    # The term was given up in good order: the next one need not wait for a lease.
    assert elected.start("b", "exit 3").wait(20) == 3


@pytest.mark.parametrize("kind", ["missing", "on no PATH", "not executable"])
def test_a_command_that_cannot_be_started_is_told_before_an_election(elected, tmp_path, kind):
    (tmp_path / "script").write_text("true")
    program = {"missing": str(tmp_path / "missing"), "on no PATH": "no-such-program", "not executable": str(tmp_path / "script")}
    # Nobody would be elected within the time that the test has.
    slow = ["--set", "coldStartObservationWindow=600000"]
    command = [str(binary()), "elect", "job", "--store", elected.store, *slow, "--", program[kind]]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 127 and b"cannot start" in done.stderr, done


def test_it_says_what_it_waits_for(elected, tmp_path):
    first = elected.start("a", JOB)
    elected.wait_for("a begins under 1")
    said = tmp_path / "said"
    command = [str(binary()), "elect", "job", "--store", elected.store, "--fast", "--worker-id", "b", "--", "true"]
    with said.open("wb") as errors:
        second = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors, env=plain())
    elected.processes.append(second)
    eventually(lambda: re.search(r"a coordinates under token \d+: waiting", said.read_text()), 60)
    assert "watching for a coordinator for 500ms" in said.read_text()
    first.terminate()
    assert second.wait(20) == 0


def test_a_grace_that_the_lease_does_not_leave_is_refused(elected):
    command = [str(binary()), "elect", "job", "--store", elected.store, "--fast", "--grace", "5", "--", "true"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 1 and b"a quarter of the lease" in done.stderr, done


def test_a_server_lists_its_elections(tmp_path):
    with Server(tmp_path / "data") as server:
        environment = plain() | {"BATON_URL": server.url}
        elect = [str(binary()), "elect", "nightly", "--fast", "--worker-id", "me", "--"]
        process = subprocess.Popen([*elect, "sleep", "600"], env=environment, stderr=subprocess.PIPE)
        try:
            listed = lambda: subprocess.run(  # noqa: E731
                [str(binary()), "elections"], env=environment, capture_output=True, text=True, check=True
            ).stdout
            eventually(lambda: "nightly" in listed() and "me" in listed(), 20)
            delete = lambda: subprocess.run(  # noqa: E731
                [str(binary()), "elections", "nightly", "--delete"], env=environment, capture_output=True, text=True
            )
            refused = delete()
            assert refused.returncode != 0 and "coordinates" in refused.stderr, refused
        finally:
            process.terminate()
            process.communicate(timeout=20)
        assert process.returncode == 0
        assert delete().returncode == 0
        assert "nightly" not in listed()
        refused = delete()
        assert refused.returncode != 0 and "no election group" in refused.stderr, refused


def example(name, *args, **environment):
    """What an example prints, which must end well."""
    environment = plain() | {"BATON": str(binary())} | environment
    command = ["sh", str(EXAMPLES / name), *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return [line for line in done.stdout.splitlines() if line.startswith(("first", "second"))]


HANDED_OVER = [
    "first: cleaning up under token 1",
    "first: told to stop",
    "second: cleaning up under token 2",
    "second: told to stop",
]


def test_the_example_with_a_server():
    assert example("on-a-server.sh") == HANDED_OVER


def test_the_example_on_s3(tmp_path):
    store = stores.moto(tmp_path)
    try:
        assert example("on-s3.sh", store.url, **store.environment) == HANDED_OVER
    finally:
        store.close()
