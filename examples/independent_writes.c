/* independent_writes: a field that each rank writes its columns of, by a view and without hints.
 *
 * In each step every rank writes one block of columns by MPI_File_write: ROMIO reads what lies
 * between them, changes its own and writes all of it back, under a lock (data sieving). Each number
 * of the file is written once; rank 0 counts in the end which are missing. */
#include "common.h"
#include <unistd.h>

enum { SIDE = 32, BLOCK = SIDE * SIDE };

/* How many numbers of the file were never written. */
static long missing(const char *name) {
    int number;
    long zeros = 0;
    FILE *file = fopen(name, "r");
    if (!file) die("%s: %s", name, strerror(errno));
    while (fread(&number, sizeof number, 1, file) == 1) zeros += number == 0;
    fclose(file);
    return zeros;
}

int main(int argc, char **argv) {
    long steps = 60, rest_ms = 25, sized = 0;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"rest-ms", "milliseconds of rest in each step", .number = &rest_ms},
        {"sized", "1: the file has its whole size from the start", .number = &sized},
        {0},
    };
    int me, ranks, block[BLOCK];
    MPI_File file;
    MPI_Datatype view;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Columns of a field, written by a view.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t state = random_word((uint64_t)me, 0), sum;
    MPI_Offset field = (MPI_Offset)BLOCK * ranks * (MPI_Offset)sizeof(int);
    const int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    check_mpi(MPI_File_open(MPI_COMM_WORLD, "field", mode, MPI_INFO_NULL, &file), "open");
    if (sized) {
        check_mpi(MPI_File_set_size(file, steps * field), "size");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    const int whole[] = {SIDE, SIDE * ranks}, part[] = {SIDE, SIDE}, at[] = {0, SIDE * me};
    MPI_Type_create_subarray(2, whole, part, at, MPI_ORDER_C, MPI_INT, &view);
    MPI_Type_commit(&view);
    for (long step = 0; step < steps; step++) {
        for (int i = 0; i < BLOCK; i++) block[i] = (int)step * 100000 + me * 10000 + i + 1;
        check_mpi(MPI_File_set_view(file, step * field, MPI_INT, view, "native", MPI_INFO_NULL),
                  "view");
        check_mpi(MPI_File_write(file, block, BLOCK, MPI_INT, MPI_STATUS_IGNORE), "write");
        state = hash_word(state, word_from_left(state + (uint64_t)step, me, ranks));
        if (me == 0 && step % 20 == 0)
            printf("step %ld %016llx\n", step, (unsigned long long)state);
        usleep((useconds_t)rest_ms * 1000);
    }
    check_mpi(MPI_File_close(&file), "close");
    MPI_Type_free(&view);
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("%ld numbers are missing, sum %016llx\n", missing("field"), (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
