#!/usr/bin/env python3
"""Repeats the measurements of docs/reproduction/monitoring.md: runs the commands of `eyrie-bench
monitor` and puts what each prints into the page, between the marks that name the command, and
its figure beside the page. The text around the marks is written by people and stays.

Usage: bench/monitoring.py [--quick] [bench|papers|slowdown|noise]...     (default: all; after `make
build`)
"""

import subprocess
import sys

from page import ROOT, Page

PAGE = Page(
    "monitoring",
    "monitor",
    kinds=("bench", "papers", "slowdown", "noise"),
    figures=("papers", "slowdown"),
)


def main():
    options, kinds = PAGE.chosen(__doc__, "--quick")
    if (
        "bench" in kinds
        and subprocess.run(
            [ROOT / "scripts/monitor-tools.sh"], stdout=subprocess.DEVNULL
        ).returncode
        != 0
    ):
        print("monitoring: without process-exporter and collectl", file=sys.stderr)
    for kind in kinds:
        PAGE.fill(kind, options)


if __name__ == "__main__":
    main()
