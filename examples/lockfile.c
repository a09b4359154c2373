/* lockfile: ranks take turns by lock files, which only one of them can make.
 *
 * In each step a rank tries to take a lock: a file that is made with O_EXCL, or a directory. The
 * rank that has it writes its number into the lock and reads it back. It adds an entry to a book
 * that only the holder of the lock writes (under a new name each time, renamed over the old one),
 * and releases the lock. A rank that finds the lock taken tries again, any number of times. In the
 * end each rank has had each lock as often as any other. If two had one at the same time, the books
 * would have fewer entries. */
#include "common.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

static int me, ranks;

static void take_file(const char *name) {
    int file;
    while ((file = open(name, O_CREAT | O_EXCL | O_RDWR, 0644)) < 0) {
        if (errno != EEXIST) die("%s: %s", name, strerror(errno));
        sched_yield();
    }
    int owner = me, found = -1;
    if (write(file, &owner, sizeof owner) != sizeof owner) die("%s: %s", name, strerror(errno));
    if (pread(file, &found, sizeof found, 0) != sizeof found || found != me)
        die("%s is locked by %d", name, found);
    close(file);
}

static void take_directory(const char *name) {
    while (mkdir(name, 0755) != 0) {
        if (errno != EEXIST) die("%s: %s", name, strerror(errno));
        sched_yield();
    }
}

/* The number of entries in a book. */
static long entries_of(const char *book) {
    long entries = 0;
    FILE *file = fopen(book, "r");
    if (file) {
        if (fscanf(file, "%ld", &entries) != 1) die("%s cannot be read", book);
        fclose(file);
    }
    return entries;
}

/* Adds an entry; the caller has the lock. Two ranks that did this at the same time would lose
 * one. */
static void enter(const char *book) {
    char next[64];
    long entries = entries_of(book);
    FILE *file;
    snprintf(next, sizeof next, "%s.%d", book, me);
    file = fopen(next, "w");
    if (!file || fprintf(file, "%ld\n", entries + 1) < 0 || fclose(file) != 0)
        die("%s: %s", next, strerror(errno));
    if (rename(next, book) != 0) die("rename %s: %s", next, strerror(errno));
}

int main(int argc, char **argv) {
    long steps = 400, spin = 200000;
    uint64_t state, sum;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Locks that are files.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state = (uint64_t)me;
    for (long step = 0; step < steps; step++) {
        take_time(state, spin);
        if (step % 2 == 0) {
            take_file("lock");
            enter("book");
            if (unlink("lock") != 0) die("unlink lock: %s", strerror(errno));
        } else {
            take_directory("lock.d");
            enter("book.d");
            if (rmdir("lock.d") != 0) die("rmdir lock.d: %s", strerror(errno));
        }
        state = hash_word(state, word_from_left(state, me, ranks));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("%ld steps: %ld and %ld entries, sum %016llx\n", steps, entries_of("book"),
               entries_of("book.d"), (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
