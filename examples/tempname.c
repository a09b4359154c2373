/* tempname: results that are written under another name and renamed when they are whole.
 *
 * In each step a rank writes a part of its state to a file that no other rank uses (by mkstemp(),
 * by a name of its own, by stdio), closes it and renames it over the result of the step before; or
 * links it there and removes the other name. It must read back what it has written. Now and then it
 * removes a result that is not needed any more, and a directory with it. Each step's sum goes round
 * the ranks, so that a failed call or a wrong file is noticed. */
#include "common.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int me, ranks;

static void write_words(int file, const uint64_t *words, size_t n) {
    if (write(file, words, n * sizeof *words) != (ssize_t)(n * sizeof *words))
        die("cannot write: %s", strerror(errno));
}

static uint64_t hash_of(int file, size_t n) {
    uint64_t words[64];
    if (n > 64 || pread(file, words, n * sizeof *words, 0) != (ssize_t)(n * sizeof *words))
        die("cannot read: %s", strerror(errno));
    return hash_bytes(HASH_START, words, n * sizeof *words);
}

/* By a temporary name of the C library. */
static void by_mkstemp(const char *result, const uint64_t *words, size_t n) {
    char name[64];
    snprintf(name, sizeof name, "result%d.XXXXXX", me);
    int file = mkstemp(name);
    if (file < 0) die("mkstemp: %s", strerror(errno));
    write_words(file, words, n);
    close(file);
    if (chmod(name, 0644) != 0) die("chmod %s: %s", name, strerror(errno));
    if (rename(name, result) != 0) die("rename %s: %s", name, strerror(errno));
}

/* By a name of its own, which must not be there; it is read back before it is renamed. */
static void by_own_name(const char *result, const uint64_t *words, size_t n) {
    char name[64];
    snprintf(name, sizeof name, "result%d.new", me);
    int file = open(name, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (file < 0) die("%s: %s", name, strerror(errno));
    write_words(file, words, n);
    if (hash_of(file, n) != hash_bytes(HASH_START, words, n * sizeof *words))
        die("%s: read back something else than was written", name);
    close(file);
    if (rename(name, result) != 0) die("rename %s: %s", name, strerror(errno));
}

/* By stdio, and by two names for one file. */
static void by_link(const char *result, const uint64_t *words, size_t n) {
    char name[64];
    snprintf(name, sizeof name, "result%d.part", me);
    FILE *file = fopen(name, "w");
    if (!file || fwrite(words, sizeof *words, n, file) != n || fclose(file) != 0)
        die("cannot write %s: %s", name, strerror(errno));
    if (unlink(result) != 0) die("unlink %s: %s", result, strerror(errno));
    if (link(name, result) != 0) die("link %s: %s", name, strerror(errno));
    if (unlink(name) != 0) die("unlink %s: %s", name, strerror(errno));
}

/* Makes a directory with a file, and removes those that were made 30 steps before. */
static void old_results(long step) {
    char directory[64], name[96];
    snprintf(directory, sizeof directory, "old%d.%ld", me, step);
    if (mkdir(directory, 0755) != 0) die("mkdir %s: %s", directory, strerror(errno));
    snprintf(name, sizeof name, "%s/result", directory);
    FILE *file = fopen(name, "w");
    if (!file || fprintf(file, "%ld\n", step) < 0 || fclose(file) != 0)
        die("cannot write %s: %s", name, strerror(errno));
    if (step < 30) return;
    snprintf(directory, sizeof directory, "old%d.%ld", me, step - 30);
    snprintf(name, sizeof name, "%s/result", directory);
    if (remove(name) != 0) die("remove %s: %s", name, strerror(errno));
    if (rmdir(directory) != 0) die("rmdir %s: %s", directory, strerror(errno));
}

int main(int argc, char **argv) {
    long steps = 1000, spin = 100000;
    uint64_t state, sum = 0, words[64];
    char result[64];
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Results that get their names when they are whole.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state = (uint64_t)me;
    snprintf(result, sizeof result, "result%d", me);
    for (long step = 0; step < steps; step++) {
        size_t n = 8 + (size_t)(random_word(1, (uint64_t)step) % 56);
        for (size_t i = 0; i < n; i++) words[i] = random_word(state, i);
        if (step % 3 == 0)
            by_mkstemp(result, words, n);
        else if (step % 3 == 1)
            by_own_name(result, words, n);
        else
            by_link(result, words, n);
        if (step % 10 == 0) old_results(step);
        take_time(state, spin);
        uint64_t out = hash_word(state, words[n - 1]);
        state = hash_word(state, word_from_left(out, me, ranks));
    }
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0) printf("%ld steps: sum %016llx\n", steps, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
