/* directories: directories under the same names again and again, made, renamed and removed.
 *
 * In each step a rank makes a directory with another one in it, renames both, looks what is there,
 * and removes all but one of ten; its right neighbour finds that one, and removes it in the next
 * step. A directory that is there already, or not any more, ends the job. */
#include "common.h"
#include <sys/stat.h>
#include <unistd.h>

static int me, ranks;

static void make(const char *name) {
    if (mkdir(name, 0755) != 0) die("mkdir %s: %s", name, strerror(errno));
}

static void move(const char *from, const char *to) {
    if (rename(from, to) != 0) die("rename %s to %s: %s", from, to, strerror(errno));
}

static void gone(const char *name) {
    if (rmdir(name) != 0) die("rmdir %s: %s", name, strerror(errno));
}

static void is_there(const char *name, int wanted) {
    struct stat about;
    int there = stat(name, &about) == 0 && S_ISDIR(about.st_mode);
    if (there != wanted) die("%s is %sthere", name, there ? "" : "not ");
}

/* Makes them; the last one stays under its name. */
static void make_some(long step, const char *stays) {
    char work[64], inner[96], other[64], moved[96];
    snprintf(work, sizeof work, "work.%d", me);
    snprintf(inner, sizeof inner, "work.%d/inner", me);
    snprintf(other, sizeof other, "other.%d", me);
    snprintf(moved, sizeof moved, "other.%d/moved", me);
    make(work);
    make(inner);
    move(work, other);
    is_there(work, 0);
    snprintf(inner, sizeof inner, "other.%d/inner", me);
    move(inner, moved);
    is_there(moved, 1);
    gone(moved);
    if (step % 10 == 9)
        move(other, stays);
    else
        gone(other);
    is_there(other, 0);
}

int main(int argc, char **argv) {
    long steps = 200, rest_ms = 5;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"rest-ms", "milliseconds of rest in each step", .number = &rest_ms},
        {0},
    };
    char stays[64], left[64];
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Directories that come and go.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t state = random_word((uint64_t)me, 0), sum;
    snprintf(stays, sizeof stays, "stays.%d", me);
    snprintf(left, sizeof left, "stays.%d", (me + ranks - 1) % ranks);
    for (long step = 0; step < steps; step++) {
        make_some(step, stays);
        state = hash_word(state, word_from_left(state + (uint64_t)step, me, ranks));
        if (step % 10 == 9) {
            is_there(left, 1);
            gone(left);
            MPI_Barrier(MPI_COMM_WORLD);
            is_there(stays, 0);
        }
        usleep((useconds_t)rest_ms * 1000);
    }
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0) printf("%ld steps: sum %016llx\n", steps, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
