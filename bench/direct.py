#!/usr/bin/env python3
"""Measures what messages cost within a host, for docs/reproduction/direct.md: a user's mpiexec over
shared memory and over tcp, and `eyrie run` with messages through the router and on the direct path,
interleaved, on each MPI library.

    bench/direct.py [--rounds 10] [--libraries mpich intelmpi openmpi] [--page]
    bench/direct.py --only ping-pong cg --way 'now=target/release/eyrie run -q --log-memory 4GiB'
    bench/direct.py --draw --page          measures nothing: draws what was measured before

Nothing must be believed where anything else ran on the machine meanwhile. Never run it at real-time
priority: ranks that wait at it stop the machine.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import time

from figures import runs
from page import ROOT, Page, machine
from report import add_figures, draw, text_of
from ways import EYRIES, LIBRARIES, Failed, parsed, why_not

OUT = ROOT / "build/direct-bench"
PAGE = Page("direct")
USUAL = ("shm", "tcp", "router", "direct")


def say(text):
    print(text, file=sys.stderr, flush=True)


def measure(options, keep):
    """All rounds; `keep` is called with what was measured so far after each run."""
    said, begun = machine(), time.monotonic()
    ways = {name: chosen(LIBRARIES[name], options) for name in options.libraries}
    libraries = {name: tried(LIBRARIES[name], ways[name]) for name in ways}
    for number in range(1, options.rounds + 1):
        for name, kept in libraries.items():
            say(f"round {number} of {options.rounds}, {LIBRARIES[name].name}")
            going = [way for way in ways[name] if way.name not in kept["cannot"]]
            for run in asked_for(options):
                on_each_way(run, LIBRARIES[name], going, kept)
                seconds = time.monotonic() - begun
                conditions = said.format(after=os.getloadavg()[0], seconds=seconds)
                facts = {"machine": conditions, "rounds": number, "quick": options.quick}
                keep({**facts, "libraries": libraries})


def chosen(library, options):
    """The ways of a library that are asked for, those of the command line last."""
    own = [way for way in (*library.own, *EYRIES) if way.name in options.ways]
    given = {way.name: way for way in options.way}
    return [given.pop(way.name, way) for way in own] + list(given.values())


def tried(library, ways):
    """What is known of the ways before anything is measured."""
    cannot = {way.name: why_not(way, library) for way in ways}
    cannot = {name: reason for name, reason in cannot.items() if reason}
    for name, reason in cannot.items():
        say(f"{library.name}, {name}: cannot be run: {reason}")
    return {
        "ways": {way.name: way.shown() for way in ways},
        "eyries": [way.name for way in ways if way.is_eyrie],
        "cannot": cannot,
        "failed": [],
        "values": {},
    }


def asked_for(options):
    """The runs; with --only those whose names begin with one of these words."""
    begins = lambda name: any(re.match(f"{re.escape(w)}\\b", name) for w in options.only)
    return [run for run in runs(options.quick) if not options.only or begins(run.name)]


def on_each_way(run, library, ways, kept):
    """A run on each way once, in random order. What has failed is not tried again."""
    values = kept["values"].setdefault(run.name, {})
    failed = {one["way"] for one in kept["failed"] if one["run"] == run.name}
    for way in random.sample(ways, len(ways)):
        if way.name in failed or (run.eyrie_alone and not way.is_eyrie):
            continue
        try:
            values.setdefault(way.name, []).append(run.measure(way, library))
        except Failed as reason:
            fail(kept, run.name, way.name, str(reason))
        except (KeyError, ValueError) as error:
            # What was measured before must not be lost with it.
            fail(kept, run.name, way.name, f"what it prints cannot be read: {error!r}")
    differing(run.name, values, kept)


def fail(kept, run, way, reason):
    one = {"run": run, "way": way, "reason": reason.replace(f"{ROOT}/", "")}
    if one not in kept["failed"]:
        say(f"{run}, {way}: {one['reason']}")
        kept["failed"].append(one)


def differing(run, values, kept):
    """Notes where a program prints something else over tcp than under Eyrie. Over shared memory
    collectives add up in another order."""
    printed = {way: found[-1].get("prints") for way, found in values.items() if found}
    printed.pop("shm", None)
    if len(set(printed.values())) > 1:
        fail(kept, run, " and ".join(sorted(printed)), "they print different things")


def to_page(text, charts):
    """Puts the tables, and the charts beside them, into the page."""
    for chart in charts:
        name = f"direct-{chart.name}"
        shutil.copy(chart, PAGE.path.with_name(name))
        text += f"\n![{chart.stem.replace('-', ' ')}]({name})\n"
    PAGE.insert("direct", text)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="of everything (default: 10)")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=["mpich"])
    parser.add_argument("--ways", nargs="+", choices=USUAL, default=USUAL, help="default: all")
    parser.add_argument(
        "--way",
        action="append",
        type=parsed,
        default=[],
        metavar="NAME=WORDS",
        help="one more way, or other words for one of them; they stand before -n RANKS PROGRAM",
    )
    parser.add_argument("--only", nargs="+", metavar="RUN", help="runs that begin so")
    parser.add_argument("--list", action="store_true", help="the names of all runs")
    parser.add_argument("--quick", action="store_true", help="to see that everything works")
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help=f"default: {OUT}")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--page", action="store_true", help="also fill the page")
    return parser.parse_args()


def main():
    options = arguments()
    if options.list:
        print("\n".join(run.name for run in asked_for(options)))
        return
    # A job has a session of its own, which would go on: it is ended on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "direct.json"
    keep = lambda measured: path.write_text(json.dumps(measured, indent=1) + "\n")
    if not options.draw:
        measure(options, keep)
    measured = json.loads(path.read_text())
    if not all("figures" in kept for kept in measured["libraries"].values()):
        add_figures(measured)
        keep(measured)
    text = text_of(measured)
    print(text)
    (options.out / "direct.md").write_text(text)
    files = draw(measured, options.out)
    if options.page:
        to_page(text, files)
    say(f"JSON, table and charts: {options.out}")


if __name__ == "__main__":
    main()
