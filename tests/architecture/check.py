#!/usr/bin/env python3
"""What every source file must keep to: no cycles among the modules of a crate, no words of a private idiom.

The lists of what is left only ever get shorter.
"""

from __future__ import annotations

import re
import sys

import modules

# The cycles that are still there, each as the modules it holds together.
CYCLES_LEFT: dict[str, list[str]] = {}

# Words that docs/glossary.md replaces, and how often comments and documents may still use them.
WORDS = re.compile(r"\b(?:whoever|nobody|somebody|whomever)\b", re.I)
WORDS_LEFT: dict[str, int] = {
    "crates/election": 1,
    "crates/queue": 1,
    "crates/server": 18,
    "crates/testing-postgres": 1,
}

# Names that the standard terms in docs/glossary.md have replaced.
NAMES = re.compile(
    r"\b(?:heralded|Courtesy|step_aside|Untold|tell_engine|Leftovers|Reclaimer|commit_here|hand_over"
    r"|Bells|Halt|Likely|decide_likely|bereave|want_places)\b"
)


def cycles() -> list[str]:
    problems = []
    for crate in modules.crates():
        uses = crate.uses()
        found = modules.cycles({module: set(targets) for module, targets in uses.items()})
        left = [set(members.split()) for members in CYCLES_LEFT.get(crate.name, [])]
        for members in found:
            if not any(set(members) <= known for known in left):
                edges = [f"    {a} uses {b}: {uses[a][b]}" for a in members for b in sorted(uses[a]) if b in members][:20]
                problems.append(f"{crate.name}: {' '.join(members)} use each other:\n" + "\n".join(edges))
    return problems


def words() -> list[str]:
    problems = []
    counts: dict[str, int] = {}
    for path in [*modules.ROOT.glob("*.md"), *modules.ROOT.glob("docs/**/*.md"), *modules.CRATES.glob("**/*.rs")]:
        text = path.read_text()
        place = path.relative_to(modules.ROOT)
        counts[area(place)] = counts.get(area(place), 0) + len(WORDS.findall(text))
        if path.suffix == ".rs":
            problems += [f"{place}: `{name}` has a standard name now, see docs/glossary.md" for name in sorted(set(NAMES.findall(text)))]
    for name, count in sorted(counts.items()):
        left = WORDS_LEFT.get(name, 0)
        if count > left:
            problems.append(f"{name}: {count} times {WORDS.pattern}, {left} are left: name who acts instead")
    return problems


def area(place: modules.Path) -> str:
    return "/".join(place.parts[:2]) if place.parts[0] == "crates" else place.parts[0]


if __name__ == "__main__":
    found = cycles() + words()
    print("\n".join(found))
    sys.exit(bool(found))
