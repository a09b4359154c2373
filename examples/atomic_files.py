"""Files in Python that are made, replaced and removed whole.

In each step a rank writes its state to a temporary file and replaces the last one by it, makes a
file that must not exist and removes it, takes a lock that is a directory, and appends a line to its
log. Each step's sum goes round the ranks.
"""

import argparse
import os
import pathlib
import shutil
import tempfile
import time
import zlib

from mpi4py import MPI


def write_whole(path, text):
    """Replaces a file by one with this text."""
    with tempfile.NamedTemporaryFile("w+", dir=".", prefix=path, delete=False) as file:
        file.write(text)
        file.seek(0)
        assert file.read() == text
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def only_once(path, text):
    """Makes a file that does not exist, and removes it."""
    with open(path, "x") as file:
        file.write(text)
    try:
        open(path, "x")
        raise AssertionError(f"{path} was made twice")
    except FileExistsError:
        pass
    pathlib.Path(path).unlink()


def in_turn(path, text):
    """Adds a line to a file of all ranks. A directory is their lock; their order is arbitrary."""
    while True:
        try:
            os.mkdir(path + ".lock")
            break
        except FileExistsError:
            time.sleep(0)
    with open(path, "a") as file:
        file.write(text)
    os.rmdir(path + ".lock")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    comm = MPI.COMM_WORLD
    me, ranks = comm.rank, comm.size
    state = me
    for step in range(steps):
        text = f"step {step} state {state}\n"
        write_whole(f"state{me}", text)
        only_once(f"mark{me}", text)
        with open(f"log{me}", "a") as log:
            log.write(text)
        if step % 10 == 0:
            in_turn("all", f"rank {me} {text}")
        if step % 50 == 49:
            os.makedirs(f"old{me}", exist_ok=True)
            shutil.move(f"log{me}", f"old{me}/log.{step}")
        state = zlib.crc32(f"{state}{comm.sendrecv(state, (me + 1) % ranks)}".encode())
    comm.Barrier()
    if me == 0:
        # The order of the lines is arbitrary.
        lines = sorted(pathlib.Path("all").read_text().splitlines())
        write_whole("all", "\n".join(lines) + "\n")
        print(f"{steps} steps, {len(lines)} lines")
    print(f"rank {me}: {state}", file=open(f"end{me}", "w"))


main()
