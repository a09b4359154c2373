"""blas_threads: matrix products by a BLAS with threads, and Python threads beside them.

In every iteration each rank multiplies its matrix by a part that its neighbour has sent (numpy
calls OpenBLAS, whose threads share the work). Meanwhile threads of Python hash the result of the
last iteration. OPENBLAS_NUM_THREADS says how many threads a product gets: with the same number
the output is the same in every run of the same size and number of ranks.
"""

import argparse
import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mpi4py import MPI


def parse_arguments(comm):
    """Rank 0 reads the command line and sends the settings to all; returns them, or None if it said
    what was wrong."""
    settings = None
    if comm.rank == 0:
        parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
        parser.add_argument("--size", type=int, default=300, help="rows and columns of a matrix")
        parser.add_argument("--iterations", type=int, default=200)
        parser.add_argument("--threads", type=int, default=2, help="threads of Python")
        parser.add_argument("--every", type=int, default=20, help="report every so many iterations")
        try:
            settings = vars(parser.parse_args())
        except SystemExit as end:  # the others must not wait for ever
            settings = {"exit": end.code}
    return comm.bcast(settings, root=0)


def main():
    comm = MPI.COMM_WORLD
    settings = parse_arguments(comm)
    if "exit" in settings:
        return settings["exit"]
    size = settings["size"]
    matrix = np.random.default_rng(comm.rank).standard_normal((size, size))
    theirs = np.empty_like(matrix)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    digests = [hashlib.sha256() for _ in range(settings["threads"])]
    with ThreadPoolExecutor(settings["threads"]) as pool:
        for iteration in range(1, settings["iterations"] + 1):
            comm.Sendrecv(matrix, to, 0, theirs, source, 0)
            parts = np.array_split(matrix.copy(), settings["threads"])
            hashed = [pool.submit(d.update, part) for d, part in zip(digests, parts)]
            matrix = matrix @ theirs
            matrix /= np.abs(matrix).max()
            for future in hashed:
                future.result()
            if iteration % settings["every"] == 0:
                words = comm.gather([d.hexdigest()[:8] for d in digests], root=0)
                if comm.rank == 0:
                    print(f"iteration {iteration}", *sum(words, []), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
