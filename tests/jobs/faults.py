"""Faults in crews of servers, one after the other, under load: python tests/jobs/faults.py [--seed N] [--only F3,F18] ...

Each fault is shown to have happened, the crew is healed, and how long that took is held against its bound. After each,
jobs must be accepted and completed and every server must serve; at the end all that was accepted must have ended once,
every fire must be there once (`job_history`). Prints a report and writes a timeline as an SVG. With `--times default` the times
are those of a server that was told nothing, which takes minutes for each fault; unless told otherwise they are short.
Clocks need libfaketime; an upgrade needs the program of another version (`--old`), or it is one to the same version.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import faults_of_leaders as leaders  # noqa: E402
import faults_of_owners as owners  # noqa: E402
import faults_of_stores as stores  # noqa: E402
import faults_of_words as words  # noqa: E402
import report  # noqa: E402
from baton import binary  # noqa: E402
from crew import DEFAULT, FAKETIME, TIMES, Crew, FalseClock  # noqa: E402
from drill import Drill, under_load  # noqa: E402
from job_load import Producer  # noqa: E402

# What is done to one crew after the other, in any order.
MANY = [
    ("F1", leaders.kill_leader),
    ("F1", leaders.kill_leader_inside),
    ("F2", leaders.stop_leader),
    ("F3", leaders.mute_leader),
    ("F3", leaders.interrupt_leader),
    ("F4", leaders.flap),
    ("F5", owners.kill_follower),
    ("F6", owners.stop_follower),
    ("F7", owners.drain),
    ("F8", owners.drain_unheard),
    ("F9", owners.receiver_dies),
    ("F10", owners.drain_last),
    ("F11", owners.kill_all),
    ("F17", leaders.hide_leader),
    ("F18", stores.cut_from_store),
    ("F21", stores.slow_store),
    ("F22", stores.restart_database),
    ("F22", stores.cut_connections),
    ("F22", stores.exhaust_connections),
    ("F22", stores.idle_transaction),
    ("F33", words.repeat),
]
# What takes longer than the leases of workers in the others.
CRAWLING = [("F21", stores.crawling_store)]
# The failures that the design names, for a run with the usual times and many running jobs, without links.
NAMED = [
    ("F1", leaders.kill_leader),
    ("F5", owners.kill_follower),
    ("F7", owners.drain),
    ("F11", owners.kill_all),
]


class Runner:
    """Runs drills one after the other and keeps what came of them."""

    def __init__(self, given):
        self.given, self.rng = given, random.Random(given.seed)
        self.only = set(given.only.split(",")) if given.only else None
        self.drills, self.unloaded, self.missing = [], [], []

    def wants(self, number):
        return self.only is None or number in self.only

    def drill(self, scenarios, prepare=None, **options):
        wanted = [scenario for number, scenario in scenarios if self.wants(number)] * self.given.rounds
        if not wanted:
            return
        self.rng.shuffle(wanted)
        # Whoever runs PostgreSQL must be able to pass through.
        with tempfile.TemporaryDirectory() as directory, under_load(directory, self.rng, **options) as drill:
            self.drills.append(drill)
            if prepare:
                prepare(drill)
            for scenario in wanted:
                scenario(drill)
            drill.ended = drill.now()

    def quiet(self, scenario, servers, times):
        """A scenario for servers that have nothing else to do."""
        with tempfile.TemporaryDirectory() as directory, Crew(directory, servers, times) as crew:
            drill = Drill(crew, self.rng, Producer(crew), None)
            self.unloaded.append(drill)
            scenario(drill)

    def usual(self):
        """With the usual times: what the design gives bounds for."""
        self.drill(NAMED, times=DEFAULT, links=False, watched=False, running=self.given.running)

    def short(self):
        self.drill(MANY, times=TIMES, servers=self.given.servers, running=self.given.running)
        # Leases of workers outlast a store that does next to nothing for a minute.
        self.drill(CRAWLING, times=TIMES | {"job-lease-ms": 120000})
        if FAKETIME:
            self.clocks()
        else:
            self.missing += [(number, "libfaketime is not installed") for number in ("F19", "F20") if self.wants(number)]
        # Long enough between two moves that loads can be arranged before the first.
        unhurried = TIMES | {"job-rebalance-cooldown-ms": 15000}
        self.drill([("F31", owners.balance)], times=unhurried, links=False)
        if self.wants("F31"):
            self.quiet(owners.even_out, 2, unhurried)

        def prepare(drill):
            drill.old = self.given.old

        self.drill([("F34", words.roll)], prepare, times=TIMES, links=False, program=self.given.old)

    def clocks(self):
        clock = FalseClock()

        def prepare(drill):
            drill.store_clock, drill.clocks = clock, {}
            for member in drill.crew.members:
                drill.clocks[member.name] = FalseClock()
                member.environment = drill.clocks[member.name].environment | {"BATON_LOG": "info,baton_jobs=debug"}
                assert member.stop() == 0
                member.start()
            drill.crew.settled()

        scenarios = [("F19", stores.false_clocks), ("F20", stores.store_clock)]
        self.drill(scenarios, prepare, times=TIMES, links=False, clock=clock)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    arguments.add_argument("--rounds", type=int, default=1, help="how often each fault is done")
    arguments.add_argument("--servers", type=int, default=3)
    arguments.add_argument("--running", type=int, default=0, help="jobs that run all the time, besides")
    arguments.add_argument("--times", choices=["short", "default"], default="short")
    arguments.add_argument("--only", help="numbers of faults, as F3,F18; all unless given")
    arguments.add_argument("--old", default=str(binary()), help="a program of another version, for upgrades")
    arguments.add_argument("--timeline", default="faults.svg")
    given = arguments.parse_args()
    print(f"seed {given.seed}", flush=True)
    runner = Runner(given)
    if given.times == "default":
        runner.usual()
    else:
        runner.short()
    report.timeline(runner.drills, given.timeline)
    late = report.table(runner.drills + runner.unloaded, runner.missing)
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
