#!/usr/bin/env python3
"""Writes docs/mpi-support.csv: for every function of the wheel's mpi.h, and for features that are
not one function, whether it works under Eyrie, what shows it, and what came of that on each MPI
library.

The functions come from the header, what is said of them from RULES: the first pattern that matches
a whole name counts. A function without a rule, a rule without a function, or evidence that does not
exist is an error, so that the table stays complete and true. What came of it was run: the modules
of mpi4py's suite by tests/mpi4py/run.sh (kept in docs/mpi4py.csv, from its log), the programs of
examples/ by tests/matrix.py (kept in docs/programs.md).

Usage: scripts/mpi_support.py                      write the table
       scripts/mpi_support.py --check              say whether it is as it would be written
       scripts/mpi_support.py --log LIBRARY FILE   keep what a run of mpi4py's suite at 2 ranks came
                                                   to, from its log; then write the table
"""

import collections
import csv
import io
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "mpi-support.csv"
MODULES = ROOT / "docs" / "mpi4py.csv"
PROGRAMS = ROOT / "docs" / "programs.md"
# By our names, and as docs/programs.md names them.
LIBRARIES = {"mpich": "MPICH", "intelmpi": "Intel MPI", "openmpi": "Open MPI"}
RANKS = 2
WORKS, DIFFERENTLY, REFUSED = "works", "works differently", "refused"

THREADS = (
    "MPI_THREAD_MULTIPLE is answered with MPI_THREAD_SERIALIZED, the rest granted as asked: replay assumes a single order "
    "of calls; two at the same time end the job, with that reason"
)
SPAWN = "eyrie: rank R: MPI_Comm_spawn is not supported: a job has the ranks it was started with; start them all with -n (MPI: PMI_Spawn_multiple returned -1)"
NAMES = "eyrie: rank R: MPI_Publish_name and MPI_Lookup_name are not supported: ports lead to ranks of the same job only (MPI: invalid service name)"
PORTS = "between ranks of the same job; other jobs cannot be reached"
EXTENSION = "an extension of MPICH's that Eyrie neither changes nor tests; with more than one thread inside MPI a rank is not protected"

# What is not one function: (feature, status, note, evidence).
FEATURES = [
    (
        "MPI_ANY_SOURCE, MPI_ANY_TAG",
        WORKS,
        "the order in which messages became visible is logged and replayed",
        "examples/farm; mpi4py test_p2p_obj",
    ),
    ("MPI_THREAD_MULTIPLE", DIFFERENTLY, THREADS, "mpi4py test_threads"),
    (
        "programs with several threads (OpenMP and such)",
        WORKS,
        "all threads come back with their rank",
        "examples/hybrid; examples/pool",
    ),
    (
        "MPI_ERRORS_RETURN and error handlers",
        WORKS,
        "failures of ranks are never reported to the program: they are repaired",
        "mpi4py test_errhandler",
    ),
    (
        "shared memory between ranks",
        DIFFERENTLY,
        "every rank is a node of its own to MPI, wherever it runs: messages of all ranks must be logged",
        "mpi4py test_win",
    ),
    ("several executables in one job (MPMD)", REFUSED, "eyrie run takes one program", "-"),
    ("MPI_UNIVERSE_SIZE, MPI_APPNUM", WORKS, "the number of ranks; 0", "mpi4py test_environ"),
    (
        "large counts (MPI_*_c)",
        WORKS,
        "as the function without _c; a message of more than 2 GiB is one message of the log",
        "mpi4py test_p2p_buf",
    ),
    (
        "GPU buffers",
        DIFFERENTLY,
        "the wheel's MPICH is built without; device memory is not captured",
        "-",
    ),
    (
        "random numbers and clocks",
        WORKS,
        "a rank that runs again draws and is told the same again",
        "examples/times; examples/urandom; examples/seeds",
    ),
    (
        "files, and programs that ranks start",
        WORKS,
        "what was read is replayed to a rank that runs again; what was written is not written again, what has ended not started again (docs/files.md)",
        "examples/rereads; examples/helpers",
    ),
]

# (pattern of the name without MPI_, status, note, evidence)
RULES = [
    (r"Comm_spawn(_multiple)?", REFUSED, SPAWN, "tests/jobs/070-bad-input"),
    (r"(Publish|Unpublish|Lookup)_name", REFUSED, NAMES, "tests/jobs/070-bad-input"),
    (r"(Comm_(accept|connect|join)|(Open|Close)_port)", DIFFERENTLY, PORTS, "mpi4py test_dynproc"),
    (r"Comm_(get_parent|disconnect)", WORKS, "no rank has a parent", "mpi4py test_comm"),
    (
        r"Wtime",
        WORKS,
        "a rank that runs again is told what it was told before, in whole microseconds; it never goes back, on any host",
        "examples/times; examples/limit",
    ),
    (r"Wtick", WORKS, "", "mpi4py test_environ"),
    (r"(Init_thread|Query_thread|Is_thread_main)", DIFFERENTLY, THREADS, "mpi4py test_threads"),
    (
        r"(Init|Initialized|Finalize|Finalized)",
        WORKS,
        "a rank may fail during either",
        "examples/crash",
    ),
    (
        r"Abort",
        WORKS,
        "ends the job with the code given: it is the program's will, not a failure to repair",
        "examples/crash",
    ),
    (
        r"Get_processor_name",
        DIFFERENTLY,
        "of the node on which the rank was first started: a rank that goes on elsewhere keeps the old answer",
        "mpi4py test_environ",
    ),
    (
        r"Get_hw_resource_info",
        DIFFERENTLY,
        "of the node on which the rank was started: a rank that went on elsewhere from an image keeps the old answer",
        "mpi4py test_environ",
    ),
    (
        r"(Comm_split_type)",
        DIFFERENTLY,
        "MPI_COMM_TYPE_SHARED and the hardware types give a communicator of the caller alone",
        "mpi4py test_comm",
    ),
    (
        r"Win_(allocate_shared|shared_query)",
        DIFFERENTLY,
        "only on a communicator of one rank; on others MPICH's error 'processes are not in the same shared memory domain'",
        "mpi4py test_win",
    ),
    (
        r"Win_(create|allocate|create_dynamic|attach|detach|free|get_group|[gs]et_info|[gs]et_name)",
        WORKS,
        "",
        "examples/rma; mpi4py test_win",
    ),
    (
        r"Win_(fence|post|start|complete|wait|test|lock|lock_all|unlock|unlock_all|flush|flush_all|flush_local|flush_local_all|sync)",
        WORKS,
        "",
        "examples/rma; mpi4py test_rma",
    ),
    (
        r"(Put|Get|Accumulate|Get_accumulate|Fetch_and_op|Compare_and_swap|Rput|Rget|Raccumulate|Rget_accumulate)",
        WORKS,
        "as messages that are logged like any others; a rank answers them in its own calls of MPI",
        "examples/rma; mpi4py test_rma_nb",
    ),
    (
        r"File_(open|close|[gs]et_info|get_amode|get_group|set_view|get_view|[gs]et_atomicity|sync|get_byte_offset|get_position|seek|get_size|get_type_extent)",
        WORKS,
        "as regular files; made, emptied and removed once, also by a rank that runs again from before the call",
        "programs romio; programs ior_mpiio; mpi4py test_file",
    ),
    (
        r"File_(delete|set_size|preallocate)",
        WORKS,
        "not done again by a rank that runs again from before the call",
        "examples/mpiiodelete; mpi4py test_file",
    ),
    (
        r"File_i?(read|write)(_at)?(_all)?(_begin|_end)?",
        WORKS,
        "written once; what was read is replayed to a rank that runs again",
        "programs romio; programs ior_mpiio; programs pnetcdf; mpi4py test_io",
    ),
    (
        r"File_(i?(read|write)_(shared|ordered)(_begin|_end)?|(get_position|seek)_shared)",
        WORKS,
        "each call moves the shared pointer once, also when its rank runs again; on a file system with extended attributes",
        "tests/jobs/140-random-kills-sharedpointer; mpi4py test_io",
    ),
    (r"Register_datarep", WORKS, "local", "-"),
    (
        r"(File|Win|Comm|Session)_((create|call|[gs]et)_errhandler)",
        WORKS,
        "",
        "mpi4py test_errhandler",
    ),
    (
        r"(Comm|Win|Type)_(create|free)_keyval|(Comm|Win|Type)_([gs]et|delete)_attr|Keyval_(create|free)|Attr_(get|put|delete)|(DUP_FN)",
        WORKS,
        "local",
        "mpi4py test_attributes",
    ),
    (
        r"(Send|Bsend|Ssend|Rsend|Recv|Isend|Ibsend|Issend|Irsend|Irecv|Sendrecv|Isendrecv|Sendrecv_replace|Isendrecv_replace)",
        WORKS,
        "",
        "examples/heat2d; examples/io; mpi4py test_p2p_buf",
    ),
    (
        r"(Buffer|Comm|Session)_?(attach_buffer|detach_buffer|i?flush_buffer|attach|detach|i?flush)",
        WORKS,
        "",
        "mpi4py test_buffer",
    ),
    (
        r"(Probe|Iprobe)",
        WORKS,
        "probes that find nothing are counted and come out the same on replay",
        "examples/farm; mpi4py test_p2p_obj",
    ),
    (r"(Mprobe|Improbe|Mrecv|Imrecv)", WORKS, "", "mpi4py test_p2p_buf_matched"),
    (
        r"(Wait|Waitall|Waitany|Waitsome|Test|Testall|Testany|Testsome|Request_get_status(_all|_any|_some)?|Request_free)",
        WORKS,
        "tests that find nothing are counted and come out the same on replay",
        "examples/farm; mpi4py test_request",
    ),
    (r"(Cancel|Test_cancelled)", WORKS, "", "examples/farm; mpi4py test_p2p_buf"),
    (
        r"(Psend_init|Precv_init|Pready|Pready_range|Pready_list|Parrived)",
        WORKS,
        "",
        "mpi4py test_p2p_buf_part",
    ),
    (r"(Send|Bsend|Ssend|Rsend|Recv)_init|Start|Startall", WORKS, "", "mpi4py test_p2p_buf"),
    (
        r"Grequest_(start|complete)",
        WORKS,
        "if the calling thread completes them",
        "mpi4py test_grequest",
    ),
    (
        r"(Barrier|Bcast|Gatherv?|Scatterv?|Allgatherv?|Alltoall[vw]?|Reduce|Allreduce|Reduce_scatter|Reduce_scatter_block|Scan|Exscan|Reduce_local)",
        WORKS,
        "",
        "examples/cg; examples/isort; mpi4py test_cco_buf; mpi4py test_cco_vec",
    ),
    (
        r"I(barrier|bcast|gatherv?|scatterv?|allgatherv?|alltoall[vw]?|reduce|allreduce|reduce_scatter|reduce_scatter_block|scan|exscan)",
        WORKS,
        "",
        "mpi4py test_cco_nb_buf; mpi4py test_cco_nb_vec",
    ),
    (
        r"(Barrier|Bcast|Gatherv?|Scatterv?|Allgatherv?|Alltoall[vw]?|Reduce|Allreduce|Reduce_scatter|Reduce_scatter_block|Scan|Exscan)_init",
        WORKS,
        "",
        "mpi4py test_cco_pr_buf; mpi4py test_cco_pr_vec",
    ),
    (
        r"I?neighbor_(allgatherv?|alltoall[vw]?)(_init)?|Neighbor_(allgatherv?|alltoall[vw]?)(_init)?",
        WORKS,
        "",
        "mpi4py test_cco_ngh_buf; mpi4py test_cco_pr_ngh_buf",
    ),
    (
        r"Dist_graph_create",
        WORKS,
        "MPICH 5.0.2 itself now and then counts an edge too many with 2 ranks (also without Eyrie)",
        "mpi4py test_comm_topo",
    ),
    (
        r"(Cart|Graph|Dist_graph|Graphdims|Cartdim|Topo|Dims)_\w+",
        WORKS,
        "",
        "examples/heat2d; examples/cg; mpi4py test_comm_topo",
    ),
    (
        r"(Comm_create_from_group|Group_from_session_pset|Intercomm_create_from_groups|Session_\w+)",
        WORKS,
        "the process sets are mpi://WORLD and mpi://SELF",
        "mpi4py test_session",
    ),
    (
        r"(Intercomm_(create|merge)|Comm_(remote_group|remote_size|test_inter))",
        WORKS,
        "",
        "mpi4py test_comm_inter",
    ),
    (
        r"Comm_(c2f|f2c|toint|fromint)|(Errhandler|File|Group|Info|Message|Op|Request|Session|Type|Win)_(c2f|f2c|toint|fromint)",
        WORKS,
        "local",
        "mpi4py test_handle",
    ),
    (r"Comm_\w+", WORKS, "", "mpi4py test_comm"),
    (r"Group_\w+", WORKS, "local", "mpi4py test_group"),
    (
        r"Type_\w+|Get_(address|count|elements|elements_x)|Aint_(add|diff)|Address",
        WORKS,
        "local",
        "mpi4py test_datatype; mpi4py test_status",
    ),
    (r"(Pack|Unpack)(_\w+)?", WORKS, "local", "mpi4py test_pack"),
    (r"Op_\w+", WORKS, "local", "mpi4py test_op"),
    (r"Info_\w+", WORKS, "local", "mpi4py test_info"),
    (r"Status_\w+", WORKS, "local", "mpi4py test_status"),
    (
        r"(Errhandler_(create|free|get|set)|Error_(class|string)|(Add|Remove)_error_(class|code|string))",
        WORKS,
        "local",
        "mpi4py test_errorcode",
    ),
    (r"(Alloc_mem|Free_mem)", WORKS, "local", "mpi4py test_mpimem"),
    (r"(Get_version|Get_library_version|Pcontrol)", WORKS, "local", "mpi4py test_environ"),
    (r"Abi_\w+", WORKS, "local", "mpi4py test_mpiabi"),
    (
        r"T_\w+",
        DIFFERENTLY,
        "what the rank's own MPICH counts: a rank that ran again has counted its second life as well",
        "-",
    ),
    (
        r"X_Comm_(agree|revoke|shrink|failure_ack|failure_get_acked|get_failed)",
        DIFFERENTLY,
        "there is never a failed rank to see: Eyrie brings it back; the calls do what they do when nothing has failed",
        "mpi4py test_ulfm",
    ),
    (r"X_\w+", DIFFERENTLY, EXTENSION, "-"),
]


def functions(header):
    """[name] of the functions of the header without the MPI_ prefix (MPIX_ becomes X_), those of
    large counts left out."""
    names = set(re.findall(r"^(?:int|double|MPI_\w+)\s+MPI(_|X_)(\w+)\s*\(", header, re.MULTILINE))
    plain = {("X_" if prefix == "X_" else "") + name for prefix, name in names}
    return sorted(name for name in plain if not (name.endswith("_c") and name[:-2] in plain))


def full_name(name):
    return "MPIX_" + name[2:] if name.startswith("X_") else "MPI_" + name


def check_evidence(evidence, suite, programs):
    for item in evidence.split("; "):
        if item.startswith("examples/"):
            name = item.removeprefix("examples/")
            there = name in programs or any((ROOT / "examples").glob(name + ".*"))
        elif item.startswith("mpi4py "):
            there = (suite / (item.removeprefix("mpi4py ") + ".py")).exists()
        elif item.startswith("programs "):
            there = item.removeprefix("programs ") in programs
        elif item.startswith("tests/"):
            there = (ROOT / item).exists()
        else:
            there = item == "-"
        if not there:
            sys.exit(f"mpi_support: no such evidence: {item}")


def left_out(library):
    """{module of mpi4py's suite: how many patterns of its tests are left out on this library}."""
    name = "excluded.csv" if library == "mpich" else f"excluded-{library}.csv"
    with open(ROOT / "tests" / "mpi4py" / name, encoding="utf-8") as table:
        patterns = [
            r["pattern"] for r in csv.DictReader(table) if r["ranks"] in ("any", str(RANKS))
        ]
    return collections.Counter(pattern.split(".")[0] for pattern in patterns)


def came_to(library, log):
    """{module: what it came to}, of the log of a run of the suite. Ranks write at the same time:
    their lines may run into each other, so that only names are told apart."""
    begun = collections.Counter(re.findall(r"\((test_\w+)\.\w+\.\w+\)", log))
    wrong = collections.Counter(re.findall(r"^(?:FAIL|ERROR): .*\((test_\w+)\.", log, re.MULTILINE))
    if len(re.findall(r"Ran \d+ tests in", log)) != RANKS:
        sys.exit(f"mpi_support: not every rank of that run on {library} came to the end")
    less = left_out(library)
    for module in sorted(begun | less):
        # A test that went wrong is named once more, in front of why.
        tests = (begun[module] - 2 * wrong[module]) // RANKS
        words = [f"{tests} passed or skipped"] if tests else []
        words += [f"{wrong[module]} failed"] if wrong[module] else []
        words += [f"{less[module]} left out"] if less[module] else []
        yield module, ", ".join(words)


def modules():
    """{module: {library: what it came to}}"""
    if not MODULES.exists():
        return {}
    with open(MODULES, encoding="utf-8") as table:
        return {row["module"]: row for row in csv.DictReader(table)}


def keep(library, log):
    kept = modules()
    for row in kept.values():
        row[library] = "not run"
    for module, words in came_to(library, log):
        row = kept.setdefault(module, dict.fromkeys(LIBRARIES, "not run") | {"module": module})
        row[library] = words
    with open(MODULES, "w", encoding="utf-8") as table:
        writer = csv.DictWriter(table, ["module", *LIBRARIES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept[module] for module in sorted(kept))


def matrix():
    """{program: {library: what it came to}} of docs/programs.md."""
    lines = [line.strip("| \n") for line in PROGRAMS.read_text(encoding="utf-8").splitlines()]
    table = [line.split(" | ") for line in lines if line.count(" | ") == len(LIBRARIES)]
    at = next(n for n, row in enumerate(table) if row[0] == "program")
    columns = [table[at].index(name) for name in LIBRARIES.values()]
    return {row[0]: dict(zip(LIBRARIES, (row[c] for c in columns))) for row in table[at + 1 :]}


def columns(evidence, suite, programs):
    """What was run of this evidence came to so much, on each library."""
    for library in LIBRARIES:
        words = []
        for item in evidence.split("; "):
            kind, _, name = item.replace("examples/", "examples/ ").partition(" ")
            of = {"mpi4py": suite, "examples/": programs, "programs": programs}.get(kind, {}).get(
                name
            )
            words += [f"{name}: {of[library]}"] if of else []
        yield "; ".join(words) or "not run by itself"


def rows(names):
    yield ("function_or_feature", "status", "note", "evidence", *LIBRARIES)
    suite, programs = modules(), matrix()
    for feature in FEATURES:
        yield (*feature, *columns(feature[3], suite, programs))
    used = set()
    for name in names:
        rule = next((r for r in RULES if re.fullmatch(r[0], name)), None)
        if rule is None:
            sys.exit(f"mpi_support: no rule for {full_name(name)}")
        used.add(rule)
        note = rule[2].format(full_name(name))
        yield (full_name(name), rule[1], note, rule[3], *columns(rule[3], suite, programs))
    for rule in RULES:
        if rule not in used:
            sys.exit(f"mpi_support: this rule matches no function: {rule[0]}")


def main():
    match sys.argv[1:]:
        case ["--log", library, path] if library in LIBRARIES:
            keep(library, Path(path).read_text(encoding="utf-8", errors="replace"))
        case [] | ["--check"]:
            pass
        case _:
            sys.exit(__doc__)
    suites = list((ROOT / "build").glob("mpi4py-*/test"))
    header = ROOT / "build" / "venv" / "include" / "mpi_proto.h"
    if len(suites) != 1 or not header.exists():
        sys.exit("mpi_support: run scripts/setup.sh first")
    table = list(rows(functions(header.read_text(encoding="utf-8"))))
    programs = matrix()
    for row in table[1:]:
        check_evidence(row[3], suites[0], programs)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    if sys.argv[1:] == ["--check"]:
        if not TABLE.exists() or TABLE.read_text(encoding="utf-8") != text.getvalue():
            sys.exit(f"mpi_support: {TABLE} is not up to date: run scripts/mpi_support.py")
    else:
        TABLE.write_text(text.getvalue(), encoding="utf-8")
    print(f"{len(table) - 1} functions and features")


if __name__ == "__main__":
    main()
