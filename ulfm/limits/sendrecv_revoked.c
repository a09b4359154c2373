/* MPI_Sendrecv that has nobody to receive from, on a communicator that is revoked: Open MPI 5.0 cancels a request that it has not made
 * and may crash (ompi/mpi/c/sendrecv.c). Use MPI_Irecv, MPI_Isend, MPI_Wait instead. Run with 2 processes. */
#include <mpi.h>

#include <mpi-ext.h>
#include <stdio.h>

int main(int argc, char **argv) {
    MPI_Comm comm;
    int rank, out = 1, in;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPIX_Comm_revoke(comm);
    int code = MPI_Sendrecv(&out, 1, MPI_INT, 1 - rank, 0, &in, 1, MPI_INT, MPI_PROC_NULL, 0, comm, MPI_STATUS_IGNORE);
    fprintf(stderr, "returned %s\n", code == MPI_SUCCESS ? "success" : "an error, as it should");
    MPI_Finalize();
    return 0;
}
