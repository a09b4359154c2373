"""Random programs of calls on files, one for each seed.

A file belongs to one rank at a time, and the ranks take turns; in between all ranks read all files.
The seed decides what a rank does: it writes, appends, truncates, renames, removes, copies, maps,
locks, lists and stats files, by descriptors and by streams. All that it finds goes into a hash that
goes round the ranks and decides what is drawn next. Two undisturbed runs with one seed are equal in
every byte.
"""

import argparse
import fcntl
import mmap
import os
import random
import shutil
import tempfile
import zlib

from mpi4py import MPI

COMM = MPI.COMM_WORLD
ME, RANKS = COMM.rank, COMM.size
FILES = 9
# A block that ranks write together: so many stripes of each, of so many bytes.
STRIPES, STRIPE = 8, 24


class Program:
    """One rank's part."""

    def __init__(self, seed):
        self.draw = random.Random(seed * 1000 + ME)
        self.state = ME
        self.open = {}  # files that stay open from one turn to another: name -> descriptor
        self.calls = 0

    def saw(self, *what):
        self.calls += 1
        self.state = zlib.crc32(repr(what).encode(), self.state)

    def text(self, most=3000):
        line = f"{ME} {self.calls} {self.state:08x}\n".encode()
        return line * self.draw.randint(1, max(1, most // len(line)))

    # Calls on a file that belongs to this rank now.

    def write_anew(self, name):
        with open(name, "wb") as file:
            for _ in range(self.draw.randint(1, 4)):
                file.write(self.text())
                if self.draw.random() < 0.3:
                    file.flush()

    def append(self, name):
        with open(name, "ab") as file:
            file.write(self.text(300))

    def write_within(self, name):
        fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
        for _ in range(self.draw.randint(1, 5)):
            os.pwrite(fd, self.text(200), self.draw.randint(0, 6000))
        self.saw(os.fstat(fd).st_size)
        os.close(fd)

    def change_a_part(self, name):
        """Reads, changes and writes back, under a lock."""
        with open(name, "r+b") if os.path.exists(name) else open(name, "w+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            block = bytearray(file.read(2000))
            self.saw(bytes(block))
            if block:
                block[self.draw.randrange(len(block))] = self.draw.randrange(256)
            file.seek(0)
            file.write(block)
            file.flush()
            fcntl.lockf(file, fcntl.LOCK_UN)

    def cut(self, name):
        size = self.draw.randint(0, 4000)
        if self.draw.random() < 0.5 and os.path.exists(name):
            os.truncate(name, size)
        else:
            with open(name, "ab") as file:
                os.ftruncate(file.fileno(), size)

    def replace(self, name):
        with tempfile.NamedTemporaryFile("wb", dir=".", prefix="new", delete=False) as file:
            file.write(self.text())
        os.replace(file.name, name)

    def remove(self, name):
        try:
            os.remove(name)
            self.saw("removed")
        except FileNotFoundError:
            self.saw("was not there")

    def make_exclusively(self, name):
        try:
            with open(name, "xb") as file:
                file.write(self.text())
        except FileExistsError:
            self.saw("is there")

    def copy(self, name):
        if os.path.exists(name):
            shutil.copyfile(name, f"{name}.copy")
            self.saw(os.stat(f"{name}.copy").st_size)

    def link(self, name):
        if os.path.exists(name):
            for other in (f"{name}.link", f"{name}.path"):
                if os.path.lexists(other):
                    os.unlink(other)
            os.link(name, f"{name}.link")
            os.symlink(name, f"{name}.path")
            self.saw(os.readlink(f"{name}.path"), os.stat(f"{name}.path").st_nlink)

    def keep_open(self, name):
        """A file that is written over many turns, as logs are."""
        if ME not in self.open:
            flags = os.O_WRONLY | os.O_CREAT | self.draw.choice([0, os.O_APPEND])
            self.open[ME] = os.open(f"log.{ME}", flags, 0o644)
        os.write(self.open[ME], self.text(200))
        if self.draw.random() < 0.1:
            os.close(self.open.pop(ME))

    def without_a_name(self, name):
        """A file that is removed at once, and then used."""
        with tempfile.TemporaryFile("w+b", dir=".") as file:
            file.write(self.text())
            file.seek(self.draw.randint(0, 20))
            self.saw(file.read(500))

    def directory(self, name):
        place = f"{name}.d"
        if os.path.isdir(place) and self.draw.random() < 0.3:
            shutil.rmtree(place)
        else:
            os.makedirs(f"{place}/a/b", exist_ok=True)
            with open(f"{place}/a/{self.draw.randint(0, 5)}", "wb") as file:
                file.write(self.text(100))
            self.saw(sorted(os.walk(place)))

    def from_within(self, name):
        """A directory that is the working directory for a while, and is renamed meanwhile."""
        place, end = f"{name}.e", f"{name}.f"
        os.makedirs(place, exist_ok=True)
        os.chdir(place)
        with open("inside", "ab") as file:
            file.write(self.text(100))
        self.saw(sorted(os.listdir()), os.path.basename(os.getcwd()), os.path.exists("inside"))
        self.saw(os.path.basename(os.path.realpath("inside")))
        os.chdir("..")
        if not os.path.exists(end) and self.draw.random() < 0.5:
            os.rename(place, end)

    def send(self, name):
        """A copy that does not pass through the memory of the program."""
        if os.path.exists(name) and os.stat(name).st_size:
            with open(name, "rb") as source, open(f"{name}.sent", "wb") as target:
                self.saw(os.sendfile(target.fileno(), source.fileno(), 0, 700))

    def describe(self, name):
        if os.path.exists(name):
            attribute = b"%d %08x" % (self.calls, self.state)
            try:
                os.setxattr(name, "user.note", attribute)
                self.saw(os.getxattr(name, "user.note"))
            except OSError as error:
                self.saw(error.errno)
            os.chmod(name, self.draw.choice([0o600, 0o640, 0o644]))

    def pipe(self, name):
        """A named pipe that exists for a while."""
        os.mkfifo(f"{name}.pipe")
        self.saw(os.stat(f"{name}.pipe").st_mode)
        os.unlink(f"{name}.pipe")

    def weave(self, _):
        """Its stripes of a block that all ranks share, as MPI-IO writes them: reads the block, puts
        them in and writes all of it back, under a lock on just that block."""
        size = RANKS * STRIPES * STRIPE
        place = self.draw.randint(0, 40) * size
        fd = os.open("woven", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(fd, fcntl.LOCK_EX, size, place)
        block = bytearray(os.pread(fd, size, place).ljust(size, b"\0"))
        text = self.text(STRIPE)[:STRIPE]
        for stripe in range(STRIPES):
            first = (stripe * RANKS + ME) * STRIPE
            block[first : first + len(text)] = text
        os.pwrite(fd, block, place)
        fcntl.lockf(fd, fcntl.LOCK_UN, size, place)
        os.close(fd)

    # Calls that read any file.

    def read(self, name):
        with open(name, "rb") as file:
            self.saw(file.readline(), file.read(self.draw.randint(1, 5000)))

    def read_within(self, name):
        fd = os.open(name, os.O_RDONLY)
        end = os.lseek(fd, 0, os.SEEK_END)
        self.saw(end, os.pread(fd, 300, self.draw.randint(0, max(1, end))))
        os.close(fd)

    def look(self, name):
        about = os.stat(name)
        self.saw(about.st_size, about.st_mode, about.st_nlink, os.access(name, os.R_OK))

    def map(self, name):
        with open(name, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
                    self.saw(mapped[:100], len(mapped))

    def list(self, _):
        self.saw(sorted(os.listdir(".")))

    WRITES = (
        write_anew, append, write_within, change_a_part, cut, replace, remove, make_exclusively,
        copy, link, keep_open, without_a_name, directory, from_within, send, describe, pipe, weave,
    )  # fmt: skip
    READS = (read, read_within, look, map, list)

    def turn(self, turn):
        mine = [n for n in range(FILES) if (n + turn) % RANKS == ME]
        for _ in range(self.draw.randint(1, 6)):
            name = f"file{self.draw.choice(mine)}"
            self.draw.choice(self.WRITES)(self, name)
            if self.draw.random() < 0.3 and os.path.exists(name):
                self.draw.choice(self.READS[:-1])(self, name)
        self.exchange()
        for _ in range(self.draw.randint(1, 6)):
            name = f"file{self.draw.randrange(FILES)}"
            try:
                self.draw.choice(self.READS)(self, name)
            except FileNotFoundError:
                self.saw("is not there")
        self.exchange()

    def exchange(self):
        """The end of a turn: what each rank has seen decides what all ranks draw next."""
        states = COMM.allgather(self.state)
        self.state = zlib.crc32(repr(states).encode(), self.state)
        self.draw.seed(self.state * RANKS + ME)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=150)
    options = parser.parse_args()
    program = Program(options.seed)
    for turn in range(options.turns):
        program.turn(turn)
    calls = COMM.reduce(program.calls)
    if ME == 0:
        print(f"{options.turns} turns, {calls} calls looked at: {program.state:08x}")


main()
