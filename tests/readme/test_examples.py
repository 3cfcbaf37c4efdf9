"""Every route of the server has an example in the documentation, on a page whose commands a test executes."""

import re

from baton import ROOT
from typed import commands

# Each is typed by `test_pages.py`.
PAGES = ("examples", "jobs", "queues", "records")
ROUTE = re.compile(r"^\| (\w+) \| `(\S+)` \|", re.MULTILINE)


def routes():
    return ROUTE.findall((ROOT / "docs" / "routes.md").read_text())


def calls(lines):
    """The methods and paths that the `curl` commands of a page call."""
    for line in lines:
        # What a shell puts in is one segment of a path.
        line = re.sub(r"\$\([^)]*\)", "x", line)
        if line.startswith("curl ") and (found := re.search(r"(?:localhost|127\.0\.0\.1):6632(/[^?\s\"]*)", line)):
            given = re.search(r"-X (\w+)", line)
            yield given[1] if given else ("POST" if " -d " in line else "GET"), found[1]


def pattern(path):
    segments = [".+" if segment[0] == "*" else "[^/]+" if segment[0] == ":" else re.escape(segment) for segment in path[1:].split("/")]
    return "/" + "/".join(segments)


def without_example(table, called):
    """The routes that no call leads to, as the server finds them: the first that fits."""
    shown = set()
    for method, path in called:
        fits = ((m, p) for m, p in table if m == method and re.fullmatch(pattern(p), path))
        shown.add(next(fits, None))
    return [f"{method} {path}" for method, path in table if (method, path) not in shown]


def test_a_route_without_an_example_is_named():
    table = [("GET", "/a"), ("GET", "/a/:b"), ("POST", "/a/:b/c"), ("GET", "/d/*e")]
    lines = ["curl localhost:6632/a/$(field x.json y)", 'curl "localhost:6632/d/e/f?x=1"', "curl -X POST localhost:6632/a -d '{}'"]
    assert without_example(table, calls(lines)) == ["GET /a", "POST /a/:b/c"]


def test_every_route_has_an_example_that_is_executed():
    lines = [line for page in PAGES for line in commands((ROOT / "docs" / f"{page}.md").read_text())]
    table = routes()
    assert len(table) > 100
    assert without_example(table, calls(lines)) == []
