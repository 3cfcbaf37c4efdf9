"""Stores that cannot elect are refused at the start, and the checker of the behaviour can fail."""

import re
import time

import stores
from participant import Group, Participant, Term, overlaps, terms
from ports import free_port


def refusal(store):
    """What a participant says as it ends because of the store, which is closed then."""
    participant = Participant(store.url, "refused", "a", environment=store.environment, probe=True)
    try:
        assert participant.wait() != 0
        assert participant.lines == []
        return participant.errors
    finally:
        participant.close()
        store.close()


def test_s3rver_is_refused_for_it_ignores_conditions(tmp_path):
    said = refusal(stores.s3rver(tmp_path))
    assert "the store does not enforce conditional writes: it took the creation of a record that existed" in said
    assert "Use a store that does" in said


def test_s3s_fs_is_refused_for_two_writers_at_once_both_succeed(tmp_path):
    said = refusal(stores.s3s_fs(tmp_path))
    assert re.search(r"of \d+ (creations|updates from one version) of one record at once, \d+ succeeded", said)


def test_a_store_that_does_not_answer_is_told_from_one_that_cannot_elect(tmp_path):
    store = stores.s3(free_port(), "elections", None)
    assert "the store could not be probed" in refusal(store)


def test_without_the_probe_the_checker_finds_two_coordinators_at_a_time(tmp_path):
    """On a store that takes every write. All claim at once, because all wake up at once and nobody lets another go
    first; so the checker that every scenario ends with is shown to find what it looks for."""
    store = stores.s3rver(tmp_path)
    try:
        assert any(overlaps_after_a_pause_of_all(store) for _ in range(8))
    finally:
        store.close()


def overlaps_after_a_pause_of_all(store):
    group = Group(store, claimStagger=0, skipColdStart=True)
    members = group.members
    try:
        group.start("a", "b", "c", "d")
        group["a"].wait_for("coord:coordinator-elected")
        for member in members.values():
            member.pause()
        # Longer than any lease that was promised before.
        time.sleep(3.2)
        for member in members.values():
            member.resume()
        deadline = time.monotonic() + 2
        while not (found := overlaps(group.terms())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found
    finally:
        for member in members.values():
            member.close()


def line(event, at, remaining=None, token=1, **fields):
    claimed = {} if remaining is None else {"token": token, "remainingMs": remaining}
    return {"event": event, "self": "a", "at": at, "isCoordinator": bool(remaining)} | claimed | fields


def test_a_claim_lasts_as_long_as_its_lease_unless_it_is_given_up():
    work = [line("became", 100, 50), line("work", 120, 50)]
    assert terms(work) == [Term(100, 170, "a", 1)]
    assert terms([*work, line("stopped", 130, reason="requested")]) == [Term(100, 130, "a", 1)]
    assert terms([*work, line("stopped", 130, reason="superseded")]) == [Term(100, 170, "a", 1)]
    assert terms([*work, line("work", 900, 0)]) == [Term(100, 170, "a", 1)]


def test_two_at_a_time_and_a_token_that_comes_back_are_found():
    assert overlaps([Term(100, 170, "a", 1), Term(170, 200, "b", 2)]) == []
    assert "two at a time" in overlaps([Term(100, 170, "a", 1), Term(169, 200, "b", 2)])[0]
    assert "does not rise" in overlaps([Term(100, 170, "a", 2), Term(180, 200, "b", 2)])[0]
    nested = [Term(100, 900, "a", 1), Term(200, 300, "b", 2), Term(400, 500, "c", 3)]
    assert len(overlaps(nested)) == 2
