#!/usr/bin/env python3
"""Repeats the measurements of docs/reproduction/eagle.md: runs every `eyrie-bench` command and puts
its table into the page, between the marks that name the command, and its figure beside the page.
The text around the marks is written by people and stays.

Usage: bench/eagle.py [--quick] [--rounds=N] [--dir=DIR] [KIND]...     (default: pingpong alltoall
apps checkpoint recovery; after `make build`)
"""

from page import Page

PAGE = Page(
    "eagle",
    kinds=("pingpong", "alltoall", "apps", "checkpoint", "recovery"),
    figures=("pingpong", "alltoall", "checkpoint", "recovery"),
)


def main():
    options, kinds = PAGE.chosen(__doc__, "--quick|--rounds=[0-9]+|--dir=.*")
    for kind in kinds:
        PAGE.fill(kind, options)


if __name__ == "__main__":
    main()
