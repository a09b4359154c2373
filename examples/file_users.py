"""Libraries and programs that keep state in files, as programs in Python use them.

Each rank has files of its own. In each step it does what `--what` names, one after another if it
names several, and reads back what it has written. Each step's sum goes round the ranks.
"""

import argparse
import importlib
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy
from mpi4py import MPI

COMM = MPI.COMM_WORLD
ME, RANKS = COMM.rank, COMM.size
HERE = Path(f"rank{ME}")


class Database:
    """SQLite with a rollback journal; other journals are its modes."""

    journal = "delete"
    locking = "normal"

    def __init__(self):
        self.file = sqlite3.connect(HERE / f"{self.journal}.db", isolation_level=None)
        self.file.execute(f"pragma locking_mode={self.locking}")
        mode = self.file.execute(f"pragma journal_mode={self.journal}").fetchone()
        assert mode == (self.journal,), mode
        self.file.execute("pragma synchronous=normal")
        self.file.execute("create table numbers (step integer primary key, number, text)")

    def step(self, step, number):
        self.file.execute("begin immediate")
        for n in range(3 * step, 3 * step + 3):
            row = (n, number + n, str(number) * (n % 40))
            self.file.execute("insert into numbers values (?, ?, ?)", row)
        self.file.execute("update numbers set number = number + 1 where step < ?", (step,))
        self.file.execute("rollback" if step % 7 == 6 else "commit")
        if step % 10 == 9:
            self.file.execute("delete from numbers where step % 5 = 0")
            self.file.execute("vacuum")
        asked = "select count(*), sum(number), sum(length(text)) from numbers"
        return zlib.crc32(repr(self.file.execute(asked).fetchone()).encode())

    def end(self):
        assert self.file.execute("pragma integrity_check").fetchone() == ("ok",)
        self.file.close()


class Truncated(Database):
    journal = "truncate"


class Persistent(Database):
    journal = "persist"

    def end(self):
        super().end()
        (HERE / "persist.db-journal").unlink()  # what is in it depends on a random number


class Ahead(Database):
    """A write-ahead log. Its index is not mapped, because this process has the database alone."""

    journal = "wal"
    locking = "exclusive"


class Opened:
    """SQLite that is opened for each step."""

    def step(self, step, number):
        with sqlite3.connect(HERE / "opened.db") as file:
            file.execute("create table if not exists numbers (step integer primary key, number)")
            file.execute("insert into numbers values (?, ?)", (step, number))
        asked = file.execute("select count(*), sum(number) from numbers").fetchone()
        file.close()
        return zlib.crc32(repr(asked).encode())


class Arrays:
    """numpy's own files."""

    def step(self, step, number):
        array = numpy.arange(number % 1000, number % 1000 + 3000, dtype=numpy.float64)
        numpy.save(HERE / "array.npy", array)
        numpy.savez_compressed(HERE / "arrays.npz", a=array, b=array[::-1])
        numpy.savetxt(HERE / "array.txt", array[:50])
        array[::7].tofile(HERE / "array.raw")
        total = numpy.load(HERE / "array.npy").sum()
        with numpy.load(HERE / "arrays.npz") as arrays:
            total += (arrays["a"] * arrays["b"]).sum()
        total += numpy.loadtxt(HERE / "array.txt").sum()
        total += numpy.fromfile(HERE / "array.raw").sum()
        total += numpy.load(HERE / "array.npy", mmap_mode="r")[5:10].sum()
        return int(total)


class Mapped:
    """Files that are mapped to be read, or to be changed in memory only."""

    def step(self, step, number):
        numpy.arange(number % 1000, number % 1000 + 4000).tofile(HERE / "mapped")
        read = numpy.memmap(HERE / "mapped", "int64", "r")
        copy = numpy.memmap(HERE / "mapped", "int64", "c")
        copy[step % 4000] += number
        numpy.save(HERE / "array.new", copy)
        (HERE / "array.new.npy").replace(HERE / "mapped.npy")
        saved = numpy.load(HERE / "mapped.npy", mmap_mode="r")
        return int(read.sum() + saved.sum())


class Archives:
    """zipfile, tempfile, shutil and pickle."""

    def step(self, step, number):
        with open(HERE / "state.new", "wb") as file:
            pickle.dump({"step": step, "number": number}, file)
        (HERE / "state.new").replace(HERE / "state")
        with zipfile.ZipFile(HERE / "all.zip", "w" if step % 10 == 0 else "a") as archive:
            archive.writestr(zipfile.ZipInfo(f"step{step}"), str(number) * 50)
            read = sum(len(archive.read(name)) for name in archive.namelist())
        with tempfile.TemporaryDirectory(dir=HERE) as name:
            place = Path(name)
            shutil.copy(HERE / "state", place / "copy")
            shutil.copytree(place, place / "tree", ignore=lambda *_: ["tree"])
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(str(number).encode() * 100)
                file.seek(50)
                read += len(file.read())
            with tempfile.SpooledTemporaryFile(100, dir=place) as file:
                file.write(b"x" * (number % 300))
                file.seek(0)
                read += len(file.read())
            read += sum(path.stat().st_size for path in place.rglob("cop*"))
            with open(place / "tree" / "copy", "rb") as file:
                state = pickle.load(file)
        assert state == {"step": step, "number": number}
        return zlib.crc32(f"{read} {sorted(path.name for path in HERE.iterdir())}".encode())


# The program that is started for each step.
CALCULATOR = """
import sys
here = sys.argv[1]
words = dict(line.split() for line in open(f"{here}/calculator.in"))
number = int(words["number"])
with open(f"{here}/calculator.out.new", "w") as out:
    print("energy", number * 48271 % 2147483647, file=out)
import os
os.replace(f"{here}/calculator.out.new", f"{here}/calculator.out")
"""


class Calculator:
    """Runs a program that reads a file and writes one, as the calculators of ASE do."""

    def step(self, step, number):
        with open(HERE / "calculator.in", "w") as file:
            print("step", step, file=file)
            print("number", number, file=file)
        with open(HERE / "calculator.said", "w") as said:
            command = [sys.executable, "-S", "-c", CALCULATOR, str(HERE)]
            subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, check=True)
        with open(HERE / "calculator.out") as file:
            return int(file.read().split()[1])


class Installed:
    """A package that pip installs now and then, and that is imported from there."""

    def __init__(self):
        self.room = HERE / "installing"
        (self.room / "tmp").mkdir(parents=True)
        self.variables = {**os.environ, "TMPDIR": str(self.room / "tmp"), "SOURCE_DATE_EPOCH": "1"}
        sys.path.insert(0, str(HERE / "installed"))

    def wheel(self, number):
        """A new version of a package of two modules."""
        about = "numbers_of_a_step-1.0.dist-info"
        files = {
            "numbers_of_a_step/__init__.py": f"from .second import NUMBER\nBOTH = NUMBER + {number}\n",
            "numbers_of_a_step/second.py": f"NUMBER = {number * 31}\n",
            f"{about}/METADATA": "Metadata-Version: 2.1\nName: numbers-of-a-step\nVersion: 1.0\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
        with zipfile.ZipFile(self.room / "numbers_of_a_step-1.0-py3-none-any.whl", "w") as archive:
            for name, text in {**files, f"{about}/RECORD": record}.items():
                archive.writestr(zipfile.ZipInfo(name), text)

    def step(self, step, number):
        if step % 10 == 3:
            self.wheel(number)
            install = (
                "-m pip -q --disable-pip-version-check --no-cache-dir install --no-index".split()
            )
            install += ["--upgrade", "--target", HERE / "installed", "--find-links", self.room]
            command = [sys.executable, *install, "numbers-of-a-step"]
            subprocess.run(command, env=self.variables, check=True)
            importlib.invalidate_caches()
            for name in [name for name in sys.modules if name.startswith("numbers_of_a_step")]:
                del sys.modules[name]
        if step < 3:
            return 0
        return importlib.import_module("numbers_of_a_step").BOTH

    def end(self):
        shutil.rmtree(self.room)
        for place in (HERE / "installed").rglob("__pycache__"):
            shutil.rmtree(place)  # where it lies is in it


class Compiled:
    """numba, whose cache on disk all ranks share."""

    def __init__(self):
        os.environ["NUMBA_CACHE_DIR"] = "numba"
        import numba

        self.compiler = numba.njit(cache=True)

    def step(self, step, number):
        # Each time as in a new process: out of the cache, unless nothing is in it yet.
        kernels = [self.compiler(kernel) for kernel in (of_numbers, of_floats)]
        values = numpy.arange(number % 1000, number % 1000 + 500)
        return int(kernels[0](values) + kernels[1](values * 0.5))

    def end(self):
        COMM.Barrier()
        if ME == 0:
            shutil.rmtree("numba")  # where things are in memory is in it


def of_numbers(values):
    total = 0
    for value in values:
        total = (total * 31 + value) % 2147483647
    return total


def of_floats(values):
    total = 0.0
    for value in values:
        total += value * value
    return total


class Atoms:
    """ASE: a structure is relaxed, with a trajectory, and by a program that it starts."""

    def __init__(self):
        from ase import build, io, optimize, parallel
        from ase.calculators import calculator, emt

        parallel.world.comm = parallel.DummyMPI()  # each rank has atoms of its own

        class ByFile(calculator.FileIOCalculator):
            implemented_properties = ["energy"]

            def __init__(self):
                command = f"{sys.executable} -S -c '{CALCULATOR}' {HERE}"
                super().__init__(command=command, label="ase")

            def write_input(self, atoms, properties=None, changes=None):
                super().write_input(atoms, properties, changes)
                number = int(abs(atoms.get_positions()).sum() * 1e6)
                (HERE / "calculator.in").write_text(f"number {number}\n")

            def read_results(self):
                words = (HERE / "calculator.out").read_text().split()
                self.results["energy"] = float(words[1])

        self.build, self.io, self.optimize = build, io, optimize
        self.potential, self.by_file = emt.EMT, ByFile

    def step(self, step, number):
        atoms = self.build.bulk("Cu", "fcc", a=3.5 + number % 100 / 1000, cubic=True)
        atoms.rattle(0.1, seed=number % 1000)
        atoms.calc = self.potential()
        relaxed = self.optimize.BFGS(
            atoms,
            trajectory=str(HERE / "relaxed.traj"),
            restart=str(HERE / "hessian.json"),
            logfile=str(HERE / "relaxed.log"),
        )
        relaxed.run(fmax=0.1, steps=4)
        (HERE / "hessian.json").unlink(missing_ok=True)  # none where it was relaxed
        (HERE / "relaxed.log").unlink()  # the time is in it
        frames = self.io.read(HERE / "relaxed.traj", ":")
        self.io.write(HERE / "last.xyz", frames[-1])
        last = self.io.read(HERE / "last.xyz")
        last.calc = self.by_file()
        energies = [frame.get_potential_energy() for frame in frames]
        return zlib.crc32(repr((energies, last.get_potential_energy())).encode())


KINDS = {
    "database": Database,
    "truncated": Truncated,
    "persistent": Persistent,
    "ahead": Ahead,
    "opened": Opened,
    "arrays": Arrays,
    "mapped": Mapped,
    "archives": Archives,
    "calculator": Calculator,
    "installed": Installed,
}
# What needs more than numpy: scripts/programs.sh brings it.
MORE_KINDS = {"compiled": Compiled, "atoms": Atoms}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--what", nargs="+", choices={**KINDS, **MORE_KINDS}, default=list(KINDS))
    asked = parser.parse_args()
    HERE.mkdir()
    users = [{**KINDS, **MORE_KINDS}[name]() for name in asked.what]
    number, total = ME + 1, 0
    for step in range(asked.steps):
        for user in users:
            number = (number * 48271 + user.step(step, number)) % 2147483647
        number = COMM.sendrecv(number, dest=(ME + 1) % RANKS, source=(ME - 1) % RANKS)
        total = (total * 31 + number) % 2147483647
    for user in users:
        getattr(user, "end", lambda: None)()
    total = COMM.reduce(total, op=MPI.SUM)
    if ME == 0:
        print(f"{asked.steps} steps: sum {total}")


main()
