/* appending: files that are opened again and again to append to them.
 *
 * One file gets a line of one rank after another: each opens it, appends and closes it when it gets
 * a message from the rank before. Another file stays open in all ranks, which append to it in turn.
 * Each rank has a log that it opens anew now and then, mostly to append and at times to write it
 * from its start, and a counter that it changes in place. In the end all of these must be as in an
 * undisturbed run. */
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

static int me, ranks;

static void put_line(int file, const char *what, long step, uint64_t state) {
    char line[96];
    int n = snprintf(line, sizeof line, "%s: rank %d step %ld %016llx\n", what, me, step,
                     (unsigned long long)state);
    if (write(file, line, (size_t)n) != n) die("%s: %s", what, strerror(errno));
}

static void in_turn(int kept, long step, uint64_t state) {
    char go = 0;
    if (me > 0) MPI_Recv(&go, 1, MPI_CHAR, me - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    int file = open("common", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0) die("common: %s", strerror(errno));
    put_line(file, "common", step, state);
    close(file);
    put_line(kept, "kept", step, state);
    if (me < ranks - 1) MPI_Send(&go, 1, MPI_CHAR, me + 1, 1, MPI_COMM_WORLD);
}

/* Counts in place; the file must still have the number that this rank wrote last. */
static void count(long step) {
    char name[64], digits[24];
    long found = 0;
    snprintf(name, sizeof name, "count%d", me);
    int file = open(name, step == 0 ? O_RDWR | O_CREAT | O_TRUNC : O_RDWR, 0644);
    if (file < 0) die("%s: %s", name, strerror(errno));
    ssize_t n = read(file, digits, sizeof digits - 1);
    if (n < 0) die("%s: %s", name, strerror(errno));
    digits[n] = '\0';
    if (n > 0) found = strtol(digits, NULL, 10);
    if (found != step / 5) die("%s is %ld, in step %ld", name, found, step);
    n = snprintf(digits, sizeof digits, "%ld\n", found + 1);
    if (pwrite(file, digits, (size_t)n, 0) != n) die("%s: %s", name, strerror(errno));
    close(file);
}

static FILE *open_log(FILE *log, const char *name, long step) {
    if (log && fclose(log) != 0) die("%s: %s", name, strerror(errno));
    log = fopen(name, step % 200 < 150 ? "a" : "w");
    if (!log) die("%s: %s", name, strerror(errno));
    return log;
}

int main(int argc, char **argv) {
    long steps = 1000, spin = 50000;
    uint64_t state, sum;
    char name[64];
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Files that are opened again to append to them.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state = (uint64_t)me;
    snprintf(name, sizeof name, "log%d", me);
    int kept = open("kept", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (kept < 0) die("kept: %s", strerror(errno));
    MPI_Barrier(MPI_COMM_WORLD);
    FILE *log = NULL;
    for (long step = 0; step < steps; step++) {
        if (step % 50 == 0) log = open_log(log, name, step);
        if (fprintf(log, "step %ld %016llx\n", step, (unsigned long long)state) < 0)
            die("%s: %s", name, strerror(errno));
        if (step % 5 == 0) {
            fflush(log);
            count(step);
        }
        if (step % 10 == 0) in_turn(kept, step, state);
        take_time(state, spin);
        state = hash_word(state, word_from_left(state, me, ranks));
        /* No rank goes on to the next step before all have appended in this one. */
        if (step % 10 == 0) MPI_Barrier(MPI_COMM_WORLD);
    }
    if (fclose(log) != 0 || close(kept) != 0) die("cannot close a file: %s", strerror(errno));
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0) printf("%ld steps: sum %016llx\n", steps, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
