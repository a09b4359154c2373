"""The ways to run an MPI program that are compared: by the library's own mpiexec over its shared
memory or over tcp, and by `eyrie run`. Each is a few words in front of the number of ranks and the
program. Here is what runs a program to its end; what is measured is in figures.py."""

import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

from jobs import (
    BUILD,
    EYRIE,
    INTEL_MPI,
    OPEN_MPI,
    OPEN_MPI_ALONE,
    ROOT,
    example,
    over_intel_mpi,
    over_open_mpi,
)

# How long one job may take, and how long its end may take once it is asked to end.
LIMIT_S, END_S = 300, 10
# One thread a rank, or ranks would compete for processors in other ways than by messages.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()


class Failed(Exception):
    """A job that could not be run, or did not end well; the text says why, in one line."""


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a job has left."""

    stdout: str
    seconds: float  # from its start to its end, launching included
    events: list  # of Eyrie


@dataclasses.dataclass(frozen=True)
class Way:
    """`words` come in front of `-n RANKS PROGRAM`; `crowded` too, when there are more ranks than
    processors."""

    name: str
    words: tuple
    environment: dict = dataclasses.field(default_factory=dict)
    crowded: tuple = ()

    @property
    def eyrie(self):
        """The command of Eyrie among the words; None: it is another launcher."""
        return next((w for w in self.words if pathlib.Path(str(w)).name == "eyrie"), None)

    @property
    def is_eyrie(self):
        return self.eyrie is not None

    def shown(self):
        """Its words as a user would write them in the source folder."""
        set_so = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join(map(str, (*set_so, *self.words))).replace(f"{ROOT}/", "")

    def command(self, program, options=()):
        """The command line; `options` are for `eyrie run` alone."""
        words = [*self.words, *(options if self.is_eyrie else ())]
        words += self.crowded if program.ranks > (os.cpu_count() or 1) else ()
        return [str(word) for word in (*words, "-n", program.ranks, *program.argv)]

    def start(self, program, place, options=()):
        """Starts a job in this directory, where its output goes, too."""
        program.prepare(place)
        missing = [word for word in program.argv if word.startswith("/") and " " not in word]
        missing = [word for word in missing if not os.path.exists(word)]
        if missing:
            raise Failed(f"there is no {missing[0]}")
        environment = {**os.environ, **ONE_THREAD, **self.environment}
        with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
            try:
                return subprocess.Popen(
                    self.command(program, options),
                    cwd=place,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except OSError as error:
                raise Failed(str(error)) from error

    def run(self, program, options=()):
        """Runs a job to its end."""
        with workplace() as place:
            if self.is_eyrie:
                options = (*options, "--events", place / "events")
            begin = time.monotonic()
            job = self.start(program, place, options)
            try:
                code = job.wait(LIMIT_S)
            except subprocess.TimeoutExpired as late:
                raise Failed(f"did not end within {LIMIT_S} s") from late
            finally:
                end(job)
            seconds = time.monotonic() - begin
            if code != 0:
                raise Failed(f"ended with {code}: {last_words(place)}")
            return Ran((place / "stdout").read_text(), seconds, events_in(place))


class workplace(tempfile.TemporaryDirectory):
    """An empty directory, for one job."""

    def __init__(self):
        super().__init__(prefix="eyrie-bench-")

    def __enter__(self):
        return pathlib.Path(super().__enter__())


def end(job):
    """Ends a job that goes on, with its ranks."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def last_words(place):
    lines = (place / "stderr").read_text(errors="replace").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    # clap names what is wrong first, and ends with how to get help.
    wrong = [line for line in lines if line.startswith("error: ")]
    return (wrong or lines[-1:] or ["its standard error is empty"])[0][:200]


def events_in(place):
    """The events so far; a line that is being written is left out."""
    path = place / "events"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


@dataclasses.dataclass(frozen=True)
class Library:
    """An MPI library: how a program is named that was built with it, and its own ways."""

    name: str
    folder: str  # in build/programs/
    of: callable  # from a program that was built with MPICH
    own: tuple  # of ways


def _mpich():
    mpiexec = BUILD / "venv/bin/mpiexec"
    ways = (Way("shm", (mpiexec,)), Way("tcp", (ROOT / "scripts/mpiexec-tcp.sh",)))
    return Library("MPICH", "mpich", lambda program: program, ways)


def _intel_mpi():
    libraries = INTEL_MPI / "lib"
    found = {
        "I_MPI_ROOT": str(INTEL_MPI),
        "LD_LIBRARY_PATH": str(libraries),
        "FI_PROVIDER_PATH": str(libraries),
    }
    tcp = {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "tcp", "FI_PROVIDER": "tcp"}
    mpiexec = (INTEL_MPI / "bin/mpiexec",)
    ways = (Way("shm", mpiexec, found), Way("tcp", mpiexec, found | tcp))
    return Library("Intel MPI", "intelmpi", over_intel_mpi, ways)


def _open_mpi():
    plain = (OPEN_MPI / "bin/mpiexec", *AS_ROOT)
    ways = (Way("shm", plain, crowded=("--oversubscribe",)), Way("tcp", OPEN_MPI_ALONE))
    return Library("Open MPI", "openmpi", over_open_mpi, ways)


LIBRARIES = {library.folder: library for library in (_mpich(), _intel_mpi(), _open_mpi())}
# Both paths of `eyrie run`, on any library.
EYRIES = tuple(Way(path, (EYRIE, "run", "-q", "--path", path)) for path in ("router", "direct"))


def parsed(text):
    """A way of the command line: NAME=WORDS. Its programs run elsewhere: the command is named by
    its whole path."""
    name, given, words = text.partition("=")
    words = shlex.split(words)
    if not name or not given or not words:
        raise ValueError(text)
    if os.sep in words[0]:
        words[0] = os.path.abspath(words[0])
    return Way(name, tuple(words))


def why_not(way, library):
    """Why a way cannot be gone, as a small job finds; None when it can."""
    small = example("pingpong", "--max", 8, "--repetitions", 10, "--warm-up", 1, ranks=2)
    try:
        ran = way.run(library.of(small))
    except Failed as reason:
        return str(reason)
    return None if '"bench"' in ran.stdout else f"its ranks do not meet: {ran.stdout[:200]}"
