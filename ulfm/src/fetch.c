/* Fetches pieces of committed data from the ranks that have them. A squeezed job gets its old data
 * into its new decomposition in this way. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* A request for a piece, sent to the process that has it: bytes of a rank's data. */
struct piece_request {
    int64_t rank, first, len;
};

static const struct entry *entry_of(const eyrie_ulfm_job *job, const char *name, int rank,
                                    int *block) {
    if (rank < 0 || rank >= job->held.ranks) return NULL;
    const struct catalog *catalog = &job->catalogs[rank];
    *block = 0;
    for (int i = 0; i < catalog->count; i++) {
        if (!strcmp(catalog->entry[i].name, name)) return &catalog->entry[i];
        *block += (int)((catalog->entry[i].bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
    }
    return NULL;
}

/* The rank of the working communicator that has a committed rank's data, and as what. */
static int server_of(const eyrie_ulfm_job *job, int rank, enum kind *kind) {
    *kind = job->server ? job->server[rank].from_kind : OWN;
    return job->rank_of[job->server ? job->server[rank].from : job->held.process[rank]];
}

static void read_bytes(const struct image *image, int block, int64_t first, int64_t len,
                       unsigned char *into) {
    for (block += (int)(first / BLOCK_BYTES), first %= BLOCK_BYTES; len > 0; block++, first = 0) {
        int64_t part =
            image->block[block]->len - first < len ? image->block[block]->len - first : len;
        memcpy(into, image->block[block]->data + first, (size_t)part);
        into += part;
        len -= part;
    }
}

struct fetch {
    eyrie_ulfm_job *job;
    const char *name;
    int pieces, ranks;
    const eyrie_ulfm_piece *piece;
    int *from;         /* of each piece: rank that has it */
    int *asked, *asks; /* requests to and from each rank */
    struct piece_request *requests, *others;
    unsigned char **in, **out; /* bytes from and to each rank */
};

static int check_pieces(struct fetch *f) {
    eyrie_ulfm_job *job = f->job;
    int64_t *bytes = must_alloc((size_t)f->ranks * sizeof *bytes);
    int code = MPI_SUCCESS;
    for (int i = 0; i < f->pieces && code == MPI_SUCCESS; i++) {
        const eyrie_ulfm_piece *piece = &f->piece[i];
        int block;
        enum kind kind;
        const struct entry *entry = entry_of(job, f->name, piece->rank, &block);
        if (!entry) {
            code = explain(job, MPI_ERR_ARG, "rank %d has committed nothing named %s", piece->rank,
                           f->name);
        } else if (piece->first < 0 || piece->count < 0 ||
                   piece->first > entry->bytes / entry->element - piece->count) {
            code =
                explain(job, MPI_ERR_ARG, "elements %lld to %lld of %s: rank %d has committed %lld",
                        (long long)piece->first, (long long)(piece->first + piece->count), f->name,
                        piece->rank, (long long)(entry->bytes / entry->element));
        } else {
            f->from[i] = server_of(job, piece->rank, &kind);
            bytes[f->from[i]] += piece->count * entry->element;
            f->asked[f->from[i]]++;
            if (bytes[f->from[i]] > INT_MAX)
                code = explain(job, MPI_ERR_COUNT,
                               "more than 2 GiB of %s from one rank: fetch it in parts", f->name);
        }
    }
    free(bytes);
    return code;
}

/* Sends the requests of this rank and receives those of the others. */
static int exchange_requests(struct fetch *f, int code) {
    eyrie_ulfm_job *job = f->job;
    int n = f->ranks, size = (int)sizeof(struct piece_request), faults = code != MPI_SUCCESS;
    int *counts[4];
    for (int k = 0; k < 4; k++) counts[k] = must_alloc((size_t)n * sizeof(int));
    wait_guard(job, "in eyrie_ulfm_fetch, to say what each wants");
    int mpi = MPI_Allreduce(MPI_IN_PLACE, &faults, 1, MPI_INT, MPI_SUM, job->work);
    if (mpi == MPI_SUCCESS && faults == 0)
        mpi = MPI_Alltoall(f->asked, 1, MPI_INT, f->asks, 1, MPI_INT, job->work);
    int asked = 0, asks = 0;
    for (int r = 0; r < n; r++) {
        counts[0][r] = f->asked[r] * size;
        counts[1][r] = asked * size;
        counts[2][r] = f->asks[r] * size;
        counts[3][r] = asks * size;
        asked += f->asked[r];
        asks += f->asks[r];
    }
    f->requests = must_alloc((size_t)(asked + 1) * sizeof *f->requests);
    f->others = must_alloc((size_t)(asks + 1) * sizeof *f->others);
    int *next = must_alloc((size_t)n * sizeof *next);
    for (int r = 0; r < n; r++) next[r] = counts[1][r] / size;
    for (int i = 0; faults == 0 && i < f->pieces; i++) {
        int block;
        const struct entry *entry = entry_of(job, f->name, f->piece[i].rank, &block);
        f->requests[next[f->from[i]]++] =
            (struct piece_request){f->piece[i].rank, f->piece[i].first * entry->element,
                                   f->piece[i].count * entry->element};
    }
    if (mpi == MPI_SUCCESS && faults == 0)
        mpi = MPI_Alltoallv(f->requests, counts[0], counts[1], MPI_BYTE, f->others, counts[2],
                            counts[3], MPI_BYTE, job->work);
    wait_unguard(job);
    free(next);
    for (int k = 0; k < 4; k++) free(counts[k]);
    if (code != MPI_SUCCESS) return code;
    if (mpi != MPI_SUCCESS) return mpi;
    return faults ? explain(job, MPI_ERR_ARG,
                            "another rank asked for what was not committed: see its message")
                  : MPI_SUCCESS;
}

static int64_t bytes_of(const struct piece_request *request, int count) {
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += request[i].len;
    return bytes;
}

static int exchange_bytes(struct fetch *f) {
    eyrie_ulfm_job *job = f->job;
    struct waits waits = {0};
    const struct piece_request *mine = f->requests, *theirs = f->others;
    for (int r = 0; r < f->ranks; r++) {
        int64_t in = bytes_of(mine, f->asked[r]), out = bytes_of(theirs, f->asks[r]);
        int process = job->now.process[r];
        if (in) {
            f->in[r] = must_alloc((size_t)in);
            MPI_Irecv(f->in[r], (int)in, MPI_BYTE, r, TAG_FETCH, job->work,
                      waits_add(&waits, process));
        }
        if (out) {
            unsigned char *at = f->out[r] = must_alloc((size_t)out);
            for (int i = 0; i < f->asks[r]; at += theirs[i++].len) {
                int block;
                enum kind kind;
                entry_of(job, f->name, (int)theirs[i].rank, &block);
                server_of(job, (int)theirs[i].rank, &kind);
                read_bytes(image_find(job, kind, (int)theirs[i].rank, job->version), block,
                           theirs[i].first, theirs[i].len, at);
            }
            MPI_Isend(f->out[r], (int)out, MPI_BYTE, r, TAG_FETCH, job->work,
                      waits_add(&waits, process));
        }
        mine += f->asked[r];
        theirs += f->asks[r];
    }
    return waits_all(job, &waits, job->work, "in eyrie_ulfm_fetch");
}

static void deliver(struct fetch *f) {
    unsigned char **next = must_copy(f->in, (size_t)f->ranks * sizeof *next);
    for (int i = 0; i < f->pieces; i++) {
        int block;
        const struct entry *entry = entry_of(f->job, f->name, f->piece[i].rank, &block);
        size_t len = (size_t)(f->piece[i].count * entry->element);
        if (len) memcpy(f->piece[i].into, next[f->from[i]], len);
        next[f->from[i]] += len;
    }
    free(next);
}

int eyrie_ulfm_fetch(eyrie_ulfm_job *job, const char *name, int pieces,
                     const eyrie_ulfm_piece *piece) {
    if (job->work == MPI_COMM_NULL || job->ended)
        return explain(job, MPI_ERR_OTHER, "eyrie_ulfm_fetch: this process is no rank");
    if (job->lost) return explain(job, EYRIE_ULFM_ERR_LOST, "%s", job->last.note);
    if (pieces < 0 || job->version == 0)
        return explain(job, MPI_ERR_ARG, "eyrie_ulfm_fetch: nothing was committed");
    job->inside = true;
    struct fetch f = {
        .job = job, .name = name, .pieces = pieces, .ranks = job->now.ranks, .piece = piece};
    f.from = must_alloc((size_t)pieces * sizeof *f.from);
    f.asked = must_alloc((size_t)f.ranks * sizeof *f.asked);
    f.asks = must_alloc((size_t)f.ranks * sizeof *f.asks);
    f.in = must_alloc((size_t)f.ranks * sizeof *f.in);
    f.out = must_alloc((size_t)f.ranks * sizeof *f.out);
    int code = exchange_requests(&f, check_pieces(&f));
    if (code == MPI_SUCCESS) code = exchange_bytes(&f);
    if (code == MPI_SUCCESS) deliver(&f);
    for (int r = 0; r < f.ranks; r++) {
        free(f.in[r]);
        free(f.out[r]);
    }
    free(f.from);
    free(f.asked);
    free(f.asks);
    free(f.in);
    free(f.out);
    free(f.requests);
    free(f.others);
    job->inside = false;
    return code;
}
