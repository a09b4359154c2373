#!/usr/bin/env python3
"""What the monitor in the agents costs a job: the run time of bulk-synchronous programs, with
samples at several intervals and without, in turns and in random order. Quiet allows 1.01. Run it on
a machine that does nothing else.

Usage: bench/health.py [--ranks N]... [--runs N] [--monitor INTERVAL]...
       (defaults: 2 and as many ranks as processors, 10 runs, 1s and 100ms)
       bench/health.py --model [--runs N]
       (what the agent computes for a sample, and what that does to a job on up to 65,536 nodes)
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

import argparse
import os
import statistics
import subprocess
import time

from jobs import EYRIE, ROOT, Job, example
from jobs import main as in_workshop
from turns import figures, in_turns
from ways import Way


def program(ranks):
    """Loops of computing and exchange: each waits for the slowest rank."""
    size = ("--nx", 400, "--ny", 400, "--steps", 40_000, "--out", "plate")
    return example("heat2d", *size, ranks=ranks)


# How often the agent samples to be measured, and for how long.
OFTEN_S, LASTS_S = 0.02, 10


def computed_ns(pid):
    """What all threads of a process have computed."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def agent_ns(interval):
    """What the agent of a job computes in a second."""
    options = ("--checkpoint-every", "off", "--monitor", interval)
    with Job(
        example("heat2d", "--nx", 400, "--ny", 400, "--steps", 10**9, ranks=2), *options
    ) as job:
        job.await_event("connected", 2)
        [agent] = job.agent_pids().values()
        # The first samples choose the reader.
        time.sleep(2)
        before, began = computed_ns(agent), time.monotonic()
        time.sleep(LASTS_S)
        computed = (computed_ns(agent) - before) / (time.monotonic() - began)
        job.process.terminate()
        job.wait()
        return computed


def model(runs):
    """A sample's cost is what the agent computes more than one that takes none."""
    rounds = [agent_ns(f"{OFTEN_S * 1e3:.0f}ms") - agent_ns("off") for _ in range(runs)]
    costs = [OFTEN_S * ns / 1e3 for ns in rounds]
    cost = statistics.median(costs)
    print(f"a sample: {figures(cost)} µs ({figures(min(costs))} to {figures(max(costs))})")
    # How late agents on several hosts are for a tick: docs/reproduction/monitoring.md.
    words = ("--interval", "1s", "--cost", f"{cost:.0f}us", "--skew", "40us")
    bench = ROOT / "target/release/eyrie-bench"
    subprocess.run([bench, "monitor", "slowdown", *words], check=True)


def main():
    usual = sorted({2, max(2, os.cpu_count() or 2)})
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("--ranks", type=int, action="append", help=f"[default: {usual}]")
    arguments.add_argument("--runs", type=int, default=10)
    arguments.add_argument("--monitor", action="append", help="[default: 1s and 100ms]")
    arguments.add_argument("--model", action="store_true")
    args = arguments.parse_args()
    if args.model:
        return in_workshop(lambda: model(args.runs))
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
