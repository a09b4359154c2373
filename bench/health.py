#!/usr/bin/env python3
"""What the monitor in the agents costs a job: the run time of bulk-synchronous programs, with
samples at several intervals and without, in turns and in random order. Quiet allows 1.01. Run it on
a machine that does nothing else.

Usage: bench/health.py [--ranks N]... [--runs N] [--monitor INTERVAL]...
       (defaults: 2 and as many ranks as processors, 10 runs, 1s and 100ms)
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

import argparse
import os
import statistics

from jobs import EYRIE, example
from turns import figures, in_turns
from ways import Way


def program(ranks):
    """Loops of computing and exchange: each waits for the slowest rank."""
    size = ("--nx", 400, "--ny", 400, "--steps", 40_000, "--out", "plate")
    return example("heat2d", *size, ranks=ranks)


def main():
    usual = sorted({2, max(2, os.cpu_count() or 2)})
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("--ranks", type=int, action="append", help=f"[default: {usual}]")
    arguments.add_argument("--runs", type=int, default=10)
    arguments.add_argument("--monitor", action="append", help="[default: 1s and 100ms]")
    args = arguments.parse_args()
    intervals = ["off", *(args.monitor or ["1s", "100ms"])]
    way = Way("eyrie", (EYRIE, "run", "--checkpoint-every", "off"))

    def seconds(ranks, interval):
        return way.run(program(ranks), ("--monitor", interval)).seconds

    cases = args.ranks or usual
    values = in_turns(args.runs, cases, intervals, seconds)
    print(f"load {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors", file=sys.stderr)
    for ranks in cases:
        without = statistics.median(values[ranks, "off"])
        for interval in intervals:
            runs = values[ranks, interval]
            median = statistics.median(runs)
            spread = f"{figures(min(runs))} to {figures(max(runs))}"
            ratio = f"{median / without:.4f}"
            print(f"{ranks} ranks, --monitor {interval}: {figures(median)} s ({spread}), {ratio}")


main()
