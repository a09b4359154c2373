/* rotate: each rank rotates its log when it is full.
 *
 * A rank appends a line to its log in each step, through stdio or write(), with the log kept open
 * or opened for each line. When the log has --lines lines, it becomes NAME.1, what was NAME.1
 * becomes NAME.2 and so on; the oldest is removed. No line may be lost or repeated. */
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

enum { KEPT = 4 };

static int me, ranks;

static void turn_over(const char *log) {
    char from[64], to[64];
    snprintf(to, sizeof to, "%s.%d", log, KEPT);
    if (unlink(to) != 0 && errno != ENOENT) die("unlink %s: %s", to, strerror(errno));
    for (int n = KEPT - 1; n >= 0; n--) {
        if (n > 0)
            snprintf(from, sizeof from, "%s.%d", log, n);
        else
            snprintf(from, sizeof from, "%s", log);
        snprintf(to, sizeof to, "%s.%d", log, n + 1);
        if (rename(from, to) != 0 && errno != ENOENT) die("rename %s: %s", from, strerror(errno));
    }
}

/* Opens the log, appends a line and closes it. */
static void append_line(const char *log, long step, uint64_t state) {
    char line[96];
    int n = snprintf(line, sizeof line, "rank %d step %ld %016llx\n", me, step,
                     (unsigned long long)state);
    int file = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0 || write(file, line, (size_t)n) != n || close(file) != 0)
        die("%s: %s", log, strerror(errno));
}

int main(int argc, char **argv) {
    long steps = 2000, lines = 60, spin = 50000;
    uint64_t state, sum;
    char open_log[64], other_log[64];
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"lines", "lines of a log", .number = &lines},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Logs that are turned over.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state = (uint64_t)me;
    snprintf(open_log, sizeof open_log, "open%d.log", me);
    snprintf(other_log, sizeof other_log, "other%d.log", me);
    FILE *log = fopen(open_log, "a");
    for (long step = 0; step < steps; step++) {
        if (!log || fprintf(log, "step %ld %016llx\n", step, (unsigned long long)state) < 0)
            die("%s: %s", open_log, strerror(errno));
        if (step % 3 == 0) fflush(log);
        append_line(other_log, step, state);
        if (step % lines == lines - 1) {
            if (fclose(log) != 0) die("%s: %s", open_log, strerror(errno));
            turn_over(open_log);
            log = fopen(open_log, "a");
        }
        if (step % lines == lines / 2) turn_over(other_log);
        take_time(state, spin);
        state = hash_word(state, word_from_left(state, me, ranks));
    }
    if (fclose(log) != 0) die("%s: %s", open_log, strerror(errno));
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0) printf("%ld steps: sum %016llx\n", steps, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
