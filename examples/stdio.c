/* stdio: standard input, output and error, and the exit code.
 *
 * Rank 0 reads standard input to its end and echoes each line with its number; every rank then
 * prints --lines lines to standard output and to standard error, taking turns, so that each line is
 * whole and a rank's lines stay in order (between ranks a launcher that reads from several pipes
 * may mix them); at the end one rank may leave with an exit code. After a failure each line must be
 * there once. */
#include "common.h"
#include <unistd.h>

static void echo_input(long pause_us) {
    char *line = NULL;
    size_t room = 0;
    uint64_t number = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) >= 0;) {
        printf("%llu: %s%s", (unsigned long long)++number, line,
               length > 0 && line[length - 1] == '\n' ? "" : "\n");
        fflush(stdout);
        if (pause_us > 0) usleep((useconds_t)pause_us);
    }
    free(line);
}

int main(int argc, char **argv) {
    long lines = 3, code = 0, code_rank = 0, read_input = 1, pause_us = 0;
    const struct option options[] = {
        {"lines", "lines each rank prints to standard output and standard error", .number = &lines},
        {"read", "0: rank 0 leaves standard input alone", .number = &read_input},
        {"pause-us", "microseconds to rest after each line", .number = &pause_us},
        {"exit-code", "leave with this exit code", .number = &code},
        {"exit-rank", "which rank does; -1: all", .number = &code_rank},
        {0},
    };
    int rank, ranks;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Standard streams of ranks and the exit code.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0 && read_input) echo_input(pause_us);
    for (long line = 1; line <= lines; line++)
        for (int turn = 0; turn < ranks; turn++) {
            if (rank == turn) {
                printf("rank %d line %ld\n", rank, line);
                fflush(stdout);
                fprintf(stderr, "rank %d error line %ld\n", rank, line);
                if (pause_us > 0) usleep((useconds_t)pause_us);
            }
            MPI_Barrier(MPI_COMM_WORLD);
        }
    MPI_Finalize();
    return code_rank < 0 || rank == code_rank ? (int)code : 0;
}
