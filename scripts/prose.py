#!/usr/bin/env python3
"""Checks the documentation and the words of the project.

Usage: scripts/prose.py

- Links in Markdown lead to files and headings that exist.
- What a page names in `code` exists: files, functions and types, options and commands. Checked in
  ARCHITECTURE.md, HACKING.md, docs/glossary.md and docs/internals/, which describe the code.
- Lines of Markdown have 100 columns, but for tables, code and lines with links.
- Sentences of those pages have 20 words in the mean or fewer.
- Code and documentation have no riddles ("nobody", "somebody", "whoever"): say who.

What does not pass yet is in the lists below, which only get shorter. Ends with 1 and says where
when something is wrong.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
WORDS_IN_THE_MEAN = 20

# Pages that describe the code, and so must name what exists.
DESCRIBING = ["ARCHITECTURE.md", "HACKING.md", "docs/glossary.md", "docs/internals/"]

RIDDLES = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever)\b", re.IGNORECASE)
# How many riddles are left, by the beginning of a path. The longest one that fits counts.
RIDDLES_LEFT = {
    # The user of that name.
    "tests/monitor/020-an-ordinary-user": 7,
}

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
# Names of libraries that the project uses through others.
FOREIGN = {"fi_cq_read"}
# Where code is, to look names up in.
CODE_FILES = re.compile(r"\.(rs|py|c|h|sh|f90|toml|rules)$|^(Makefile|\.ci/run|tests/[^.]*)$")
PATH = re.compile(r"^\.{0,2}[\w.-]*(/[\w.*-]*)+$|^[\w-]+\.(rs|py|c|h|sh|md|csv|json|so|svg)$")
NAME = re.compile(r"^(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)(?:\(\))?$")


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in out.stdout.splitlines() if (ROOT / path).is_file()]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def begins(path, prefixes):
    return any(path.startswith(prefix) for prefix in prefixes)


def prose(text):
    """Numbered lines of Markdown without code blocks, tables and comments."""
    inside, lines = False, []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.startswith(("|", "<!--")):
            lines.append((number, line))
    return lines


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = (line.lstrip("#").strip() for _, line in prose(text) if line.startswith("#"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    named = re.findall(r'<a name="([^"]+)">', text)
    return {heading.replace(" ", "-") for heading in plain} | set(named)


def dead_links(path, text, files):
    for number, line in enumerate(text.splitlines(), 1):
        for link in (a or b for a, b in LINK.findall(line)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (ROOT / path).parent / name if name else ROOT / path
            if not target.exists():
                yield f"{path}:{number}: there is no {link}"
            elif anchor and target.suffix == ".md":
                if anchor not in anchors(target.read_text(encoding="utf-8")):
                    yield f"{path}:{number}: {name or path} has no heading #{anchor}"


class Names:
    """What exists: files, and words in code."""

    def __init__(self, files):
        self.files = set(files)
        self.folders = {str(parent) for file in files for parent in Path(file).parents}
        self.code = {path: read(path) for path in files if CODE_FILES.search(path)}
        self.words = set()
        for text in self.code.values():
            self.words.update(re.findall(r"\w+", text))

    def has_path(self, path):
        """A file or folder by its path or the end of it; a test by the beginning of its name."""
        path = path.rstrip("/").removeprefix("./").removeprefix("../")
        known = self.files | self.folders
        return any(
            name == path or name.endswith("/" + path) or name.startswith(path + "-")
            for name in known
        )

    def has(self, text):
        """Whether what is in code exists; None where it is no name. Words in capitals stand for
        others."""
        if text in FOREIGN or re.search(r"[A-Z]{3}.*[./]|[./].*[A-Z]{3}", text):
            return True
        if text.startswith("--"):
            option = re.match(r"--([a-z][\w-]*)", text)
            return option is None or self._option(option[1])
        if text.startswith(("eyrie ", "eyrie-bench ")):
            words = text.split()
            return len(words) < 2 or self._command(words[0], words[1])
        if PATH.match(text) and not text.startswith("/"):
            return self.has_path(text) or "*" in text or self._loaded(text)
        name = NAME.match(text)
        if name and ("::" in text or "_" in text or re.search(r"[a-z][A-Z]", text)):
            return all(part in self.words for part in re.findall(r"\w+", text))
        return None

    def _option(self, name):
        return name.replace("-", "_") in self.words or any(
            f'"{name}"' in text or f"--{name}" in text for text in self.code.values()
        )

    def _command(self, program, command):
        if command.startswith(("-", "<", "[")) or not re.fullmatch(r"[a-z0-9-]+", command):
            return True
        main = {
            "eyrie": "crates/eyrie/src/main.rs",
            "eyrie-bench": "crates/eyrie-bench/src/bin/eyrie-bench/main.rs",
        }[program]
        variant = "".join(part.capitalize() for part in command.split("-"))
        return re.search(rf"^\s+{variant}\(", read(main), re.MULTILINE) is not None

    def _loaded(self, name):
        """A library that is made when Eyrie is built, or a file that it makes."""
        return any(name in text for text in self.code.values())


def missing_names(path, text, names):
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        if inside:
            continue
        for code in CODE.findall(line):
            if names.has(code) is False:
                yield f"{path}:{number}: `{code}` does not exist"


def wide_lines(path, text):
    for number, line in prose(text):
        alone = re.fullmatch(r"\s*`[^`]+`", line)
        if len(line) > WIDTH and not LINK.search(line) and not alone:
            yield f"{path}:{number}: {len(line)} columns, at most {WIDTH}"


def long_sentences(path, text):
    paragraphs = "\n".join(line for _, line in prose(text) if not line.startswith("#"))
    sentences = re.split(r"(?<=[.:;?!])\s+|\n\n|\n(?=\s*(?:[-*]|\d+\.)\s)", paragraphs)
    lengths = [len(s.split()) for s in sentences if len(s.split()) > 1]
    if lengths and sum(lengths) / len(lengths) > WORDS_IN_THE_MEAN:
        mean = sum(lengths) / len(lengths)
        yield f"{path}: {mean:.1f} words a sentence in the mean, at most {WORDS_IN_THE_MEAN}"


def riddles(files):
    """Too many riddles below a path, with those of them that are there."""
    found = {}
    for path in files:
        if path == "scripts/prose.py" or Path(path).suffix in (".svg", ".lock"):
            continue
        fits = max((p for p in RIDDLES_LEFT if path.startswith(p)), key=len, default="")
        for number, line in enumerate(read(path).splitlines(), 1):
            found.setdefault(fits, []).extend(
                f"{path}:{number}: {word}" for word in RIDDLES.findall(line)
            )
    for prefix, places in sorted(found.items()):
        left = RIDDLES_LEFT.get(prefix, 0)
        if len(places) > left:
            yield f"{prefix or 'elsewhere'}: {len(places)} riddles, at most {left}: say who it is"
            yield from (f"  {place}" for place in places[:20])


def main():
    files = tracked()
    names = Names(files)
    wrong = []
    for path in (path for path in files if path.endswith(".md")):
        text = read(path)
        wrong += dead_links(path, text, files)
        if begins(path, DESCRIBING):
            wrong += missing_names(path, text, names)
            wrong += long_sentences(path, text)
        wrong += wide_lines(path, text)
    wrong += riddles(files)
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
