"""Parallel HDF5 as programs in Python use it: h5py with MPI-IO, all ranks in one file.

In each step each rank writes a row by itself and one with all others, into datasets of fixed size,
into one in chunks and into one that grows, and reads back what it and its neighbour have written.
Each step's sum goes round the ranks. Now and then the file is closed and opened again.
"""

import argparse

import h5py
import numpy
from mpi4py import MPI

COMM = MPI.COMM_WORLD
ME, RANKS = COMM.rank, COMM.size
NEIGHBOUR = (ME + 1) % RANKS
WIDTH = 500


def opened(mode):
    return h5py.File("numbers.h5", mode, driver="mpio", comm=COMM)


def create(steps):
    with opened("w") as file:
        shape = (steps, RANKS, WIDTH)
        file.create_dataset("independent", shape, "i8")
        file.create_dataset("collective", shape, "i8")
        # A chunk is of two ranks, and of several steps.
        file.create_dataset("chunked", shape, "i8", chunks=(4, 2, 100))
        growing = (0, RANKS, WIDTH)
        file.create_dataset(
            "growing", growing, "f8", chunks=(3, 1, WIDTH), maxshape=(None, *growing[1:])
        )
        file.create_group("steps")


def write(file, step, row):
    file["independent"][step, ME] = row
    # Columns that lie apart from each other.
    file["chunked"][step, ME, ::2] = row[::2]
    with file["collective"].collective:
        file["collective"][step, ME] = row + 1
    growing = file["growing"]
    growing.resize(step + 1, axis=0)
    if step % 2:
        growing[step, ME] = row / 8
    else:
        with growing.collective:
            growing[step, ME] = row / 8


def read_back(file, step):
    """The sum of what all ranks have written in a step, each in another way."""
    total = int(file["independent"][step, NEIGHBOUR].sum())
    total += int(file["chunked"][step, ME].sum())
    total += int(file["growing"][step, NEIGHBOUR, ::5].sum())
    with file["collective"].collective:
        total += int(file["collective"][step].sum())
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    create(steps)
    number, total = ME + 1, 0
    file = opened("r+")
    for step in range(steps):
        write(file, step, numpy.arange(WIDTH) * (number % 1000))
        file.flush()
        COMM.Barrier()
        number = (number * 48271 + read_back(file, step)) % 2147483647
        number = COMM.sendrecv(number, dest=NEIGHBOUR, source=(ME - 1) % RANKS)
        total = (total * 31 + number) % 2147483647
        if step % 8 == 7:
            file["steps"].create_group(f"{step}").attrs["sum"] = COMM.allreduce(number)
            file.close()
            file = opened("r+")
    file.close()
    with opened("r") as file:
        total += sum(read_back(file, step) for step in range(steps))
        total += sum(int(group.attrs["sum"]) for group in file["steps"].values())
    total = COMM.reduce(total, op=MPI.SUM)
    if ME == 0:
        print(f"{steps} steps: sum {total}")


main()
