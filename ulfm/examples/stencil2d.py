"""A 5-point stencil with mpi4py that goes on when ranks fail, with spares or squeezed; the same
result as stencil2d.c.

mpirun --with-ft ulfm -n 6 env EYRIE_ULFM_JOB=2x2 EYRIE_ULFM_SPARES=2 python stencil2d.py --nx 256
--ny 256 --out plate
"""

import eyrie_ulfm
import grid
import numpy
from mpi4py import MPI


def sweep(now, new):
    new[:, 1:-1, 1:-1] = 0.25 * (
        now[:, 1:-1, :-2] + now[:, 1:-1, 2:] + now[:, :-2, 1:-1] + now[:, 2:, 1:-1]
    )
    new[[0, -1]] = 0


def begin(job, options, step):
    """The recovery point: allocates this rank's block, then puts the committed data in place."""
    job.repair()
    if job.comm is None:
        return None
    block = grid.Block((1, options.ny, options.nx), job.comm.rank, job.shape)
    job.register("field", block.now)
    job.register("step", step)
    if job.restore() == 0:
        step[0] = 0
        block.fill()
    elif job.squeezed:
        block.fetch(job, "field")
        job.fetch("step", [eyrie_ulfm.Piece(0, 0, 1, step)])
        job.commit()
    return block


def run(job, options, step, block):
    new = numpy.zeros_like(block.now)
    while step[0] < options.steps:
        if step[0] % options.every == 0:
            job.commit()
        block.exchange(job.comm)
        sweep(block.now, new)
        block.now[...] = new
        step[0] += 1
    if options.out:
        block.write(job.comm, options.out)
    job.finish()


def main():
    options = grid.options(nx=128, ny=128, steps=300, every=50)
    step = numpy.zeros(1, dtype=numpy.int32)
    with eyrie_ulfm.Job(MPI.COMM_WORLD) as job:
        while job.comm is not None:
            try:
                block = begin(job, options, step)
                if block is not None:
                    run(job, options, step, block)
            except MPI.Exception as error:
                if not eyrie_ulfm.is_failure(error):
                    raise


main()
