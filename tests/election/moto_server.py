"""S3 by moto on the port that is given, one request at a time."""

import sys

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple


class KeepAlive(WSGIRequestHandler):
    """Says nothing of each request."""

    def log_request(self, *_):
        pass


run_simple(
    "127.0.0.1",
    int(sys.argv[1]),
    DomainDispatcherApplication(create_backend_app),
    threaded=False,
    use_reloader=False,
    request_handler=KeepAlive,
)
