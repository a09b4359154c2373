/* What the examples share: a grid of points cut into blocks, one for each rank, with a halo one
 * point deep. Two-dimensional grids have one point along the first axis. Every function that calls
 * MPI returns MPI's error code. */
#ifndef GRID_H
#define GRID_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eyrie_ulfm.h"

struct block {
    int points[3];          /* of the whole grid */
    int ranks[3], at[3];    /* of the grid of ranks; this rank's place in it */
    int first[3], count[3]; /* this rank's points */
    double *now, *next;     /* with halo */
    long long size;         /* doubles of each, halo included */
};

static inline void block_share(int points, int ranks, int at, int *first, int *count) {
    *first = (int)((long long)points * at / ranks);
    *count = (int)((long long)points * (at + 1) / ranks) - *first;
}

static inline long long block_index(const int count[3], int i, int j, int k) {
    return ((long long)(i + 1) * (count[1] + 2) + (j + 1)) * (count[2] + 2) + (k + 1);
}

/* The part of rank `rank` of a grid of ranks with these extents (the last of three axes when there
 * are fewer). */
static inline void block_place(struct block *b, int rank, int axes, const int *shape) {
    for (int a = 0; a < 3; a++) b->ranks[a] = a < 3 - axes ? 1 : shape[a - (3 - axes)];
    if (b->points[0] == 1 && b->ranks[0] > 1) { /* a flat grid on a grid of ranks with three axes */
        b->ranks[1] *= b->ranks[0];
        b->ranks[0] = 1;
    }
    for (int a = 2; a >= 0; a--) {
        b->at[a] = rank % b->ranks[a];
        rank /= b->ranks[a];
    }
    b->size = 1;
    for (int a = 0; a < 3; a++) {
        block_share(b->points[a], b->ranks[a], b->at[a], &b->first[a], &b->count[a]);
        b->size *= b->count[a] + 2;
    }
}

/* Allocates this rank's block, for the ranks that the job has now. */
static inline void block_make(struct block *b, eyrie_ulfm_job *job) {
    int rank, shape[16], axes = eyrie_ulfm_shape(job, shape, 16);
    MPI_Comm_rank(eyrie_ulfm_comm(job), &rank);
    block_place(b, rank, axes, shape);
    free(b->now);
    free(b->next);
    b->now = calloc((size_t)b->size, sizeof(double));
    b->next = calloc((size_t)b->size, sizeof(double));
    if (!b->now || !b->next) MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A field without symmetry, so that a block in the wrong place is noticed. */
static inline void block_fill(struct block *b) {
    memset(b->now, 0, (size_t)b->size * sizeof(double));
    for (int i = 0; i < b->count[0]; i++)
        for (int j = 0; j < b->count[1]; j++)
            for (int k = 0; k < b->count[2]; k++) {
                unsigned x = (unsigned)(b->first[0] + i) * 73856093u ^
                             (unsigned)(b->first[1] + j) * 19349663u ^
                             (unsigned)(b->first[2] + k) * 83492791u;
                b->now[block_index(b->count, i, j, k)] = (double)(x % 10007u) / 10007.0;
            }
}

static inline int block_rank(const struct block *b, const int at[3]) {
    return (at[0] * b->ranks[1] + at[1]) * b->ranks[2] + at[2];
}

/* Copies the points of one face to or from a row of doubles. `where` goes from 0 (the halo before
 * the first) to count + 1. */
static inline long long block_face(struct block *b, int axis, int where, double *row, int put) {
    int from[3] = {0, 0, 0}, to[3] = {b->count[0], b->count[1], b->count[2]};
    long long n = 0;
    from[axis] = where - 1;
    to[axis] = where;
    for (int i = from[0]; i < to[0]; i++)
        for (int j = from[1]; j < to[1]; j++)
            for (int k = from[2]; k < to[2]; k++, n++) {
                double *point = &b->now[block_index(b->count, i, j, k)];
                if (put)
                    *point = row[n];
                else
                    row[n] = *point;
            }
    return n;
}

/* Sends and receives a message at the same time. Not by MPI_Sendrecv: in Open MPI 5.0 it can crash
 * when the communicator is revoked and the source is MPI_PROC_NULL (docs/ulfm.md, limits). */
static inline int swap_messages(const double *out, int dest, double *in, int source, long long n,
                                int tag, MPI_Comm comm) {
    MPI_Request request[2];
    int code = MPI_Irecv(in, (int)n, MPI_DOUBLE, source, tag, comm, &request[0]);
    if (code != MPI_SUCCESS) return code;
    code = MPI_Isend(out, (int)n, MPI_DOUBLE, dest, tag, comm, &request[1]);
    int received = MPI_Wait(&request[0], MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return code;
    int sent = MPI_Wait(&request[1], MPI_STATUS_IGNORE);
    return received != MPI_SUCCESS ? received : sent;
}

/* Fills the halo from the neighbours; beyond the border of the grid it stays 0. */
static inline int block_exchange(struct block *b, MPI_Comm comm) {
    double *out = malloc((size_t)b->size * sizeof(double)),
           *in = malloc((size_t)b->size * sizeof(double));
    int code = MPI_SUCCESS;
    for (int axis = 0; axis < 3 && code == MPI_SUCCESS; axis++)
        for (int side = 0; side < 2 && code == MPI_SUCCESS; side++) {
            int to[3] = {b->at[0], b->at[1], b->at[2]}, from[3] = {b->at[0], b->at[1], b->at[2]};
            if (b->ranks[axis] == 1) continue;
            to[axis] += side ? 1 : -1;
            from[axis] -= side ? 1 : -1;
            int dest =
                to[axis] < 0 || to[axis] >= b->ranks[axis] ? MPI_PROC_NULL : block_rank(b, to);
            int source = from[axis] < 0 || from[axis] >= b->ranks[axis] ? MPI_PROC_NULL
                                                                        : block_rank(b, from);
            long long n = block_face(b, axis, side ? b->count[axis] : 1, out, 0);
            code = swap_messages(out, dest, in, source, n, axis, comm);
            if (code == MPI_SUCCESS && source != MPI_PROC_NULL)
                block_face(b, axis, side ? 0 : b->count[axis] + 1, in, 1);
        }
    free(out);
    free(in);
    return code;
}

/* After squeezing: fetches this rank's points from the blocks that were committed, row by row. */
static inline int block_fetch(struct block *b, eyrie_ulfm_job *job, const char *name) {
    int shape[16], axes = eyrie_ulfm_committed_shape(job, shape, 16),
                   ranks = eyrie_ulfm_committed_ranks(job), pieces = 0;
    eyrie_ulfm_piece *piece =
        malloc(sizeof *piece * (size_t)ranks * (size_t)b->count[0] * (size_t)b->count[1]);
    for (int r = 0; r < ranks; r++) {
        struct block old = {.points = {b->points[0], b->points[1], b->points[2]}};
        int low[3], high[3];
        block_place(&old, r, axes, shape);
        for (int a = 0; a < 3; a++) {
            low[a] = old.first[a] > b->first[a] ? old.first[a] : b->first[a];
            high[a] = old.first[a] + old.count[a] < b->first[a] + b->count[a]
                          ? old.first[a] + old.count[a]
                          : b->first[a] + b->count[a];
        }
        for (int i = low[0]; i < high[0]; i++)
            for (int j = low[1]; j < high[1] && low[2] < high[2]; j++)
                piece[pieces++] =
                    (eyrie_ulfm_piece){r,
                                       block_index(old.count, i - old.first[0], j - old.first[1],
                                                   low[2] - old.first[2]),
                                       high[2] - low[2],
                                       &b->now[block_index(b->count, i - b->first[0],
                                                           j - b->first[1], low[2] - b->first[2])]};
    }
    int code = eyrie_ulfm_fetch(job, name, pieces, piece);
    free(piece);
    return code;
}

/* Writes the whole grid to a file. Every rank sends its block to rank 0, which writes under another
 * name first. */
static inline int block_write(struct block *b, MPI_Comm comm, const char *path) {
    int rank, ranks, code = MPI_SUCCESS;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    if (rank != 0) return MPI_Send(b->now, (int)b->size, MPI_DOUBLE, 0, 9, comm);
    double *grid =
        calloc((size_t)b->points[0] * (size_t)b->points[1] * (size_t)b->points[2], sizeof(double));
    for (int r = 0; r < ranks && code == MPI_SUCCESS; r++) {
        struct block one = *b;
        one.now = one.next = NULL;
        block_place(&one, r, 3, b->ranks);
        double *points = r ? malloc((size_t)one.size * sizeof(double)) : b->now;
        if (r) code = MPI_Recv(points, (int)one.size, MPI_DOUBLE, r, 9, comm, MPI_STATUS_IGNORE);
        for (int i = 0; i < one.count[0] && code == MPI_SUCCESS; i++)
            for (int j = 0; j < one.count[1]; j++)
                memcpy(&grid[((long long)(one.first[0] + i) * b->points[1] + one.first[1] + j) *
                                 b->points[2] +
                             one.first[2]],
                       &points[block_index(one.count, i, j, 0)],
                       (size_t)one.count[2] * sizeof(double));
        if (r) free(points);
    }
    char part[4096];
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = code == MPI_SUCCESS ? fopen(part, "wb") : NULL;
    if (file) {
        fwrite(grid, sizeof(double),
               (size_t)b->points[0] * (size_t)b->points[1] * (size_t)b->points[2], file);
        if (fclose(file) != 0 || rename(part, path) != 0) perror(path);
    } else if (code == MPI_SUCCESS) {
        perror(part);
    }
    free(grid);
    return code;
}

/* Ends the process after failures that could not be recovered from. Neither MPI_Abort nor
 * MPI_Finalize ends well then in Open MPI 5.0 (docs/ulfm.md, limits). */
static inline void leave_at_once(int status) {
    fflush(NULL);
    _exit(status);
}

/* --name N anywhere on the command line. */
static inline long option(int argc, char **argv, const char *name, long otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return atol(argv[i + 1]);
    return otherwise;
}
static inline const char *option_text(int argc, char **argv, const char *name,
                                      const char *otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}

#endif
