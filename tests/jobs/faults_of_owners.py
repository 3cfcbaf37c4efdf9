"""Faults of servers that own jobs: killed, stopped, drained, all at once or one while another leaves. Each takes a `Drill`."""

import itertools
import time

from baton import eventually
from crew import SLICES
from history import consume
from load import epochs


def kill_follower(drill):
    crew, member = drill.crew, drill.follower()
    owned, dead = drill.owned(member), crew.node(member.name)["nodeId"]

    def hit():
        member.kill()
        return f"{member.name} owned {owned} jobs"

    drill.fault("F5", "follower killed", hit, lambda: drill.owns_nothing(dead), drill.orphaned)


def stop_follower(drill):
    crew, member = drill.crew, drill.follower()
    node = crew.node(member.name)["nodeId"]

    def hit():
        member.freeze()
        return f"{member.name} was stopped, and published what it had begun when it woke"

    drill.fault("F6", "follower stopped", hit, lambda: drill.owns_nothing(node), drill.orphaned, member.thaw)


def left(member):
    """By case, how many slices a server handed over."""
    line = next(line for line in reversed(member.text().splitlines()) if "drained: slices" in line)
    return {part[0]: int(part[2:]) for part in line.split() if part[:2] in ("a=", "b=", "c=", "d=")}


def drain(drill):
    crew = drill.crew
    member = drill.rng.choice(crew.running)
    owned, begin, before = drill.owned(member), drill.now(), len(drill.producer.accepted)
    member.terminate()
    assert member.wait(90) == 0, member.text()
    took, cases = drill.now() - begin, left(member)
    assert crew.view()["orphanedSlices"] == 0, "a drain left jobs behind"
    assert cases["c"] == cases["d"] == 0, cases
    shown = f"{member.name} owned {owned} jobs, exit 0, no orphans, {cases}"
    during = len(drill.producer.accepted) - before
    drill.row("F7", "drained with SIGTERM", shown, took, min(drill.ceiling, 60.0), begin, during)
    drill.recover()


def drain_unheard(drill):
    """A server that drains does not hear that its slices were claimed, and its offers come again and again."""
    crew, member = drill.crew, drill.follower()
    node, link = crew.node(member.name)["nodeId"], member.link
    other = next(one for one in crew.running if one is not member)
    channel = "orchestrix.job.handoff"
    # Offers are told there, and their words are what the link waits for.
    other.configure(channel)
    before = epochs(crew, drill.watcher.probes)

    def hit():
        member.is_cut, link.trigger, mutes = True, b'"Shutdown"', link.mutes
        member.terminate()
        eventually(lambda: link.mutes > mutes, 60)
        offers = eventually(lambda: consume(other, channel), 60)
        for partition, offer in offers * 3:
            other.push(channel, offer, partition=partition)
        eventually(lambda: drill.owns_nothing(node), drill.ceiling)
        link.heal()
        assert member.wait(drill.ceiling + 30) == 0, member.text()
        member.is_cut, cases = False, left(member)
        assert cases["c"] == cases["d"] == 0, cases
        return f"{member.name} offered what it had and heard nothing; {len(offers)} offers came three times more; {cases}"

    def healed():
        after = epochs(crew, drill.watcher.probes)
        moved = [(old, new) for old, new in zip(before, after, strict=True) if old[0] == node]
        if not moved or any(new[1] - old[1] != 1 for old, new in moved):
            raise RuntimeError(f"each epoch is to move by one: {moved}")
        return crew.view()["orphanedSlices"] == 0

    drill.fault("F8", "drained with answers lost", hit, healed, drill.ceiling)
    other.delete(f"/api/v1/resources/queues/{channel}")


def receiver_dies(drill):
    crew = drill.crew
    leaving, dying = drill.rng.sample(crew.running, 2)
    gone = {crew.node(member.name)["nodeId"] for member in (leaving, dying)}

    def hit():
        dying.kill()
        leaving.terminate()
        assert leaving.wait(120) == 0, leaving.text()
        return f"{leaving.name} left while {dying.name} was dead and not yet known to be: {left(leaving)}"

    drill.fault("F9", "receiver killed during a drain", hit, lambda: drill.owned_by_others(gone), drill.orphaned)


def drain_last(drill):
    """The last server leaves: it waits for nobody, and whoever comes finds what it left."""
    crew = drill.crew
    begin, before = drill.now(), len(drill.producer.accepted)
    *others, last = drill.rng.sample(crew.running, len(crew.running))
    for member in others:
        member.terminate()
        assert member.wait(drill.ceiling + 30) == 0, member.text()
    leaving = drill.now()
    last.terminate()
    assert last.wait(drill.ceiling + 30) == 0, last.text()
    took, cases = drill.now() - leaving, left(last)
    assert cases["d"] == SLICES, cases
    refused = drill.producer.refused
    eventually(lambda: drill.producer.refused > refused + 2, 60)
    shown = f"{last.name} left as the last one, exit 0, {cases}"
    drill.row("F10", "last server drained", shown, took, drill.ceiling, begin, len(drill.producer.accepted) - before)
    drill.recover()


def kill_all(drill):
    crew = drill.crew
    pause = drill.rng.uniform(1, 3) if drill.lease < 20 else 60
    gone = {node["nodeId"] for node in crew.view()["nodes"]}

    def hit():
        refused = drill.producer.refused
        for member in crew.members:
            member.kill()
        time.sleep(pause)
        eventually(lambda: drill.producer.refused > refused, 60)
        for member in crew.members:
            member.start()
        return f"all servers were away for {pause:.0f} s"

    bound = max(drill.lease, drill.dead) + drill.check + 5
    drill.fault("F11", "all killed", hit, lambda: drill.owned_by_others(gone), bound)


def pairs(events):
    """From whom to whom slices were moved, in order."""
    return [(event["from"], event["to"]) for event in events]


def balance(drill):
    """Needs a crew of three whose last server is down, and a cooldown that leaves time to arrange loads."""
    crew = drill.crew
    *_, late = crew.members
    jobs = [{"jobType": "t", "queue": "load", "args": {}, "delayMs": 86_400_000}] * 256
    items = crew.any().post("/api/v1/jobs:batch", {"jobs": jobs}).json["items"]
    begin, before = drill.now(), len(drill.producer.accepted)
    late.kill()
    eventually(lambda: crew.node(late.name) is None or crew.node(late.name)["slices"] == 0, drill.orphaned + drill.slack)
    crew.settled()
    rounds = len(drill.events("handoff", reason="Rebalance"))
    owners = {item["jobId"]: crew.any().json(f"/jobs/{item['jobId']}")["owner"]["nodeId"] for item in items}
    busy, idle = sorted(set(owners.values()))
    kept = list(itertools.chain([job for job in owners if owners[job] == busy][:100],
                                [job for job in owners if owners[job] == idle][:20]))
    for job in owners:
        if job not in kept:
            assert crew.any().post(f"/api/v1/jobs/{job}/cancel", {}).status < 300
    early = len(drill.events("handoff", reason="Rebalance")) - rounds
    shown = f"{busy} had 100 jobs that wait and {idle} 20"
    start = drill.now()

    def even():
        loads = {node["nodeId"]: node["ownedJobs"] for node in crew.view()["nodes"] if node["state"] == "active"}
        high, low = max(loads.values()), min(loads.values())
        return len(loads) == 2 and (high + 1 < 2 * (low + 1) or high - low < 10) and loads

    loads = eventually(even, 3 * drill.cooldown + drill.slack, every=0.2)
    took, moves = drill.now() - start, drill.events("handoff", reason="Rebalance")[rounds:]
    assert len(moves) <= 3 + early, moves
    assert not {(to, from_) for from_, to in pairs(moves)} & set(pairs(moves)), f"slices went to and fro: {moves}"
    shown += f"; then {sorted(loads.values())} after {len(moves)} moves"
    drill.row("F31", "100 and 20 jobs", shown, took, 3 * drill.cooldown, begin, len(drill.producer.accepted) - before)
    # An empty server comes, and while it is given its part another one is to drain.
    begin, before, rounds = drill.now(), len(drill.producer.accepted), len(drill.events("handoff", reason="Rebalance"))
    late.start()
    eventually(lambda: len(drill.events("handoff", reason="Rebalance")) > rounds, 3 * drill.cooldown + drill.slack)
    leaving = crew.members[0]
    assert leaving.post(f"/api/v1/nodes/{leaving.name}/drain").status == 200
    start = drill.now()
    eventually(lambda: crew.node(leaving.name)["slices"] == 0, drill.ceiling + drill.slack)
    took = drill.now() - start
    eventually(lambda: sum(crew.node(one.name)["slices"] for one in crew.members[1:]) == SLICES, drill.ceiling)
    moves = drill.events("handoff", reason="Rebalance")[rounds:]
    shown = f"{late.name} came, and {leaving.name} was drained while slices were on their way to it"
    during = len(drill.producer.accepted) - before
    drill.row("F31", "drained during a rebalance", shown, took, drill.ceiling, begin, during)
    assert leaving.post(f"/api/v1/nodes/{leaving.name}/drain", {"mode": "off"}).status == 200
    drill.recover()
