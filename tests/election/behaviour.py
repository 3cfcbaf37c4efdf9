"""What an election must show on every store: each function is one scenario with real processes.

Whatever a scenario is about, its group also checks at the end that no two participants ever claimed to coordinate
at the same time and that tokens only rose (`participant.overlaps`). Start at `SCENARIOS`.
"""

import time

from baton import eventually
from participant import SLACK_SECONDS, Group

SCENARIOS = []


def scenario(function):
    SCENARIOS.append(function)
    return function


def only_coordinator(group, worker_id, token):
    """That all members come to know `worker_id` as the coordinator, and no other takes itself for it."""
    for member in group.members.values():
        if member.process.poll() is None:
            member.wait_for("coord:coordinator-elected", workerId=worker_id, epochNumber=token)
            status = member.status()
            known = status["coordinator"]
            assert (known["coordinatorId"], known["epochNumber"]) == (worker_id, token), status
            assert status["isCoordinator"] == (member.worker_id == worker_id), status


@scenario
def the_probe_finds_nothing_wrong(store):
    with Group(store) as group:
        group.start("a", probe=True)
        group["a"].wait_for("became")


@scenario
def of_three_that_start_together_the_first_id_wins(store):
    """They see each other while they observe; each lets those before it go first."""
    with Group(store, coldStartObservationWindow=1500, claimStagger=1500) as group:
        group.start("c", "b", "a")
        became = group["a"].wait_for("became")
        assert became["token"] == 1
        for member in group.members.values():
            elected = member.wait_for("coord:coordinator-elected")
            assert (elected["workerId"], elected["epochNumber"]) == ("a", 1)
            member.wait_for("coord:cold-start-phase-changed", phase="ready")
            phases = [line["phase"] for line in member.lines if line["event"] == "coord:cold-start-phase-changed"]
            # Who finds a coordinator while it observes has nothing to elect.
            assert [phase for phase in phases if phase != "election"] == ["observing", "preparation", "ready"]
        group["a"].wait_for("work", isCoordinator=True)
        only_coordinator(group, "a", 1)


@scenario
def a_killed_coordinator_is_replaced_by_the_next(store):
    with Group(store) as group:
        killed, _ = group.settle("a", "b", "c")
        at = killed.kill()
        became = group["b"].wait_for("became")
        assert became["token"] == 2
        within = became["at"] - at
        assert within <= group.bounds()["failoverMs"] + SLACK_SECONDS * 100, within
        group["c"].wait_for("coord:coordinator-elected", workerId="b", previous="a")
        only_coordinator(group, "b", 2)


@scenario
def a_stopped_coordinator_hands_over_at_once(store):
    with Group(store) as group:
        stopped, _ = group.settle("a", "b", "c")
        at = stopped.terminate()
        became = group["b"].wait_for("became")
        within = became["at"] - at
        assert within <= group.bounds()["handoverMs"] + SLACK_SECONDS * 50, within
        assert stopped.wait() == 0, stopped.errors
        assert stopped.lines[-1]["event"] == "ended"
        over = stopped.wait_for("stopped", reason="stopped")
        assert over["at"] <= became["at"] and became["token"] == 2
        only_coordinator(group, "b", 2)
        # Stopped in its turn, by an order instead of a signal.
        group["b"].order("stop")
        assert group["c"].wait_for("became")["token"] == 3
        assert group["b"].wait() == 0


@scenario
def a_paused_coordinator_wakes_up_demoted(store):
    with Group(store) as group:
        paused, became = group.settle("a", "b")
        paused.wait_for("work", isCoordinator=True)
        paused.pause()
        try:
            successor = group["b"].wait_for("became")
            assert successor["token"] > became["token"]
            group["b"].wait_for("work", isCoordinator=True)
            since = paused.mark()
        finally:
            paused.resume()
        demoted = paused.wait_for("coord:coordinator-demoted", since=since)
        assert (demoted["reason"], demoted["epochNumber"]) == ("lease-expired", became["token"])
        paused.wait_for("coord:coordinator-elected", since=since, workerId="b", epochNumber=successor["token"])
        # Not even between waking up and noticing did it take itself for the coordinator.
        assert not [line for line in paused.lines[since:] if line["isCoordinator"]]
        only_coordinator(group, "b", successor["token"])


@scenario
def another_coordinator_can_be_asked_for_by_name(store):
    with Group(store) as group:
        first, _ = group.settle("a", "b", "c")
        # So long that nobody goes by what was true when it started.
        beaten = group["b"].mark()
        time.sleep(3.5)
        assert group["b"].count("coord:worker-heartbeat", since=beaten) > 1
        group["b"].order("force nobody")
        refused = group["b"].wait_for("forced")
        assert "nobody" in refused["error"] and "b" in refused["error"], refused
        group["b"].order("force c")
        forced = group["b"].wait_for("forced", since=group["b"].lines.index(refused) + 1)
        assert forced["error"] is None, forced["error"]
        first.wait_for("stopped", reason="requested")
        assert group["c"].wait_for("became")["token"] == 2
        # A coordinator can ask for another than itself.
        group["c"].order("force a")
        forced = group["c"].wait_for("forced")
        assert forced["error"] is None, forced["error"]
        assert first.wait_for("became", token=3)
        only_coordinator(group, "a", 3)


@scenario
def a_coordinator_asked_to_step_down_lets_another_go_first(store):
    with Group(store) as group:
        first, _ = group.settle("a", "b")
        group["b"].order("force")
        forced = group["b"].wait_for("forced")
        assert forced["error"] is None, forced["error"]
        first.wait_for("stopped", reason="requested")
        assert group["b"].wait_for("became")["token"] == 2
        only_coordinator(group, "b", 2)


@scenario
def a_mandate_is_renewed_in_the_same_term(store):
    with Group(store, minEpochDuration=1000, maxEpochDuration=2000) as group:
        first, became = group.settle("a", "b")
        one = first.wait_for("coord:coordinator-epoch-renewed")
        other = first.wait_for("coord:coordinator-epoch-renewed", since=first.lines.index(one) + 1)
        assert one["newEpoch"] < other["newEpoch"]
        assert one["epochNumber"] == other["epochNumber"] == became["token"]
        only_coordinator(group, "a", 1)


@scenario
def nobody_coordinates_while_the_store_is_silent(store):
    """Longer than the lease: the coordinator stops by its own clock, and somebody begins when the store is back."""
    if store.process is None:
        return
    with Group(store) as group:
        first, _ = group.settle("a", "b")
        store.pause()
        try:
            first.wait_for("stopped", reason="lease-expired")
            since = {member: member.mark() for member in group.members.values()}
            for member in group.members.values():
                member.wait_for("coord:store-failing", since=since[member])
                assert not member.status()["isCoordinator"]
        finally:
            store.resume()
        # A claim that was sent meanwhile can land late, when nobody acts on it any more; then the number is skipped.
        eventually(lambda: any(member.count("became", since=since[member]) for member in since), SLACK_SECONDS)
