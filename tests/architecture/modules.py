"""Which modules and crates use which, read from the sources.

A module here is a direct child of a crate's `src`: a file, or a folder with all that is in it. A use is a path that
starts with `crate::` or climbs with `super::`; a name that `lib.rs` re-exports counts as a use of the module behind
it. Unit tests (`#[cfg(test)]` modules, `tests.rs` files) may use what they like.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRATES = ROOT / "crates"

_IDENT = r"[A-Za-z_][A-Za-z_0-9]*"
_PATH = re.compile(r"\b(crate|super|self)\s*::")
_DECLARED = re.compile(rf"^\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+({_IDENT})\s*[;{{]", re.M)


def strip(source: str) -> str:
    """The source without comments, strings and unit tests."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    source = re.sub(r'r#"(?:.|\n)*?"#', '""', source)
    source = re.sub(r'b?"(?:\\(?:.|\n)|[^"\\])*"', '""', source)
    source = re.sub(r"//[^\n]*", "", source)
    return _without_tests(source)


def _without_tests(source: str) -> str:
    while match := re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:pub(?:\([^)]*\))?\s+)?(?:mod|use|fn|impl)\b[^;{]*([;{])", source):
        end = match.end()
        if match.group(1) == "{":
            depth = 1
            while depth:
                depth += {"{": 1, "}": -1}.get(source[end], 0)
                end += 1
        source = source[: match.start()] + source[end:]
    return source


def _tree(text: str, at: int) -> list[list[str]]:
    """All paths of the use tree (or plain path) that starts at `at`."""
    prefix: list[str] = []
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at < len(text) and text[at] == "{":
            depth, start, parts = 0, at + 1, []
            while True:
                char = text[at]
                if char in "{":
                    depth += 1
                elif char == "}":
                    depth -= 1
                    if depth == 0:
                        parts.append(text[start:at])
                        break
                elif char == "," and depth == 1:
                    parts.append(text[start:at])
                    start = at + 1
                at += 1
            return [prefix + rest for part in parts if part.strip() for rest in _tree(part, 0)]
        match = re.compile(rf"{_IDENT}|\*").match(text, at)
        if not match:
            return [prefix]
        prefix = [*prefix, match.group()]
        at = match.end()
        after = re.compile(r"\s*::\s*").match(text, at)
        if not after or text[after.end() : after.end() + 1] == "<":
            return [prefix]
        at = after.end()


class Crate:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = tomllib.loads((folder / "Cargo.toml").read_text())
        self.name: str = self.manifest["package"]["name"]
        self.source = folder / "src"
        self.files = sorted(self.source.rglob("*.rs"))
        self.root = next((p for p in (self.source / "lib.rs", self.source / "main.rs") if p.exists()), None)

    def dependencies(self) -> set[str]:
        """The crates of this workspace that this one is built with, tests aside."""
        return {name for name in self.manifest.get("dependencies", {}) if name.startswith("baton")}

    def modules(self) -> set[str]:
        return {self.module(file) for file in self.files} - {""}

    def module(self, file: Path) -> str:
        """The direct child of `src` that a file belongs to; "" for `lib.rs` and `main.rs`."""
        parts = file.relative_to(self.source).with_suffix("").parts
        return "" if parts[0] in ("lib", "main") else parts[0]

    def exports(self) -> dict[str, str]:
        """Names that `lib.rs` re-exports, and the module each comes from."""
        if self.root is None:
            return {}
        text, modules, found = strip(self.root.read_text()), self.modules(), {}
        for match in re.finditer(r"\buse\s+(?:(?:crate|self)\s*::\s*)?", text):
            for path in _tree(text, match.end()):
                if len(path) > 1 and path[0] in modules:
                    found[path[-1]] = path[0]
        return found

    def uses(self) -> dict[str, dict[str, str]]:
        """For each module the modules it uses, each with a place that shows it."""
        modules, exports = self.modules(), self.exports()
        found: dict[str, dict[str, str]] = {module: {} for module in modules}
        for file in self.files:
            here = self.module(file)
            relative = file.relative_to(self.source).with_suffix("").parts
            if not here or relative[-1] == "tests" or "tests" in relative[1:]:
                continue
            home = list(relative[:-1] if relative[-1] == "mod" else relative)
            text = strip(file.read_text())
            for match in _PATH.finditer(text):
                if match.group(1) == "self" or text[: match.start()].endswith("::"):
                    continue
                for path in _tree(text, match.start()):
                    target = self._resolve(home, path, modules, exports)
                    if target and target != here:
                        line = text.count("\n", 0, match.start()) + 1
                        found[here].setdefault(target, f"{file.relative_to(ROOT)} (about line {line}): {'::'.join(path)}")
        return found

    @staticmethod
    def _resolve(home: list[str], path: list[str], modules: set[str], exports: dict[str, str]) -> str | None:
        if path[0] == "crate":
            rest = path[1:]
        else:
            up = 0
            while up < len(path) and path[up] == "super":
                up += 1
            if up < len(home):
                return home[0]
            rest = path[up:]
        if not rest:
            return None
        return rest[0] if rest[0] in modules else exports.get(rest[0])


def crates() -> list[Crate]:
    return [Crate(manifest.parent) for manifest in sorted(CRATES.glob("*/Cargo.toml"))]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one member (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            members = []
            while True:
                member = stack.pop()
                members.append(member)
                if member == node:
                    break
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
