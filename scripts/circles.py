#!/usr/bin/env python3
"""Finds files of a crate that need each other in a circle: neither can be read, or tested, without
the other. They do when they import each other, or when methods of one type call each other that
stand in several files.

Usage: scripts/circles.py [CRATE]...   (default: ulfm's C and all crates, but for what is
NOT_CLEAN_YET)

The C sources of ulfm/ are looked at, too: a file needs another one whose function it calls.

An import is a path that begins with `crate::`, `super::` or `self::`, or a `use` of a child module,
in a file of the crate's src. A parent that imports from its child while the child imports from the
parent is a circle. `mod` alone is no import, and modules for tests do not count. A call is
`self.name(`, `Self::name` or `Type::name` in a method of the type: no import shows that it needs
the other file. Ends with 1 when there is a circle, and names its files and lines.
"""

import re
import sys
from pathlib import Path

# What is not clean yet, by crate: take yours out when it is. Nothing may come in.
IMPORTS_NOT_CLEAN_YET = []
CALLS_NOT_CLEAN_YET = []

ROOT = Path(__file__).resolve().parent.parent
TEST_ONLY = re.compile(
    r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*(;|\{)"
)
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.MULTILINE)
# A function of C that other files may call, from its beginning at the margin to its body.
C_FUNCTION = re.compile(r"^(?!static\b)[a-zA-Z_][\w \t*]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
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


def texts_of(crate):
    """The files of a crate without tests: {module: (path, text)}."""
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
    return {module: entry for module, entry in texts.items() if not inside_tests(module)}


def imports(modules):
    """The imports of each file of a crate: {module: {imported module: line}}."""
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
    return edges


IMPL = re.compile(r"^[ \t]*impl\b([^;{]*)\{", re.MULTILINE)
DEFINITION = re.compile(
    r"^[ \t]*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|union)\s+(\w+)", re.MULTILINE
)
METHOD = re.compile(r"\bfn\s+(\w+)")


def without_brackets(text):
    """The text without what stands in <>, but for arrows."""
    text, depth, outside = text.replace("->", "  "), 0, ""
    for letter in text:
        depth -= letter == ">"
        outside += letter if depth == 0 and letter != ">" else ""
        depth += letter == "<"
    return outside.replace("<", " ")


def block(text, opening):
    """Where the block ends that begins with the brace at `opening`."""
    depth, end = 1, opening + 1
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return end


def body_of(text, at):
    """Where the body of a method begins whose name ends at `at`; None: it has none. An array among
    its arguments (`[u8; 4]`) has a semicolon, too."""
    depth = 0
    for place in range(at, len(text)):
        letter = text[place]
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if depth == 0 and letter in "{;":
            return place if letter == "{" else None
    return None


def methods(texts):
    """The methods of each type of a crate, as (module, name, its text, its line) by type."""
    defined = {}
    for module, text in texts.items():
        for found in DEFINITION.finditer(text):
            defined.setdefault(found.group(1), set()).add(module)
    types = {}
    for module, text in texts.items():
        for found in IMPL.finditer(text):
            head = without_brackets(found.group(1)).split(" where ")[0]
            head = head.rsplit(" for ", 1)[-1].replace("&", " ").strip()
            name = re.split(r"\W+", head)[-1] if head else ""
            homes = defined.get(name, set())
            if not homes:
                continue
            # Where several types have the name it is the one of this file, or that of the nearest.
            near = lambda home: (home != module, -len([1 for a, b in zip(home, module) if a == b]))
            home = min(sorted(homes), key=near)
            start, end = found.end(), block(text, found.end() - 1)
            for method in METHOD.finditer(text, start, end):
                opening = body_of(text, method.end())
                if opening is None:
                    continue
                body = text[opening : block(text, opening)]
                line = text.count("\n", 0, opening) + 1
                types.setdefault((home, name), []).append((module, method.group(1), body, line))
    return types


def calls(texts):
    """Calls between the files of one type: its name and {module: {called module: line}}."""
    for (_, name), all_of_type in sorted(methods(texts).items()):
        where = {method: module for module, method, _, _ in all_of_type}
        edges = {module: {} for module, _, _, _ in all_of_type}
        if len(edges) < 2:
            continue
        call = re.compile(rf"\bself\s*\.\s*(\w+)\s*(?:\(|::<)|\b(?:Self|{name})::(\w+)")
        for module, _, body, line in all_of_type:
            here = {method for there, method, _, _ in all_of_type if there == module}
            for used in call.finditer(body):
                called = used.group(1) or used.group(2)
                if called in where and called not in here:
                    at = line + body.count("\n", 0, used.start())
                    edges[module].setdefault(where[called], at)
        yield name, edges


def c_calls(folder):
    """The files of C in a folder, as {module: path}, and which calls functions of which."""
    files = {(path.stem,): path for path in sorted(folder.glob("*.c"))}
    texts = {module: without_comments_and_texts(path.read_text()) for module, path in files.items()}
    where = {name: module for module, text in texts.items() for name in C_FUNCTION.findall(text)}
    edges = {module: {} for module in files}
    for module, text in texts.items():
        for used in re.finditer(r"\b(\w+)\s*\(", text):
            if where.get(used.group(1), module) != module:
                line = text.count("\n", 0, used.start()) + 1
                edges[module].setdefault(where[used.group(1)], line)
    return files, edges


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


def show(circle, edges, files, verb):
    for module in sorted(circle):
        for to, line in sorted(edges[module].items()):
            if to in circle:
                into = f"{files[to].name} ({'::'.join(to) or 'the crate'})"
                print(f"  {files[module].relative_to(ROOT)}:{line} {verb} {into}")


def main():
    bad = 0
    crates = sorted(path.parent.name for path in ROOT.glob("crates/*/src"))
    for crate in sys.argv[1:] or crates:
        modules = texts_of(crate)
        files = {module: path for module, (path, _) in modules.items()}
        edges = imports(modules)
        known = not sys.argv[1:] and crate in IMPORTS_NOT_CLEAN_YET
        for circle in [] if known else circles(edges):
            bad += 1
            print(f"{crate}: {len(circle)} files import each other in a circle:")
            show(circle, edges, files, "imports")
        if not sys.argv[1:] and crate in CALLS_NOT_CLEAN_YET:
            continue
        for name, edges in calls({module: text for module, (_, text) in modules.items()}):
            for circle in circles(edges):
                bad += 1
                print(
                    f"{crate}: methods of {name} in {len(circle)} files call each other in a circle:"
                )
                show(circle, edges, files, "calls")
    if not sys.argv[1:]:
        files, edges = c_calls(ROOT / "ulfm/src")
        for circle in circles(edges):
            bad += 1
            print(f"ulfm: {len(circle)} files of C call each other in a circle:")
            show(circle, edges, files, "calls")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
