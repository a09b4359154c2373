"""Conjugate gradients with mpi4py that go on when ranks fail; sums are taken in the order of ranks.

mpirun --with-ft ulfm -n 5 env EYRIE_ULFM_SPARES=1 python cg.py --rows 32 --columns 128 --out
solution
"""

import eyrie_ulfm
import grid
import numpy
from mpi4py import MPI


class Solver:
    def __init__(self, options):
        self.rows, self.columns = options.rows, options.columns
        self.x, self.r = numpy.zeros((2, self.rows, self.columns))
        self.p = numpy.zeros((self.rows + 2, self.columns))
        self.rho = numpy.zeros(1)
        self.iteration = numpy.zeros(1, dtype=numpy.int32)

    def register(self, job):
        for name in ("x", "r", "rho", "iteration"):
            job.register(name, getattr(self, name))
        job.register("p", self.p[1:-1])

    def sum(self, mine):
        parts = numpy.zeros(self.comm.size)
        self.comm.Allgather(numpy.array([mine]), parts)
        total = 0.0
        for part in parts:
            total += part
        return total

    def start(self):
        n, rank = self.rows * self.columns, self.comm.rank
        numbers = (rank * n + numpy.arange(n)) * 7919 % 1013 / 1013
        self.x[...] = 0
        self.p[...] = 0
        self.r[...] = self.p[1:-1] = numbers.reshape(self.x.shape)
        self.iteration[0] = 0
        self.rho[0] = self.sum(numpy.sum(self.r * self.r))

    def multiply(self):
        p, rank, last = self.p, self.comm.rank, self.comm.size - 1
        up, down = (
            (rank - 1 if rank else MPI.PROC_NULL),
            (rank + 1 if rank < last else MPI.PROC_NULL),
        )
        grid.swap(self.comm, p[1], up, p[-1], down, 0)
        grid.swap(self.comm, p[-2], down, p[0], up, 1)
        q = 4 * p[1:-1] - p[:-2] - p[2:]
        q[:, 1:] -= p[1:-1, :-1]
        q[:, :-1] -= p[1:-1, 1:]
        return q

    def iterate(self):
        p = self.p[1:-1]
        q = self.multiply()
        alpha = self.rho[0] / self.sum(numpy.sum(p * q))
        self.x += alpha * p
        self.r -= alpha * q
        rho = self.sum(numpy.sum(self.r * self.r))
        p[...] = self.r + rho / self.rho[0] * p
        self.rho[0] = rho
        self.iteration[0] += 1


def main():
    options = grid.options(rows=32, columns=64, iterations=150, every=25)
    with eyrie_ulfm.Job(MPI.COMM_WORLD) as job:
        if job.comm is None:
            return
        solver = Solver(options)
        solver.register(job)

        def body(job, version):
            solver.comm = job.comm
            solver.p[0] = solver.p[-1] = (
                0  # beyond the plate; the process may have had rows in the middle before
            )
            if version == 0:
                solver.start()
            while solver.iteration[0] < options.iterations:
                if solver.iteration[0] % options.every == 0:
                    job.commit()
                solver.iterate()
            if options.out:
                whole = (
                    numpy.zeros((job.comm.size, solver.rows, solver.columns))
                    if job.comm.rank == 0
                    else None
                )
                job.comm.Gather(solver.x, whole, root=0)
                if whole is not None:
                    whole.tofile(options.out)

        job.run(body)


main()
