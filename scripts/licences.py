#!/usr/bin/env python3
"""Writes what packages must say of the Rust crates that are linked into Eyrie: name, version,
licence and the texts of the licences, each text once.

Usage: scripts/licences.py >FILE
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHIPPED = ("eyrie", "eyrie-provider", "eyrie-calls", "eyrie-pmix")
TEXTS = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "UNLICENSE*", "license*")


def cargo(*words):
    ran = subprocess.run(["cargo", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


def host():
    """The name of this system, as rustc has it."""
    ran = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True)
    return re.search(r"^host: (.*)$", ran.stdout, re.MULTILINE)[1]


def linked():
    """{(name, version)} of the crates that are in what is shipped."""
    found = set()
    for package in SHIPPED:
        words = ("tree", "--locked", "-e", "normal,no-proc-macro", "--prefix", "none")
        for line in cargo(*words, "-f", "{p}", "-p", package).splitlines():
            name, version, *_ = line.split()
            found.add((name, version.removeprefix("v")))
    return found


def main():
    wanted = linked()
    # Without the crates of other systems, which need not have been fetched.
    words = ("--locked", "--format-version", "1", "--filter-platform", host())
    metadata = json.loads(cargo("metadata", *words))
    texts = {}
    print("Rust crates that are linked into Eyrie, and their licences.\n")
    for package in sorted(metadata["packages"], key=lambda p: p["name"]):
        name, version = package["name"], package["version"]
        if (name, version) not in wanted or package["source"] is None:
            continue
        print(f"{name} {version}: {package['license'] or 'see its text'}")
        folder = pathlib.Path(package["manifest_path"]).parent
        for file in sorted({file for pattern in TEXTS for file in folder.glob(pattern)}):
            if file.is_file():
                text = file.read_text(errors="replace").strip()
                texts.setdefault(text, []).append(f"{name} {version}, {file.name}")
    for text, files in texts.items():
        print(f"\n{'-' * 80}\n" + "\n".join(files) + f"\n{'-' * 80}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
