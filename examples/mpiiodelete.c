/* mpiiodelete: files that all ranks write together by MPI-IO and delete when they have read them.
 *
 * In each step all ranks create a file, write their blocks and read them back. Every fourth file
 * stays, after MPI_File_set_size has made it one block larger; the others are deleted. */
#include "common.h"

static int me, ranks;

int main(int argc, char **argv) {
    long steps = 150, words = 512, spin = 500000;
    uint64_t state, sum;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"words", "words in the block of a rank", .number = &words},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Files of MPI-IO that are made, written, read and deleted.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state = (uint64_t)me;
    uint64_t *block = allocate((size_t)words, 8), *back = allocate((size_t)words, 8);
    for (long step = 0; step < steps; step++) {
        char name[64];
        MPI_File file;
        MPI_Offset at = (MPI_Offset)me * words * 8;
        snprintf(name, sizeof name, "part.%ld", step);
        take_time(state, spin);
        check_mpi(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR,
                                MPI_INFO_NULL, &file),
                  "open");
        if (step % 4 == 0)
            check_mpi(MPI_File_set_size(file, (MPI_Offset)(ranks + 1) * words * 8), "set size");
        for (long i = 0; i < words; i++) block[i] = random_word(state, (uint64_t)i);
        check_mpi(MPI_File_write_at(file, at, block, (int)words, MPI_UINT64_T, MPI_STATUS_IGNORE),
                  "write");
        check_mpi(MPI_File_read_at(file, at, back, (int)words, MPI_UINT64_T, MPI_STATUS_IGNORE),
                  "read");
        if (memcmp(block, back, (size_t)words * 8) != 0)
            die("step %ld: read back something else than was written", step);
        check_mpi(MPI_File_close(&file), "close");
        state = hash_word(state, word_from_left(block[words - 1], me, ranks));
        if (step % 4 != 0 && me == 0) check_mpi(MPI_File_delete(name, MPI_INFO_NULL), "delete");
    }
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0) printf("%ld steps: sum %016llx\n", steps, (unsigned long long)sum);
    free(block), free(back);
    MPI_Finalize();
    return 0;
}
