/* One communication step in SimGrid's SMPI: every rank starts at simulated time 0, exchanges with
 * its neighbours (or reduces), and the latest end is printed in seconds. It measures nothing else.
 * */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

/* Reads "rank rank bytes messages" and posts this rank's part. */
static void exchange(const char *file, int rank) {
    MPI_Request request[2 * MOST];
    int requests = 0, from, to, count;
    long bytes;
    char line[256];
    FILE *matrix = fopen(file, "r");
    static char *buffer;
    if (!matrix) MPI_Abort(MPI_COMM_WORLD, 1);
    if (!buffer) buffer = SMPI_SHARED_MALLOC(64 << 20);
    for (int pass = 0; pass < 2; pass++) { /* receives first */
        rewind(matrix);
        while (fgets(line, sizeof line, matrix)) {
            if (sscanf(line, "%d %d %ld %d", &from, &to, &bytes, &count) != 4) continue;
            if (requests == 2 * MOST) MPI_Abort(MPI_COMM_WORLD, 2);
            if (pass == 0 && to == rank)
                MPI_Irecv(buffer, (int)bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD,
                          &request[requests++]);
            if (pass == 1 && from == rank)
                MPI_Isend(buffer, (int)bytes, MPI_BYTE, to, 0, MPI_COMM_WORLD,
                          &request[requests++]);
        }
    }
    fclose(matrix);
    MPI_Waitall(requests, request, MPI_STATUSES_IGNORE);
}

int main(int argc, char **argv) {
    int rank;
    double end, latest;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double start = MPI_Wtime();
    if (argc == 3 && !strcmp(argv[1], "stencil")) {
        exchange(argv[2], rank);
    } else if (argc == 3 && !strcmp(argv[1], "allreduce")) {
        int count = atoi(argv[2]);
        char *in = SMPI_SHARED_MALLOC(count), *out = SMPI_SHARED_MALLOC(count);
        MPI_Allreduce(in, out, count, MPI_CHAR, MPI_BOR, MPI_COMM_WORLD);
    } else {
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    end = MPI_Wtime() - start;
    MPI_Reduce(&end, &latest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("latest %.9e\n", latest);
    MPI_Finalize();
    return 0;
}
