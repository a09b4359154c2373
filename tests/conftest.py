"""Lets pytest run whole-job tests: each executable file tests/*/NNN-name is one test. It passed if
it ended with 0.

A test that failed is repeated once; when it then passes it counts as passed and is named as
unsteady. No test may take longer than EYRIE_TEST_LIMIT_S. A file with a line "# alone: WHY" in its
head does not run beside others: tests/run runs those afterwards. The result of each test goes to
the file EYRIE_TEST_TALLY, in the lines that scripts/test.sh counts."""

import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "lib"))

from jobs import LIMIT_S, descendants, kill  # noqa: E402

# How many of the last lines of a failed test are shown.
LINES_SHOWN = 12
# mpi4py's suite: at 2 ranks all in which ranks meet (of what is one-sided, what is blocking); at 4,
# which take turns on few processors, some modules in which more than two do. `make test-more` runs
# the rest.
LATER = "test_(util_dtlib|datatype|pack|msgspec|rma_nb)"
AT_FOUR_RANKS = "test_(p2p_obj|util_sync|cco_obj|comm_|win)"
MPI4PY = [["2", "-e", LATER], ["4", "-i", AT_FOUR_RANKS]]
if os.environ.get("EYRIE_TEST_MORE"):
    MPI4PY = [["2", "-i", LATER], ["4", "-e", AT_FOUR_RANKS]]


def pytest_collect_file(file_path, parent):
    if file_path.parent.parent != HERE or not os.access(file_path, os.X_OK):
        return None
    if file_path.parent.name == "mpi4py" or re.match(r"\d{3}-", file_path.name):
        return Executable.from_parent(parent, path=file_path)
    return None


class Executable(pytest.File):
    """A file that is a test, or, with different arguments, several."""

    def collect(self):
        lines = self.path.read_text().splitlines()[:20]
        of_mpi4py = self.path.parent.name == "mpi4py"
        for args in MPI4PY if of_mpi4py else [[]]:
            name = " ".join([self.path.name, *args[:1]])
            test = WholeJob.from_parent(self, name=name, args=args)
            if any(line.startswith("# alone: ") for line in lines):
                test.add_marker("alone")
            yield test


class WholeJob(pytest.Item):
    """One whole job under test."""

    def __init__(self, *, args, **rest):
        super().__init__(**rest)
        self.command = [str(self.path), *args]

    def runtest(self):
        before = processor_time_s()
        try:
            self.try_twice()
        finally:
            self.user_properties.append(("processor_s", processor_time_s() - before))

    def try_twice(self):
        passed, first = run(self.command)
        if passed:
            self.user_properties += [
                ("skipped", line) for line in first.splitlines() if ": SKIPPED: " in line
            ]
            return
        passed, second = run(self.command)
        if not passed:
            raise Failed(f"{first}\n\nand when it was repeated:\n{second}")
        self.user_properties.append(("unsteady", first))

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, Failed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, 0, f"{self.path.parent.relative_to(HERE.parent)}/{self.name}"


def processor_time_s():
    """Seconds of processor time that tests run by this process have used so far. Unlike the time
    that passes, it says how long a test is whatever else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Failed(Exception):
    """A test failed twice; the message is the end of what it printed both times."""


def run(command):
    """Runs a test to its end. Returns whether it passed, and the end of what it printed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
            ended = f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, ended = None, f"killed: it had not ended after {LIMIT_S} s"
        finally:  # also when a user interrupts pytest
            if process.poll() is None:
                for pid in [process.pid, *descendants(process.pid)]:
                    kill(pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    print("\n".join(lines))  # figures, seeds: `pytest -rP` shows them
    end = [line for line in lines[:-LINES_SHOWN] if ": FAILED: " in line] + lines[-LINES_SHOWN:]
    return code == 0, "\n".join(end if code == 0 else [*end, ended])


def pytest_collection_modifyitems(items):
    """The last tests run first: they take longest, and no worker should have one of them at the
    end."""
    items.reverse()


def pytest_runtest_logreport(report):
    """In the process that talks to the user (with xdist its workers call this, too, but have no
    tally)."""
    if (
        report.when != "call"
        or "PYTEST_XDIST_WORKER" in os.environ
        or "EYRIE_TEST_TALLY" not in os.environ
    ):
        return
    name = report.location[2]
    with open(os.environ["EYRIE_TEST_TALLY"], "a") as tally:
        for key, said in report.user_properties:
            if key == "skipped":
                tally.write(indented(said))
            if key == "unsteady":
                tally.write(
                    indented(said)
                    + f"unsteady {name}: it failed, and passed when it was repeated\n"
                )
        if report.failed:
            tally.write(indented(report.longreprtext))
        used = dict(report.user_properties).get("processor_s", 0)
        result = "not ok" if report.failed else "ok"
        tally.write(f"{result} {name} ({report.duration:.0f} s, {used:.0f} s of processor time)\n")


def indented(text):
    return "".join(f"    {line}\n" for line in text.splitlines())
