#!/usr/bin/env python3
"""Measures what recording costs calls on files, and puts the tables into docs/files.md: one rank
under `eyrie run`, with and without `--record off`, over the same program under the wheel's MPICH
with its tcp provider. The three are interleaved; a ratio is the median of the rounds' ratios, with
the least and the greatest. IOR and mdtest are measured where scripts/programs.sh has built them.

Usage: bench/files.py [ROUNDS] [--print]     (default: 11; after `make build`; on a quiet machine)
"""

import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from page import ROOT, insert

EYRIE = ROOT / "target/release/eyrie"
IOR = ROOT / "build/programs/ior/mpich"
LARGE_MIB = 512
TCP = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
WAYS = {
    "MPICH": [ROOT / "build/venv/bin/mpiexec", "-n", 1],
    "off": [EYRIE, "run", "-n", 1, "--checkpoint-every", "off", "--record", "off", "--"],
    "recorded": [EYRIE, "run", "-n", 1, "--checkpoint-every", "off", "--"],
}


def make_old(directory):
    for number in range(1000):
        (directory / f"small.{number}").write_bytes(bytes(1024))
    with (directory / "large").open("wb") as large:
        for _ in range(LARGE_MIB):
            large.write(os.urandom(1 << 20))


def ior(api, piece):
    """Writes a file in pieces and reads back what it has just written; then reads it in a second
    run, where it was there before the job."""
    usual = [IOR / "ior", "-a", api, "-t", piece, "-b", "256m", "-k", "-o", "file"]
    return [([*usual, "-w", "-r"], f"{api}, {piece}: "), ([*usual, "-r"], f"{api}, {piece}, old: ")]


def programs(old):
    """Command lines, and what is put before the names of their figures."""
    times = [ROOT / "build/examples/file_times", "--old", old, "--mebibytes", LARGE_MIB]
    found = [(times, "")]
    if (IOR / "ior").exists():
        for api in ("POSIX", "MPIIO"):
            for piece in ("64k", "4m"):
                found += ior(api, piece)
        found.append(([IOR / "mdtest", "-n", 1000, "-w", 1024, "-e", 1024, "-F"], ""))
    return found


def seconds(printed, prefix):
    """What a program printed: the seconds of one call (of IOR's: of a mebibyte), by name."""
    for what, calls, whole in re.findall(r"^([a-z].*): (\d+) in ([\d.]+) s$", printed, re.M):
        yield f"file_times: {what}", float(whole) / int(calls)
    for what, rate in re.findall(r"^(write|read) +([\d.]+) ", printed, re.M):
        yield f"IOR {prefix}{what}", 1 / float(rate)
    for what, rate in re.findall(r"^ +File (creation|stat|read|removal) +([\d.]+) ", printed, re.M):
        yield f"mdtest: {what}", 1 / float(rate)


def measure(rounds):
    """{name: {way: [seconds of each round]}}"""
    found = {}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as top:
        top = pathlib.Path(top)
        (top / "old").mkdir()
        make_old(top / "old")
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for way, launcher in WAYS.items():
                (top / "run").mkdir()
                for program, prefix in programs(top / "old"):
                    if "old" in prefix:
                        # As a file of a job before: not changed in the moment in which this begins.
                        time.sleep(0.5)
                    command = [str(word) for word in (*launcher, *program)]
                    environment = dict(os.environ, **(TCP if way == "MPICH" else {}))
                    done = subprocess.run(
                        command, cwd=top / "run", env=environment, capture_output=True, text=True
                    )
                    if done.returncode != 0:
                        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")
                    for name, value in seconds(done.stdout, prefix):
                        found.setdefault(name, {}).setdefault(way, []).append(value)
                shutil.rmtree(top / "run")
    return found


def ratio(values, to):
    each = sorted(value / other for value, other in zip(values, to))
    return f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


def table(found):
    lines = ["| calls | MPICH, µs | `--record off` | recorded |", "|---|---|---|---|"]
    for name, ways in found.items():
        plain = ways["MPICH"]
        each = [f"{statistics.median(plain) * 1e6:.1f}"]
        each += [ratio(ways[way], plain) for way in ("off", "recorded")]
        lines.append(f"| {name} | {' | '.join(each)} |")
    return "\n".join(lines) + "\n"


def main():
    given = [word for word in sys.argv[1:] if word != "--print"]
    if not all(word.isdecimal() for word in given) or len(given) > 1:
        sys.exit(__doc__)
    text = table(measure(int(given[0]) if given else 11))
    print(text)
    if "--print" not in sys.argv:
        insert(ROOT / "docs/files.md", "costs", text)


if __name__ == "__main__":
    main()
