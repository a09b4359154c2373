/* rereads: ranks read files back that go on changing.
 *
 * In each step a rank writes its state anew and reads it back (stdio), looks at what its left
 * neighbour has written in the step before, adds a record to a file to which all ranks append,
 * reads the records of the step before, makes and removes files in a directory and lists it, and
 * writes every ranks-th word of a common file by a view of MPI-IO, which reads the words between
 * them and writes them back. All that is read goes into the messages of the ranks and into the
 * sum. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int me, ranks;

/* A file of one line that is written anew in each step. */
static uint64_t write_anew_and_read(long step, uint64_t state) {
    char name[64], line[96] = "";
    snprintf(name, sizeof name, "state.%d", me);
    FILE *file = fopen(name, "w");
    if (!file || fprintf(file, "%ld %016llx\n", step, (unsigned long long)state) < 0 ||
        fclose(file) != 0)
        die("%s: %s", name, strerror(errno));
    file = fopen(name, "r");
    if (!file || !fgets(line, sizeof line, file)) die("%s: %s", name, strerror(errno));
    fclose(file);
    char wanted[96];
    snprintf(wanted, sizeof wanted, "%ld %016llx\n", step, (unsigned long long)state);
    if (strcmp(line, wanted) != 0) die("%s has %s instead of %s", name, line, wanted);
    return hash_bytes(HASH_START, line, strlen(line));
}

/* Reads the records of all ranks of the step before, then adds one record of this rank. */
static uint64_t records(int file, long step, uint64_t state) {
    uint64_t hash = HASH_START, record[64];
    struct stat about;
    for (int rank = 0; step > 0 && rank < ranks; rank++) {
        off_t at = (off_t)((step - 1) * ranks + rank) * (off_t)sizeof record;
        if (pread(file, record, sizeof record, at) != sizeof record)
            die("records: step %ld of rank %d is not there", step - 1, rank);
        hash = hash_bytes(hash, record, sizeof record);
    }
    if (fstat(file, &about) != 0) die("records: %s", strerror(errno));
    if (about.st_size < (off_t)(step * ranks) * (off_t)sizeof record)
        die("records: %ld bytes in step %ld", (long)about.st_size, step);
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < 64; i++) record[i] = random_word(state, i);
    off_t at = (off_t)(step * ranks + me) * (off_t)sizeof record;
    if (pwrite(file, record, sizeof record, at) != sizeof record)
        die("records: %s", strerror(errno));
    return hash;
}

static int in_order(const void *a, const void *b) {
    return strcmp(a, b);
}

/* A directory whose files come and go. */
static uint64_t list(long step) {
    char directory[64], name[96] = "", names[64][32];
    size_t count = 0;
    uint64_t hash = HASH_START;
    snprintf(directory, sizeof directory, "parts.%d", me);
    if (step == 0 && mkdir(directory, 0755) != 0) die("%s: %s", directory, strerror(errno));
    snprintf(name, sizeof name, "%s/%ld", directory, step);
    int file = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (file < 0 || write(file, name, (size_t)(step % 50)) != step % 50 || close(file) != 0)
        die("%s: %s", name, strerror(errno));
    if (step >= 8) {
        snprintf(name, sizeof name, "%s/%ld", directory, step - 8);
        if (unlink(name) != 0) die("unlink %s: %s", name, strerror(errno));
        if (access(name, F_OK) == 0) die("%s is still there", name);
    }
    DIR *open_directory = opendir(directory);
    struct dirent *entry;
    if (!open_directory) die("%s: %s", directory, strerror(errno));
    while ((entry = readdir(open_directory)) && count < 64)
        if (entry->d_name[0] != '.') snprintf(names[count++], 32, "%.31s", entry->d_name);
    closedir(open_directory);
    if ((long)count != (step < 8 ? step + 1 : 8)) die("%s has %zu files", directory, count);
    qsort(names, count, sizeof names[0], in_order);
    for (size_t i = 0; i < count; i++) {
        struct stat about;
        snprintf(name, sizeof name, "%s/%.31s", directory, names[i]);
        if (stat(name, &about) != 0) die("stat %s: %s", name, strerror(errno));
        hash = hash_word(hash_bytes(hash, names[i], strlen(names[i])), (uint64_t)about.st_size);
    }
    return hash;
}

/* Writes every ranks-th word of a part of a common file, by a view. */
static void between(MPI_File file, MPI_Datatype view, long words, long step, uint64_t state) {
    uint64_t own[64];
    MPI_Offset at = (MPI_Offset)(step % 20) * words * ranks * 8 + me * 8;
    for (long i = 0; i < words; i++) own[i] = random_word(state, (uint64_t)i);
    check_mpi(MPI_File_set_view(file, at, MPI_UINT64_T, view, "native", MPI_INFO_NULL), "view");
    check_mpi(MPI_File_write(file, own, (int)words, MPI_UINT64_T, MPI_STATUS_IGNORE), "write");
}

int main(int argc, char **argv) {
    long steps = 150, spin = 500000, words = 64;
    uint64_t state, sum, hash = HASH_START;
    MPI_File common;
    MPI_Info hints;
    MPI_Datatype strided, view;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Files that are read back while they go on changing.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state = (uint64_t)me;
    int file = open("records", O_CREAT | O_RDWR, 0644);
    if (file < 0) die("records: %s", strerror(errno));
    MPI_Info_create(&hints);
    MPI_Info_set(hints, "romio_ds_write", "enable");
    check_mpi(
        MPI_File_open(MPI_COMM_WORLD, "between", MPI_MODE_CREATE | MPI_MODE_RDWR, hints, &common),
        "open");
    MPI_Info_free(&hints);
    MPI_Type_vector((int)words, 1, ranks, MPI_UINT64_T, &strided);
    MPI_Type_create_resized(strided, 0, words * ranks * 8, &view);
    MPI_Type_commit(&view);
    for (long step = 0; step < steps; step++) {
        take_time(state, spin);
        state = hash_word(state, write_anew_and_read(step, state));
        state = hash_word(state, records(file, step, state));
        state = hash_word(state, list(step));
        between(common, view, words, step, state);
        state = hash_word(state, word_from_left(state, me, ranks));
    }
    check_mpi(MPI_File_close(&common), "close");
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        int whole = open("between", O_RDONLY);
        unsigned char bytes[4096];
        for (ssize_t n; (n = read(whole, bytes, sizeof bytes)) > 0;)
            hash = hash_bytes(hash, bytes, (size_t)n);
        close(whole);
    }
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("%ld steps: sum %016llx, between %016llx\n", steps, (unsigned long long)sum,
               (unsigned long long)hash);
    MPI_Type_free(&strided), MPI_Type_free(&view);
    close(file);
    MPI_Finalize();
    return 0;
}
