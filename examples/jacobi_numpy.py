"""jacobi_numpy: Jacobi iterations for Laplace's equation, in mpi4py with numpy.

Rows are split over the ranks; halos travel as numpy buffers (Isend, Irecv), the convergence test as
an Allreduce, and the settings, the progress and the list of the rows of each rank as pickled Python
objects (bcast, gather, send and recv in lower case). Rank 0 collects the field and writes it with
numpy. Output and result file are the same in every run of the same size and rank count.
"""

import argparse
import hashlib

import numpy as np
from mpi4py import MPI


def parse_arguments(comm):
    """Rank 0 reads the command line and sends the settings to all; returns them, or None if it said
    what was wrong."""
    settings = None
    if comm.rank == 0:
        parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
        parser.add_argument(
            "--rows", type=int, default=400, help="rows of the field (default %(default)s)"
        )
        parser.add_argument(
            "--columns", type=int, default=400, help="columns of the field (default %(default)s)"
        )
        parser.add_argument(
            "--iterations", type=int, default=1000, help="iterations (default %(default)s)"
        )
        parser.add_argument(
            "--every",
            type=int,
            default=100,
            help="report every so many iterations (default %(default)s)",
        )
        parser.add_argument("--out", help="write the field to this file (numpy's .npy format)")
        try:
            settings = vars(parser.parse_args())
        except SystemExit as end:  # the others must not wait for ever
            settings = {"exit": end.code}
    return comm.bcast(settings, root=0)


def start_field(first, rows, columns, all_rows):
    """This rank's rows with a halo row above and below: a hot top edge, a cold bottom, warmer to
    the right."""
    field = np.zeros((rows + 2, columns))
    field[:, -1] = 25.0
    if first == 0:
        field[0, :] = 100.0
    if first + rows == all_rows:
        field[-1, :] = np.linspace(0.0, 25.0, columns)
    return field


def exchange_halos(comm, field, above, below):
    requests = [
        comm.Irecv(field[0], source=above, tag=1),
        comm.Irecv(field[-1], source=below, tag=2),
        comm.Isend(field[-2], dest=below, tag=1),
        comm.Isend(field[1], dest=above, tag=2),
    ]
    MPI.Request.Waitall(requests)


def collect(comm, field, layout, columns):
    """The whole field on rank 0 (None elsewhere); each rank announces what it sends with a pickled
    message."""
    rows = np.ascontiguousarray(field[1:-1])
    if comm.rank != 0:
        comm.send(
            {"rank": comm.rank, "shape": rows.shape, "digest": hashlib.sha256(rows).hexdigest()},
            dest=0,
            tag=3,
        )
        comm.Send(rows, dest=0, tag=4)
        return None
    whole = np.empty((sum(count for _, count in layout), columns))
    whole[: rows.shape[0]] = rows
    for _ in range(comm.size - 1):
        note = comm.recv(
            source=MPI.ANY_SOURCE, tag=3
        )  # in any order: the result does not depend on it
        first, count = layout[note["rank"]]
        comm.Recv(whole[first : first + count], source=note["rank"], tag=4)
        if (
            hashlib.sha256(np.ascontiguousarray(whole[first : first + count])).hexdigest()
            != note["digest"]
        ):
            raise RuntimeError(f"rows of rank {note['rank']} arrived damaged")
    return whole


def main():
    comm = MPI.COMM_WORLD
    settings = parse_arguments(comm)
    if "exit" in settings:
        return settings["exit"]
    first = settings["rows"] * comm.rank // comm.size
    rows = settings["rows"] * (comm.rank + 1) // comm.size - first
    layout = comm.allgather((first, rows))
    above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    field = start_field(first, rows, settings["columns"], settings["rows"])
    change = np.zeros(1)
    for iteration in range(1, settings["iterations"] + 1):
        exchange_halos(comm, field, above, below)
        inner = 0.25 * (field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:])
        change[0] = np.abs(inner - field[1:-1, 1:-1]).max(initial=0.0)
        field[1:-1, 1:-1] = inner
        if iteration % settings["every"] == 0:
            comm.Allreduce(MPI.IN_PLACE, change, op=MPI.MAX)
            means = comm.gather(float(field[1:-1].mean()), root=0)
            if comm.rank == 0:
                print(
                    f"iteration {iteration} change {change[0]:.9e} means",
                    *(f"{m:.9f}" for m in means),
                    flush=True,
                )
    whole = collect(comm, field, layout, settings["columns"])
    if comm.rank == 0:
        print("field", hashlib.sha256(whole).hexdigest())
        if settings["out"]:
            np.save(settings["out"], whole)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
