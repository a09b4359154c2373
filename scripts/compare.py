#!/usr/bin/env python3
"""Compares what jobs take under two builds of eyrie: the same programs, interleaved, in one table.

The ratio is that of the medians; its interval holds nine of ten ratios of samples drawn again from
the same runs. What a run of messages took is the mean of the middle eight tenths of its messages.
Nothing must be believed where anything else ran on the machine meanwhile. Where ranks and routers
are more than there are processors, the times of messages depend on who gets which: on one processor
(--processors 1) they show the work alone.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from bootstrap import drawn_again, nine_of_ten  # noqa: E402
from figures import WHOLE  # noqa: E402
from jobs import EXAMPLES  # noqa: E402


def messages(name, size, repetitions):
    sizes = ["--min", size, "--max", size, "--repetitions", repetitions]
    # As many under both builds, however long the first ones take.
    sizes += ["--budget-ms", 10**6]
    return [EXAMPLES / name, *sizes]


# Name: (ranks, command line). The first ones say themselves what a message took.
PROGRAMS = {
    "ping-pong 8 B": (2, messages("pingpong", 8, 40000)),
    "ping-pong 1 KiB": (2, messages("pingpong", 1024, 40000)),
    "ping-pong 64 KiB": (2, messages("pingpong", 65536, 20000)),
    "alltoall 8 B": (4, messages("alltoall", 8, 12000)),
    "alltoall 1 KiB": (4, messages("alltoall", 1024, 12000)),
    "alltoall 64 KiB": (4, messages("alltoall", 65536, 4000)),
} | {name: (4, list(WHOLE[name].argv)) for name in ("cg", "isort", "heat2d", "LAMMPS")}


def run(eyrie, options, ranks, program):
    """What one job took: the microseconds of a message, where the program says it, else the
    seconds of the whole job."""
    # All that is logged stays in memory: a disk's speed is not what is compared.
    command = [eyrie, "run", "-n", ranks, "--checkpoint-every", "off", "--log-memory", "4GiB"]
    command += options
    with tempfile.TemporaryDirectory() as directory:
        start = time.monotonic()
        command = [str(word) for word in command + program]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
        seconds = time.monotonic() - start
    if done.returncode:
        sys.exit(f"compare: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"bench')]
    return said[-1]["trimmed_mean_us"] if said else seconds


def interval(before, after):
    """The 5 % and the 95 % quantile of the ratio of medians, by bootstrap."""
    draw = lambda runs: statistics.median(drawn_again(runs))
    return nine_of_ten(lambda: draw(after) / draw(before))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", help="the folder of one build (target/release)")
    parser.add_argument("after", help="the folder of the other")
    parser.add_argument("--rounds", type=int, default=20, help="runs of each program and build")
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--processors", type=int, help="run the jobs on so many processors")
    parser.add_argument(
        "--after-options",
        default="",
        metavar="WORDS",
        help="options of eyrie run for the second build only, to leave out what the first one does "
        'not have: --after-options="--record off"',
    )
    options = parser.parse_args()
    if options.processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.processors :])
    folders = {"before": options.before, "after": options.after}
    words = {"before": [], "after": options.after_options.split()}
    builds = {
        name: (pathlib.Path(folder).resolve() / "eyrie", words[name])
        for name, folder in folders.items()
    }
    took = {name: {build: [] for build in builds} for name in options.only}
    for _ in range(options.rounds):
        for name in options.only:
            for build in random.sample(list(builds), 2):
                took[name][build].append(run(*builds[build], *PROGRAMS[name]))
    print(f"{'':18}{'before':>10}{'after':>10}{'ratio':>8}   nine of ten")
    for name, runs in took.items():
        before, after = (statistics.median(runs[build]) for build in ("before", "after"))
        low, high = interval(runs["before"], runs["after"])
        unit = "us" if name.startswith(("ping", "all")) else "s "
        ratio = f"{after / before:8.3f}   {low:.2f} to {high:.2f}"
        print(f"{name:18}{before:7.3g} {unit}{after:7.3g} {unit}{ratio}", flush=True)


if __name__ == "__main__":
    main()
