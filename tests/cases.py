#!/usr/bin/env python3
"""Runs programs that use files in ways that Eyrie once got wrong (FILE_CASES), while ranks and
nodes die and ranks move, again and again. Each run's output, files and exit code are compared with
those of an undisturbed run, byte for byte. Prints a table. It is no test: a wrong run is counted
and reported.

    tests/cases.py --runs 100             each program, each disturbance, at random moments
    tests/cases.py --runs 20 --worst      the same at the worst moments
    tests/cases.py --runs 5 --only growing_file --libraries 'Open MPI' --add
    tests/cases.py --page docs/programs.md

Two cells run at a time, each in a directory of its own, with a seed that is derived from the
printed one. build/wrong-runs has what wrong runs left. build/cases.json has the counts, of which
the table is made: so several commands can fill it, and with --add counts are added up."""

import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import signal
import sys

os.environ.setdefault("EYRIE_TEST_LIMIT_S", "20000")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

import page
from disturbing import AT_WORST, OF_FILES, disturbed
from jobs import (
    BUILD,
    FILE_CASES,
    RANDOM,
    SEED,
    begin_place,
    end_place,
    main,
    over_intel_mpi,
    over_open_mpi,
)

LIBRARIES = {
    "MPICH": lambda program: program,
    "Intel MPI": over_intel_mpi,
    "Open MPI": over_open_mpi,
}
KEPT = BUILD / "cases.json"
PR_SET_PDEATHSIG = 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=0, help="that are disturbed, of each cell")
    parser.add_argument("--worst", action="store_true", help="at the worst moments")
    parser.add_argument("--add", action="store_true", help="to what was counted before")
    parser.add_argument("--beside", type=int, default=2, help="so many cells at a time")
    parser.add_argument("--only", nargs="*", choices=FILE_CASES, default=list(FILE_CASES))
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=["MPICH"])
    parser.add_argument("--page", type=pathlib.Path, help="put the tables there")
    return parser.parse_args()


def run(cell):
    """Runs one program with one disturbance, by its name. Returns how many took place, and what
    was wrong."""
    library, name, column = cell
    # The process ends with the command.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    disturbance = next(d for d in (*OF_FILES, *AT_WORST) if d.name == column)
    RANDOM.seed(f"{SEED} {library} {name} {column}")
    begin_place()
    program = LIBRARIES[library](FILE_CASES[name])
    done, wrong = disturbed(program, disturbance, ASKED.runs, go_on=True)
    end_place()
    print(f"{name} on {library}, {column}: {done}, wrong: {wrong}", flush=True)
    return done, wrong


def run_all(columns, kept):
    rows = [(library, name) for name in ASKED.only for library in ASKED.libraries]
    cells = [(*row, column.name) for row in rows for column in columns]
    with multiprocessing.get_context("fork").Pool(ASKED.beside, maxtasksperchild=1) as pool:
        for cell, (done, wrong) in zip(cells, pool.imap(run, cells)):
            key = ", ".join(cell)
            before = kept.get(key, [0, []]) if ASKED.add else [0, []]
            kept[key] = [before[0] + done, before[1] + wrong]
            KEPT.write_text(json.dumps(kept, indent=1))


def words(cell):
    if not cell:
        return "-"
    done, wrong = cell
    return f"{done}, {len(wrong)} wrong: {wrong[0]}" if wrong else f"{done}, right"


def table(columns, kept):
    lines = [f"| program | MPI | {' | '.join(column.name for column in columns)} |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for name in FILE_CASES:
        for library in LIBRARIES:
            cells = [kept.get(", ".join((library, name, column.name))) for column in columns]
            if any(cells):
                lines.append(f"| {name} | {library} | {' | '.join(map(words, cells))} |")
    return "\n".join(lines) + "\n"


def test():
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if ASKED.runs:
        run_all(AT_WORST if ASKED.worst else OF_FILES, kept)
    for mark, columns in (("cases", OF_FILES), ("worst-cases", AT_WORST)):
        print(table(columns, kept))
        if ASKED.page:
            page.insert(PAGE, mark, table(columns, kept))


if __name__ == "__main__":
    ASKED = arguments()
    PAGE = ASKED.page and ASKED.page.resolve()
    main(test)
