"""Faults of servers that own jobs: killed, stopped, drained, all at once or one while another leaves. Each takes a `Drill`."""

import time

from baton import eventually
from crew import SLICES
from job_history import consume
from job_load import epochs


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
    owned, begin, before = drill.owned(member), drill.now(), drill.tally()
    member.terminate()
    assert member.wait(90) == 0, member.text()
    took, cases = drill.now() - begin, left(member)
    assert crew.view()["orphanedSlices"] == 0, "a drain left jobs behind"
    assert cases["c"] == cases["d"] == 0, cases
    shown = f"{member.name} owned {owned} jobs, exit 0, no orphans, {cases}"
    drill.row("F7", "drained with SIGTERM", shown, took, min(drill.ceiling, 60.0), begin, drill.served(before))
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
    begin, before = drill.now(), drill.tally()
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
    drill.row("F10", "last server drained", shown, took, drill.ceiling, begin, drill.served(before, 0))
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
    drill.fault("F11", "all killed", hit, lambda: drill.owned_by_others(gone), bound, floor=0)


def balance(drill):
    """One of two servers has many more jobs than the other; then an empty one comes, and one is drained meanwhile. Needs a
    cooldown that leaves time to arrange loads."""
    crew = drill.crew
    *_, late = crew.members
    begin, before = drill.now(), drill.tally()
    assert late.stop() == 0, late.text()
    crew.settled()
    owners = [owner for owner, _ in epochs(crew, drill.watcher.probes)]
    busy, idle = sorted(set(owners))
    # Of five jobs in the slices of the one, four are called off: they come by slice, in order.
    tags = [["off"] if owners[number % SLICES] == idle and number // SLICES % 5 else [] for number in range(SLICES * 15)]
    job = {"jobType": "t", "queue": "load", "args": {}, "delayMs": 86_400_000}
    answer = crew.any().post("/api/v1/jobs:batch", {"jobs": [job | {"tags": tag} for tag in tags]})
    assert answer.status == 201, answer
    rounds = len(offers(drill))
    answer = crew.any().post("/api/v1/jobs:bulk", {"action": "cancel", "filter": {"tag": "off"}})
    assert answer.status == 200, answer
    had, start = loads(crew), drill.now()
    shown = f"{busy} owned {had[busy]} jobs and {idle} {had[idle]}"
    assert had[busy] + 1 >= 2 * (had[idle] + 1), shown
    now = eventually(lambda: is_even(loads(crew)) and loads(crew), 3 * drill.cooldown + drill.slack, every=0.2)
    took, moves = drill.now() - start, offers(drill)[rounds:]
    moved = {(event["from"], event["to"]) for event in moves}
    assert 1 <= len(moves) <= 3 and moved == {(busy, idle)}, f"slices went to and fro: {moves}"
    shown += f"; after {len(moves)} moves {now[busy]} and {now[idle]}"
    drill.row("F31", "uneven load", shown, took, 3 * drill.cooldown, begin, drill.served(before))
    drain_during_move(drill, late)


def even_out(drill):
    """The design's own figures: of two servers one owns 100 jobs and the other 20, then both 60. Needs a crew of two without
    any other job, and a cooldown that leaves time to arrange this."""
    crew, (first, second) = drill.crew, drill.crew.members
    crew.settled()
    assert second.stop() == 0, second.text()
    eventually(lambda: crew.node(first.name)["slices"] == SLICES, 60)
    second.start()
    # Who comes is given the lower half of the slices, and nothing else is moved for as long as the cooldown lasts.
    crew.settled(drill.cooldown + 90)
    busy, idle = crew.node(second.name)["nodeId"], crew.node(first.name)["nodeId"]
    begin, rounds = drill.now(), len(offers(drill))
    job, half = {"jobType": "t", "args": {}, "delayMs": 86_400_000}, SLICES // 2
    # The jobs of a queue come to one slice after the other: three or four to each of the lower half, one to most others.
    jobs = [job | {"queue": f"even-{queue}"} for queue, count in enumerate((half + 20, half, half, 4)) for _ in range(count)]
    answer = crew.any().post("/api/v1/jobs:batch", {"jobs": jobs})
    assert answer.status == 201, answer
    eventually(lambda: loads(crew) == {busy: 100, idle: 20}, 60, every=0.05)
    start = drill.now()
    eventually(lambda: loads(crew) == {busy: 60, idle: 60}, 3 * drill.cooldown + drill.slack, every=0.05)
    took = drill.now() - start
    # What is moved after that are slices without jobs.
    until = drill.now() + drill.cooldown + 3
    while drill.now() < until:
        assert loads(crew) == {busy: 60, idle: 60}, loads(crew)
        time.sleep(0.2)
    moves = [(event["from"], event["to"], event["jobs"]) for event in offers(drill)[rounds:] if event["jobs"]]
    assert moves == [(busy, idle, 40)], moves
    shown = f"{second.name} owned 100 jobs and {first.name} 20; after one move 60 and 60, and so it stayed"
    drill.row("F31", "100 jobs and 20", shown, took, 3 * drill.cooldown, begin, drill.served(drill.tally(), 0))


def offers(drill):
    """What was offered to one server because another has too much."""
    return [event for event in drill.events("handoff", reason="Rebalance") if "to" in event]


def loads(crew):
    return {node["nodeId"]: node["ownedJobs"] for node in crew.view()["nodes"] if node["state"] == "active"}


def is_even(loads):
    high, low = max(loads.values()), min(loads.values())
    return high + 1 < 2 * (low + 1) or high - low < 10


def drain_during_move(drill, late):
    """An empty server comes, and while it is given its part another one is to drain."""
    crew, leaving = drill.crew, drill.crew.members[0]
    begin, before, rounds = drill.now(), drill.tally(), len(offers(drill))
    late.start()
    eventually(lambda: len(offers(drill)) > rounds, 3 * drill.cooldown + drill.slack)
    assert leaving.post(f"/api/v1/nodes/{leaving.name}/drain").status == 200
    start = drill.now()

    def healed():
        others = [crew.node(member.name)["slices"] for member in crew.members[1:]]
        return crew.node(leaving.name)["slices"] == 0 and sum(others) == SLICES

    eventually(healed, drill.ceiling + drill.slack)
    shown = f"{leaving.name} was to drain while slices were on their way to {late.name}, which had just come"
    drill.row("F31", "drained during a rebalance", shown, drill.now() - start, drill.ceiling, begin, drill.served(before))
    assert leaving.post(f"/api/v1/nodes/{leaving.name}/drain", {"mode": "off"}).status == 200
    drill.recover()
