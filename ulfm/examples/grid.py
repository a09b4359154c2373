"""What the mpi4py examples share: a grid of points cut into blocks with a halo, as in grid.h."""

import argparse
import os

import eyrie_ulfm
import numpy
from mpi4py import MPI


def options(**defaults):
    """--name N for each, and --out FILE."""
    parser = argparse.ArgumentParser()
    for name, value in defaults.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--out")
    return parser.parse_args()


def swap(comm, out, dest, into, source, tag):
    """Sends and receives a message at the same time. Not by Sendrecv, in which Open MPI 5.0 can
    crash (docs/ulfm.md, limits)."""
    receiving = comm.Irecv(into, source, tag)
    sending = comm.Isend(out, dest, tag)
    receiving.Wait()
    sending.Wait()


class Block:
    """points: of the whole grid, three axes. `now` has a halo one point deep."""

    def __init__(self, points, rank, shape):
        self.points = points
        self.place(rank, shape)
        self.now = numpy.zeros([count + 2 for count in self.count])

    def place(self, rank, shape):
        ranks = [1] * (3 - len(shape)) + list(shape)
        self.ranks = ranks
        self.at = [rank // (ranks[1] * ranks[2]), rank // ranks[2] % ranks[1], rank % ranks[2]]
        self.first = [n * at // k for n, at, k in zip(self.points, self.at, ranks)]
        self.count = [
            n * (at + 1) // k - first
            for n, at, k, first in zip(self.points, self.at, ranks, self.first)
        ]

    def fill(self):
        i, j, k = (
            numpy.arange(first, first + count, dtype=numpy.uint32)
            for first, count in zip(self.first, self.count)
        )
        mixed = (
            (i * numpy.uint32(73856093))[:, None, None]
            ^ (j * numpy.uint32(19349663))[:, None]
            ^ (k * numpy.uint32(83492791))
        )
        self.now[...] = 0
        self.now[1:-1, 1:-1, 1:-1] = mixed % 10007 / 10007.0

    def neighbour(self, axis, step):
        at = list(self.at)
        at[axis] += step
        if not 0 <= at[axis] < self.ranks[axis]:
            return MPI.PROC_NULL
        return (at[0] * self.ranks[1] + at[1]) * self.ranks[2] + at[2]

    def exchange(self, comm):
        """Fills the halo from the neighbours."""
        for axis in range(3):
            if self.ranks[axis] == 1:
                continue
            faces = numpy.moveaxis(self.now, axis, 0)
            for step, edge, halo in ((-1, 1, -1), (1, -2, 0)):
                into = numpy.zeros(faces[0].shape)
                source = self.neighbour(axis, -step)
                swap(
                    comm,
                    numpy.ascontiguousarray(faces[edge]),
                    self.neighbour(axis, step),
                    into,
                    source,
                    axis,
                )
                if source != MPI.PROC_NULL:
                    faces[halo] = into

    def fetch(self, job, name):
        """After squeezing: fetches this rank's points from the committed blocks, row by row."""
        pieces = []
        for rank in range(job.committed_ranks):
            old = Block.__new__(Block)
            old.points = self.points
            old.place(rank, job.committed_shape)
            low = [max(a, b) for a, b in zip(old.first, self.first)]
            high = [
                min(a + n, b + m)
                for a, n, b, m in zip(old.first, old.count, self.first, self.count)
            ]
            if any(a >= b for a, b in zip(low, high)):
                continue
            for i in range(low[0], high[0]):
                for j in range(low[1], high[1]):
                    there = [x - first + 1 for x, first in zip((i, j, low[2]), old.first)]
                    here = [x - first + 1 for x, first in zip((i, j, low[2]), self.first)]
                    first = (there[0] * (old.count[1] + 2) + there[1]) * (old.count[2] + 2) + there[
                        2
                    ]
                    row = self.now[here[0], here[1], here[2] : here[2] + high[2] - low[2]]
                    pieces.append(eyrie_ulfm.Piece(rank, first, len(row), row))
        job.fetch(name, pieces)

    def write(self, comm, path):
        """Writes the whole grid to a file: every rank sends its block to rank 0."""
        mine = numpy.ascontiguousarray(self.now[1:-1, 1:-1, 1:-1])
        if comm.rank:
            comm.Send(mine, 0, 9)
            return
        whole = numpy.zeros(self.points)
        for rank in range(comm.size):
            one = Block.__new__(Block)
            one.points = self.points
            one.place(rank, self.ranks)
            part = mine
            if rank:
                part = numpy.zeros(one.count)
                comm.Recv(part, rank, 9)
            whole[tuple(slice(a, a + n) for a, n in zip(one.first, one.count))] = part
        whole.tofile(path + ".part")
        os.replace(path + ".part", path)
