/* Shows what Open MPI does when a node's daemon (prted) is lost. Ranks loop in a barrier until it
 * fails, and print a line if they survive. The program does not use libeyrie-ulfm: any program on
 * this launcher has this limit. tests/ulfm/050 kills a daemon while it runs. */
#include <mpi.h>

#include <mpi-ext.h>
#include <stdio.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    fprintf(stderr, "running\n");
    while (MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS) continue;
    MPI_Comm left;
    int size;
    MPIX_Comm_shrink(MPI_COMM_WORLD, &left);
    MPI_Comm_size(left, &size);
    fprintf(stderr, "survived: %d are left\n", size);
    MPI_Finalize();
    return 0;
}
