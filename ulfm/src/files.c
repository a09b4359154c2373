/* Copies in a directory that all processes can reach. A rank has a file of blocks, each with two
 * places, and for each of the last two versions a table that says which place counts and what its
 * checksum is. A new version writes changed blocks to the other place and then its table, which has
 * another name until it is whole. The version before is never changed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job.h"

struct table {
    uint64_t magic;
    int64_t nonce, version, file; /* `file`: the version with which the file of blocks was begun */
    int64_t blocks;
    uint64_t sum; /* of the places and checksums */
};
struct place {
    uint64_t sum;
    uint64_t second; /* 1: the second of the block's two places */
};
static const uint64_t MAGIC = 0x315f6d666c755f65; /* "e_ulfm_1" */

static void path_of(const eyrie_ulfm_job *job, char *path, size_t room, int rank, const char *what,
                    int64_t number) {
    snprintf(path, room, "%s/eyrie-%016llx-rank-%d.%s-%lld", job->copies.directory,
             (unsigned long long)job->nonce, rank, what, (long long)number);
}

static bool write_all(int fd, const void *bytes, size_t len, off_t at) {
    for (size_t done = 0; done < len;) {
        ssize_t wrote = pwrite(fd, (const char *)bytes + done, len - done, at + (off_t)done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        done += (size_t)wrote;
    }
    return true;
}

static bool read_all(int fd, void *bytes, size_t len, off_t at) {
    for (size_t done = 0; done < len;) {
        ssize_t got = pread(fd, (char *)bytes + done, len - done, at + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

/* The table of a version, or NULL when it is not there or not whole. */
static struct place *read_table(const eyrie_ulfm_job *job, int rank, int64_t version, int blocks,
                                struct table *table) {
    char path[700];
    path_of(job, path, sizeof path, rank, "version", version);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    size_t len = (size_t)blocks * sizeof(struct place);
    struct place *places = must_alloc(len);
    bool good = read_all(fd, table, sizeof *table, 0) && table->magic == MAGIC &&
                table->nonce == job->nonce && table->version == version &&
                table->blocks == blocks && read_all(fd, places, len, sizeof *table) &&
                table->sum == eyrie_checksum(places, len);
    close(fd);
    if (good) return places;
    free(places);
    return NULL;
}

static bool write_table(const eyrie_ulfm_job *job, int rank, struct table *table,
                        const struct place *places) {
    char path[700], temporary[720];
    size_t len = (size_t)table->blocks * sizeof *places;
    path_of(job, path, sizeof path, rank, "version", table->version);
    snprintf(temporary, sizeof temporary, "%s.part", path);
    table->sum = eyrie_checksum(places, len);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool good = write_all(fd, table, sizeof *table, 0) &&
                write_all(fd, places, len, sizeof *table) && fsync(fd) == 0;
    good &= close(fd) == 0;
    return good && rename(temporary, path) == 0;
}

int files_write(eyrie_ulfm_job *job, int rank, struct image *image, const struct image *old,
                const struct catalog *catalog) {
    (void)catalog;
    struct table table = {0};
    size_t len = (size_t)image->blocks * sizeof(struct place);
    struct place *before = old && old->blocks == image->blocks
                               ? read_table(job, rank, old->version, image->blocks, &table)
                               : NULL;
    struct place *places = must_alloc(len);
    if (!before) table.file = image->version;
    char path[700];
    path_of(job, path, sizeof path, rank, "blocks", table.file);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    bool good = fd >= 0;
    for (int i = 0; i < image->blocks && good; i++) {
        struct block *block = image->block[i];
        if (before && old->block[i] == block) {
            places[i] = before[i];
            continue;
        }
        places[i] = (struct place){image->sum[i], before ? !before[i].second : 0};
        good = write_all(fd, block->data, block->len,
                         ((off_t)i * 2 + (off_t)places[i].second) * BLOCK_BYTES);
        job->cost.bytes_sent += block->len;
    }
    good = good && fdatasync(fd) == 0;
    if (fd >= 0) good &= close(fd) == 0;
    table = (struct table){MAGIC, job->nonce, image->version, table.file, image->blocks, 0};
    good = good && write_table(job, rank, &table, places);
    if (!good) explain(job, MPI_ERR_IO, "writing %s: %s", path, strerror(errno));
    /* The version before the last is not needed any more. Nor is its file of blocks, if the last
     * version has another. */
    struct table last, older;
    path_of(job, path, sizeof path, rank, "version", job->version - 1);
    struct place *gone = job->version > 1 && old
                             ? read_table(job, rank, job->version - 1, old->blocks, &older)
                             : NULL;
    struct place *kept =
        gone && old ? read_table(job, rank, job->version, old->blocks, &last) : NULL;
    if (kept) {
        unlink(path);
        if (older.file != last.file) {
            path_of(job, path, sizeof path, rank, "blocks", older.file);
            unlink(path);
        }
    }
    free(gone);
    free(kept);
    free(before);
    free(places);
    return good ? MPI_SUCCESS : MPI_ERR_IO;
}

struct image *files_read(eyrie_ulfm_job *job, int rank, int64_t version,
                         const struct catalog *catalog) {
    int blocks = catalog_blocks(catalog);
    struct table table;
    struct place *places = read_table(job, rank, version, blocks, &table);
    if (!places) return NULL;
    char path[700];
    path_of(job, path, sizeof path, rank, "blocks", table.file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct image *image = image_new(OWN, rank, version, blocks);
    bool good = fd >= 0;
    for (int i = 0; i < blocks && good; i++) {
        struct block *block = image->block[i] = block_new(catalog_block_len(catalog, i));
        image->sum[i] = places[i].sum;
        good = block && read_all(fd, block->data, block->len,
                                 ((off_t)i * 2 + (off_t)places[i].second) * BLOCK_BYTES);
    }
    if (fd >= 0) close(fd);
    free(places);
    if (good && image_intact(image)) return image;
    image_free(image);
    return NULL;
}

/* Removes the files of the job from the directory of copies, at its end. */
void files_remove(const eyrie_ulfm_job *job) {
    char prefix[64], path[1024];
    snprintf(prefix, sizeof prefix, "eyrie-%016llx-", (unsigned long long)job->nonce);
    DIR *directory = opendir(job->copies.directory);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix))) continue;
        snprintf(path, sizeof path, "%s/%s", job->copies.directory, entry->d_name);
        unlink(path);
    }
    if (directory) closedir(directory);
}
