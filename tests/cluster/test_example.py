"""The example that shows a cluster to a newcomer works as it says."""

import os
import subprocess

from baton import ROOT, binary


def test_the_example_runs_and_leaves_nothing_behind():
    shown = subprocess.run(
        [ROOT / "examples" / "cluster" / "run", "--seconds", "4", "--kill"],
        env={name: value for name, value in os.environ.items() if not name.startswith("BATON_")} | {"BATON": str(binary())},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "baton-2 starts again" in shown.stdout and "served by" in shown.stdout
