"""TLS to a real PostgreSQL, with an authority made for the occasion: `verify-full` means what it says."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import postgres
from baton import Refused, Server, binary, eventually
from test_tls import authority, certify


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return authority(tmp_path_factory.mktemp("database-ca"), "database")


@pytest.fixture(scope="module")
def database(ca):
    """A PostgreSQL that takes TLS, and only TLS where it is asked for."""
    # Not below the directory of the tests, which is for their user's eyes only.
    path = Path(tempfile.mkdtemp(prefix="baton-database-"))
    certify(path, ca)
    key, certificate = path / "server.key", path / "server.pem"
    key.chmod(0o600)
    if user := postgres.other_user():
        for owned in [path, *path.iterdir()]:
            os.chown(owned, user.pw_uid, user.pw_gid)
    started = postgres.Postgres(f"-c ssl=on -c ssl_cert_file={certificate} -c ssl_key_file={key}")
    yield started
    started.close()
    shutil.rmtree(path)


def address(database, host="localhost", **options):
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"postgres://baton@{host}:{database.port}/postgres?{query}"


def migrate(store):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    command = [str(binary()), "migrate", "--up", "--store", store, "--store-schema", "tls"]
    return subprocess.run(command, capture_output=True, text=True, env=inherited, timeout=60)


def test_a_server_speaks_tls_to_a_database_whose_certificate_it_checked(tmp_path, database, ca):
    store = address(database, sslmode="verify-full", sslrootcert=ca[1])
    with Server(tmp_path / "data", "--store", store, "--store-schema", "served") as server:
        pushed = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
        assert pushed.json[0]["status"] == "queued", pushed
        popped = server.get("/api/v1/pop/queue/q")
        assert popped.json["messages"][0]["data"] == 1
        used = database.sql(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'baton%'"
        )
        assert used == "t", "every connection is under TLS"


def elect(store, command="true"):
    command = [str(binary()), "elect", "tls", "--store", store, "--fast", "--", "sh", "-c", command]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    return subprocess.run(command, capture_output=True, text=True, env=inherited, timeout=60)


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_elections_speak_tls_to_a_database_whose_certificate_they_checked(database, ca, mode):
    store = address(database, sslmode=mode, sslrootcert=ca[1], application_name="elector")
    psql = [str(postgres.binaries() / "psql"), "-XAtq", "-U", "baton", "-h", "127.0.0.1", "-p", str(database.port)]
    ask = "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'elector'"
    elected = elect(store, " ".join([*psql, "-d", "postgres", "-c", f'"{ask}"']))
    assert elected.returncode == 0, elected.stderr
    assert elected.stdout.split() == ["t"], elected.stdout


def test_elections_refuse_a_database_that_they_cannot_check(tmp_path, database, ca):
    other = authority(tmp_path, "other")
    for store in [
        address(database, sslmode="require", sslrootcert=other[1]),
        address(database, host="elsewhere", hostaddr="127.0.0.1", sslmode="verify-full", sslrootcert=ca[1]),
    ]:
        refused = elect(store)
        assert refused.returncode != 0 and "certificate" in refused.stderr, refused.stderr
    refused = elect(address(database, sslmode="prefer"))
    assert refused.returncode != 0 and "verify-full" in refused.stderr, refused.stderr


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_database_with_a_certificate_of_another_authority_is_refused(tmp_path, database, mode):
    other = authority(tmp_path, "other")
    refused = migrate(address(database, sslmode=mode, sslrootcert=other[1]))
    assert refused.returncode != 0
    assert "certificate" in refused.stderr, refused.stderr


def test_a_certificate_for_another_name_is_refused(database, ca):
    # It is for localhost and 127.0.0.1.
    refused = migrate(address(database, host="127.0.0.2", sslmode="verify-full", sslrootcert=ca[1]))
    assert refused.returncode != 0, refused.stdout


def test_a_database_without_tls_is_refused_when_tls_is_asked_for(ca):
    plain = postgres.Postgres()
    try:
        refused = migrate(address(plain, sslmode="verify-full", sslrootcert=ca[1]))
        assert refused.returncode != 0
        assert "TLS" in refused.stderr, refused.stderr
    finally:
        plain.close()


def test_modes_that_would_not_check_are_refused(tmp_path, database):
    for mode in ["prefer", "allow"]:
        with pytest.raises(Refused) as refused:
            Server(tmp_path / "data", "--store", address(database, sslmode=mode)).start()
        assert "verify-full" in refused.value.output


def test_without_a_mode_the_database_is_spoken_to_in_the_clear(tmp_path, database):
    store = f"postgres://baton@127.0.0.1:{database.port}/postgres"
    with Server(tmp_path / "data", "--store", store, "--store-schema", "clear") as server:
        eventually(lambda: server.get("/health").status == 200)
        used = database.sql(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'baton%'"
        )
        assert used == "f"
