"""The stores, each started once, and lanes in which their scenarios run at the same time."""

import threading
from concurrent.futures import Future

import pytest
import stores


@pytest.fixture(scope="session")
def lanes(request, tmp_path_factory):
    """Runs the scenarios that were selected: one after the other on each store, all stores at the same time."""
    selected = {}
    for item in request.session.items:
        spec = getattr(item, "callspec", None)
        if spec is not None and "lanes" in item.fixturenames:
            selected.setdefault(spec.params["store"], []).append(spec.params["scenario"])
    lanes = {name: Lane(name, scenarios, tmp_path_factory.mktemp(name)) for name, scenarios in selected.items()}
    yield lanes
    for lane in lanes.values():
        lane.close()


class Lane:
    """One store and its scenarios."""

    def __init__(self, name, scenarios, directory):
        self.name = name
        self.directory = directory
        self.outcomes = {scenario: Future() for scenario in scenarios}
        self.closing = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            store = stores.STORES[self.name](self.directory)
        except BaseException as failure:  # handed to each test
            for outcome in self.outcomes.values():
                outcome.set_exception(failure)
            return
        try:
            for scenario, outcome in self.outcomes.items():
                if self.closing:
                    break
                try:
                    outcome.set_result(scenario(store))
                except BaseException as failure:  # handed to the test
                    outcome.set_exception(failure)
        finally:
            store.close()

    def result(self, scenario):
        return self.outcomes[scenario].result()

    def close(self):
        self.closing = True
        self.thread.join()
