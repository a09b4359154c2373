#!/usr/bin/env python3
"""Repeats the measurements of docs/reproduction/monitoring.md: runs the commands of `eyrie monitor` that measure and puts what each prints
into the page, between the marks that name the command, and its figure beside the page. The text around the marks is written by people and stays.

Usage: bench/monitoring.py [--quick] [bench|papers|slowdown|noise]...     (default: all; after `make build`)
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reproduction" / "monitoring.md"
KINDS = ("bench", "papers", "slowdown", "noise")
FIGURES = ("papers", "slowdown")


def measure(kind, options):
    """What `eyrie monitor KIND` prints; its figure goes beside the page."""
    command = [ROOT / "target/release/eyrie", "monitor", kind, *options]
    if kind in FIGURES:
        command += ["--plot", PAGE.with_name(f"monitoring-{kind}.svg")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"monitoring: eyrie monitor {kind} failed with code {done.returncode}")
    return done.stdout


def insert(page, kind, text):
    """The page with `text` between the marks of `kind`."""
    marks = re.compile(rf"(<!-- begin {kind}:[^\n]*-->\n).*?(<!-- end {kind} -->)", re.DOTALL)
    if len(marks.findall(page)) != 1:
        sys.exit(f"monitoring: {PAGE} must have the marks <!-- begin {kind}: ... --> and <!-- end {kind} --> once each")
    return marks.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)


def main():
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    kinds = [argument for argument in sys.argv[1:] if not argument.startswith("-")] or KINDS
    if not set(kinds) <= set(KINDS) or not set(options) <= {"--quick"}:
        sys.exit(__doc__)
    if "bench" in kinds and subprocess.run([ROOT / "scripts/monitor-tools.sh"], stdout=subprocess.DEVNULL).returncode != 0:
        print("monitoring: without process-exporter and collectl", file=sys.stderr)
    for kind in kinds:
        text = measure(kind, options)
        # Read again each time: one may write at the page meanwhile.
        PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), kind, text), encoding="utf-8")


if __name__ == "__main__":
    main()
