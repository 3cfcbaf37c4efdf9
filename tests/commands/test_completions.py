"""`baton completions`: scripts that shells can read, for every shell that is offered."""

import re
import shutil
import subprocess

import pytest

from programs import Programs

# Nothing here asks a server.
program = Programs("http://nowhere.invalid")
# Wide enough that no line of the help is broken.
program.environment["COLUMNS"] = "200"

# Reads the script $1 and asks it for what the last of the other words may become, as bash does.
COMPLETE = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$(($# - 2))
_baton baton "${@: -1}" "${@: -2:1}"
echo "${COMPREPLY[@]}"
"""


def shells():
    """The shells that the help names."""
    [named] = re.findall(r"possible values: ([\w, ]+)]", program.said("completions", "--help"))
    return named.split(", ")


def commands():
    """The commands that the help names."""
    listed = program.said("--help").split("Commands:\n")[1].split("\n\n")[0]
    return re.findall(r"^  (\S+)", listed, re.MULTILINE)


def test_every_command_is_in_the_script_of_every_shell():
    assert {"bash", "fish", "zsh"} <= set(shells())
    assert {"push", "pop", "tail", "queues", "bench", "completions"} <= set(commands())
    for shell in shells():
        words = set(re.findall(r"[\w-]+", program.said("completions", shell)))
        assert set(commands()) <= words, shell
        assert any("transaction-id" in word for word in words), shell


# Bash is wherever the tests are; the others are asked where they are installed.
@pytest.mark.parametrize("shell", ["bash", *filter(shutil.which, ("fish", "zsh"))])
def test_the_shell_accepts_its_script(shell, tmp_path):
    script = tmp_path / "baton"
    script.write_text(program.said("completions", shell))
    read = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=30)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize(
    "typed, completed", [("pus", "push"), ("push --trans", "--transaction-id"), ("bench fan", "fan-out")]
)
def test_bash_completes_what_was_typed(typed, completed, tmp_path):
    script = tmp_path / "baton"
    script.write_text(program.said("completions", "bash"))
    command = ["bash", "--norc", "-c", COMPLETE, "bash", script, "baton", *typed.split()]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert said.stdout.split() == [completed], said


def test_a_shell_that_is_not_offered_is_refused_with_those_that_are():
    code, out, err = program.baton("completions", "tcsh")
    assert (code, out) == (2, "")
    assert all(shell in err for shell in shells())
