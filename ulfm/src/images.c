/* Catalogs (what data a rank has registered, by name and size) and images (that data at a version,
 * in blocks with checksums). Data of a rank is cut into blocks at the borders of what it
 * registered. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

void catalog_free(struct catalog *catalog) {
    free(catalog->entry);
    *catalog = (struct catalog){0};
}

struct catalog catalog_copy(const struct catalog *catalog) {
    struct catalog copy = *catalog;
    copy.entry = must_copy(catalog->entry, (size_t)catalog->count * sizeof *catalog->entry);
    return copy;
}

bool catalog_equal(const struct catalog *a, const struct catalog *b) {
    return a->count == b->count &&
           (a->count == 0 || !memcmp(a->entry, b->entry, (size_t)a->count * sizeof *a->entry));
}

static int entry_blocks(const struct entry *entry) {
    return (int)((entry->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
}

int catalog_blocks(const struct catalog *catalog) {
    int blocks = 0;
    for (int i = 0; i < catalog->count; i++) blocks += entry_blocks(&catalog->entry[i]);
    return blocks;
}

uint32_t catalog_block_len(const struct catalog *catalog, int block) {
    for (int i = 0; i < catalog->count; i++) {
        int blocks = entry_blocks(&catalog->entry[i]);
        if (block < blocks) {
            int64_t left = catalog->entry[i].bytes - (int64_t)block * BLOCK_BYTES;
            return left < BLOCK_BYTES ? (uint32_t)left : BLOCK_BYTES;
        }
        block -= blocks;
    }
    return 0;
}

int64_t catalog_bytes(const struct catalog *catalog) {
    int64_t bytes = 0;
    for (int i = 0; i < catalog->count; i++) bytes += catalog->entry[i].bytes;
    return bytes;
}

struct image *image_new(enum kind kind, int rank, int64_t version, int blocks) {
    struct image *image = must_alloc(sizeof *image);
    *image = (struct image){.kind = kind, .rank = rank, .version = version, .blocks = blocks};
    image->block = must_alloc((size_t)blocks * sizeof *image->block);
    image->sum = must_alloc((size_t)blocks * sizeof *image->sum);
    return image;
}

void image_free(struct image *image) {
    if (!image) return;
    for (int i = 0; i < image->blocks; i++) block_release(image->block[i]);
    free(image->block);
    free(image->sum);
    free(image);
}

static bool same_name(const struct image *a, const struct image *b) {
    return a->kind == b->kind && a->rank == b->rank && a->stripe == b->stripe &&
           a->which == b->which && a->version == b->version;
}

void image_keep(eyrie_ulfm_job *job, struct image *image) {
    for (struct image *old = job->images; old; old = old->next) {
        if (old != image && same_name(old, image)) {
            image_drop(job, old);
            break;
        }
    }
    image->next = job->images;
    job->images = image;
}

struct image *image_find(const eyrie_ulfm_job *job, enum kind kind, int rank, int64_t version) {
    for (struct image *image = job->images; image; image = image->next)
        if (image->kind == kind && image->rank == rank && image->version == version) return image;
    return NULL;
}

struct image *image_find_parity(const eyrie_ulfm_job *job, int group, int stripe, int which,
                                int64_t version) {
    for (struct image *image = job->images; image; image = image->next)
        if (image->kind == PARITY && image->rank == group && image->stripe == stripe &&
            image->which == which && image->version == version)
            return image;
    return NULL;
}

void image_drop(eyrie_ulfm_job *job, struct image *image) {
    struct image **link = &job->images;
    while (*link && *link != image) link = &(*link)->next;
    if (*link) *link = image->next;
    image_free(image);
}

void image_drop_versions(eyrie_ulfm_job *job, int64_t below, int64_t above) {
    for (struct image *image = job->images, *next; image; image = next) {
        next = image->next;
        if (image->version < below || image->version > above) image_drop(job, image);
    }
}

bool image_intact(const struct image *image) {
    for (int i = 0; i < image->blocks; i++)
        if (image->block[i] &&
            eyrie_checksum(image->block[i]->data, image->block[i]->len) != image->sum[i])
            return false;
    return true;
}
