/* Commit: the registered data becomes a new version. First each rank and the keepers of its copies
 * make an image. When all agree that their images are whole, the version counts everywhere at once.
 * Until that agreement the version before counts and stays whole. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* --- a partner's copy --- */

struct stream {
    int partner, process;   /* rank and process at the other end */
    bool full;              /* all blocks, not only the changed ones */
    unsigned char *changed; /* of each block */
    struct image *image;    /* receiving: the image being made */
};

/* Whether the keeper of copy `k` of `rank` cannot have the version before: one of the two was
 * another process, or the data has another form. All processes find the same. */
static bool must_send_all(const eyrie_ulfm_job *job, const struct layout *now,
                          const struct catalog *catalogs, int rank, int k) {
    if (job->held.ranks != now->ranks || job->squeezed || job->lost || job->version == 0 ||
        job->protect_anew)
        return true;
    int keeper = layout_keeper(now, rank, k);
    if (layout_keeper(&job->held, rank, k) != keeper) return true;
    if (job->held.process[rank] != now->process[rank] ||
        job->held.process[keeper] != now->process[keeper])
        return true;
    return !catalog_equal(&job->catalogs[rank], &catalogs[rank]);
}

/* Makes a block of the image just before it is sent, so that copying and sending overlap. The image
 * is sent instead of the program's data: another process copies three times as fast from its large
 * pages. */
struct filling {
    bool (*fill)(void *context, int block);
    void *context;
};

/* Sends `image` of `rank` to the ranks that keep it, and receives the images that this rank keeps
 * for others. Only `changed` blocks are sent where the keeper has the version before. `filling` is
 * NULL when the image is whole. */
static int partners_protect(eyrie_ulfm_job *job, MPI_Comm comm, const int *index_of,
                            const struct layout *now, const struct catalog *catalogs, int rank,
                            struct image *image, const unsigned char *changed,
                            const struct filling *filling) {
    int partners = job->copies.partners < now->ranks ? job->copies.partners : now->ranks - 1;
    struct stream *out = must_alloc((size_t)(partners + 1) * sizeof *out),
                  *in = must_alloc((size_t)(partners + 1) * sizeof *in);
    struct waits waits = {0};
    for (int k = 1; k <= partners; k++) {
        struct stream *to = &out[k], *from = &in[k];
        to->partner = layout_keeper(now, rank, k);
        to->process = now->process[to->partner];
        to->full = must_send_all(job, now, catalogs, rank, k);
        from->partner = layout_kept(now, rank, k);
        from->process = now->process[from->partner];
        from->full = must_send_all(job, now, catalogs, from->partner, k);
        int blocks = catalog_blocks(&catalogs[from->partner]);
        from->changed = must_alloc((size_t)blocks + 1);
        from->image = image_new(COPY, from->partner, image->version, blocks);
        MPI_Irecv(from->changed, blocks + 1, MPI_BYTE, index_of[from->process], TAG_HEAD + k, comm,
                  waits_add(&waits, from->process));
        MPI_Isend(changed, image->blocks + 1, MPI_BYTE, index_of[to->process], TAG_HEAD + k, comm,
                  waits_add(&waits, to->process));
    }
    int code = waits_all(job, &waits, comm, "in a commit");
    bool memory = true;
    int64_t sent = 0;
    for (int k = 1; code == MPI_SUCCESS && k <= partners; k++) {
        struct stream *from = &in[k];
        struct image *before =
            from->full ? NULL : image_find(job, COPY, from->partner, job->version);
        for (int i = 0; i < from->image->blocks; i++) {
            if (before && !from->changed[i]) {
                from->image->block[i] = block_share(before->block[i]);
                continue;
            }
            struct block *block = block_new(catalog_block_len(&catalogs[from->partner], i));
            from->image->block[i] = block;
            if (!block) {
                memory = false;
                code = MPI_ERR_NO_MEM;
                FT_Comm_revoke(comm);
                break;
            }
            MPI_Irecv(block->data, (int)block->len, MPI_BYTE, index_of[from->process],
                      TAG_BLOCK + k, comm, waits_add(&waits, from->process));
        }
        MPI_Irecv(from->image->sum, from->image->blocks, MPI_UINT64_T, index_of[from->process],
                  TAG_TAIL + k, comm, waits_add(&waits, from->process));
    }
    for (int i = 0; code == MPI_SUCCESS && i < image->blocks; i++) {
        if (i == image->blocks / 2) inject(job, "commit");
        if (filling && changed[i] && !filling->fill(filling->context, i)) {
            memory = false;
            code = MPI_ERR_NO_MEM;
            FT_Comm_revoke(comm);
            break;
        }
        for (int k = 1; k <= partners; k++) {
            if (!out[k].full && !changed[i]) continue;
            struct block *block = image->block[i];
            MPI_Isend(block->data, (int)block->len, MPI_BYTE, index_of[out[k].process],
                      TAG_BLOCK + k, comm, waits_add(&waits, out[k].process));
            sent += block->len;
        }
        code = waits_poll(&waits);
        if (code != MPI_SUCCESS) FT_Comm_revoke(comm);
    }
    for (int k = 1; code == MPI_SUCCESS && k <= partners; k++)
        MPI_Isend(image->sum, image->blocks, MPI_UINT64_T, index_of[out[k].process], TAG_TAIL + k,
                  comm, waits_add(&waits, out[k].process));
    int rest = waits_all(job, &waits, comm, "in a commit");
    if (code == MPI_SUCCESS) code = rest;
    for (int k = 1; k <= partners; k++) {
        struct stream *from = &in[k];
        if (code == MPI_SUCCESS)
            image_keep(job, from->image);
        else
            image_free(from->image);
        free(from->changed);
    }
    free(out);
    free(in);
    job->cost.bytes_sent += sent;
    return memory ? code : MPI_ERR_NO_MEM;
}

/* --- the registered data of this rank --- */

static struct catalog catalog_of_segments(const eyrie_ulfm_job *job) {
    struct catalog catalog = {0};
    for (struct segment *s = job->segments; s; s = s->next) catalog.count++;
    catalog.entry = must_alloc((size_t)catalog.count * sizeof *catalog.entry);
    int i = 0;
    for (struct segment *s = job->segments; s; s = s->next, i++) {
        strcpy(catalog.entry[i].name, s->name);
        catalog.entry[i].bytes = s->bytes;
        catalog.entry[i].element = s->element;
    }
    return catalog;
}

/* Packs registered data whose datatype has gaps into bytes, or unpacks it. Works in parts, because
 * MPI counts in int. */
int segment_pack(eyrie_ulfm_job *job, struct segment *segment, unsigned char *bytes, bool pack) {
    MPI_Count lower, extent;
    MPI_Type_get_extent_x(segment->datatype, &lower, &extent);
    int64_t step = (1 << 30) / segment->element;
    for (int64_t first = 0, count; first < segment->count; first += count) {
        count = segment->count - first < step ? segment->count - first : step;
        char *data = (char *)segment->data + first * extent;
        unsigned char *part = bytes + first * segment->element;
        int len = (int)(count * segment->element), at = 0;
        int code = pack
                       ? MPI_Pack(data, (int)count, segment->datatype, part, len, &at, job->work)
                       : MPI_Unpack(part, len, &at, data, (int)count, segment->datatype, job->work);
        if (code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
}

/* The bytes of each block as they are in the program, or packed. */
struct view {
    int blocks;
    const unsigned char **data;
    uint32_t *len;
    void **packed;
    int packed_count;
};

static int view_make(eyrie_ulfm_job *job, const struct catalog *catalog, struct view *view) {
    view->blocks = catalog_blocks(catalog);
    view->data = must_alloc((size_t)view->blocks * sizeof *view->data);
    view->len = must_alloc((size_t)view->blocks * sizeof *view->len);
    view->packed = must_alloc((size_t)catalog->count * sizeof *view->packed);
    int b = 0;
    for (struct segment *s = job->segments; s; s = s->next) {
        const unsigned char *bytes = s->data;
        if (s->packed) {
            unsigned char *packed = malloc((size_t)s->bytes + 1);
            if (!packed) return explain(job, MPI_ERR_NO_MEM, "no memory to pack %s", s->name);
            view->packed[view->packed_count++] = packed;
            int code = segment_pack(job, s, packed, true);
            if (code != MPI_SUCCESS) return code;
            bytes = packed;
        }
        for (int64_t at = 0; at < s->bytes; at += BLOCK_BYTES, b++) {
            view->data[b] = bytes + at;
            view->len[b] = s->bytes - at < BLOCK_BYTES ? (uint32_t)(s->bytes - at) : BLOCK_BYTES;
        }
    }
    return MPI_SUCCESS;
}

static void view_free(struct view *view) {
    for (int i = 0; i < view->packed_count; i++) free(view->packed[i]);
    free(view->packed);
    free(view->data);
    free(view->len);
}

struct copying {
    struct image *image;
    const struct view *view;
    bool past_cache; /* the data is larger than the cache */
};

/* Copies a block of the program's data into the image. */
static bool copy_block(void *context, int i) {
    struct copying *copying = context;
    struct block *block = block_new(copying->view->len[i]);
    if (!block) return false;
    copying->image->sum[i] =
        eyrie_copy_checksum(block->data, copying->view->data[i], block->len, copying->past_cache);
    copying->image->block[i] = block;
    return true;
}

/* Exchanges the catalogs of all ranks when one of them has changed. */
static int share_catalogs(eyrie_ulfm_job *job, const struct catalog *mine, struct catalog **all) {
    int n = job->now.ranks, same = job->version > 0 && !job->squeezed && !job->lost &&
                                   job->held.ranks == n &&
                                   catalog_equal(mine, &job->catalogs[job->rank]);
    *all = NULL;
    wait_guard(job, "in a commit, exchanging changes of the registered data,");
    int code = MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, job->work);
    int *counts = must_alloc((size_t)n * sizeof *counts),
        *offsets = must_alloc((size_t)n * sizeof *offsets);
    int size = mine->count * (int)sizeof(struct entry), total = 0;
    if (code == MPI_SUCCESS && !same) {
        code = MPI_Allgather(&size, 1, MPI_INT, counts, 1, MPI_INT, job->work);
        for (int r = 0; code == MPI_SUCCESS && r < n; r++) {
            offsets[r] = total;
            total += counts[r];
        }
        unsigned char *entries = must_alloc((size_t)total);
        if (code == MPI_SUCCESS)
            code = MPI_Allgatherv(mine->entry, size, MPI_BYTE, entries, counts, offsets, MPI_BYTE,
                                  job->work);
        if (code == MPI_SUCCESS) {
            *all = must_alloc((size_t)n * sizeof **all);
            for (int r = 0; r < n; r++) {
                (*all)[r].count = counts[r] / (int)sizeof(struct entry);
                (*all)[r].entry = must_copy(entries + offsets[r], (size_t)counts[r]);
            }
        }
        free(entries);
    }
    wait_unguard(job);
    free(counts);
    free(offsets);
    return code;
}

static void free_catalogs(struct catalog *catalogs, int count) {
    for (int i = 0; catalogs && i < count; i++) catalog_free(&catalogs[i]);
    free(catalogs);
}

/* Makes the image of the next version and sends it to the ranks that keep copies. */
static int stage(eyrie_ulfm_job *job, const struct catalog *mine, const struct catalog *catalogs,
                 int64_t version) {
    struct view view = {0};
    int code = view_make(job, mine, &view);
    if (code != MPI_SUCCESS) {
        FT_Comm_revoke(job->work);
        view_free(&view);
        return code;
    }
    struct image *image = image_new(OWN, job->rank, version, view.blocks);
    struct image *old = job->squeezed ? NULL : image_find(job, OWN, job->rank, job->version);
    if (old && (job->version == 0 || catalogs != job->catalogs || old->blocks != view.blocks))
        old = NULL;
    unsigned char *changed = must_alloc((size_t)view.blocks + 1);
    for (int i = 0; i < view.blocks; i++) {
        changed[i] = !old || memcmp(old->block[i]->data, view.data[i], view.len[i]);
        if (changed[i]) continue;
        image->block[i] = block_share(old->block[i]);
        image->sum[i] = old->sum[i];
    }
    struct copying copying = {image, &view, catalog_bytes(mine) > MUCH_BYTES};
    struct filling filling = {copy_block, &copying};
    int *index_of = must_alloc((size_t)job->processes * sizeof *index_of);
    for (int r = 0; r < job->now.ranks; r++) index_of[job->now.process[r]] = r;
    bool streams = job->copies.scheme == PARTNER && job->now.ranks > 1;
    if (streams) {
        code = partners_protect(job, job->work, index_of, &job->now, catalogs, job->rank, image,
                                changed, &filling);
    } else {
        for (int i = 0; code == MPI_SUCCESS && i < view.blocks; i++) {
            if (i == view.blocks / 2) inject(job, "commit");
            if (changed[i] && !copy_block(&copying, i))
                code =
                    explain(job, MPI_ERR_NO_MEM, "no memory for version %lld", (long long)version);
        }
        if (code == MPI_SUCCESS)
            code = copies_protect(job, job->work, index_of, &job->now, catalogs, job->rank, image,
                                  old);
        if (code != MPI_SUCCESS && !eyrie_ulfm_is_failure(code) && code != MPI_ERR_IO)
            FT_Comm_revoke(job->work);
    }
    if (code == MPI_SUCCESS)
        image_keep(job, image);
    else
        image_free(image);
    free(index_of);
    free(changed);
    view_free(&view);
    return code;
}

int copies_protect(eyrie_ulfm_job *job, MPI_Comm comm, const int *index_of,
                   const struct layout *now, const struct catalog *catalogs, int rank,
                   struct image *image, const struct image *old) {
    if (now->ranks < 2 && job->copies.scheme != FILES) return MPI_SUCCESS;
    switch (job->copies.scheme) {
    case NO_COPIES:
        return MPI_SUCCESS;
    case PARTNER: {
        unsigned char *changed = must_alloc((size_t)image->blocks + 1);
        for (int i = 0; i < image->blocks; i++)
            changed[i] = !old || old->block[i] != image->block[i];
        int code = partners_protect(job, comm, index_of, now, catalogs, rank, image, changed, NULL);
        free(changed);
        return code;
    }
    case GROUP: {
        struct group group = group_of(job, now, rank, catalogs);
        bool full = catalogs != job->catalogs || job->held.ranks != now->ranks || job->squeezed ||
                    job->lost || job->version == 0 || job->protect_anew;
        for (int i = 0; !full && i < group.size; i++) {
            int r = group.member[i];
            full = job->held.place[r] != now->place[r] || job->held.process[r] != now->process[r];
        }
        return groups_protect(job, comm, index_of, now, catalogs, rank, image, old, full);
    }
    case FILES:
        return old && old->version == image->version
                   ? MPI_SUCCESS
                   : files_write(job, rank, image, old, &catalogs[rank]);
    }
    return MPI_SUCCESS;
}

/* After a commit or a repair: drops the images that no other process can still need. */
void copies_prune(eyrie_ulfm_job *job) {
    struct group group = {0};
    int self = -1;
    if (job->rank >= 0 && job->copies.scheme == GROUP && job->version > 0) {
        group = group_of(job, &job->held, job->rank, job->catalogs);
        self = group_index(&group, job->rank);
    }
    for (struct image *image = job->images, *next; image; image = next) {
        next = image->next;
        bool keep = false;
        if (image->version == job->version && job->rank >= 0) {
            if (image->kind == OWN) keep = image->rank == job->rank;
            for (int k = 1; image->kind == COPY && k <= job->copies.partners && k < job->held.ranks;
                 k++)
                keep |= layout_kept(&job->held, job->rank, k) == image->rank;
            if (image->kind == HEADER || image->kind == PARITY) {
                bool ours = image->kind == PARITY ? image->rank == group.number
                                                  : group_index(&group, image->rank) >= 0;
                keep = self >= 0 && ours &&
                       (image->kind == HEADER ||
                        group.member[(image->stripe + image->which) % group.size] == job->rank);
            }
        }
        if (!keep) image_drop(job, image);
    }
}

/* The version that all have agreed on becomes the one that counts. */
static void adopt(eyrie_ulfm_job *job, int64_t version, struct catalog *catalogs) {
    if (catalogs != job->catalogs) {
        free_catalogs(job->catalogs, job->held.ranks);
        job->catalogs = catalogs;
    }
    layout_free(&job->held);
    job->held = layout_copy(&job->now);
    job->held_axes = job->axes;
    memcpy(job->held_shape, job->shape, sizeof job->shape);
    free(job->server);
    job->server = NULL;
    job->version = version;
    job->squeezed = job->lost = false;
    copies_prune(job);
}

int eyrie_ulfm_commit(eyrie_ulfm_job *job, int64_t *version) {
    if (job->work == MPI_COMM_NULL || job->state == REPAIRED)
        return explain(
            job, MPI_ERR_OTHER,
            "eyrie_ulfm_commit: this process is no rank, or has not called eyrie_ulfm_restore after a repair");
    job->inside = true;
    job->cost = (eyrie_ulfm_cost){0};
    double begin = wait_now_ms();
    int64_t next = job->version + 1;
    struct catalog mine = catalog_of_segments(job), *all = NULL;
    int code = share_catalogs(job, &mine, &all);
    struct catalog *catalogs = all ? all : job->catalogs;
    if (code == MPI_SUCCESS) code = stage(job, &mine, catalogs, next);
    /* so that no other rank waits for data that is not sent */
    if (eyrie_ulfm_is_failure(code)) FT_Comm_revoke(job->work);
    inject(job, "commit-agree");
    /* Bit 0: this version is whole here. Bit 1: no rank has left to repair the job. */
    int bits = code == MPI_SUCCESS ? 3 : 2;
    double agree = wait_now_ms();
    int failure = wait_agree(job, job->work, &bits, "to agree on a commit");
    inject(job, "commit-agreed");
    job->cost.agree_ms = wait_now_ms() - agree;
    job->cost.bytes = catalog_bytes(&mine);
    if (!(bits & 2)) job->abandoned = true;
    /* A rank that died before it set its bits has not agreed either. The error of the agreement is
     * the same at all ranks. */
    if (bits == 3 && failure == MPI_SUCCESS) {
        adopt(job, next, catalogs);
        if (version) *version = next;
    } else {
        image_drop_versions(job, 0, job->version);
        free_catalogs(all, job->now.ranks);
        if (code == MPI_SUCCESS) code = failure;
        /* Another rank could not commit: the version does not count. Nothing else has happened,
         * unless a process has failed. */
        if (code == MPI_SUCCESS)
            code = job->abandoned
                       ? FT_ERR_REVOKED
                       : explain(job, MPI_ERR_IO, "another rank could not commit version %lld",
                                 (long long)next);
    }
    catalog_free(&mine);
    job->cost.ms = wait_now_ms() - begin;
    job->inside = false;
    return code;
}
