/* file_times: how long calls on files take, one rank, a line each: what, calls, seconds.
 *
 * Small files and a large one that were there before the job (--old, made by bench/files.py), the
 * same written by the rank itself, and read back. What it reads it does not compute with: it is a
 * measurement and no test. */
#include "common.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMALL 1024
#define FILES 1000

static const char *old = ".";
static long mebibytes = 512;
static char data[4 << 20];
static double since;

static void begin(void) {
    since = MPI_Wtime();
}

static void end(const char *what, long calls) {
    printf("%s: %ld in %.6f s\n", what, calls, MPI_Wtime() - since);
}

static int opened(const char *name, int flags) {
    int file = open(name, flags, 0644);
    if (file < 0) die("%s: %s", name, strerror(errno));
    return file;
}

/* Reads a small file, `prefix` and a number, `times` times, one after the other. */
static void read_small(const char *what, const char *prefix, long times) {
    char name[512];
    struct stat about;
    begin();
    for (long time = 0; time < times; time++) {
        snprintf(name, sizeof name, "%ssmall.%ld", prefix, time % FILES);
        int file = opened(name, O_RDONLY);
        if (read(file, data, SMALL) != SMALL || fstat(file, &about) != 0)
            die("%s: %s", name, strerror(errno));
        close(file);
    }
    end(what, times);
}

static void look_at_small(const char *what, const char *prefix, long times) {
    char name[512];
    struct stat about;
    begin();
    for (long time = 0; time < times; time++) {
        snprintf(name, sizeof name, "%ssmall.%ld", prefix, time % FILES);
        if (stat(name, &about) != 0) die("%s: %s", name, strerror(errno));
    }
    end(what, times);
}

static void write_small(const char *what, long times) {
    char name[512];
    begin();
    for (long time = 0; time < times; time++) {
        snprintf(name, sizeof name, "small.%ld", time % FILES);
        int file = opened(name, O_CREAT | O_TRUNC | O_WRONLY);
        if (write(file, data, SMALL) != SMALL) die("%s: %s", name, strerror(errno));
        close(file);
    }
    end(what, times);
}

static void remove_small(const char *what, int look) {
    char name[512];
    struct stat about;
    begin();
    for (long number = 0; number < FILES; number++) {
        snprintf(name, sizeof name, "small.%ld", number);
        if ((look && stat(name, &about) != 0) || unlink(name) != 0)
            die("%s: %s", name, strerror(errno));
    }
    end(what, FILES);
}

/* Reads, or writes, a large file from its start to its end in pieces. */
static void pass(const char *what, int file, size_t piece, int writes) {
    long pieces = mebibytes * (1 << 20) / (long)piece;
    if (lseek(file, 0, SEEK_SET) != 0) die("lseek: %s", strerror(errno));
    begin();
    for (long done = 0; done < pieces; done++) {
        ssize_t moved = writes ? write(file, data, piece) : read(file, data, piece);
        if (moved != (ssize_t)piece) die("%s: %s", what, strerror(errno));
    }
    end(what, pieces);
}

int main(int argc, char **argv) {
    char name[512];
    const struct option options[] = {
        {"old", "directory with small.0 to small.999 (1 KiB each) and large", .text = &old},
        {"mebibytes", "in the large file", .number = &mebibytes},
        {0}};
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Times of calls on files.", options);
    snprintf(name, sizeof name, "%s/", old);
    read_small("read old small files", name, 20000);
    look_at_small("stat of old small files", name, 50000);
    write_small("write small files", 5000);
    read_small("read own small files", "", 5000);
    look_at_small("stat of own small files", "", 5000);
    remove_small("remove own small files", 0);
    write_small("write small files again", FILES);
    remove_small("look at own small files and remove them", 1);

    snprintf(name, sizeof name, "%s/large", old);
    int file = opened(name, O_RDONLY);
    pass("(warm)", file, sizeof data, 0);
    pass("read in pieces of 64 KiB", file, 64 << 10, 0);
    pass("read in pieces of 4 MiB", file, sizeof data, 0);
    close(file);
    file = opened("large", O_CREAT | O_TRUNC | O_RDWR);
    pass("(first)", file, sizeof data, 1);
    pass("write in pieces of 64 KiB", file, 64 << 10, 1);
    pass("write in pieces of 4 MiB", file, sizeof data, 1);
    pass("read back in pieces of 64 KiB", file, 64 << 10, 0);
    pass("read back in pieces of 4 MiB", file, sizeof data, 0);
    close(file);
    unlink("large");
    MPI_Finalize();
    return 0;
}
