"""Libraries and programs that keep their own in files, as users of Python have them.

Each rank has files of its own and does in each step what `--what` says, many times if asked for
several, and reads back what it has written. Each step's sum goes round the ranks.
"""

import argparse
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
    """A write-ahead log, whose index is not mapped where nobody else may open the database."""

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


# What a program does that is started for each step.
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
    """A driver of a program that reads a file and writes one, as ASE's calculators."""

    def step(self, step, number):
        with open(HERE / "calculator.in", "w") as file:
            print("step", step, file=file)
            print("number", number, file=file)
        with open(HERE / "calculator.said", "w") as said:
            command = [sys.executable, "-S", "-c", CALCULATOR, str(HERE)]
            subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, check=True)
        with open(HERE / "calculator.out") as file:
            return int(file.read().split()[1])


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
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--what", nargs="+", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    HERE.mkdir()
    users = [KINDS[name]() for name in asked.what]
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
