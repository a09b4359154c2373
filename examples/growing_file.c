/* growing_file: one file to which each rank writes its records, each at its own place and once.
 *
 * All have it open at the same time, and it grows under their hands (PnetCDF; IOR's one file for
 * all ranks); or it has its whole size from the start (`--how sized`), or no header (`--how bare`).
 * Rank 0 counts in the end which bytes are missing. */
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

enum { HEADER = 8 };

/* How many bytes behind the header were never written. */
static long missing(const char *name) {
    int byte;
    long zeros = 0;
    FILE *file = fopen(name, "r");
    if (!file || fseek(file, HEADER, SEEK_SET) != 0) die("%s: %s", name, strerror(errno));
    while ((byte = getc(file)) != EOF) zeros += byte == 0;
    fclose(file);
    return zeros;
}

static int opened(const char *name, int flags) {
    int file = open(name, flags, 0644);
    if (file < 0) die("%s: %s", name, strerror(errno));
    return file;
}

int main(int argc, char **argv) {
    long steps = 80, size = 1000, rest_ms = 20;
    const char *how = "grow";
    const struct option options[] = {
        {"steps", "records of each rank", .number = &steps},
        {"size", "bytes of a record", .number = &size},
        {"rest-ms", "milliseconds of rest in each step", .number = &rest_ms},
        {"how", "grow, sized or bare", .text = &how},
        {0},
    };
    int me, ranks, file;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Records of all ranks in one file.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t state = random_word((uint64_t)me, 0), sum;
    char *record = allocate((size_t)size, 1);
    if (me == 0) {
        file = opened("records", O_CREAT | O_TRUNC | O_WRONLY);
        if (strcmp(how, "bare") != 0 && write(file, "header..", HEADER) != HEADER)
            die("records: %s", strerror(errno));
        if (strcmp(how, "sized") == 0 && ftruncate(file, HEADER + steps * ranks * size) != 0)
            die("records: %s", strerror(errno));
        close(file);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Rank 1 opens it before all others. */
    file = me == 1 ? opened("records", O_RDWR) : -1;
    MPI_Barrier(MPI_COMM_WORLD);
    if (me != 1) file = opened("records", O_RDWR);
    for (long step = 0; step < steps; step++) {
        long number = step * ranks + me;
        memset(record, (int)(1 + number % 250), (size_t)size);
        if (pwrite(file, record, (size_t)size, HEADER + number * size) != size)
            die("records: %s", strerror(errno));
        state = hash_word(state, word_from_left(state + (uint64_t)step, me, ranks));
        if (me == 0 && step % 20 == 0)
            printf("step %ld %016llx\n", step, (unsigned long long)state);
        usleep((useconds_t)rest_ms * 1000);
    }
    close(file);
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        printf("%ld bytes are missing, sum %016llx\n", missing("records"), (unsigned long long)sum);
    free(record);
    MPI_Finalize();
    return 0;
}
