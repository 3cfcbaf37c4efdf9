"""The tests that the client's own release ships, unmodified. Which of them Baton does not pass is listed with the reason.

`./test` downloads the source package that holds them.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from baton import ROOT, Server, plain

SUITE = ROOT / "target" / "clients" / f"queen_mq-{version('queen-mq')}" / "tests"
SUITE_SECONDS = 900
SECRET = "a-secret-that-is-long-enough-for-hs256-0123456789"

# An ack finishes its own message and no other, so nothing is skipped, delivered twice or too late to fail.
DIFFERENT = {
    "test_nack_not_skipped_by_later_ack_same_call",
    "test_retry_not_skipped_by_later_ack_same_call",
    "test_nack_below_cursor_is_rejected",
    "test_ack_below_cursor_is_noop_flagged",
}


def run_suite(server, tmp_path, *chosen, **environment):
    """Runs the suite and tells by name what passed, failed and was skipped."""
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "published", "-p", "no:cacheprovider", "-n", "4", "-q"]
    ended = subprocess.run(
        [*command, f"--junitxml={report}", *(chosen or ["."])],
        cwd=SUITE,
        env=plain() | {"PYTHONPATH": str(Path(__file__).parent), "QUEEN_SERVER_URL": server.url, **environment},
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
    )
    outcomes = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = "passed"
        for child in case:
            outcome = {"failure": "failed", "error": "failed", "skipped": "skipped"}.get(child.tag, outcome)
        outcomes[outcome].append(case.get("name"))
    return outcomes, ended.stdout


@pytest.mark.skipif(not SUITE.is_dir(), reason="./test downloads the tests of this release; that of 0.15.0 ships none")
@pytest.mark.parametrize("guarded", [False, True])
def test_the_release_passes_its_own_tests(tmp_path, guarded):
    settings = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET} if guarded else {}
    with Server(tmp_path / "data", environment={"QUEEN_ENCRYPTION_KEY": "5a" * 32, **settings}) as server:
        chosen = ["test_auth.py"] if guarded else []
        client = {"JWT_SECRET": SECRET} if guarded else {}
        outcomes, output = run_suite(server, tmp_path, *chosen, **client)
        # Its waits are short. On a busy machine a test may fail beside others, but not alone.
        late = set(outcomes["failed"]) - DIFFERENT
        if late and not guarded:
            again, output = run_suite(server, tmp_path, "-k", " or ".join(sorted(late)), "-n", "0", **client)
            outcomes["failed"] = [name for name in outcomes["failed"] if name not in again["passed"]]
            outcomes["passed"] += again["passed"]
    assert set(outcomes["failed"]) == (set() if guarded else DIFFERENT), output
    assert len(outcomes["passed"]) >= (2 if guarded else 110), output


def test_what_is_different_is_documented():
    page = (ROOT / "docs" / "coming-from-queen.md").read_text()
    assert {name for name in DIFFERENT if name not in page} == set()
