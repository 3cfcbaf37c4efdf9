"""The routes behind the console: everything in numbers, who holds what, lists of records and locks, the caller, the settings."""

import datetime

import pytest

from baton import Server, eventually


def moment(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def group_of(server, queue):
    fleet = server.get("/api/v1/fleet").json
    return next((row for row in fleet["groups"] if row["queue"] == queue), None)


def test_the_fleet_counts_queues_and_groups(server, queue):
    server.push(queue, 1, 2, 3)
    server.pop(queue, consumerGroup="g", batch=2, subscriptionMode="all")
    # The walk that counts is shared, so its numbers may be some seconds old.
    eventually(lambda: (group_of(server, queue) or {}).get("leases") == 1, seconds=30)
    fleet = server.get("/api/v1/fleet").json
    (row,) = [row for row in fleet["queues"] if row["name"] == queue]
    assert (row["partitions"], row["messages"]["total"]) == (1, 3)
    group = group_of(server, queue)
    assert (group["name"], group["totalLag"], group["partitionsWithLag"]) == ("g", 3, 1)
    assert moment(fleet["countedAt"]) <= moment(fleet["now"])


def test_a_leased_partition_is_listed_until_it_is_acked(server, queue):
    server.push(queue, 1, partition="p")
    server.push(queue, 2, partition="free")

    def leases():
        return [row for row in server.get("/api/v1/leases?limit=1000").json["leases"] if row["queue"] == queue]

    (message,) = server.pop(queue, partition="p", consumerGroup="g", subscriptionMode="all")
    (lease,) = eventually(leases, seconds=30)
    assert (lease["partition"], lease["group"], lease["leaseId"], lease["lag"]) == ("p", "g", message["leaseId"], 1)
    assert lease["token"] > 0 and moment(lease["since"]) < moment(lease["until"])
    ack = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "leaseId": message["leaseId"]}
    assert server.post("/api/v1/ack", {**ack, "consumerGroup": "g", "status": "completed"}).status == 200
    eventually(lambda: leases() == [], seconds=30)


def test_a_list_of_leases_says_that_there_are_more(server, queue):
    for partition in "abc":
        server.push(queue, 1, partition=partition)
        server.pop(queue, partition=partition, consumerGroup="g", subscriptionMode="all")
    eventually(lambda: server.get("/api/v1/leases?limit=2").json["truncated"], seconds=30)
    assert len(server.get("/api/v1/leases?limit=2").json["leases"]) == 2


def test_held_permits_are_listed_page_by_page(server, queue):
    names = [f"{queue}/{name}" for name in ("a", "b", "c")]
    for name in names:
        server.post("/api/v1/locks", {"operations": [{"op": "acquire", "name": name, "owner": "me", "ttlSeconds": 60, "limit": 2}]})
    server.post("/api/v1/locks", {"operations": [{"op": "acquire", "name": names[0], "owner": "you", "ttlSeconds": 60, "limit": 2}]})
    found, after = [], None
    for _ in range(100):
        page = server.get("/api/v1/locks?limit=2" + (f"&after={after.replace('#', '%23')}" if after else "")).json
        found += page["permits"]
        after = page["nextAfter"]
        if after is None:
            break
    own = [(row["name"], row["slot"], row["owner"]) for row in found if row["name"].startswith(queue)]
    assert own == [(names[0], 0, "me"), (names[0], 1, "you"), (names[1], 0, "me"), (names[2], 0, "me")]
    row = next(row for row in found if row["name"] == names[0])
    (result,) = server.post("/api/v1/locks", {"operations": [{"op": "get", "name": names[0]}]}).json["results"]
    assert {key: row[key] for key in ("token", "since", "expiresAt", "renewedAt")}.items() <= result["holders"][0].items()


def test_namespaces_and_their_records_are_listed(server, queue):
    spaces = [f"{queue}{end}" for end in ("", "-x", "0", ".y")]
    for space in spaces:
        for key in ("a/1", "a/2", "b"):
            answer = server.call("PUT", f"/api/v1/kv/{space}/{key}", {"value": {"in": space}, "forever": True})
            assert answer.json["applied"], answer
    server.post("/api/v1/locks", {"operations": [{"op": "acquire", "name": queue, "ttlSeconds": 60}]})
    listed = server.get("/api/v1/kv").json["namespaces"]
    assert [space for space in listed if space.startswith(queue)] == sorted(spaces, key=lambda space: f"{space}/")
    assert "queen-locks" not in listed
    page = server.get(f"/api/v1/kv/{queue}?limit=2").json
    assert ([row["key"] for row in page["rows"]], page["truncated"], page["nextAfter"]) == (["a/1", "a/2"], True, "a/2")
    rest = server.get(f"/api/v1/kv/{queue}?after={page['nextAfter']}").json
    assert ([row["key"] for row in rest["rows"]], rest["truncated"]) == (["b"], False)
    prefixed = server.get(f"/api/v1/kv/{queue}?prefix=a/").json["rows"]
    assert [(row["key"], row["value"]) for row in prefixed] == [("a/1", {"in": queue}), ("a/2", {"in": queue})]
    assert server.get("/api/v1/kv/none-like-this").json["rows"] == []
    assert server.get("/api/v1/kv/Not%20A%20Name").status == 400


def test_without_tokens_everyone_may_do_everything(server):
    assert server.get("/api/v1/caller").json == {"authentication": False, "subject": None, "may": ["read", "push", "write", "admin"]}


def test_settings_are_shown_with_their_defaults_and_without_secrets(tmp_path):
    secret = "a-secret-that-nobody-may-ever-read-0123456789"
    with Server(tmp_path / "data", "--connections-max", "77", environment={"BATON_GOSSIP_SECRET": secret}) as server:
        answer = server.get("/api/v1/settings")
        rows = {row["name"]: row for row in answer.json["settings"]}
    assert secret.encode() not in answer.body
    assert (rows["connections_max"]["value"], rows["connections_max"]["isDefault"]) == ("77", False)
    assert (rows["console"]["value"], rows["console"]["isDefault"]) == ("true", True)
    assert rows["gossip_secret"]["value"] == "(hidden)"


@pytest.mark.parametrize("path", ["/api/v1/fleet?x=1", "/api/v1/leases?limits=1", "/api/v1/kv?x=1", "/api/v1/locks?x=1", "/api/v1/settings?x=1"])
def test_unknown_parameters_are_refused(server, path):
    assert server.get(path).status == 400


def test_a_queue_is_shown_with_its_partitions_page_by_page(server, queue):
    assert server.get(f"/api/v1/queues/{queue}").status == 404
    for number in range(5):
        server.push(queue, *range(number + 1), partition=f"p{number}")
    server.pop(queue, partition="p4", consumerGroup="g", batch=2, subscriptionMode="all")
    names, after = [], ""
    for size in (2, 2, 1):
        page = server.get(f"/api/v1/queues/{queue}?limit=2{after}").json
        assert len(page["partitions"]) == size
        names += [row["name"] for row in page["partitions"]]
        after = f"&after={page['nextAfter']}"
    assert (names, page["nextAfter"]) == ([f"p{number}" for number in range(5)], None)
    assert page["options"]["leaseTime"] == 300
    (one,) = server.get(f"/api/v1/queues/{queue}?partition=p4").json["partitions"]
    assert (one["total"], one["pending"], one["processing"]) == (5, 3, 2)
    assert server.get(f"/api/v1/queues/{queue}?partition=none").json["partitions"] == []
