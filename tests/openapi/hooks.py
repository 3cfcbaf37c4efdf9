"""What the fuzzer is told beside the document: nothing may wait long, and where to write what it saw.

Loaded by schemathesis itself (`SCHEMATHESIS_HOOKS`), not by pytest.
"""

import json
import os

import schemathesis

WAIT_MS = 20


@schemathesis.hook
def before_call(context, case, **kwargs):
    """What waits for something would wait up to five minutes."""
    path = case.operation.path
    if isinstance(case.query, dict):
        if path.startswith("/api/v1/pop"):
            case.query["timeout"] = WAIT_MS
        if "/elections/" in path or "/shards/" in path:
            case.query["wait"] = WAIT_MS
        if path.endswith("/wait"):
            case.query["timeoutMs"] = WAIT_MS
    if path.endswith("/fetch") and isinstance(case.body, dict) and isinstance(case.body.get("maxWaitMs"), int):
        case.body["maxWaitMs"] = min(case.body["maxWaitMs"], WAIT_MS)
    if path.endswith(("/lease", "/heartbeat")) and isinstance(case.body, dict) and isinstance(case.body.get("waitMs"), int):
        case.body["waitMs"] = min(case.body["waitMs"], WAIT_MS)


@schemathesis.hook
def after_call(context, case, response):
    with open(os.environ["BATON_SEEN"], "a") as seen:
        seen.write(json.dumps([case.operation.label, case.method, response.status_code]) + "\n")
