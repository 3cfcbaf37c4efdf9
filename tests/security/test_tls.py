"""HTTPS, with an authority made for the occasion, as curl, requests and our own command see it."""

import json
import os
import signal
import socket
import ssl
import subprocess

import pytest
import requests

from baton import Refused, Server, binary, eventually
from tokens import Issuer, Signer, bearer


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def authority(path, name):
    key, certificate = path / f"{name}-ca.key", path / f"{name}-ca.pem"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={name}")
    return key, certificate


def certify(path, ca, common_name="localhost"):
    """Writes server.pem and server.key, certified for this machine."""
    ca_key, ca_certificate = ca
    (path / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(path / "server.key"),
            "-out", str(path / "server.csr"), "-subj", f"/CN={common_name}")
    openssl("x509", "-req", "-in", str(path / "server.csr"), "-CA", str(ca_certificate), "-CAkey", str(ca_key),
            "-CAcreateserial", "-days", "2", "-extfile", str(path / "names"), "-out", str(path / "server.pem"))


class Secure(Server):
    def __init__(self, path, *args, **options):
        files = ("--tls-cert", str(path / "server.pem"), "--tls-key", str(path / "server.key"))
        super().__init__(path / "data", *files, *args, **options)


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return authority(tmp_path_factory.mktemp("ca"), "test")


@pytest.fixture(scope="module")
def secure(tmp_path_factory, ca):
    path = tmp_path_factory.mktemp("tls")
    certify(path, ca)
    with Secure(path) as server:
        assert server.scheme == "https"
        yield server
        assert server.stop() == 0


def curl(server, ca, path, *args):
    command = ["curl", "-sS", "--max-time", "20", "--cacert", str(ca[1]), f"https://localhost:{server.port}{path}", *args]
    return subprocess.run(command, capture_output=True, text=True)


def test_curl_believes_the_server(secure, ca):
    answer = curl(secure, ca, "/health")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["status"] == "healthy"
    for args in (["--tlsv1.3"], ["--tls-max", "1.2"]):
        assert curl(secure, ca, "/health", *args).returncode == 0
    assert curl(secure, ca, "/health", "--tls-max", "1.1").returncode != 0


def test_an_authority_that_is_not_ours_is_not_believed(secure, tmp_path):
    other = authority(tmp_path, "other")
    assert curl(secure, other, "/health").returncode == 60


def test_requests_push_and_pop_over_one_connection(secure, ca, queue):
    with requests.Session() as session:
        session.verify, session.trust_env = str(ca[1]), False
        big = "x" * 3_000_000
        for payload in (1, big):
            items = [{"queue": queue, "payload": payload}]
            assert session.post(f"{secure.url}/api/v1/push", json={"items": items}, timeout=30).status_code == 201
        popped = session.get(f"{secure.url}/api/v1/pop/queue/{queue}?batch=2", timeout=30).json()["messages"]
        assert [message["data"] for message in popped] == [1, big]
        empty = session.get(f"{secure.url}/api/v1/pop/queue/{queue}-2?wait=true&timeout=300", timeout=30)
        assert (empty.status_code, empty.content) == (204, b"")


def test_our_own_command_speaks_https(secure, ca, queue, tmp_path):
    environment = {**os.environ, "BATON_URL": f"https://localhost:{secure.port}"}
    run = lambda *args, env=environment: subprocess.run([binary(), *args], capture_output=True, text=True, env=env)
    pushed = run("push", queue, '{"n": 1}', "--ca", str(ca[1]))
    assert pushed.returncode == 0, pushed.stderr
    popped = run("pop", queue, "--json", env={**environment, "BATON_CA": str(ca[1])})
    assert popped.returncode == 0 and json.loads(popped.stdout)["data"] == {"n": 1}, popped
    distrusted = run("queues")
    assert distrusted.returncode == 1 and "certificate" in distrusted.stderr.lower(), distrusted
    assert "name its authority's certificate (PEM) with --ca or BATON_CA" in distrusted.stderr, distrusted
    of_another = run("queues", "--ca", str(authority(tmp_path, "another")[1]))
    assert of_another.returncode == 1 and "The certificate is not trusted" in of_another.stderr, of_another
    plain = run("queues", "--url", f"http://localhost:{secure.port}")
    assert plain.returncode == 1 and "its address begins with https://" in plain.stderr, plain
    missing = run("queues", "--ca", "/no/such.pem")
    assert missing.returncode == 1 and "/no/such.pem" in missing.stderr


def test_whoever_does_not_speak_tls_harms_nobody(secure, ca):
    silent = [socket.create_connection(("127.0.0.1", secure.port)) for _ in range(20)]
    with socket.create_connection(("127.0.0.1", secure.port), timeout=20) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in plain.recv(1000)
    assert curl(secure, ca, "/health").returncode == 0
    # A peer that does not even begin is not waited for.
    silent[0].settimeout(30)
    assert silent[0].recv(100) == b""
    for each in silent:
        each.close()


def shown(server):
    """The name on the certificate that a new connection is shown."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}"]
    return subprocess.run(command, input="", capture_output=True, text=True).stdout


def test_a_new_certificate_is_read_on_a_signal(tmp_path, ca):
    certify(tmp_path, ca, "first")
    with Secure(tmp_path) as server:
        assert "CN = first" in shown(server) or "CN=first" in shown(server)
        certify(tmp_path, ca, "second")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "second" in shown(server))
        (tmp_path / "server.pem").write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "was not read again" in server.text())
        assert "second" in shown(server)
        assert server.stop() == 0


def test_files_that_cannot_be_used_stop_the_start(tmp_path, ca):
    with pytest.raises(Refused) as refusal:
        Secure(tmp_path).start()
    assert "server.pem" in refusal.value.output
    certify(tmp_path, ca)
    key = (tmp_path / "server.key").read_text()
    certify(tmp_path, ca)
    (tmp_path / "server.key").write_text(key)
    with pytest.raises(Refused) as refusal:
        Secure(tmp_path).start()
    assert "does not fit the certificate" in refusal.value.output
    (tmp_path / "server.key").unlink()
    with pytest.raises(Refused) as refusal:
        Secure(tmp_path).start()
    assert "server.key" in refusal.value.output and "BEGIN" not in refusal.value.output


def test_keys_of_tokens_are_read_over_https_from_whom_the_system_trusts(tmp_path, ca):
    certify(tmp_path, ca)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    signer = Signer("RS256", "k1")
    stranger = authority(tmp_path, "stranger")
    with Issuer(signer, tls=tls) as issuer:
        settings = {"JWT_ENABLED": "true", "JWT_ALGORITHM": "RS256", "JWT_JWKS_URL": issuer.url}
        token = bearer(signer.token())
        with Server(tmp_path / "trusting", environment={**settings, "SSL_CERT_FILE": str(ca[1])}) as server:
            assert server.get("/api/v1/resources/queues", headers=token).status == 200
            assert server.stop() == 0
        with Server(tmp_path / "wary", environment={**settings, "SSL_CERT_FILE": str(stranger[1])}) as server:
            assert server.get("/api/v1/resources/queues", headers=token).status == 503
            eventually(lambda: "cannot read the keys of tokens" in server.text())
            assert server.stop() == 0


def test_the_command_explains_what_is_wrong_with_an_address(secure):
    def hint(url):
        ended = subprocess.run([str(binary()), "queues", "--url", url], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 1, ended
        return ended.stderr

    address = f"localhost:{secure.port}"
    assert "with --ca or BATON_CA" in hint(f"https://{address}")
    assert "its address begins with https://" in hint(f"http://{address}")
