"""Many large dead letters: a call that only counts them reads no payload."""

from baton import Server
from watch import MIB, Watch

LETTERS = 60
PAYLOAD = "x" * (2 * MIB)


def test_a_queue_is_listed_without_the_payloads_of_its_dead_letters(tmp_path, queue):
    with Server(tmp_path) as server:
        for number in range(LETTERS):
            server.push(queue, {"number": number, "filler": PAYLOAD}, partition=f"p{number % 3}")
            assert server.ack(server.pop(queue), status="dlq")[0]["success"] is True
        # So that nothing is in memory.
        assert server.stop() == 0
        server.start()
        for path in ["resources/queues", f"resources/queues/{queue}", "resources/overview", "consumer-groups", "status"]:
            with Watch(server) as watch:
                answer = server.get(f"/api/v1/{path}")
            assert answer.status == 200, answer
            watch.check(LETTERS * len(PAYLOAD), times=0.6)
        assert server.get(f"/api/v1/resources/queues/{queue}").json["totals"]["deadLetter"] == LETTERS
