"""What the fuzzer is told beside the document: nothing may wait long, and where to write what it saw.

Loaded by schemathesis itself (`SCHEMATHESIS_HOOKS`), not by pytest.
"""

import json
import os

import schemathesis

WAIT_MS = 20


@schemathesis.hook
def before_call(context, case, **kwargs):
    """A pop that waits would wait up to five minutes."""
    if "/pop" in case.operation.path and isinstance(case.query, dict):
        case.query["timeout"] = WAIT_MS


@schemathesis.hook
def after_call(context, case, response):
    with open(os.environ["BATON_SEEN"], "a") as seen:
        seen.write(json.dumps([case.operation.label, case.method, response.status_code]) + "\n")
