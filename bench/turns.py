"""What bench/hosts.py and bench/domains.py share: measuring in turns, and values in words."""

import sys

from jobs import RANDOM


def in_turns(rounds, cases, ways, one):
    """For each case and way the values of all rounds: `one(case, way)`, in random order."""
    values = {(case, way): [] for case in cases for way in ways}
    for number in range(rounds):
        for case in cases:
            for way in RANDOM.sample(ways, len(ways)):
                values[case, way].append(one(case, way))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return values


def figures(value):
    """Three figures, or all of a larger number."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
