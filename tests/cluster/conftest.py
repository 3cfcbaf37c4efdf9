import sys
import uuid
from pathlib import Path

import pytest

# The servers, links and loads are modules of these tests only.
sys.path.insert(0, str(Path(__file__).parent))

from nodes import Cluster  # noqa: E402


@pytest.fixture
def cluster(tmp_path):
    """Makes clusters of a test's own, and ends them with the test."""
    made = []

    def make(*args, **options):
        schema = f"cluster_{uuid.uuid4().hex[:16]}"
        made.append(Cluster(tmp_path, schema, *args, **options))
        return made[-1].start()

    yield make
    for one in made:
        one.stop()
