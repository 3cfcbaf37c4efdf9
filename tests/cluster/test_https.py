"""Servers that speak HTTPS pass requests on to each other, if they believe each other."""

import subprocess
import uuid

import pytest
import requests

import postgres
from baton import Background, Server, eventually
from ports import free_port


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


@pytest.fixture
def certificate(tmp_path):
    """An authority that is its own server certificate, and its key."""
    key, chain = tmp_path / "server.key", tmp_path / "server.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-keyout", str(key), "-out", str(chain), "-subj", "/CN=localhost", "-addext", names,
            "-addext", "basicConstraints=critical,CA:FALSE")  # fmt: skip
    return chain, key


def test_a_push_is_passed_on_over_https(tmp_path, certificate, queue):
    chain, key = certificate
    ports, schema = [free_port(), free_port()], f"cluster_{uuid.uuid4().hex[:16]}"
    servers = [
        Server(
            tmp_path / name, "--node-id", name, "--store", postgres.shared(), "--store-schema", schema,
            "--tls-cert", str(chain), "--tls-key", str(key), "--coordinator-ca", str(chain),
            "--coordinator-enabled", "true", "--pop-creates-queue", "true", "--gossip-listen", f"127.0.0.1:{ports[number]}",
            "--peers", f"127.0.0.1:{ports[1 - number]}", "--gossip-heartbeat-ms", "200",
        )
        for number, name in enumerate("ab")
    ]  # fmt: skip
    with servers[0] as a, servers[1] as b, requests.Session() as session:
        session.verify, session.trust_env = str(chain), False
        wait = {"wait": "true", "timeout": 25_000}
        waiting = Background(session.get, f"{b.url}/api/v1/pop/queue/{queue}", params=wait, headers={"X-Forwarded-By": "t"})
        with requests.Session() as other:
            other.verify, other.trust_env = str(chain), False

            def there():
                seen = other.get(f"{a.url}/api/v1/cluster").json()["servers"]
                return any(one["server_id"] == "b" and one["waiting_groups"] > 0 for one in seen)

            eventually(there, seconds=20)
            pushed = other.post(f"{a.url}/api/v1/push", json={"items": [{"queue": queue, "payload": 1}]})
        assert (pushed.status_code, pushed.headers.get("x-served-by")) == (201, "b"), pushed.headers
        assert waiting.result().json()["messages"][0]["data"] == 1
