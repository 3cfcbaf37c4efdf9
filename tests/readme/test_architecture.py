"""The crates in ARCHITECTURE.md, and what each uses, are those of the workspace."""

import re
import tomllib

from baton import ROOT

ARCHITECTURE = ROOT / "ARCHITECTURE.md"


def drawn():
    """Each crate of the block with what it is drawn to use, in the order of the page."""
    block = re.search(r"^## The crates\n.*?^```text\n(.*?)^```", ARCHITECTURE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.split() for line in block[1].splitlines()]
    return {crate: [] if uses == ["–"] else uses for crate, *uses in lines}


def used():
    """Each crate of the workspace with the crates of it that its Cargo.toml names, those of tests left out."""
    graph = {}
    for manifest in (ROOT / "crates").glob("*/Cargo.toml"):
        told = tomllib.loads(manifest.read_text())
        tables = [told, *told.get("target", {}).values()]
        names = {name for table in tables for kind in ("dependencies", "build-dependencies") for name in table.get(kind, {})}
        graph[manifest.parent.name] = sorted(name.removeprefix("baton-") for name in names if name.startswith("baton-"))
    return graph


def test_the_drawn_crates_are_those_of_the_workspace():
    assert drawn() == used()


def test_a_crate_uses_only_crates_below_it():
    order = list(drawn())
    up = [(crate, other) for crate, uses in drawn().items() for other in uses if order.index(other) <= order.index(crate)]
    assert up == []


def test_every_crate_has_a_readme_and_a_place_to_start():
    page = ARCHITECTURE.read_text()
    assert [crate for crate in used() if not (ROOT / "crates" / crate / "README.md").exists()] == []
    assert [crate for crate in used() if f"| `{crate}` |" not in page] == []
