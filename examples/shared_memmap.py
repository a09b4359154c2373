"""One file of numpy that all ranks have mapped to be written; each writes its own rows, once.

Messages do not protect what is written so: images and moves of such ranks are refused by name, and
a rank that dies starts from its beginning. Rank 0 counts in the end which rows are missing.
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
ME, RANKS = COMM.rank, COMM.size


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--rest-ms", type=float, default=30)
    options = parser.parse_args()
    shape = (RANKS, options.rows, 512)
    if ME == 0:
        np.memmap("rows.dat", dtype="f8", mode="w+", shape=shape).flush()
    COMM.Barrier()
    rows, total = np.memmap("rows.dat", dtype="f8", mode="r+", shape=shape), 0.0
    for step in range(options.rows):
        rows[ME, step] = 1 + step * 10 + ME
        total = COMM.allreduce(total + float(rows[ME, step, 0])) % 9973
        if ME == 0 and step % 20 == 0:
            print(step, total, flush=True)
        time.sleep(options.rest_ms / 1000)
    rows.flush()
    COMM.Barrier()
    if ME == 0:
        missing = (np.fromfile("rows.dat").reshape(shape)[:, :, 0] == 0).sum()
        print("rows that are missing:", int(missing), flush=True)


main()
