#!/usr/bin/env python3
"""Finds files of a crate that import each other in a circle: neither can be read, or tested,
without the other.

Usage: scripts/circles.py [CRATE]...   (default: those of CLEAN, which must stay without a circle)

An import is a path that begins with `crate::`, `super::` or `self::`, or a `use` of a child module,
in a file of the crate's src. A parent that imports from its child while the child imports from the
parent is a circle. `mod` alone is no import, and modules for tests do not count. Ends with 1 when
there is a circle, and names its files and lines.
"""

import re
import sys
from pathlib import Path

# Crates without a circle; add yours when it is.
CLEAN = [
    "eyrie",
    "eyrie-agent",
    "eyrie-bench",
    "eyrie-calls",
    "eyrie-cli",
    "eyrie-controller",
    "eyrie-image",
    "eyrie-libfabric",
    "eyrie-monitor",
    "eyrie-placement",
    "eyrie-planner-c",
    "eyrie-pmix",
    "eyrie-provider",
    "eyrie-restorer",
    "eyrie-router",
    "eyrie-store",
    "eyrie-topology",
    "eyrie-transport",
    "eyrie-units",
    "eyrie-wire",
]

ROOT = Path(__file__).resolve().parent.parent
TEST_ONLY = re.compile(
    r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*(;|\{)"
)
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.MULTILINE)
INLINE = re.compile(r"(?<![\w:])((?:crate|super|self)(?:::\w+)+)(!?)")


def without_comments_and_texts(text):
    """The same text with comments and string contents blanked, lines kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"', re.DOTALL)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def without_tests(text):
    """The text without modules for tests, and the names of those that have files of their own."""
    outside, files = text, set()
    for found in reversed(list(TEST_ONLY.finditer(text))):
        name, opening = found.groups()
        if opening == ";":
            files.add(name)
            continue
        depth, end = 1, found.end()
        while depth and end < len(outside):
            depth += {"{": 1, "}": -1}.get(outside[end], 0)
            end += 1
        blank = re.sub(r"[^\n]", " ", outside[found.start() : end])
        outside = outside[: found.start()] + blank + outside[end:]
    return outside, files


def module_of(path, src):
    """The module that a file is, as a tuple of names; the crate's own is ()."""
    parts = list(path.relative_to(src).with_suffix("").parts)
    if parts[-1] in ("mod", "lib", "main"):
        parts.pop()
    return tuple(parts)


def expand(tree):
    """The paths of a use tree: `a::{b, c::d}` is a::b and a::c::d."""
    tree = re.sub(r"\s+as\s+\w+", "", tree).strip()
    if "{" not in tree:
        return [tree]
    head, rest = tree.split("{", 1)
    inside, depth, item, paths = rest[: rest.rindex("}")], 0, "", []
    for letter in inside + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            paths += [head.strip() + path for path in expand(item)] if item.strip() else []
            item = ""
        else:
            item += letter
    return paths


def resolve(path, here, modules):
    """The module whose file a path leads to, or None where it leaves the crate."""
    names = [name.strip() for name in path.split("::")]
    if names[0] == "crate":
        at, names = (), names[1:]
    elif names[0] in ("super", "self"):
        at = here
        while names and names[0] in ("super", "self"):
            at = at[:-1] if names[0] == "super" else at
            names = names[1:]
    elif here + (names[0],) in modules:
        at = here
    else:
        return None
    for name in names:
        if at + (name,) not in modules:
            break
        at += (name,)
    return at


def imports(crate):
    """The imports of each file of a crate: {module: {imported module: line}}, and its files."""
    src = ROOT / "crates" / crate / "src"
    if not src.is_dir():
        sys.exit(f"circles.py: there is no crate {crate}")
    texts, tests = {}, set()
    for path in sorted(src.rglob("*.rs")):
        module = module_of(path, src)
        if module == () and path.name == "main.rs" and () in texts:
            continue
        text, test_files = without_tests(without_comments_and_texts(path.read_text()))
        texts[module] = (path, text)
        tests |= {module + (name,) for name in test_files}
    inside_tests = lambda module: any(module[: len(test)] == test for test in tests)
    modules = {module: entry for module, entry in texts.items() if not inside_tests(module)}
    edges = {module: {} for module in modules}
    for here, (_, text) in modules.items():
        found = [(m.start(1), p) for m in USE.finditer(text) for p in expand(m.group(1))]
        rest = USE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        # A macro of the crate is at its root wherever it was written.
        found += [(m.start(1), m.group(1)) for m in INLINE.finditer(rest) if not m.group(2)]
        for at, path in found:
            to = resolve(path, here, modules)
            if to is not None and to != here:
                edges[here].setdefault(to, text.count("\n", 0, at) + 1)
    return edges, {module: path for module, (path, _) in modules.items()}


def circles(edges):
    """The sets of modules that reach each other."""

    def reached(start):
        seen, left = set(), [start]
        while left:
            for to in edges[left.pop()]:
                if to not in seen:
                    seen.add(to)
                    left.append(to)
        return seen

    reach = {module: reached(module) for module in edges}
    found = {
        frozenset(b for b in edges if b in reach[a] and a in reach[b])
        for a in edges
        if a in reach[a]
    }
    return sorted(found, key=sorted)


def main():
    bad = 0
    for crate in sys.argv[1:] or CLEAN:
        edges, files = imports(crate)
        for circle in circles(edges):
            bad += 1
            print(f"{crate}: {len(circle)} files import each other in a circle:")
            for module in sorted(circle):
                for to, line in sorted(edges[module].items()):
                    if to in circle:
                        print(
                            f"  {files[module].relative_to(ROOT)}:{line} imports {files[to].name if to else 'lib.rs'}"
                            f" ({'::'.join(to) or 'the crate'})"
                        )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
