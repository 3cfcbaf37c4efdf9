"""Who may call what: tokens made by PyJWT, checked by a server process."""

import time

import pytest

from baton import ROOT, Refused, Server, Wire, eventually, request_bytes
from tokens import SECRET, Issuer, Signer, bearer, claims, forged, hs256

QUEUES = "/api/v1/resources/queues"


def start(path, **environment):
    return Server(path / "data", environment={"JWT_ENABLED": "true", **environment})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that wants HS256 tokens, set up with the names of older servers."""
    with start(tmp_path_factory.mktemp("hs"), JWT_SECRET=SECRET, JWT_ISSUER="us", JWT_AUDIENCE="queues") as server:
        yield server
        assert server.stop() == 0
    assert SECRET not in server.text()
    assert "eyJ" not in server.text(), "a token was logged"


def good(role="admin", **more):
    return hs256(role, **{"iss": "us", "aud": "queues", **more})


def refused(answer, status, error):
    assert (answer.status, answer.error) == (status, error), answer
    assert answer.json["code"] == {401: "unauthenticated", 403: "forbidden"}[status]
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_a_good_token_is_taken_in_each_spelling(guarded):
    token = good()
    for header in (f"Bearer {token}", f"bearer {token}", f"BEARER  {token}", token):
        assert guarded.get(QUEUES, headers={"Authorization": header}).status == 200
    assert guarded.get(QUEUES, headers=bearer(good(aud=["other", "queues"]))).status == 200


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  "])
def test_no_token(guarded, header):
    refused(guarded.get(QUEUES, headers={} if header is None else {"Authorization": header}), 401, "Authentication required")


@pytest.mark.parametrize(
    "token, error",
    [
        (lambda: good(exp=time.time() - 60), "Token has expired"),
        (lambda: good(nbf=time.time() + 60), "Token is not valid yet"),
        (lambda: good(iat=time.time() + 60), "Token is not valid yet"),
        (lambda: good(iss="them"), "Invalid token issuer"),
        (lambda: good(aud="others"), "Invalid token audience"),
        (lambda: good(secret="x" * 40), "Invalid token signature"),
        (lambda: good()[:-3], "Invalid token signature"),
        (lambda: forged({"alg": "none"}, claims()), "Unsupported algorithm: none"),
        (lambda: forged({"alg": "HS512"}, claims(), b"k"), "Unsupported algorithm: HS512"),
        (lambda: forged({"alg": "HS256"}, claims()), "Invalid token signature"),
        (lambda: Signer("RS256", "k").token(), "Token uses RS256, expected HS256"),
        (lambda: "x", "Token decode error: it has no three parts"),
        (lambda: "a.b.c", "Token decode error: a part is not base64url"),
        (lambda: "x" * 20000, "Token decode error: it has more than 16384 bytes"),
    ],
)
def test_a_bad_token_is_refused_by_name(guarded, token, error):
    answer = guarded.get(QUEUES, headers=bearer(token()))
    refused(answer, 401, error)
    assert SECRET not in answer.body.decode()


def test_a_header_larger_than_any_head_is_refused(guarded):
    with Wire(guarded.port) as wire:
        wire.send(request_bytes("GET", QUEUES, headers=[f"Authorization: Bearer {'x' * 70000}"]))
        assert wire.answer().status == 431


def test_two_tokens_are_no_token(guarded):
    with Wire(guarded.port) as wire:
        wire.send(request_bytes("GET", QUEUES, headers=[f"Authorization: {good()}", "authorization: x"]))
        assert wire.answer().status == 400


def test_a_refused_body_does_not_break_the_connection(guarded):
    with Wire(guarded.port) as wire:
        body = b'{"items":[]}'
        wire.send(request_bytes("POST", "/api/v1/push", body) + request_bytes("GET", "/health"))
        assert [wire.answer().status, wire.answer().status] == [401, 200]


def routes():
    """Every row of the route reference, with something in each open segment."""
    for line in (ROOT / "docs" / "routes.md").read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[1].startswith("/"):
            path = "/".join("1" if part.startswith(":") else part for part in cells[1].split("/"))
            yield cells[0], path, cells[2]


ALLOWED = {
    "public": {"admin", "read-write", "read-only", "write-only", "nobody", None},
    "read": {"admin", "read-write", "read-only"},
    "push": {"admin", "read-write", "write-only"},
    "write": {"admin", "read-write"},
    "admin": {"admin"},
}


@pytest.mark.parametrize("method, path, level", list(routes()))
def test_each_route_lets_in_the_roles_of_its_level(guarded, method, path, level):
    for role in ("admin", "read-write", "read-only", "write-only", "nobody", None):
        headers = {} if role is None else bearer(good(role))
        answer = guarded.call(method, path, {} if method == "POST" else b"", headers=headers)
        if role in ALLOWED[level]:
            assert answer.status not in (401, 403), (role, answer)
        elif role is None:
            refused(answer, 401, "Authentication required")
        else:
            refused(answer, 403, "Insufficient permissions")


def test_roles_may_stand_in_a_list(guarded):
    token = good("nobody", roles=["x", "read-only"])
    assert guarded.get(QUEUES, headers=bearer(token)).status == 200


def test_the_producer_is_whom_the_token_speaks_for(guarded, queue):
    items = [{"queue": queue, "payload": 1, "producerSub": "spoofed", "transactionId": "t1"}]
    headers = bearer(good("read-write", sub="ann"))
    assert guarded.post("/api/v1/push", {"items": items}, headers=headers).status == 201
    nobody = bearer(good("read-write", sub=""))
    items[0]["transactionId"] = "t2"
    assert guarded.post("/api/v1/push", {"items": items}, headers=nobody).status == 201
    pushed = {"operations": [{"type": "push", "items": [{"queue": queue, "payload": 1, "transactionId": "t3"}]}]}
    assert guarded.post("/api/v1/transaction", pushed, headers=headers).json["success"]
    popped = guarded.get(f"/api/v1/pop/queue/{queue}?batch=9", headers=headers).json["messages"]
    assert [message["producerSub"] for message in popped] == ["ann", None, "ann"]
    listed = guarded.get(f"/api/v1/messages?queue={queue}", headers=headers).json["messages"]
    assert {(row["transactionId"], row["producerSub"]) for row in listed} == {("t1", "ann"), ("t2", None), ("t3", "ann")}
    dead = {**{k: popped[0][k] for k in ("transactionId", "partitionId", "leaseId")}, "status": "dlq"}
    assert guarded.post("/api/v1/ack", dead, headers=headers).status == 200
    letters = guarded.get(f"/api/v1/dlq?queue={queue}", headers=headers).json["messages"]
    assert all(letter["producerSub"] == "ann" for letter in letters)


def test_paths_to_skip_need_no_token(tmp_path):
    with start(tmp_path, JWT_SECRET=SECRET, JWT_SKIP_PATHS="/api/v1/resources/, /api/v1/dlq") as server:
        assert server.get(QUEUES).status == 200
        assert server.get("/api/v1/dlq").status == 200
        assert server.get("/health").status == 200
        assert server.get("/api/v1/messages").status == 401


@pytest.mark.parametrize("algorithm", ["RS256", "EdDSA"])
def test_a_public_key_checks_and_is_no_secret(tmp_path, algorithm):
    signer = Signer(algorithm, "k1")
    pem = signer.pem()
    (tmp_path / "public.pem").write_text(pem)
    for setting, key in ((algorithm, f"@{tmp_path / 'public.pem'}"), ("auto", pem.replace("\n", "\\n"))):
        with start(tmp_path, JWT_ALGORITHM=setting, JWT_PUBLIC_KEY=key) as server:
            assert server.get(QUEUES, headers=bearer(signer.token())).status == 200
            refused(server.get(QUEUES, headers=bearer(Signer(algorithm, "k1").token())), 401, "Invalid token signature")
            confused = forged({"alg": "HS256", "kid": "k1"}, claims(), pem.encode())
            expected = "Unsupported algorithm: HS256" if setting == "auto" else f"Token uses HS256, expected {algorithm}"
            refused(server.get(QUEUES, headers=bearer(confused)), 401, expected)
            if algorithm == "RS256":
                wider = server.get(QUEUES, headers=bearer(signer.token(algorithm="RS512")))
                assert wider.status == (200 if setting == "auto" else 401)


def test_auto_takes_what_there_is_a_key_for(tmp_path):
    signer = Signer("EdDSA", "k1")
    with start(tmp_path, JWT_ALGORITHM="auto", JWT_SECRET=SECRET, JWT_PUBLIC_KEY=signer.pem()) as server:
        for token in (hs256(), signer.token()):
            assert server.get(QUEUES, headers=bearer(token)).status == 200
        refused(server.get(QUEUES, headers=bearer(Signer("RS256", "r").token())), 401, "Unknown key ID: r")


def test_published_keys_may_change_while_the_server_runs(tmp_path):
    old, new = Signer("RS256", "old"), Signer("EdDSA", "new")
    with Issuer(old) as issuer, start(tmp_path, JWT_ALGORITHM="auto", JWT_JWKS_URL=issuer.url) as server:
        assert server.get(QUEUES, headers=bearer(old.token())).status == 200
        assert server.get(QUEUES, headers=bearer(old.token(kid=None))).status == 200
        issuer.signers = [new]
        # Strangers with made-up key ids cannot make the server ask more often than every ten seconds.
        for i in range(20):
            refused(server.get(QUEUES, headers=bearer(Signer("EdDSA", f"made-up-{i}").token())), 401, f"Unknown key ID: made-up-{i}")
        assert issuer.asked <= 2
        token = new.token()
        eventually(lambda: server.get(QUEUES, headers=bearer(token)).status == 200, seconds=30, every=0.5)
        # The old key is gone, also for a token that was found good with it.
        refused(server.get(QUEUES, headers=bearer(old.token())), 401, "Unknown key ID: old")
        # The keys that are known outlive the issuer.
        issuer.down = True
        assert server.get(QUEUES, headers=bearer(new.token())).status == 200
        # An issuer that publishes no key has withdrawn all.
        issuer.down, issuer.signers = False, []

        def withdrawn():
            server.get(QUEUES, headers=bearer(Signer("EdDSA", "unknown").token()))
            return server.get(QUEUES, headers=bearer(token)).status != 200

        eventually(withdrawn, seconds=40, every=0.5)


def test_a_server_starts_without_its_issuer_and_says_what_is_missing(tmp_path):
    signer = Signer("EdDSA", "k")
    with Issuer(signer) as issuer, start(tmp_path, JWT_ALGORITHM="EdDSA", JWT_JWKS_URL=issuer.url) as server:
        pass
    with Issuer(signer) as issuer:
        issuer.down = True
        with start(tmp_path, JWT_ALGORITHM="EdDSA", JWT_JWKS_URL=issuer.url) as server:
            answer = server.get(QUEUES, headers=bearer(signer.token()))
            assert (answer.status, answer.json["code"]) == (503, "keys_unavailable")
            assert server.get("/health").status == 200
            issuer.down = False
            eventually(lambda: server.get(QUEUES, headers=bearer(signer.token())).status == 200, 40, 0.5)
            eventually(lambda: "cannot read the keys of tokens" in server.text())


@pytest.mark.parametrize(
    "environment, words",
    [
        ({}, "needs a jwt_secret"),
        ({"JWT_ALGORITHM": "RS256"}, "jwt_public_key"),
        ({"JWT_ALGORITHM": "HS1"}, "HS256, RS256, EdDSA or auto"),
        ({"JWT_ALGORITHM": "EdDSA", "JWT_JWKS_URL": "http://example.com/keys"}, "https"),
        ({"JWT_ENABLED": "maybe"}, "true or false"),
        ({"BATON_ENCRYPTION_KEYS": "my-little-secret", "JWT_SECRET": SECRET}, "64 hexadecimal digits"),
        ({"JWT_SECRET": "@/no/such/file"}, "cannot read /no/such/file"),
    ],
)
def test_settings_that_do_not_fit_stop_the_start_and_show_no_secret(tmp_path, environment, words):
    with pytest.raises(Refused) as refusal:
        start(tmp_path, **environment).start()
    assert words in refusal.value.output
    assert "my-little-secret" not in refusal.value.output and SECRET not in refusal.value.output


def test_a_malformed_file_does_not_show_its_secrets(tmp_path):
    (tmp_path / "baton.toml").write_text(f'jwt_secret = "{SECRET}" oops\n')
    with pytest.raises(Refused) as refusal:
        Server(tmp_path / "data", "--config", str(tmp_path / "baton.toml")).start()
    assert SECRET not in refusal.value.output and "line 1" in refusal.value.output


def test_listening_to_strangers_without_tokens_is_said_loudly(tmp_path):
    with Server(tmp_path / "data", listen="0.0.0.0:0") as server:
        assert server.stop() == 0
    assert "WITHOUT AUTHENTICATION" in server.text()
    with start(tmp_path, JWT_SECRET=SECRET) as server:
        assert server.stop() == 0
    assert "AUTHENTICATION" not in server.text()


def test_nothing_secret_is_logged_even_at_the_finest_level(tmp_path):
    token = hs256()
    environment = {"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "BATON_LOG": "trace", "BATON_ENCRYPTION_KEYS": "ab" * 32}
    with Server(tmp_path / "data", environment=environment) as server:
        assert server.get(QUEUES, headers=bearer(token)).status == 200
        assert server.get(QUEUES, headers=bearer(token + "x")).status == 401
        assert server.stop() == 0
    for secret in (SECRET, token, token.split(".")[2], "ab" * 32):
        assert secret not in server.text()


def test_metrics_and_health_show_what_is_in_queues_only_to_those_who_may_read(tmp_path):
    with start(tmp_path, JWT_SECRET=SECRET) as server:
        server.post("/api/v1/push", {"items": [{"queue": "payroll", "payload": 1}]}, headers=bearer(hs256()))
        for headers in [{}, bearer("bad"), bearer(hs256("write-only")), bearer(hs256(exp=time.time() - 100))]:
            page = server.get("/metrics/prometheus", headers=headers)
            assert page.status == 200 and b"baton_store_commits_total" in page.body
            assert b"payroll" not in page.body and b"baton_queue" not in page.body
            assert server.get("/metrics", headers=headers).json["messages"] is None
            assert server.get("/health", headers=headers).json["popWait"] is None
        page = server.get("/metrics/prometheus", headers=bearer(hs256("read-only")))
        assert b'baton_queue_messages{queue="payroll"} 1' in page.body
        assert server.get("/metrics", headers=bearer(hs256("read-only"))).json["messages"]["total"] == 1
        assert server.get("/health", headers=bearer(hs256("read-only"))).json["popWait"]["waiters"] == 0


def test_a_live_worker_of_shards_belongs_to_the_subject_that_registered_it(guarded):
    def act(subject, action, status, **says):
        body = {"action": action, "workerId": "w", "maxShardCount": 2, "sessionId": "one", **says}
        answer = guarded.post("/api/v1/shards/owned", body, headers=bearer(good(sub=subject)))
        assert answer.status == status, answer
        return answer.json

    act("ann", "register", 200)
    for action in ("register", "heartbeat", "release"):
        assert act("bob", action, 403, takeOver=True)["code"] == "not_owner"
    assert act("bob", "register", 403, sessionId="two", takeOver=True)["code"] == "not_owner"
    assert act("ann", "heartbeat", 200)["grants"]
    act("ann", "release", 200)
    act("bob", "register", 200, sessionId="two")
    act("ann", "heartbeat", 403)
    act("bob", "release", 200, sessionId="two")
    assert guarded.delete("/api/v1/shards/owned", headers=bearer(good("read-write"))).status == 403
    assert guarded.delete("/api/v1/shards/owned", headers=bearer(good())).status == 200


@pytest.mark.parametrize(
    "role, may",
    [
        ("admin", ["read", "push", "write", "admin"]),
        ("read-write", ["read", "push", "write"]),
        ("write-only", ["push"]),
        ("read-only", ["read"]),
        ("unknown", []),
    ],
)
def test_a_caller_can_ask_what_its_token_allows(guarded, role, may):
    answer = guarded.get("/api/v1/caller", headers=bearer(good(role))).json
    assert answer == {"authentication": True, "subject": "tester", "may": may}


def test_a_caller_without_a_good_token_may_nothing_and_still_gets_the_files_of_the_console(guarded):
    for headers in ({}, bearer("x.y.z")):
        assert guarded.get("/api/v1/caller", headers=headers).json == {"authentication": True, "subject": None, "may": []}
        assert guarded.get("/", headers=headers).status == guarded.get("/console/main.js", headers=headers).status == 200
    for path in ("/api/v1/fleet", "/api/v1/leases", "/api/v1/kv", "/api/v1/locks", "/api/v1/settings"):
        assert guarded.get(path).status == 401
    assert guarded.get("/api/v1/settings", headers=bearer(good("read-write"))).status == 403
