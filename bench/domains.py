#!/usr/bin/env python3
"""Measures jobs over two sites, which are namespaces of this machine with private networks and a
line between their gateways: the same MPICH over its tcp provider from gateway to gateway, Eyrie
within one site, and Eyrie over both, in turns; then lines of 100 Mbit/s and 1 Gbit/s. Fills
docs/reproduction/domains.md. Root only.

Usage: bench/domains.py [--rounds=N] [KIND]...     (default: messages lines)
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

import json
import os
import statistics
import subprocess
import tempfile

from jobs import EYRIE, ROOT, check, example, main, workshop
from page import Page
from sites import Sites
from turns import figures, in_turns

PAGE = Page("domains", kinds=("messages", "lines"))
# All messages of a run have room in the log: one that is full holds ranks back until an image.
QUIET = ("--checkpoint-every", "off", "--log-memory", "2GiB")
PLAIN, WITHIN, OVER = "MPICH over tcp, between the gateways", "Eyrie, one site", "Eyrie, two sites"
KIB, MIB = 1 << 10, 1 << 20
PING_PONG = (8, KIB, 64 * KIB, MIB)
ALLTOALL = (8, KIB, 64 * KIB)
LINES_MBIT = (100, 1000)


def command(sites, way, ranks, argv):
    """The command line of a program on the first site's login node."""
    first, second = sites.sites
    each = ranks // 2
    if way == PLAIN:
        hosts = f"{first.login}:{each},{second.login}:{each}"
        where = ["-launcher", "ssh", "-iface", "wide", "-genv", "FI_TCP_IFACE", "wide"]
        return [ROOT / "scripts/mpiexec-tcp.sh", *where, "-hosts", hosts, "-n", ranks, *argv]
    run = [EYRIE, "run", "-q", "-n", ranks]
    if way == WITHIN:
        hosts = ",".join(f"h{number}:{each}" for number in first.compute[:2])
        return [*run, "--hosts", hosts, *QUIET, "--", *argv]
    path = workshop() / "sites.toml"
    half = [f"0-{each - 1}", f"{each}-{ranks - 1}"]
    path.write_text(sites.file(slots=each, ranks=half))
    return [*run, "--domains", path, *QUIET, "--", *argv]


def measured(sites, way, ranks, argv):
    """What a program of examples/ prints last, as JSON."""
    words = [str(word) for word in command(sites, way, ranks, argv)]
    with tempfile.TemporaryDirectory(dir=workshop()) as place:
        ran = subprocess.run(
            sites.command(sites.sites[0].gateway, words, cwd=place),
            env={**os.environ, **sites.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        check(ran.returncode == 0, f"{way}: {ran.stderr}")
        return json.loads(ran.stdout.splitlines()[-1])


def microseconds(line):
    return next(line[key] for key in line if key.endswith("us"))


def spread(values):
    """The median of some values, with their quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{figures(middle)} ({figures(low)} to {figures(high)})"


def messages(rounds):
    """Microseconds of a message, and what two gateways add to the line."""
    cases = {
        **{f"ping-pong {size} B": (2, "pingpong", size) for size in PING_PONG},
        **{f"alltoall of 4, {size} B": (4, "alltoall", size) for size in ALLTOALL},
    }
    with Sites(2, 2) as sites:

        def one(case, way):
            ranks, program, size = cases[case]
            argv = example(program, "--min", size, "--max", size, "--budget-ms", 1000).argv
            return microseconds(measured(sites, way, ranks, argv))

        ways = (PLAIN, WITHIN, OVER)
        values = in_turns(rounds, cases, ways, one)
    lines = [
        f"| message | {PLAIN}, µs | {WITHIN}, µs | {OVER}, µs | ÷ plain | − one site, µs |",
        "|---" * 6 + "|",
    ]
    for case in cases:
        plain, within, over = (values[case, way] for way in ways)
        cells = [figures(statistics.median(of)) for of in (plain, within, over)]
        cells.append(spread([a / b for a, b in zip(over, plain)]))
        cells.append(spread([a - b for a, b in zip(over, within)]))
        lines.append("| " + " | ".join([case, *cells]) + " |")
    return "\n".join(lines)


def lines(rounds):
    """What of a shaped line messages of 1 MiB get."""
    found = [
        f"| line | {PLAIN}, Mbit/s | {OVER}, Mbit/s | of the line | ÷ plain |",
        "|---" * 5 + "|",
    ]
    for mbit in LINES_MBIT:
        with Sites(2, 2) as sites:
            sites.slow_lines(mbit)

            def one(size, way):
                words = ("--min", size, "--max", size, "--seconds", 8)
                line = measured(sites, way, 2, example("bandwidth", *words).argv)
                return 8 * line["bytes"] / line["mean_us"]

            values = in_turns(rounds, [MIB], (PLAIN, OVER), one)
        plain, over = (values[MIB, way] for way in (PLAIN, OVER))
        cells = [spread(plain), spread(over), spread([rate / mbit for rate in over])]
        cells.append(spread([a / b for a, b in zip(over, plain)]))
        found.append("| " + " | ".join([f"{mbit} Mbit/s", *cells]) + " |")
    return "\n".join(found)


def test():
    options, kinds = PAGE.chosen(__doc__, "--rounds=[0-9]+")
    rounds = int(options[-1].partition("=")[2]) if options else 10
    for kind in kinds:
        PAGE.insert(kind, {"messages": messages, "lines": lines}[kind](rounds))


main(test)
