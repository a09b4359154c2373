/* Parity of groups. A rank's blocks are distributed over the stripes in which it has data. The
 * first parity holder of a stripe receives the changed blocks, computes the change of all parities
 * and sends the other holders theirs. Ranks send their data once, as to a partner, but keep only
 * parity. The m members after a rank keep its checksums, so that rebuilt data can be checked. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

enum {
    TAG_SUMS = TAG_HEAD,
    TAG_ROWS = TAG_BLOCK,
    TAG_DATA = TAG_BLOCK + 1,
    TAG_PARITY_ROWS = TAG_BLOCK + 2
};

struct exchange {
    eyrie_ulfm_job *job;
    MPI_Comm comm;
    const int *index_of;
    const struct layout *now;
    const struct group *group;
    const struct catalog *catalogs;
    int self; /* index in the group */
    struct image *image;
    const struct image *old;
    bool full;
    struct waits waits;
};

static int process_of(const struct exchange *x, int index) {
    return x->now
        ->process[x->group->member[((index % x->group->size) + x->group->size) % x->group->size]];
}

static void receive_bytes(struct exchange *x, int from, void *bytes, size_t len, int tag) {
    int process = process_of(x, from);
    MPI_Irecv(bytes, (int)len, MPI_BYTE, x->index_of[process], tag, x->comm,
              waits_add(&x->waits, process));
}

static void send_bytes(struct exchange *x, int to, const void *bytes, size_t len, int tag) {
    int process = process_of(x, to);
    MPI_Isend(bytes, (int)len, MPI_BYTE, x->index_of[process], tag, x->comm,
              waits_add(&x->waits, process));
    x->job->cost.bytes_sent += (int64_t)len;
}

static int finish(struct exchange *x) {
    return waits_all(x->job, &x->waits, x->comm, "in a commit, for a group's parity");
}

/* Sends the checksums of this rank's blocks to the members that keep them. */
static int exchange_sums(struct exchange *x) {
    const struct group *g = x->group;
    struct image *headers[32] = {0};
    for (int k = 1; k <= g->parity; k++) {
        int from = (x->self - k + g->size) % g->size;
        headers[k - 1] =
            image_new(HEADER, g->member[from], x->image->version, catalog_blocks(g->catalog[from]));
        receive_bytes(x, from, headers[k - 1]->sum,
                      (size_t)headers[k - 1]->blocks * sizeof(uint64_t), TAG_SUMS);
        send_bytes(x, x->self + k, x->image->sum, (size_t)x->image->blocks * sizeof(uint64_t),
                   TAG_SUMS);
    }
    int code = finish(x);
    for (int k = 0; k < g->parity; k++) {
        if (code == MPI_SUCCESS)
            image_keep(x->job, headers[k]);
        else
            image_free(headers[k]);
    }
    return code;
}

/* rows[stripe * column + row] of this member: whether its block there has changed. */
static unsigned char *changed_rows(const struct exchange *x) {
    const struct group *g = x->group;
    unsigned char *rows = must_alloc((size_t)(g->size * g->column) + 1);
    for (int s = 0; s < g->size; s++)
        for (int b = 0; b < g->column && group_has_data(g, s, x->self); b++) {
            int i = group_block(g, s, x->self, b);
            bool there = i < x->image->blocks;
            rows[s * g->column + b] = there && (x->full || x->old->block[i] != x->image->block[i]);
        }
    return rows;
}

/* What is sent of a block: the block, or the change since the version before. */
static struct block *change_of(const struct exchange *x, int i) {
    if (x->full) return block_share(x->image->block[i]);
    struct block *new = x->image->block[i], *change = block_new(new->len);
    if (!change) return NULL;
    const unsigned char *before = x->old->block[i]->data;
    for (uint32_t k = 0; k < new->len; k++) change->data[k] = new->data[k] ^ before[k];
    return change;
}

/* Received changes of the stripe that this member encodes: [shard * column + row]. */
struct stripe {
    unsigned char *rows[64];
    struct block **block;
};

static int exchange_changes(struct exchange *x, const unsigned char *mine, struct stripe *stripe) {
    const struct group *g = x->group;
    size_t column = (size_t)g->column;
    for (int i = 0; i < g->size; i++) {
        if (!group_has_data(g, x->self, i)) continue;
        unsigned char *rows = stripe->rows[group_shard(g, x->self, i)] = must_alloc(column + 1);
        receive_bytes(x, i, rows, column, TAG_ROWS);
    }
    for (int s = 0; s < g->size; s++)
        if (group_has_data(g, s, x->self))
            send_bytes(x, s, mine + (size_t)s * column, column, TAG_ROWS);
    int code = finish(x);
    if (code != MPI_SUCCESS) return code;
    bool memory = true;
    for (int i = 0; i < g->size && memory; i++) {
        int shard = group_shard(g, x->self, i);
        for (int b = 0; shard >= 0 && b < g->column && memory; b++) {
            if (!stripe->rows[shard][b]) continue;
            struct block *block =
                block_new(catalog_block_len(g->catalog[i], group_block(g, x->self, i, b)));
            stripe->block[shard * g->column + b] = block;
            if ((memory = block != NULL)) receive_bytes(x, i, block->data, block->len, TAG_DATA);
        }
    }
    struct block **sent = must_alloc((size_t)(g->size * g->column) * sizeof *sent);
    for (int s = 0; s < g->size && memory; s++)
        for (int b = 0; b < g->column && memory; b++) {
            int at = s * g->column + b;
            if (!mine[at]) continue;
            sent[at] = change_of(x, group_block(g, s, x->self, b));
            if ((memory = sent[at] != NULL))
                send_bytes(x, s, sent[at]->data, sent[at]->len, TAG_DATA);
        }
    if (!memory) FT_Comm_revoke(x->comm);
    code = finish(x);
    for (int i = 0; i < g->size * g->column; i++) block_release(sent[i]);
    free(sent);
    return memory ? code : MPI_ERR_NO_MEM;
}

/* The image of a parity at the version before, when only changes are received. */
static const struct image *parity_before(const struct exchange *x, int s, int which) {
    return x->full ? NULL : image_find_parity(x->job, x->group->number, s, which, x->job->version);
}

/* Adds a change (NULL: none) to a parity block. */
static bool parity_add(struct image *parity, const struct image *before, int row,
                       const unsigned char *change, uint32_t len) {
    if (!change && before) {
        parity->block[row] = block_share(before->block[row]);
        parity->sum[row] = before->sum[row];
        return true;
    }
    struct block *block = block_new(len);
    if (!block) return false;
    if (change)
        memcpy(block->data, change, len);
    else
        memset(block->data, 0, len);
    for (uint32_t k = 0; before && k < len; k++) block->data[k] ^= before->block[row]->data[k];
    parity->block[row] = block;
    parity->sum[row] = eyrie_checksum(block->data, len);
    return true;
}

/* Encodes the changes of this member's stripe; change[p * column + row] for parity p, NULL where
 * nothing changed. */
static bool encode(const struct exchange *x, const struct stripe *stripe, struct block **change) {
    const struct group *g = x->group;
    for (int b = 0; b < g->column; b++) {
        uint32_t len = group_row_len(g, x->self, b);
        struct block *padded[64] = {0};
        const uint8_t *data[64] = {0};
        uint8_t *parity[32];
        bool any = false, memory = true;
        for (int d = 0; d < g->data && memory; d++) {
            struct block *block = stripe->block[d * g->column + b];
            if (!block) continue;
            any = true;
            data[d] = block->data;
            if (block->len == len) continue;
            if ((memory = (padded[d] = block_new(len)) != NULL)) {
                memcpy(padded[d]->data, block->data, block->len);
                memset(padded[d]->data + block->len, 0, len - block->len);
                data[d] = padded[d]->data;
            }
        }
        for (int p = 0; p < g->parity && any && memory; p++) {
            memory = (change[p * g->column + b] = block_new(len)) != NULL;
            if (memory) parity[p] = change[p * g->column + b]->data;
        }
        if (any && memory)
            memory =
                eyrie_parity_encode(data, (size_t)g->data, parity, (size_t)g->parity, len) == 0;
        for (int d = 0; d < g->data; d++) block_release(padded[d]);
        if (!memory) return false;
    }
    return true;
}

/* Distributes the parities of this member's stripe: it keeps the first and sends the others to the
 * members after it. */
static int exchange_parity(struct exchange *x, struct stripe *stripe) {
    const struct group *g = x->group;
    int cells = g->parity * g->column;
    struct block **change = must_alloc((size_t)cells * sizeof *change),
                 **taken = must_alloc((size_t)cells * sizeof *taken);
    unsigned char *rows = must_alloc((size_t)cells + 1),
                  *received_rows = must_alloc((size_t)cells + 1);
    bool memory = encode(x, stripe, change);
    for (int i = 0; i < cells; i++) rows[i] = change[i] != NULL;
    if (!memory) FT_Comm_revoke(x->comm);
    size_t column = (size_t)g->column;
    for (int p = 1; p < g->parity; p++) {
        receive_bytes(x, x->self - p, received_rows + (size_t)p * column, column,
                      TAG_PARITY_ROWS + 2 * p);
        send_bytes(x, x->self + p, rows + (size_t)p * column, column, TAG_PARITY_ROWS + 2 * p);
    }
    int code = finish(x);
    for (int p = 1; code == MPI_SUCCESS && p < g->parity; p++) {
        int s = (x->self - p + g->size) % g->size;
        for (int b = 0; b < g->column; b++) {
            int at = p * g->column + b;
            if (received_rows[at] && memory) {
                taken[at] = block_new(group_row_len(g, s, b));
                if ((memory = taken[at] != NULL))
                    receive_bytes(x, s, taken[at]->data, taken[at]->len,
                                  TAG_PARITY_ROWS + 2 * p + 1);
            }
            if (rows[at] && memory)
                send_bytes(x, x->self + p, change[at]->data, change[at]->len,
                           TAG_PARITY_ROWS + 2 * p + 1);
        }
    }
    if (!memory) FT_Comm_revoke(x->comm);
    int rest = finish(x);
    if (code == MPI_SUCCESS) code = rest;
    for (int p = 0; code == MPI_SUCCESS && memory && p < g->parity; p++) {
        int s = (x->self - p + g->size) % g->size;
        struct image *parity = image_new(PARITY, g->number, x->image->version, g->column);
        parity->stripe = s;
        parity->which = p;
        const struct image *before = parity_before(x, s, p);
        for (int b = 0; b < g->column && memory; b++) {
            struct block *delta = p == 0 ? change[b] : taken[p * g->column + b];
            memory =
                parity_add(parity, before, b, delta ? delta->data : NULL, group_row_len(g, s, b));
        }
        if (memory)
            image_keep(x->job, parity);
        else
            image_free(parity);
    }
    for (int i = 0; i < cells; i++) {
        block_release(change[i]);
        block_release(taken[i]);
    }
    free(change);
    free(taken);
    free(rows);
    free(received_rows);
    return memory ? code : MPI_ERR_NO_MEM;
}

int groups_protect(eyrie_ulfm_job *job, MPI_Comm comm, const int *index_of,
                   const struct layout *now, const struct catalog *catalogs, int rank,
                   struct image *image, const struct image *old, bool full) {
    struct group group = group_of(job, now, rank, catalogs);
    if (group.size < 2) return MPI_SUCCESS;
    if (!full && old == image) return MPI_SUCCESS; /* a repair that did not touch this group */
    struct exchange x = {job,   comm, index_of, now, &group, catalogs, group_index(&group, rank),
                         image, old,  full,     {0}};
    struct stripe stripe = {
        .block = must_alloc((size_t)(group.data * group.column + 1) * sizeof(struct block *))};
    unsigned char *mine = changed_rows(&x);
    int code = exchange_sums(&x);
    if (code == MPI_SUCCESS) code = exchange_changes(&x, mine, &stripe);
    inject(job, "parity");
    if (code == MPI_SUCCESS) code = exchange_parity(&x, &stripe);
    for (int i = 0; i < group.data * group.column; i++) block_release(stripe.block[i]);
    for (int i = 0; i < 64; i++) free(stripe.rows[i]);
    free(stripe.block);
    free(mine);
    return code;
}
