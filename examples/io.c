/* io: regular files that are written and read in the ways that programs use, one step of each
 * between messages.
 *
 * In directory --dir each rank has four files: R.seq written by write() one record after another,
 * R.append opened with O_APPEND and reopened now and then, R.random written with pwrite() at
 * scattered offsets and read back, R.text through stdio and its buffer. All ranks share shared.bin,
 * where each writes its own records with pwrite(): other ranks make the file grow, so restoring one
 * rank must not truncate it. Rank 0 also reads input.bin, which it made before. After a failure
 * every file must end byte for byte as in an undisturbed run started in an empty directory; the
 * hashes printed at the end come from reading them back. */
#include "common.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

struct files {
    int rank, ranks;
    const char *dir;
    long record; /* bytes */
    int sequential, append, scattered, shared, input;
    FILE *text;
    unsigned char *buffer, *check;
};

static void path_of(const struct files *f, const char *name, char *path, size_t size) {
    if (snprintf(path, size, "%s/%s", f->dir, name) >= (int)size)
        die("--dir %s is too long", f->dir);
}

static int open_file(const struct files *f, const char *suffix, int flags) {
    char name[64], path[4096];
    if (suffix[0] == '.')
        snprintf(name, sizeof name, "%d%s", f->rank, suffix);
    else
        snprintf(name, sizeof name, "%s", suffix);
    path_of(f, name, path, sizeof path);
    int file = open(path, flags, 0644);
    if (file < 0) die("cannot open %s: %s", path, strerror(errno));
    return file;
}

/* write() or pwrite() of the whole record (at < 0: at the file's offset). */
static void put_record(const struct files *f, int file, off_t at) {
    for (long done = 0; done < f->record;) {
        ssize_t n = at < 0 ? write(file, f->buffer + done, (size_t)(f->record - done))
                           : pwrite(file, f->buffer + done, (size_t)(f->record - done), at + done);
        if (n < 0 && errno != EINTR) die("cannot write: %s", strerror(errno));
        done += n > 0 ? n : 0;
    }
}

static void get_record(const struct files *f, int file, off_t at) {
    for (long done = 0; done < f->record;) {
        ssize_t n = at < 0 ? read(file, f->check + done, (size_t)(f->record - done))
                           : pread(file, f->check + done, (size_t)(f->record - done), at + done);
        if (n == 0 || (n < 0 && errno != EINTR))
            die("cannot read: %s", n == 0 ? "the file ends too early" : strerror(errno));
        done += n > 0 ? n : 0;
    }
}

static void fill(struct files *f, uint64_t what) {
    for (long i = 0; i < f->record; i += 8) {
        uint64_t word = random_word(what, (uint64_t)i);
        memcpy(f->buffer + i, &word, 8);
    }
}

static void open_all(struct files *f, long steps) {
    char path[4096];
    struct stat about;
    if (mkdir(f->dir, 0755) != 0 && errno != EEXIST)
        die("cannot make %s: %s", f->dir, strerror(errno));
    MPI_Barrier(MPI_COMM_WORLD);
    f->sequential = open_file(f, ".seq", O_CREAT | O_TRUNC | O_RDWR);
    f->append = open_file(f, ".append", O_CREAT | O_TRUNC | O_WRONLY | O_APPEND);
    f->scattered = open_file(f, ".random", O_CREAT | O_TRUNC | O_RDWR);
    f->shared = open_file(f, "shared.bin", O_CREAT | O_RDWR);
    /* Not truncated: rank 0 run again from its start would destroy what the others have written. */
    if (f->rank == 0 &&
        (fstat(f->shared, &about) != 0 || about.st_size > (off_t)steps * f->ranks * f->record))
        die("%s/shared.bin is larger than this run would make it: start with an empty directory",
            f->dir);
    snprintf(path, sizeof path, "%s/%d.text", f->dir, f->rank);
    if (!(f->text = fopen(path, "w"))) die("cannot open %s: %s", path, strerror(errno));
    if (f->rank == 0) {
        int made = open_file(f, "input.bin", O_CREAT | O_TRUNC | O_WRONLY);
        for (long step = 0; step < steps; step++) {
            fill(f, (uint64_t)step);
            put_record(f, made, -1);
        }
        if (close(made) != 0) die("cannot write input.bin: %s", strerror(errno));
        f->input = open_file(f, "input.bin", O_RDONLY);
    }
}

static void step_files(struct files *f, long step, long steps, uint64_t token) {
    fill(f, token);
    put_record(f, f->sequential, -1);
    if (step % 10 == 9) { /* look back at an earlier record, and return to the end */
        get_record(f, f->sequential, (off_t)(step / 2) * f->record);
        lseek(f->sequential, 0, SEEK_SET);
        get_record(f, f->sequential, -1);
        lseek(f->sequential, 0, SEEK_END);
    }
    put_record(f, f->append, -1);
    if (step % 7 == 6) {
        if (close(f->append) != 0) die("cannot close the append file: %s", strerror(errno));
        f->append = open_file(f, ".append", O_WRONLY | O_APPEND);
    }
    /* Visits every place of the file once, in an order that jumps. 97 is prime, and the number of
     * steps is rarely a multiple of it. */
    off_t place = (off_t)(step * 97 % steps) * f->record;
    put_record(f, f->scattered, place);
    get_record(f, f->scattered, place);
    if (memcmp(f->buffer, f->check, (size_t)f->record) != 0)
        die("step %ld: read back something else than was written", step);
    put_record(f, f->shared, (off_t)(step * f->ranks + f->rank) * f->record);
    if (fprintf(f->text, "step %ld token %016llx\n", step, (unsigned long long)token) < 0)
        die("cannot write text: %s", strerror(errno));
}

static uint64_t hash_file(const struct files *f, int file) {
    uint64_t hash = HASH_START;
    struct stat about;
    if (fstat(file, &about) != 0) die("cannot stat: %s", strerror(errno));
    for (off_t at = 0; at + f->record <= about.st_size; at += f->record) {
        get_record(f, file, at);
        hash = hash_bytes(hash, f->check, (size_t)f->record);
    }
    return hash_word(hash, (uint64_t)about.st_size);
}

static void close_all(struct files *f) {
    if (close(f->sequential) != 0 || close(f->append) != 0 || close(f->scattered) != 0 ||
        close(f->shared) != 0 || fclose(f->text) != 0)
        die("cannot close a file: %s", strerror(errno));
}

int main(int argc, char **argv) {
    struct files f = {.dir = "io-files", .record = 4096, .input = -1};
    long steps = 500, spin = 200000;
    const struct option options[] = {
        {"dir", "directory for the files", .text = &f.dir},
        {"record", "bytes written to each file in a step, a multiple of 8", .number = &f.record},
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic between steps, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Writes and reads regular files in every way between messages.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &f.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &f.ranks);
    if (f.record < 8 || f.record % 8 || steps < 1)
        die("--record must be a multiple of 8, --steps 1 or more");
    f.buffer = allocate((size_t)f.record, 1);
    f.check = allocate((size_t)f.record, 1);
    open_all(&f, steps);
    uint64_t token = (uint64_t)f.rank, hashes[3], *all = allocate(3 * (size_t)f.ranks, sizeof *all);
    for (long step = 0; step < steps; step++) {
        /* rank 0 sends what it reads round the ring, so a wrongly restored offset is noticed */
        if (f.rank == 0) {
            get_record(&f, f.input, -1);
            token = hash_bytes(token, f.check, (size_t)f.record);
        }
        for (long i = 0; i < spin; i++)
            token = token * 6364136223846793005ULL + 1442695040888963407ULL;
        MPI_Sendrecv_replace(&token, 1, MPI_UINT64_T, (f.rank + 1) % f.ranks, 0,
                             (f.rank + f.ranks - 1) % f.ranks, 0, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
        step_files(&f, step, steps, token);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    hashes[0] = hash_file(&f, f.sequential);
    hashes[1] = hash_file(&f, f.scattered);
    hashes[2] = hash_file(&f, f.shared);
    MPI_Gather(hashes, 3, MPI_UINT64_T, all, 3, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    for (int r = 0; f.rank == 0 && r < f.ranks; r++)
        printf("rank %d seq %016llx random %016llx shared %016llx\n", r,
               (unsigned long long)all[3 * r], (unsigned long long)all[3 * r + 1],
               (unsigned long long)all[3 * r + 2]);
    close_all(&f);
    free(f.buffer), free(f.check), free(all);
    MPI_Finalize();
    return 0;
}
