"""Faults of the server that leads: killed, stopped, not heard, unable to hear, replaced again and again. Each takes a
`Drill`."""

import time

from baton import eventually
from postgres import Session

SCHEDULE = "SELECT 1 FROM crew.records WHERE key = convert_to('jobs/schedule/beat', 'UTF8') FOR UPDATE"


def kill_leader(drill):
    crew = drill.crew
    leader, term = crew.leader(), crew.term()

    def hit():
        leader.kill()
        return f"{leader.name} led term {term}"

    drill.fault("F1", "leader killed", hit, lambda: crew.term() > term, drill.led)


def kill_leader_inside(drill):
    """Killed in the middle of a fire: its commit waits for the schedule's row, which a session of ours holds."""
    crew = drill.crew
    leader, term = crew.leader(), crew.term()

    def hit():
        session = Session(crew.database.port)
        session.run("BEGIN")
        session.run(SCHEDULE)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        eventually(lambda: int(crew.database.sql(waiting)) > 0, 60)
        leader.kill()
        session.close()
        return f"{leader.name} led term {term}; its fire waited for the row of the schedule"

    drill.fault("F1", "leader killed inside a fire", hit, lambda: crew.term() > term, drill.led)


def stop_leader(drill):
    crew = drill.crew
    leader, term = crew.leader(), crew.term()

    def hit():
        leader.freeze()
        return f"{leader.name} was stopped in term {term}"

    def undo():
        # It wakes and believes what it believed; what it writes is refused.
        leader.thaw()
        eventually(lambda: "does not run the duties of jobs any more" in leader.text(), 60)

    drill.fault("F2", "leader stopped", hit, lambda: crew.term() > term, drill.led, undo)


def lose_renewal(drill, leader):
    """Has a renewal of the leader happen whose answer it never gets; what shows that."""
    crew, link = drill.crew, leader.link
    # 0 for as long as nobody leads: a lease that ended is cleared away before the next one is taken.
    stored = "SELECT coalesce(max(version), 0) FROM crew.records WHERE key = convert_to('jobs/leader', 'UTF8')"
    node, mutes, lost = crew.node(leader.name)["nodeId"], link.mutes, link.lost
    leader.is_cut, before = True, int(crew.database.sql(stored))
    # What a holder of a lease looks like in the statement that writes it, which is sent along with its commit.
    link.trigger = f'"owner":"{node}"'.encode()
    eventually(lambda: link.mutes > mutes and link.lost > lost, 60)
    renewed = eventually(lambda: int(crew.database.sql(stored)) > before, 10)
    return renewed and f"{leader.name} renewed its lease, and {link.lost - lost} bytes of answers to that were lost"


def mute_leader(drill):
    """The leader's renewal happens, and it hears of nothing: it does not act on what it does not know."""
    crew = drill.crew
    leader, term = crew.leader(), crew.term()

    def hit():
        return lose_renewal(drill, leader)

    def undo():
        assert "does not run the duties of jobs any more" in leader.text(), leader.text()
        leader.link.heal()
        leader.is_cut = False

    drill.fault("F3", "answer to a renewal lost", hit, lambda: crew.term() > term, drill.led, undo)


def interrupt_leader(drill):
    """The connection breaks right after the leader's renewal: it asks the store what became of it."""
    crew = drill.crew
    leader, term = crew.leader(), crew.term()
    done = drill.completed()

    def hit():
        shown = lose_renewal(drill, leader)
        leader.link.heal()
        leader.is_cut = False
        return f"{shown}, with the connection"

    def healed():
        return crew.term() >= term and drill.completed() > done + 5

    def undo():
        return f"term {term} before, {crew.term()} after"

    drill.fault("F3", "connection lost at a renewal", hit, healed, drill.led, undo)


def flap(drill):
    """Leaders come and go: killed as soon as they lead, or asked to drain."""
    crew, terms, flaps = drill.crew, [], 6

    def hit():
        for number in range(flaps):
            leader, term = crew.leader(), crew.term()
            terms.append(term)
            if number % 2:
                leader.kill()
                leader.start()
            else:
                assert leader.post(f"/api/v1/nodes/{leader.name}/drain").status == 200
            eventually(lambda term=term: crew.term() > term, drill.led + drill.slack)
            if not number % 2:
                assert leader.post(f"/api/v1/nodes/{leader.name}/drain", {"mode": "off"}).status == 200
        assert terms == sorted(set(terms)), terms
        return f"{flaps} leaders in terms {terms[0]} to {terms[-1]} were killed or drained as soon as they led"

    drill.fault("F4", "leaders flap", hit, lambda: crew.term() > terms[-1], drill.led)


def hide_leader(drill):
    """The others do not hear the leader, which reaches the store: the store decides, and it goes on."""
    crew = drill.crew
    leader, term = crew.leader(), crew.term()
    others = [member for member in crew.members if member is not leader]

    def seen(member):
        servers = member.json("/cluster")["servers"]
        return next(server["alive"] for server in servers if server["server_id"] == leader.name)

    eventually(lambda: all(seen(member) for member in others), 60)
    crew.cut_gossip(leader.name, True)
    begin, before = drill.now(), drill.tally()
    eventually(lambda: not any(seen(member) for member in others), 60)
    shown = f"{len(others)} servers took {leader.name} for dead"
    hidden = drill.now()
    # Longer than it takes to lead in place of somebody who is really gone.
    while drill.now() < hidden + drill.led:
        assert crew.term() == term and crew.leader() is leader, "a leader that the store knows was followed"
        time.sleep(0.2)
    during = drill.served(before)
    crew.cut_gossip(leader.name, False)
    healing = drill.now()
    eventually(lambda: all(seen(member) for member in others), 60)
    shown += f"; it led term {term} all the time"
    drill.row("F17", "leader hidden from the others", shown, drill.now() - healing, 10.0, begin, during)
    drill.recover()
