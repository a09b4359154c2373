#!/usr/bin/env python3
"""Repeats the measurements of docs/reproduction/migration.md: PPMR's experiments and the moves of
jobs. Each puts its table into the page, between the marks that name it, and its figure beside it.
The text around the marks is written by people and stays.

Usage: bench/migration.py [--quick] [--rounds=N] [--dir=DIR] [KIND]...     (default: aggregation
network pipeline ways runs migration; after `make build`)
"""

from page import Page

PPMR = ("aggregation", "network", "pipeline", "ways", "runs")
KINDS = (*PPMR, "migration")
EXPERIMENTS = Page("migration", "ppmr", kinds=KINDS, figures=PPMR)
MOVES = Page("migration", kinds=KINDS, figures=("migration",))


def main():
    options, kinds = EXPERIMENTS.chosen(__doc__, "--quick|--rounds=[0-9]+|--dir=.*")
    for kind in kinds:
        (EXPERIMENTS if kind in PPMR else MOVES).fill(kind, options)


if __name__ == "__main__":
    main()
