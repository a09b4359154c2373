"""Programs that ranks start: they read what a rank has written and write what it reads.

In each step a rank writes a file of the same name. A shell, a pipe, a program and a library compute
something from it, and the rank sends the results to its neighbour. A helper that has ended is not
started again when its rank is executed again.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys

from mpi4py import MPI

COMM = MPI.COMM_WORLD
ME, RANKS = COMM.rank, COMM.size


def by_shell(number):
    """A program that reads a file and writes one, as a separate force field or optimiser does."""
    with open(f"input.{ME}", "w") as file:
        print(number, file=file)
    status = os.system(f"read x < input.{ME}; echo $((x * 3 % 1000003)) > output.{ME}")
    if status != 0:
        sys.exit(f"the shell gave {status}")
    with open(f"output.{ME}") as file:
        return int(file.read())


def by_pipe(number):
    with os.popen(f"expr {number} % 9973") as pipe:
        return int(pipe.read())


def by_program(number):
    done = subprocess.run(
        ["tr", "0-9", "5-90-4"], input=str(number), capture_output=True, text=True
    )
    return int(done.stdout) % 1000003


def by_two_at_once(number):
    """Two programs that run at the same time; the second reads what the first prints."""
    first = subprocess.Popen(["echo", str(number)], stdout=subprocess.PIPE)
    second = subprocess.Popen(["rev"], stdin=first.stdout, stdout=subprocess.PIPE, text=True)
    first.stdout.close()
    said, _ = second.communicate()
    return int(said) % 1000003 + first.wait()


def loaded(name):
    """The file from which this process has loaded a library."""
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if f"/{name}" in line)


def by_library(number, step):
    """A library that is loaded under a temporary name, which is removed at once."""
    name = os.path.abspath(f"library.{ME}.{step}.so")
    shutil.copyfile(loaded("libm.so"), name)
    library = ctypes.CDLL(name)
    os.remove(name)
    library.sqrt.restype, library.sqrt.argtypes = ctypes.c_double, [ctypes.c_double]
    return int(library.sqrt(float(number)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    number, total = ME + 1, 0
    for step in range(steps):
        number = (number * 48271 + by_shell(number)) % 2147483647
        number = (number + by_pipe(number)) % 2147483647
        number = (number + by_program(number)) % 2147483647
        if step % 5 == 0:
            number = (number + by_two_at_once(number)) % 2147483647
        if step % 20 == 10:
            number = (number + by_library(number, step)) % 2147483647
        number = COMM.sendrecv(number, dest=(ME + 1) % RANKS, source=(ME - 1) % RANKS)
        total = (total * 31 + number) % 2147483647
    total = COMM.reduce(total, op=MPI.SUM)
    if ME == 0:
        print(f"{steps} steps: sum {total}")


main()
