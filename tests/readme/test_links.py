"""Links between the pages of this repository lead somewhere: to a file that exists, and to a heading in it."""

import re
import subprocess

from baton import ROOT

LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`[^`\n]*`")


def pages():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def headings(page):
    """The anchors that a reader's web view makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


def broken(page, root=ROOT):
    text = CODE.sub("", page.read_text())
    for target in LINK.findall(SPAN.sub("``", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists():
            yield f"{page.relative_to(root)}: {target} is not there"
        elif anchor and anchor not in headings(found.read_text()):
            yield f"{page.relative_to(root)}: {target} names no heading"


def test_a_broken_link_is_noticed(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One two\n[good](#one-two) [bad](#three) [gone](b.md) `[not](c.md)`\n")
    assert list(broken(page, tmp_path)) == ["a.md: #three names no heading", "a.md: b.md is not there"]


def test_every_link_between_pages_leads_somewhere():
    assert [fault for page in pages() for fault in broken(page)] == []
