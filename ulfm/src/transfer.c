/* Moves the data of ranks to the processes that take them: from the process that was the rank, from
 * a copy, rebuilt from a group, or from a file. Data that does not match its checksum is dropped,
 * and the repair begins anew without it. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

struct transfer {
    eyrie_ulfm_job *job;
    MPI_Comm comm;
    const int *index_of;
    struct waits waits;
    bool memory;
};

static void receive_bytes(struct transfer *transfer, int process, void *bytes, size_t len,
                          int rank) {
    MPI_Irecv(bytes, (int)len, MPI_BYTE, transfer->index_of[process], TAG_RESCUE + rank,
              transfer->comm, waits_add(&transfer->waits, process));
}

static void send_bytes(struct transfer *transfer, int process, const void *bytes, size_t len,
                       int rank) {
    MPI_Isend(bytes, (int)len, MPI_BYTE, transfer->index_of[process], TAG_RESCUE + rank,
              transfer->comm, waits_add(&transfer->waits, process));
}

/* Returns an image that matches its checksums. Drops a damaged one and returns NULL. */
static struct image *intact(struct transfer *transfer, struct image *image) {
    if (!image || image_intact(image)) return image;
    char self[256];
    wait_describe(transfer->job, transfer->job->me, self, sizeof self);
    fprintf(stderr,
            "eyrie-ulfm: %s: what it keeps of rank %d is damaged (wrong checksum) and not used\n",
            self, image->rank);
    image_drop(transfer->job, image);
    return NULL;
}

static bool make_room(struct transfer *transfer, struct image *image,
                      const struct catalog *catalog) {
    for (int i = 0; i < image->blocks; i++) {
        image->block[i] = block_new(catalog_block_len(catalog, i));
        if (!image->block[i]) return transfer->memory = false;
    }
    return true;
}

/* Moves a whole image from one process to another. Returns the received image, or NULL. */
static struct image *send_image(struct transfer *transfer, const struct rescue *rescue, int rank,
                                bool *good) {
    eyrie_ulfm_job *job = transfer->job;
    if (rescue->from == job->me) {
        struct image *image =
            intact(transfer, image_find(job, rescue->from_kind, rank, job->version));
        *good = image != NULL;
        if (!image) return NULL;
        if (rescue->to == job->me) {
            struct image *own = image_new(OWN, rank, image->version, image->blocks);
            for (int i = 0; i < image->blocks; i++) own->block[i] = block_share(image->block[i]);
            memcpy(own->sum, image->sum, (size_t)image->blocks * sizeof *own->sum);
            return own;
        }
        send_bytes(transfer, rescue->to, image->sum, (size_t)image->blocks * sizeof *image->sum,
                   rank);
        for (int i = 0; i < image->blocks; i++)
            send_bytes(transfer, rescue->to, image->block[i]->data, image->block[i]->len, rank);
    } else if (rescue->to == job->me) {
        struct image *image =
            image_new(OWN, rank, job->version, catalog_blocks(&job->catalogs[rank]));
        if (!make_room(transfer, image, &job->catalogs[rank])) return image;
        receive_bytes(transfer, rescue->from, image->sum,
                      (size_t)image->blocks * sizeof *image->sum, rank);
        for (int i = 0; i < image->blocks; i++)
            receive_bytes(transfer, rescue->from, image->block[i]->data, image->block[i]->len,
                          rank);
        return image;
    }
    return NULL;
}

/* --- rebuilding from a group --- */

/* One block of a stripe: at `process`, in the image of a member or a parity. */
struct cell {
    int process;
    struct image *image; /* where this process has it */
    int block;
    uint32_t len;
};

static struct cell data_cell(struct transfer *transfer, const struct group *group,
                             const struct rescue *rescue, int s, int i, int row) {
    eyrie_ulfm_job *job = transfer->job;
    struct cell cell = {rescue->members[i], NULL, group_block(group, s, i, row), 0};
    if (cell.process < 0) return cell;
    cell.len = catalog_block_len(group->catalog[i], cell.block);
    if (cell.process == job->me && cell.len)
        cell.image = image_find(job, OWN, group->member[i], job->version);
    return cell;
}

static struct cell parity_cell(struct transfer *transfer, const struct group *group,
                               const struct rescue *rescue, int s, int p, int row) {
    eyrie_ulfm_job *job = transfer->job;
    struct cell cell = {rescue->members[group->size + s * group->parity + p], NULL, row, 0};
    if (cell.process < 0) return cell;
    cell.len = group_row_len(group, s, row);
    if (cell.process == job->me && cell.len)
        cell.image = image_find_parity(job, group->number, s, p, job->version);
    return cell;
}

/* Moves a cell to the process that rebuilds: there it is local or received, elsewhere it is
 * sent. */
static struct block *move_cell(struct transfer *transfer, const struct cell *cell, int to,
                               int rank) {
    int me = transfer->job->me;
    if (cell->process < 0 || cell->len == 0) return NULL;
    if (cell->process == me) {
        if (to == me) return block_share(cell->image->block[cell->block]);
        send_bytes(transfer, to, cell->image->block[cell->block]->data, cell->len, rank);
    } else if (to == me) {
        struct block *block = block_new(cell->len);
        if (block)
            receive_bytes(transfer, cell->process, block->data, block->len, rank);
        else
            transfer->memory = false;
        return block;
    }
    return NULL;
}

struct rebuild {
    struct group group;
    int rank, self;
    const struct rescue *rescue;
    struct image *image;
    struct block **cell; /* [(stripe * column + row) * size + shard or data + parity] */
};

/* Drops damaged images of this process that the rebuild needs. */
static bool check_cells(struct transfer *transfer, const struct group *group,
                        const struct rescue *rescue) {
    eyrie_ulfm_job *job = transfer->job;
    bool good = true;
    for (int i = 0; i < group->size; i++) {
        if (rescue->members[i] == job->me)
            good &= intact(transfer, image_find(job, OWN, group->member[i], job->version)) != NULL;
        for (int p = 0; p < group->parity; p++)
            if (rescue->members[group->size + i * group->parity + p] == job->me)
                good &= intact(transfer,
                               image_find_parity(job, group->number, i, p, job->version)) != NULL;
    }
    return good;
}

/* Sender and receiver go through the cells in one order, so the messages between any two match. */
static void gather_cells(struct transfer *transfer, struct rebuild *rebuild) {
    struct group *g = &rebuild->group;
    int to = rebuild->rescue->to;
    for (int s = 0; s < g->size; s++) {
        if (!group_has_data(g, s, rebuild->self)) continue;
        for (int b = 0; b < g->column; b++) {
            struct block **cells =
                rebuild->cell ? &rebuild->cell[(s * g->column + b) * g->size] : NULL;
            for (int i = 0; i < g->size; i++) {
                int shard = group_shard(g, s, i);
                if (shard < 0) continue;
                struct cell cell = data_cell(transfer, g, rebuild->rescue, s, i, b);
                struct block *block = move_cell(transfer, &cell, to, rebuild->rank);
                if (cells) cells[shard] = block;
            }
            for (int p = 0; p < g->parity; p++) {
                struct cell cell = parity_cell(transfer, g, rebuild->rescue, s, p, b);
                struct block *block = move_cell(transfer, &cell, to, rebuild->rank);
                if (cells) cells[g->data + p] = block;
            }
        }
    }
}

static struct rebuild *begin_rebuild(struct transfer *transfer, const struct rescue *rescue,
                                     int rank, bool *good) {
    eyrie_ulfm_job *job = transfer->job;
    struct rebuild *rebuild = must_alloc(sizeof *rebuild);
    rebuild->group = group_of(job, &job->held, rank, job->catalogs);
    rebuild->rank = rank;
    rebuild->self = group_index(&rebuild->group, rank);
    rebuild->rescue = rescue;
    if (!(*good = check_cells(transfer, &rebuild->group, rescue))) return rebuild;
    if (rescue->to == job->me) {
        rebuild->image = image_new(OWN, rank, job->version, catalog_blocks(&job->catalogs[rank]));
        rebuild->cell = must_alloc(
            (size_t)(rebuild->group.size * rebuild->group.column * rebuild->group.size + 1) *
            sizeof *rebuild->cell);
        if (rescue->header == job->me) {
            struct image *header = image_find(job, HEADER, rank, job->version);
            memcpy(rebuild->image->sum, header->sum, (size_t)header->blocks * sizeof *header->sum);
        } else {
            receive_bytes(transfer, rescue->header, rebuild->image->sum,
                          (size_t)rebuild->image->blocks * sizeof(uint64_t), rank);
        }
    } else if (rescue->header == job->me) {
        struct image *header = image_find(job, HEADER, rank, job->version);
        send_bytes(transfer, rescue->to, header->sum, (size_t)header->blocks * sizeof *header->sum,
                   rank);
    }
    gather_cells(transfer, rebuild);
    return rebuild;
}

/* A copy of a block, padded with zeros to the length of the row. */
static unsigned char *padded(struct block *block, uint32_t len) {
    unsigned char *room = must_alloc(len);
    if (block) memcpy(room, block->data, block->len < len ? block->len : len);
    return room;
}

static bool rebuild_row(struct rebuild *rebuild, int s, int b) {
    struct group *g = &rebuild->group;
    int number = group_block(g, s, rebuild->self, b);
    if (number >= rebuild->image->blocks) return true;
    uint32_t len = group_row_len(g, s, b);
    struct block **cells = &rebuild->cell[(s * g->column + b) * g->size];
    unsigned char *room[64] = {0};
    const uint8_t *data[64] = {0}, *parity[32] = {0};
    for (int i = 0; i < g->size; i++) {
        int shard = group_shard(g, s, i);
        if (shard < 0 || rebuild->rescue->members[i] < 0) continue;
        data[shard] = room[shard] = padded(cells[shard], len);
    }
    for (int p = 0; p < g->parity; p++)
        if (cells[g->data + p]) parity[p] = cells[g->data + p]->data;
    unsigned char *out = must_alloc(len);
    int wanted = group_shard(g, s, rebuild->self);
    bool good = eyrie_parity_decode(data, (size_t)g->data, parity, (size_t)g->parity, len,
                                    (size_t)wanted, out) == 0;
    struct block *block = block_new(catalog_block_len(g->catalog[rebuild->self], number));
    if (block) memcpy(block->data, out, block->len);
    rebuild->image->block[number] = block;
    for (int d = 0; d < g->data; d++) free(room[d]);
    free(out);
    return good && block;
}

static struct image *end_rebuild(struct rebuild *rebuild, bool *good) {
    struct group *g = &rebuild->group;
    struct image *image = rebuild->image;
    for (int s = 0; image && s < g->size; s++)
        for (int b = 0; b < g->column && group_has_data(g, s, rebuild->self); b++)
            *good = *good && rebuild_row(rebuild, s, b);
    for (int i = 0; rebuild->cell && i < g->size * g->column * g->size; i++)
        block_release(rebuild->cell[i]);
    free(rebuild->cell);
    free(rebuild);
    return image;
}

/* --- all ranks --- */

static struct image *read_file(eyrie_ulfm_job *job, int rank, bool *good) {
    struct image *image = files_read(job, rank, job->version, &job->catalogs[rank]);
    *good = image != NULL;
    /* the next attempt says that it is lost */
    if (!image) image_keep(job, image_new(BAD_FILE, rank, job->version, 0));
    return image;
}

int transfer_run(eyrie_ulfm_job *job, MPI_Comm comm, const int *index_of, const struct plan *plan) {
    struct transfer transfer = {job, comm, index_of, {0}, true};
    struct image **got = must_alloc((size_t)(plan->data_ranks + 1) * sizeof *got);
    struct rebuild **rebuilds = must_alloc((size_t)(plan->data_ranks + 1) * sizeof *rebuilds);
    bool all_good = true;
    for (int r = 0; r < plan->data_ranks; r++) {
        const struct rescue *rescue = &plan->rescue[r];
        bool good = true;
        switch (rescue->action) {
        case STAYS:
        case LOST:
            break;
        case SENDS:
            got[r] = send_image(&transfer, rescue, r, &good);
            break;
        case DECODES:
            rebuilds[r] = begin_rebuild(&transfer, rescue, r, &good);
            break;
        case READS:
            if (rescue->to == job->me) got[r] = read_file(job, r, &good);
            break;
        }
        all_good &= good;
    }
    if (!all_good || !transfer.memory) FT_Comm_revoke(comm);
    inject(job, "transfer");
    int code = waits_all(job, &transfer.waits, comm, "for the data of failed ranks");
    for (int r = 0; r < plan->data_ranks; r++) {
        bool good = code == MPI_SUCCESS && all_good && transfer.memory;
        if (rebuilds[r] && good)
            got[r] = end_rebuild(rebuilds[r], &good);
        else if (rebuilds[r])
            image_free(end_rebuild(rebuilds[r], &good));
        if (!got[r]) continue;
        if (good && (good = image_intact(got[r])))
            image_keep(job, got[r]);
        else
            image_free(got[r]);
        all_good &= good;
    }
    free(got);
    free(rebuilds);
    if (!transfer.memory) give_up(job, "no memory for the data of failed ranks");
    if (code == MPI_SUCCESS && !all_good) {
        FT_Comm_revoke(comm);
        code = FT_ERR_REVOKED;
    }
    return code;
}
