/* MPI_Sendrecv with the source MPI_PROC_NULL on a revoked communicator: Open MPI 5.0 cancels a
 * request that it has not made and may crash (ompi/mpi/c/sendrecv.c). Use MPI_Irecv, MPI_Isend,
 * MPI_Wait instead. Run with 2 processes. */
#include <mpi.h>

#include <mpi-ext.h>
#include <stdio.h>

static char out[8 << 20], in;

int main(int argc, char **argv) {
    MPI_Comm comm;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    if (rank == 1) {
        MPIX_Comm_revoke(comm);
    } else {
        int code = MPI_Sendrecv(out, sizeof out, MPI_CHAR, 1, 0, &in, 1, MPI_CHAR, MPI_PROC_NULL, 0,
                                comm, MPI_STATUS_IGNORE);
        fprintf(stderr, "returned %s\n",
                code == MPI_SUCCESS ? "success" : "an error, as it should");
    }
    MPI_Finalize();
    return 0;
}
