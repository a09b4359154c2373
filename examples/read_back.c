/* read_back: each rank writes a file of its own, asks for its size and reads it back.
 *
 * So it does in each step, and removes the file first in every third one. No rank touches the file
 * of another one. What is not as it was written is counted and said. */
#include "common.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBERS = 64 * 1024 };

static int me, written[NUMBERS], back[NUMBERS];

/* Says what is wrong; returns 1. */
static int wrong(long step, const char *what) {
    printf("rank %d step %ld: %s: %s\n", me, step, what, strerror(errno));
    return 1;
}

static int write_anew(const char *name, long step) {
    if (step % 3 == 0) unlink(name);
    for (int i = 0; i < NUMBERS; i++) written[i] = (int)step * 7919 + me + i;
    int file = open(name, O_CREAT | O_RDWR, 0600);
    if (file < 0) return wrong(step, "open");
    int bad = write(file, written, sizeof written) != sizeof written ? wrong(step, "write") : 0;
    close(file);
    return bad;
}

static int read_again(const char *name, long step) {
    struct stat about;
    if (stat(name, &about) != 0) return wrong(step, "stat");
    if (about.st_size != sizeof written) return wrong(step, "another size");
    int file = open(name, O_RDONLY);
    if (file < 0) return wrong(step, "open to read");
    int same =
        read(file, back, sizeof back) == sizeof back && memcmp(back, written, sizeof written) == 0;
    close(file);
    return same ? 0 : wrong(step, "other content");
}

int main(int argc, char **argv) {
    long steps = 200, rest_ms = 10, bad = 0, all;
    char name[64];
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"rest-ms", "milliseconds of rest in each step", .number = &rest_ms},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "A file of each rank, written and read back.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    snprintf(name, sizeof name, "own.%d", me);
    for (long step = 0; step < steps; step++) {
        bad += write_anew(name, step);
        MPI_Barrier(MPI_COMM_WORLD);
        bad += read_again(name, step);
        fflush(stdout);
        usleep((useconds_t)rest_ms * 1000);
    }
    MPI_Allreduce(&bad, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0) printf("%ld bad\n", all);
    MPI_Finalize();
    return all != 0;
}
