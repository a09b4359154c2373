"""A 7-point stencil with mpi4py that goes on when ranks fail, as a callback; the same result as
stencil3d.c.

mpirun --with-ft ulfm -n 9 env EYRIE_ULFM_JOB=2x2x2 EYRIE_ULFM_SPARES=1 python stencil3d.py --n 48
--out cube
"""

import eyrie_ulfm
import grid
import numpy
from mpi4py import MPI


def main():
    options = grid.options(n=24, steps=100, every=20)
    with eyrie_ulfm.Job(MPI.COMM_WORLD) as job:
        if job.comm is None:
            return
        block = grid.Block((options.n,) * 3, job.comm.rank, job.shape)
        material = numpy.zeros_like(block.now)
        step = numpy.zeros(1, dtype=numpy.int32)
        for name, data in (("field", block.now), ("material", material), ("step", step)):
            job.register(name, data)

        def body(job, version):
            # This process may be another rank now, with the neighbours of that rank.
            block.place(job.comm.rank, job.shape)
            if version == 0:
                step[0] = 0
                block.fill()
                material[...] = 0.05 + 0.1 * block.now
            while step[0] < options.steps:
                if step[0] % options.every == 0:
                    job.commit()
                block.exchange(job.comm)
                u = block.now
                inner = (slice(1, -1),) * 3
                around = (
                    u[1:-1, 1:-1, :-2]
                    + u[1:-1, 1:-1, 2:]
                    + u[1:-1, :-2, 1:-1]
                    + u[1:-1, 2:, 1:-1]
                    + u[:-2, 1:-1, 1:-1]
                    + u[2:, 1:-1, 1:-1]
                )
                u[inner] = u[inner] + material[inner] * (around - 6 * u[inner])
                step[0] += 1
            if options.out:
                block.write(job.comm, options.out)

        job.run(body)


main()
