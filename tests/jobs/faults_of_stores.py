"""Faults of the database, of the way to it, and of clocks. Each takes a `Drill`."""

import contextlib
import time
from collections import Counter
from datetime import UTC, datetime

from baton import eventually
from job_load import Caller
from links import Fates
from postgres import Session

JOB = {"jobType": "t", "queue": "q", "args": {"seconds": 0}}
# By then every call is answered: what a server allows a call (`call_timeout_ms`), and what a busy machine may add.
ANSWERED = 45 + 20
# More than the database has.
CONNECTIONS_MAX = 1000
# What share of the jobs that were answered for before must be again after the heal.
BASELINE = 0.95
# The seconds by which that is judged.
WINDOW = 5


def served_again(drill):
    """Whether jobs are completed again and answered for as before, and somebody leads; to be asked for before a fault."""
    before, rate, asked = drill.completed(), drill.producer.rate(WINDOW), []

    def healed():
        asked.append(drill.now())
        # Only what is answered for after the fault counts.
        is_rate_new = drill.now() > asked[0] + WINDOW
        is_served = is_rate_new and drill.producer.rate(WINDOW) >= BASELINE * rate
        return is_served and drill.completed() > before and drill.crew.term()

    return healed


def restart_database(drill):
    crew, healed = drill.crew, served_again(drill)

    def hit():
        crew.database.stop()
        time.sleep(drill.rng.uniform(0.5, 2))
        crew.database.start()
        return "the database lost its power and came back"

    drill.fault("F22", "database restarted", hit, healed, 60, floor=0)


def cut_connections(drill):
    crew, healed = drill.crew, served_again(drill)
    end = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )

    def hit():
        return f"{crew.database.sql(end)} connections of the database were ended"

    drill.fault("F22", "connections ended", hit, healed, 60)


def exhaust_connections(drill):
    """Others take every connection that the database has, and those of the servers are ended: they cannot come back."""
    crew, healed = drill.crew, served_again(drill)
    hogs = []

    end = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' "
        "AND application_name <> ''"
    )

    def take():
        """Ends the connections of servers, and is quicker than they are, now and then."""
        if hogs:
            hogs[0].run(end)
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                while len(hogs) < CONNECTIONS_MAX:
                    hogs.append(Session(crew.database.port))
            time.sleep(0.002)

    def refused():
        take()
        return drill.producer.codes.get(503, 0) > before + 2

    before = drill.producer.codes.get(503, 0)

    def hit():
        try:
            eventually(refused, 60, every=0)
        finally:
            for hog in hogs:
                hog.close()
        codes = drill.producer.codes[503] - before
        return f"{len(hogs)} sessions of others took all connections; {codes} calls got 503 and Retry-After"

    drill.fault("F22", "connections exhausted", hit, healed, 60, floor=0)


def idle_transaction(drill):
    """Somebody holds what every commit of the jobs' queues needs, and does nothing for longer than a call waits."""
    crew, healed = drill.crew, served_again(drill)
    held = "SELECT 1 FROM crew.records WHERE key LIKE 'jobs/head/%'::bytea FOR UPDATE"
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def hit():
        session = Session(crew.database.port)
        session.run("BEGIN")
        session.run(held)
        found, begin = eventually(lambda: int(crew.database.sql(waiting)), 60), drill.now()
        # Nobody waits for ever.
        answer = crew.any().post("/api/v1/jobs", JOB, timeout=90)
        assert answer.status == 503 and "retry-after" in answer.headers, answer
        took = drill.now() - begin
        session.close()
        return f"{found} transactions waited for one that did nothing; a call got 503 and Retry-After after {took:.0f} s"

    drill.fault("F22", "idle transaction in the way", hit, healed, 60, floor=0)


def cut_from_store(drill):
    """The leader loses the store and nothing else."""
    crew = drill.crew
    leader, term = crew.leader(), crew.term()
    node = crew.node(leader.name)["nodeId"]
    begin = drill.now()

    def refuses():
        """Whether it says so itself, and takes no job."""
        if leader.get("/health").status != 503:
            return False
        answer = leader.post("/api/v1/jobs", JOB)
        return answer.status == 503 and "retry-after" in answer.headers

    def hit():
        leader.is_cut, leader.link.mode = True, "cut"
        with contextlib.suppress(TimeoutError):
            answer = leader.get("/api/v1/nodes", timeout=2)
            assert answer.status == 503, answer
        return f"{leader.name}, leader of term {term}, was cut off and could not tell who leads"

    def healed():
        return crew.term() > term and drill.owns_nothing(node)

    def undo():
        eventually(lambda: "does not run the duties of jobs any more" in leader.text(), 60)
        eventually(refuses, 60)
        took = drill.now() - begin
        leader.link.mode = "pass"
        eventually(lambda: leader.get("/health").status == 200, 60)
        leader.is_cut = False
        return f"after {took:.0f} s its /health was 503, and it refused jobs with 503 and Retry-After"

    drill.fault("F18", "leader cut from the store", hit, healed, max(drill.led, drill.orphaned), undo)


def slow_store(drill, seconds=20, most=45):
    """Everybody's way to the store is slow; some statements get no answer, and some happen and are not answered."""
    crew, healed = drill.crew, served_again(drill)
    links, fates = [member.link for member in crew.members], Fates(1, 1, 100, drill.rng.random())
    begun = sum(link.cuts for link in links), sum(link.mutes for link in links)

    def suffered():
        return sum(link.cuts for link in links) - begun[0], sum(link.mutes for link in links) - begun[1]

    def hit():
        before = drill.tally()
        for link in links:
            # Per round trip rather than per call, of which one commit serves many: most calls suffer from it.
            link.delay, link.fates, link.mode = 0.2, fates, "ill"
        begin = drill.now()
        # Some jobs are accepted all the same, and leases of workers outlast it.
        eventually(lambda: drill.now() > begin + seconds and all(suffered()) and drill.tally().since(before).accepted, most)
        took, (cuts, mutes), done = drill.now() - begin, suffered(), drill.tally().since(before)
        for link in links:
            link.heal()
        words = f"{cuts} statements were lost, and {mutes} answers to what had happened; {done.accepted} jobs were accepted"
        return f"for {took:.0f} s each answer took 0.2 s, {words}"

    drill.fault("F21", "slow store", hit, healed, 60)


def crawling_store(drill, seconds=60, most=85):
    """Every answer of the store takes 5 s, one statement of ten is lost, and one of twenty happens and is not answered: next
    to nothing can be done, and everybody is told so in time. Needs leases of workers that outlast this."""
    crew, healed = drill.crew, served_again(drill)
    callers = [Caller(drill, member, number) for member in crew.members for number in range(3)]
    links, fates = [member.link for member in crew.members], Fates(2, 1, 20, drill.rng.random())
    begun = sum(link.cuts for link in links), sum(link.mutes for link in links)

    def suffered():
        return sum(link.cuts for link in links) - begun[0], sum(link.mutes for link in links) - begun[1]

    def hit():
        for link in links:
            link.delay, link.fates, link.mode = 5.0, fates, "ill"
        begin, before = drill.now(), drill.tally()
        for caller in callers:
            caller.start()
        # Beyond this, more fires would be missed than are made up for.
        eventually(lambda: drill.now() > begin + seconds and all(suffered()), most)
        took, (cuts, mutes), done = drill.now() - begin, suffered(), drill.tally().since(before)
        for caller in callers:
            caller.stopping = True
        for link in links:
            link.heal()
        for caller in callers:
            caller.finish()
        answers = [answer for caller in callers for answer in caller.answers if answer.at < begin + took]
        slowest = max(answer.took for caller in callers for answer in caller.answers)
        assert slowest < ANSWERED, f"a call was not answered for {slowest:.0f} s"
        codes = dict(Counter(answer.code for answer in answers))
        words = f"{cuts} statements were lost, and {mutes} answers to what had happened"
        calls = f"of {len(callers)} callers each was answered, {codes}, the latest after {slowest:.0f} s"
        return f"for {took:.0f} s each answer took 5 s, {words}; {calls}; others got {done.accepted} jobs accepted"

    def undo():
        """The same calls again: each has one job, the one that it had been told of if it had been."""
        for caller in callers:
            again = eventually(caller.send, 60)
            told = {answer.job for answer in caller.answers if answer.job} | {again}
            jobs = crew.any().json(f"/jobs?tag={caller.key}")["jobs"]
            assert told == {job["jobId"] for job in jobs} and len(jobs) == 1, (caller.key, told, jobs)
        return f"{len(callers)} calls sent again came to one job each"

    drill.fault("F21", "crawling store", hit, healed, 60, undo, floor=0)


def told_time(member):
    """How far the clock of a server is off, by the newest line of its log."""
    for line in reversed(member.text().splitlines()):
        with contextlib.suppress(ValueError, IndexError):
            return datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp() - time.time()
    return 0.0


def false_clocks(drill):
    """The leader's clock is off, jumps and stands still. Needs members that were started with clocks (`drill.clocks`)."""
    crew = drill.crew
    leader, term = crew.leader(), crew.term()
    clock = drill.clocks[leader.name]
    begin, before = drill.now(), drill.tally()
    seen, slowest = [], 0.0
    still = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    for offset in ("+600", "-600", "+3600", "-3600", still, "+0"):
        clock.set(offset)
        wanted = 0 if offset == still else int(offset)
        if offset == still:
            first = eventually(lambda: -300 < told_time(leader) < -1.5 and told_time(leader), 60)
            eventually(lambda: told_time(leader) < first - 1, 60)
        else:
            eventually(lambda: abs(told_time(leader) - wanted) < 5, 60)
        seen.append(f"{told_time(leader):+.0f}")
        start, accepted, done = drill.now(), len(drill.producer.accepted), drill.completed()
        eventually(lambda: len(drill.producer.accepted) > accepted + 5 and drill.completed() > done + 5, 60)
        slowest = max(slowest, drill.now() - start)
        assert crew.leader() is leader and crew.term() == term, "a false clock moved the lead"
    shown = f"the log of {leader.name} was off by {', '.join(seen)} s (one stood still); it led term {term} all the time"
    drill.row("F19", "leader's clock", shown, slowest, 30.0, begin, drill.served(before))
    drill.recover()


def store_clock(drill):
    """The database's clock steps back and ahead, as when another machine takes over. Needs `drill.store_clock`."""
    crew, clock, now = drill.crew, drill.store_clock, "SELECT extract(epoch FROM clock_timestamp())"
    at = 0
    for step in (-2, 30):
        at += step
        term = eventually(crew.term, 60)
        done = drill.completed()

        def hit(at=at, step=step):
            clock.set(f"{at:+d}")
            off = eventually(lambda: abs(float(crew.database.sql(now)) - time.time() - at) < 1 and at, 30)
            return f"the database's clock stepped by {step:+d} s, and was off by {off:+d} s"

        def healed(term=term, done=done):
            return crew.term() >= term and drill.completed() > done + 5

        drill.fault("F20", f"clock of the store {step:+d} s", hit, healed, drill.led + drill.orphaned)
