"""One behaviour on every store."""

import pytest
from behaviour import SCENARIOS
from stores import STORES


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on(store, scenario, lanes):
    lanes[store].result(scenario)
