"""What a page of the documentation tells a reader to type, and a shell to type it in."""

import os
import re
import subprocess

from baton import binary, plain

FENCE = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"^((\S*/)?baton serve\b|cargo )")


def typed(page):
    """The lines of the shell blocks, without prompts."""
    return [line.removeprefix("$ ") for block in FENCE.findall(page) for line in block.splitlines()]


def commands(page):
    """The same without those that start a server, since a test has one of its own, or build it."""
    return [line for line in typed(page) if not LEFT_OUT.match(line)]


def shell(preamble, lines, directory, **environment):
    """Runs lines in a shell that finds the program under its name."""
    programs = directory / "bin"
    programs.mkdir()
    (programs / "baton").symlink_to(binary().resolve())
    return subprocess.run(
        ["bash", "-c", preamble + "\n".join(lines)],
        cwd=directory,
        env=plain() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
