/* Blocks of data with a count of their users, so that versions share blocks that have not changed.
 * Full blocks come from slabs that are never freed, so that the pages of a reused block are already
 * mapped. Must never be used by two threads. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "job.h"

enum { SLAB_BLOCKS = 16 };

/* full blocks without a user; the first bytes of `data` point to the next */
static struct block *idle;
static void **slabs;
static int slab_count;

static struct block *take_idle(void) {
    struct block *block = idle;
    if (block) memcpy(&idle, block->data, sizeof idle);
    return block;
}

static void give_idle(struct block *block) {
    memcpy(block->data, &idle, sizeof idle);
    idle = block;
}

static bool add_slab(void) {
    size_t bytes = (size_t)SLAB_BLOCKS * BLOCK_BYTES;
    struct block *heads = calloc(SLAB_BLOCKS, sizeof *heads);
    void **grown = realloc(slabs, 2 * (size_t)(slab_count + 1) * sizeof *slabs);
    if (grown) slabs = grown;
    unsigned char *data =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!heads || !grown || data == MAP_FAILED) {
        free(heads);
        if (data != MAP_FAILED) munmap(data, bytes);
        return false;
    }
    madvise(data, bytes, MADV_HUGEPAGE); /* fewer page faults; no harm where it is refused */
    slabs[2 * slab_count] = heads;
    slabs[2 * slab_count + 1] = data;
    slab_count++;
    for (int i = SLAB_BLOCKS - 1; i >= 0; i--) {
        heads[i].data = data + (size_t)i * BLOCK_BYTES;
        give_idle(&heads[i]);
    }
    return true;
}

struct block *block_new(uint32_t len) {
    struct block *block;
    if (len * 2 > BLOCK_BYTES) {
        if (!idle && !add_slab()) return NULL;
        block = take_idle();
    } else {
        /* Small data would waste a full block. */
        block = malloc(sizeof *block);
        if (block && !(block->data = malloc(len ? len : 1))) {
            free(block);
            block = NULL;
        }
    }
    if (!block) return NULL;
    block->refs = 1;
    block->len = len;
    return block;
}

struct block *block_share(struct block *block) {
    if (block) block->refs++;
    return block;
}

void block_release(struct block *block) {
    if (!block || --block->refs > 0) return;
    if (block->len * 2 > BLOCK_BYTES) {
        give_idle(block);
    } else {
        free(block->data);
        free(block);
    }
}

void block_free_pool(void) {
    for (int i = 0; i < slab_count; i++) {
        free(slabs[2 * i]);
        munmap(slabs[2 * i + 1], (size_t)SLAB_BLOCKS * BLOCK_BYTES);
    }
    free(slabs);
    slabs = NULL;
    slab_count = 0;
    idle = NULL;
}
