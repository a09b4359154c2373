#!/usr/bin/env python3
"""Measures jobs on several hosts, which are namespaces of this machine with a network and an ssh of
their own: the same MPICH over its tcp provider, and Eyrie with its messages sealed and not, and
without a spare host, in turns; then what the loss of a host costs, by phase. Fills
docs/reproduction/hosts.md. Root only.

Usage: bench/hosts.py [--rounds=N] [KIND]...     (default: messages apps recovery)
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

import json
import os
import statistics
import subprocess
import tempfile
import time

from hosts import Hosts, HostsJob
from jobs import EYRIE, ROOT, check, example, lammps, main, workshop
from page import Page
from turns import figures, in_turns

PAGE = Page("hosts", kinds=("messages", "apps", "recovery"))
QUIET = ("--checkpoint-every", "off", "--log-memory", "256MiB")
WAYS = ("MPICH over tcp", "Eyrie", "Eyrie, not sealed", "Eyrie, no spare")
# Room for two copies of all images of the largest ranks.
DISK_MIB = 6144
MESSAGES = {
    "ping-pong": (2, "pingpong", (8, 1024, 65536, 1048576)),
    "alltoall": (4, "alltoall", (8, 1024, 65536)),
}
APPS = {
    "heat2d": example("heat2d", "--nx", 800, "--ny", 800, "--steps", 1000),
    "cg": example("cg", "--n", 40),
    "isort": example("isort", "--keys", 1048576, "--iterations", 10),
    "LAMMPS": lammps(steps=200),
}


def command(way, ranks, argv):
    """The command line of a program on two hosts; a third one is spare, and has the routers."""
    each = ranks // 2
    if way == WAYS[0]:
        where = ["-launcher", "ssh", "-hosts", f"h0:{each},h1:{each}"]
        return [ROOT / "scripts/mpiexec-tcp.sh", *where, "-n", str(ranks), *argv]
    sealed = "off" if way == WAYS[2] else "encrypted"
    hosts = f"h0:{each},h1:{each}"
    spare = [] if way == WAYS[3] else ["--spares", 1]
    run = [EYRIE, "run", "-q", "-n", ranks, "--hosts", f"{hosts},h2:{each}" if spare else hosts]
    return [*run, *spare, *QUIET, "--transport-security", sealed, "--", *argv]


def measured(way, hosts, ranks, argv):
    """Runs a program; returns its standard output and how long it took, in seconds."""
    words = command(way, ranks, argv)
    with tempfile.TemporaryDirectory(dir=workshop()) as place:
        begin = time.monotonic()
        ran = subprocess.run(
            list(map(str, words)),
            cwd=place,
            env={**os.environ, **hosts.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        check(ran.returncode == 0, f"{way}: {ran.stderr}")
        return ran.stdout, time.monotonic() - begin


def table(head, cases, values, unit):
    """Medians, and the medians of ratios to the first way within a round, with their quartiles."""
    ours = "".join(f" {way} | ratio |" for way in WAYS[1:])
    lines = [f"| {head} | {WAYS[0]} |{ours}", "|---" * (2 * len(WAYS)) + "|"]
    for case in cases:
        alone = values[case, WAYS[0]]
        cells = [case, f"{figures(statistics.median(alone))} {unit}"]
        for way in WAYS[1:]:
            ratios = [ours / theirs for ours, theirs in zip(values[case, way], alone)]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            median = statistics.median(values[case, way])
            cells += [f"{figures(median)} {unit}", f"{middle:.2f} ({low:.2f} to {high:.2f})"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def messages(hosts, rounds):
    cases = {
        f"{name} {size} B": (ranks, program, size)
        for name, (ranks, program, sizes) in MESSAGES.items()
        for size in sizes
    }

    def one(case, way):
        ranks, program, size = cases[case]
        argv = example(program, "--min", size, "--max", size, "--budget-ms", 1000).argv
        line = json.loads(measured(way, hosts, ranks, argv)[0].splitlines()[-1])
        return next(line[key] for key in line if key.endswith("us"))

    return table("message", cases, in_turns(rounds, cases, WAYS, one), "µs")


def apps(hosts, rounds):
    def one(case, way):
        return measured(way, hosts, APPS[case].ranks, APPS[case].argv)[1]

    return table("program, 4 ranks", APPS, in_turns(rounds, APPS, WAYS, one), "s")


def recovery(hosts, rounds):
    """A host with two ranks is lost, with and without a reset of its connections."""
    lines = [
        "| each rank has | how | detected | placed | fetched | restored | replayed | whole |",
        "|---" * 8 + "|",
    ]
    phases = ("detected", "placed", "fetched", "restored", "replayed")
    for mib in (10, 100, 1000):
        program = example("memory", "--mb", mib, "--steps", 1000000, ranks=4)
        for how, lose in (("killed", hosts.kill_all), ("power off", hosts.power_off)):
            found = []
            for _ in range(max(1, rounds // 3)):
                options = ("--hosts", "h0:2,h1:2,h2:2", "--spares", 1, "--checkpoint-every", "5s")
                with HostsJob(hosts, program, *options) as job:
                    job.await_event("checkpoint", 4)
                    lose(1)
                    job.await_event("recovered", 2)
                    found += job.events("recovered")
                    job.terminate()
                hosts.power_on(1)
            median = lambda of: f"{1000 * statistics.median(map(of, found)):.0f} ms"
            cells = [median(lambda e, p=p: e["phases"][p]) for p in phases]
            whole = median(lambda e: e["total"])
            lines.append("| " + " | ".join([f"{mib} MiB", how, *cells, whole]) + " |")
    return "\n".join(lines)


def test():
    options, kinds = PAGE.chosen(__doc__, "--rounds=[0-9]+")
    rounds = int(options[-1].partition("=")[2]) if options else 9
    with Hosts(3, disk_mib=DISK_MIB) as hosts:
        for kind in kinds:
            PAGE.insert(
                kind,
                {"messages": messages, "apps": apps, "recovery": recovery}[kind](hosts, rounds),
            )


main(test)
