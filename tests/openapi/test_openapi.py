"""The OpenAPI document of a live server, held against what that server answers to requests made from it.

`schemathesis` reads the document as a stranger would, makes requests that fit it and requests that do not, and
compares every answer with what is documented: status, content type, schema. A document with a mistake in it must
make the same run fail.
"""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES = 8
RUN_SECONDS = 240


@pytest.fixture(scope="module")
def document(server):
    answer = server.get("/api/openapi.json")
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json"
    return answer.json


def operations(document):
    return {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}


def fuzz(server, directory, location, *options):
    """Runs schemathesis; returns its exit code, its words, and the statuses seen for each operation."""
    seen_path = directory / "seen.jsonl"
    seen_path.write_text("")
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(location), "--url", server.url]
    command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES)]
    command += ["--request-timeout", "30", "--warnings", "off", "--no-color", "--generation-database", "none"]
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(HERE),
        "BATON_SEEN": str(seen_path),
    }
    run = subprocess.run(
        command + list(options), cwd=directory, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    seen = collections.defaultdict(collections.Counter)
    for line in seen_path.read_text().splitlines():
        label, status = json.loads(line)
        seen[label][status] += 1
    return run.returncode, run.stdout + run.stderr, seen


def test_a_live_server_answers_only_what_the_document_says(server, document, request, tmp_path):
    # Something to be found: a queue with a message, a group that is behind, and a dead letter.
    server.configure("orders", {"namespace": "shop", "task": "ship"}, retryLimit=0)
    server.push("orders", {"n": 1}, {"n": 2}, ids=["a", "b"])
    server.ack(server.pop("orders", batch=1), status="failed")
    server.pop("orders", consumerGroup="late")

    seed = str(request.config.option.seed)
    code, words, seen = fuzz(server, tmp_path, f"{server.url}/api/openapi.json", "--seed", seed)
    assert code == 0, words
    assert set(seen) == operations(document), set(seen) ^ operations(document)
    # What can succeed without knowing an id has succeeded, or the run has shown nothing.
    failed = {label for label, statuses in seen.items() if not any(status < 300 for status in statuses)}
    assert all("{" in label for label in failed), failed
    assert not any(status >= 500 for statuses in seen.values() for status in statuses), seen


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda answers: answers.pop("200"), id="undocumented status"),
        pytest.param(
            lambda answers: answers["200"]["content"]["application/json"]["schema"]["properties"].update(
                status={"type": "integer"}
            ),
            id="wrong schema",
        ),
        pytest.param(
            lambda answers: answers["200"].update(content={"text/plain": {"schema": {}}}), id="wrong content type"
        ),
    ],
)
def test_a_mistake_in_the_document_is_noticed(server, document, tmp_path, break_it):
    broken = json.loads(json.dumps(document))
    break_it(broken["paths"]["/health"]["get"]["responses"])
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(broken))
    code, words, seen = fuzz(server, tmp_path, path, "--include-path", "/health", "--no-shrink")
    assert seen["GET /health"], words
    assert code == 1, words


def test_the_page_is_one_file_that_reads_the_document(server):
    answer = server.get("/api/docs")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.body.decode()
    assert 'fetch("openapi.json")' in page
    assert "src=" not in page and "://" not in page


def test_the_document_names_what_a_route_asks_of_its_caller(document):
    push = document["paths"]["/api/v1/push"]["post"]
    assert push["x-access"] == "push" and {"token": []} in push["security"]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/health"]["get"]["security"] == []
