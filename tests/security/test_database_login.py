"""How a server tells a real PostgreSQL who it is: by each kind of proof that the database asks for, over each way to it."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import postgres
from baton import Server, binary
from ports import free_port

# The role of the tests themselves comes in as before; of the others each has a proof of its own.
RULES = """
local all baton trust
host all baton 127.0.0.1/32 trust
host all scrammed 127.0.0.1/32 scram-sha-256
host all hashed 127.0.0.1/32 md5
host all plain 127.0.0.1/32 password
"""
KINDS = {"scrammed": "scram-sha-256", "hashed": "md5", "plain": "scram-sha-256"}


@pytest.fixture(scope="module")
def database():
    # Not below the directory of the tests, which is for their user's eyes only.
    path = Path(tempfile.mkdtemp(prefix="baton-login-"))
    rules = path / "hba.conf"
    rules.write_text(RULES)
    if user := postgres.other_user():
        for owned in [path, rules]:
            os.chown(owned, user.pw_uid, user.pw_gid)
    started = postgres.Postgres(f"-c hba_file={rules} -c unix_socket_directories={path}")
    started.socket = path
    for role, kind in KINDS.items():
        started.sql(f"SET password_encryption = '{kind}'; CREATE ROLE {role} LOGIN PASSWORD 'a secret'")
        started.sql(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    yield started
    started.close()
    shutil.rmtree(path)


def migrate(store, schema):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    command = [str(binary()), "migrate", "--up", "--store", store, "--store-schema", schema]
    return subprocess.run(command, capture_output=True, text=True, env=inherited, timeout=60)


def elect(store, schema):
    """Wins an election whose table is in a schema of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    separator = "&" if "?" in store else "?"
    store = f"{store}{separator}options=-csearch_path%3D{schema}"
    command = [str(binary()), "elect", "login", "--store", store, "--fast", "--", "true"]
    return subprocess.run(command, capture_output=True, text=True, env=inherited, timeout=60)


@pytest.mark.parametrize("role", KINDS)
def test_a_password_is_proved_as_the_database_asks_and_a_wrong_one_is_refused(tmp_path, database, role):
    clear_text = "?require_auth=password" if role == "plain" else ""
    address = f"127.0.0.1:{database.port}/postgres{clear_text}"
    with Server(tmp_path / "data", "--store", f"postgres://{role}:a%20secret@{address}", "--store-schema", role) as server:
        pushed = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
        assert pushed.json[0]["status"] == "queued", pushed
    wrong = migrate(f"postgres://{role}:another@{address}", role)
    assert wrong.returncode != 0 and "password authentication failed" in wrong.stderr, wrong.stderr
    without = migrate(f"postgres://{role}@{address}", role)
    assert without.returncode != 0 and "asks for a password" in without.stderr, without.stderr


def test_a_database_is_reached_over_its_socket_and_over_the_first_host_that_answers(database):
    over_socket = f"host={database.socket} port={database.port} user=baton dbname=postgres"
    reached = migrate(over_socket, "over_socket")
    assert reached.returncode == 0, reached.stderr
    silent = free_port()
    hosts = f"postgres://baton@127.0.0.1:{silent},127.0.0.1:{database.port}/postgres?target_session_attrs=read-write"
    reached = migrate(hosts, "second_host")
    assert reached.returncode == 0, reached.stderr
    nobody = migrate(f"postgres://baton@127.0.0.1:{silent}/postgres", "nobody")
    assert nobody.returncode != 0 and "cannot be reached" in nobody.stderr, nobody.stderr


def test_an_address_without_a_user_means_whoever_runs_the_program(database):
    refused = migrate(f"postgres://127.0.0.1:{database.port}/postgres", "nobody")
    own = pwd.getpwuid(os.getuid()).pw_name
    assert refused.returncode != 0 and f'user "{own}"' in refused.stderr, refused.stderr


def test_a_database_that_takes_no_writes_is_passed_over_if_writes_are_asked_for(database):
    database.sql("ALTER ROLE scrammed SET default_transaction_read_only = on")
    try:
        store = f"postgres://scrammed:a%20secret@127.0.0.1:{database.port}/postgres?target_session_attrs=read-write"
        refused = migrate(store, "scrammed")
        assert refused.returncode != 0 and "read_only" in refused.stderr, refused.stderr
    finally:
        database.sql("ALTER ROLE scrammed RESET default_transaction_read_only")


def test_a_password_does_not_go_out_in_clear_text_unless_that_is_asked_for(database):
    address = f"127.0.0.1:{database.port}/postgres"
    refused = migrate(f"postgres://plain:a%20secret@{address}", "plain")
    assert refused.returncode != 0 and "in clear text" in refused.stderr, refused.stderr
    other = migrate(f"postgres://scrammed:a%20secret@{address}?require_auth=md5", "scrammed")
    assert other.returncode != 0 and "scram-sha-256" in other.stderr, other.stderr


def test_elections_prove_a_password_as_the_server_does(database):
    address = f"127.0.0.1:{database.port}/postgres"
    refused = elect(f"postgres://plain:a%20secret@{address}", "plain")
    assert refused.returncode != 0 and "in clear text" in refused.stderr, refused.stderr
    refused = elect(f"postgres://plain:a%20secret@/postgres?hostaddr=127.0.0.1&port={database.port}", "plain")
    assert refused.returncode != 0 and "in clear text" in refused.stderr, refused.stderr
    asked_for = elect(f"postgres://plain:a%20secret@{address}?require_auth=password", "plain")
    assert asked_for.returncode == 0, asked_for.stderr
    for role in ("scrammed", "hashed"):
        elected = elect(f"postgres://{role}:a%20secret@{address}", role)
        assert elected.returncode == 0, elected.stderr
    other = elect(f"postgres://scrammed:a%20secret@{address}?require_auth=md5", "scrammed")
    assert other.returncode != 0 and "scram-sha-256" in other.stderr, other.stderr
    over_socket = elect(f"postgres://baton@/postgres?host={database.socket}&port={database.port}", "public")
    assert over_socket.returncode == 0, over_socket.stderr
    unknown = elect("host=nowhere password=secret", "plain")
    assert unknown.returncode != 0 and "secret" not in unknown.stderr, unknown.stderr


def test_a_password_is_neither_in_the_list_of_processes_nor_in_an_error(tmp_path, database):
    address = f"postgres://scrammed:a%20secret@127.0.0.1:{database.port}/postgres"
    with Server(tmp_path / "flag", "--store", address, "--store-schema", "scrammed") as server:
        arguments = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert b"serve" in arguments and b"secret" not in arguments, arguments
    file = tmp_path / "store.url"
    file.write_text(address + "\n")
    with Server(tmp_path / "file", "--store", f"@{file}", "--store-schema", "scrammed") as server:
        pushed = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
        assert pushed.json[0]["status"] == "queued", pushed
    for wrong in [address.replace("postgres://", "mysql://"), address + "?port=x", address.replace("secret", "secret2")]:
        refused = migrate(wrong, "scrammed")
        assert refused.returncode != 0 and "secret" not in refused.stderr, refused.stderr
