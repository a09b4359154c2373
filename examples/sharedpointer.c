/* sharedpointer: ranks write and read records by MPI-IO's shared file pointer.
 *
 * In each step every rank writes one record wherever the shared pointer stands
 * (MPI_File_write_shared), all write one in the order of their ranks (MPI_File_write_ordered), and
 * read them back, in their order or as they come. The order of one file is arbitrary. It is checked
 * at the end and removed: each record must be there once, and nothing else. */
#include "common.h"

enum { WORDS = 16 };

static int me, ranks;

/* The record of a rank in a step. */
static void fill(uint64_t *record, long step, int rank) {
    record[0] = ((uint64_t)step << 32) | (uint32_t)rank;
    for (int i = 1; i < WORDS; i++) record[i] = hash_word(record[i - 1], (uint64_t)i);
}

static MPI_File opened(const char *name) {
    MPI_File file;
    check_mpi(
        MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file),
        "open");
    return file;
}

/* Counts each record in `seen`; prints words that are no record. */
static void count(const uint64_t *record, long steps, int *seen) {
    uint64_t wanted[WORDS];
    long step = (long)(record[0] >> 32);
    uint32_t rank = (uint32_t)record[0];
    fill(wanted, step, (int)rank);
    if (memcmp(record, wanted, sizeof wanted) != 0 || step >= steps || rank >= (uint32_t)ranks)
        printf("no record: %016llx\n", (unsigned long long)record[0]);
    else
        seen[step * ranks + rank]++;
}

/* Prints the records that are not there exactly once. */
static void judge(const char *what, const int *seen, long steps) {
    for (long i = 0; i < steps * ranks; i++)
        if (seen[i] != 1)
            printf("%s: step %ld of rank %ld: %d times\n", what, i / ranks, i % ranks, seen[i]);
}

int main(int argc, char **argv) {
    long steps = 200, spin = 300000;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Records by MPI-IO's shared file pointers.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t record[WORDS], state = (uint64_t)me;
    int *seen = allocate((size_t)(steps * ranks), sizeof *seen);
    int *all = allocate((size_t)(steps * ranks), sizeof *all);
    MPI_File chance = opened("chance"), order = opened("order");

    for (long step = 0; step < steps; step++) {
        take_time(state, spin + (long)(random_word(state, (uint64_t)step) % (uint64_t)spin));
        fill(record, step, me);
        check_mpi(MPI_File_write_shared(chance, record, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE),
                  "write");
        if (step % 4 == 0)
            check_mpi(MPI_File_write_ordered(order, record, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE),
                      "write in order");
        if (step % 8 == 0) state = hash_word(state, word_from_left(record[1], me, ranks));
    }

    check_mpi(MPI_File_sync(chance), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    check_mpi(MPI_File_seek_shared(chance, 0, MPI_SEEK_SET), "seek");
    memset(seen, 0, (size_t)(steps * ranks) * sizeof *seen);
    for (long step = 0; step < steps; step++) {
        take_time(state, spin / 4);
        check_mpi(MPI_File_read_shared(chance, record, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE),
                  "read");
        count(record, steps, seen);
    }
    MPI_Reduce(seen, all, (int)(steps * ranks), MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0) judge("read", all, steps);

    check_mpi(MPI_File_seek_shared(order, 0, MPI_SEEK_SET), "seek");
    for (long step = 0; step < steps; step += 4) {
        uint64_t wanted[WORDS];
        check_mpi(MPI_File_read_ordered(order, record, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE),
                  "read in order");
        fill(wanted, step, me);
        if (memcmp(record, wanted, sizeof wanted) != 0)
            printf("step %ld of rank %d: another record in order\n", step, me);
    }

    MPI_Offset size;
    check_mpi(MPI_File_get_size(chance, &size), "size");
    if (me == 0) {
        memset(seen, 0, (size_t)(steps * ranks) * sizeof *seen);
        for (MPI_Offset at = 0; at < size; at += (MPI_Offset)sizeof record) {
            check_mpi(MPI_File_read_at(chance, at, record, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE),
                      "read at the end");
            count(record, steps, seen);
        }
        judge("written", seen, steps);
        printf("%ld steps, %lld bytes\n", steps, (long long)size);
    }
    check_mpi(MPI_File_close(&order), "close");
    check_mpi(MPI_File_close(&chance), "close");
    if (me == 0) check_mpi(MPI_File_delete("chance", MPI_INFO_NULL), "delete");
    free(seen), free(all);
    MPI_Finalize();
    return 0;
}
