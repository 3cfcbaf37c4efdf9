"""Faults of what is said: messages and calls that come twice, late, in another order or forged; and servers of two
versions that talk to each other. Each takes a `Drill`."""

import time

from baton import binary, eventually
from drill import STATUS
from job_history import consume
from programs import Programs

# All but the one for statuses, which is watched all the time.
CHANNELS = (
    "job.dispatch.q", "job.cancel", "job.assigned", "job.logs", "job.handoff", "job.handoff.ack.node-0",
    "worker.heartbeat", "coordinator.heartbeat",
)  # fmt: skip


def repeat(drill):
    """Everything that was said on every channel is said again, in another order, and so are reports and heartbeats."""
    crew, rng = drill.crew, drill.rng
    member, names = crew.any(), [f"orchestrix.{name}" for name in CHANNELS]
    for name in names:
        member.configure(name)
    cancelled = member.post("/api/v1/jobs", {"jobType": "t", "queue": "probe", "args": {}, "delayMs": 86_400_000})
    drained = crew.members[0]

    def say():
        """Has each channel say something."""
        member.post(f"/api/v1/jobs/{cancelled.json['jobId']}/cancel", {})
        drained.post(f"/api/v1/nodes/{drained.name}/drain")
        eventually(lambda: crew.node(drained.name)["slices"] == 0, 60)
        drained.post(f"/api/v1/nodes/{drained.name}/drain", {"mode": "off"})

    def hit():
        time.sleep(1.5)
        say()
        crew.settled()
        said = {name: eventually(lambda name=name: consume(member, name, "again"), 60) for name in [*names, STATUS]}
        for name, messages in said.items():
            again = messages[:100] * 2
            rng.shuffle(again)
            for partition, message in again:
                # Statuses are judged in the end, so those that came again are kept apart.
                member.push(name, message, partition="again" if name == STATUS else partition)
        count, stale = sum(map(len, said.values())), replay_reports(drill)
        words = f"{stale} reports came again with another result, none of which counted"
        return f"up to 100 of {count} messages in {len(said)} channels came twice more in another order; {words}"

    before, term = crew.settled(), crew.term()
    shares = {node["name"]: node["slices"] for node in before["nodes"]}

    def healed():
        view = crew.settled()
        assert shares.keys() <= {node["name"] for node in view["nodes"]}
        return crew.term() >= term

    drill.fault("F33", "everything said again", hit, healed, 60)
    for name in names:
        member.delete(f"/api/v1/resources/queues/{name}")


def replay_reports(drill):
    """Reports of ended jobs again, late and with other words, and heartbeats for them; how many there were."""
    told = [(job, int(fence)) for worker in drill.crew.workers for job, fence, _ in worker.lines("ok")]
    told = drill.rng.sample(told, min(50, len(told)))
    items = [{"jobId": job, "fence": fence, "outcome": "succeeded", "result": "forged"} for job, fence in told]
    items += [item | {"fence": item["fence"] - 1, "outcome": "failed"} for item in items]
    drill.rng.shuffle(items)
    for member in drill.crew.running:
        answer = member.post("/api/v1/executions:report", {"items": items})
        assert answer.status == 200, answer
        codes = {item.get("code") for item in answer.json["items"]}
        assert codes <= {"repeated", "stale_fence"}, codes
    for job, fence in told[:20]:
        assert drill.crew.any().json(f"/jobs/{job}/result") == f"{job}.{fence}"
    return len(items) * len(drill.crew.running)


def roll(drill):
    """Servers of another version are replaced one by one, while workers of both versions work. Needs `drill.old`."""
    crew, old = drill.crew, drill.old
    programs = [Programs(member.url) for member in crew.members[:2]]
    for program, baton in zip(programs, (old, binary()), strict=True):
        # Each worker talks to one server, and waits while that is replaced.
        program.start(baton, "worker", "--exec", "true", "--queue", "rolled", cwd=crew.directory)
    try:
        for number, member in enumerate(crew.members):
            jobs = [{"jobType": "exec", "queue": "rolled", "args": {}}] * 20
            versions = {one.name: "old" if one.program else "new" for one in crew.members}

            def hit(member=member):
                assert member.stop() == 0, member.text()
                member.program = None
                member.start()
                return f"{member.name} was stopped, exit 0, and came back as the other version; before: {versions}"

            assert crew.any().post("/api/v1/jobs:batch", {"jobs": jobs}).status == 201
            node = crew.node(member.name)["nodeId"]
            drill.fault("F34", f"upgrade {number + 1} of {len(crew.members)}", hit,
                        lambda node=node: drill.owns_nothing(node), drill.ceiling)
        found = crew.done("rolled")
        assert found["completed"] == 20 * len(crew.members) == sum(found.values()), found
    finally:
        for program in programs:
            program.close()
