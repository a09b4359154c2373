/* heat3d: heat spreading in a block; explicit 7-point stencil, 3D decomposition, nonblocking halo
 * exchange of whole faces.
 *
 * Every step each rank posts receives for its faces, sends its own, waits, and computes. An axis
 * with one cell is not divided, so a block of one layer is a plate. With --wind 1 heat is only
 * carried along the first axis, by a wind: each rank then sends to one neighbour, and receives from
 * one. Output and result depend on size, ranks and steps alone, so that a run with failures can be
 * compared byte for byte. With --slow-until rank 0, and so every rank, runs slowly until a file
 * exists. */
#include "common.h"
#include "pace.h"
#include <math.h>

enum { AXES = 3, SIDES = 2 * AXES };

struct block {
    int cells[AXES];  /* of this rank, without the halo */
    long first[AXES]; /* its place in the whole */
    double *now, *next;
    int neighbour[SIDES]; /* below and above on each axis */
    int sends[SIDES];     /* whether this side's face is needed there */
    MPI_Datatype inner[SIDES], halo[SIDES];
    MPI_Comm grid;
};

static size_t at(const struct block *b, int i, int j, int k) {
    return ((size_t)i * (b->cells[1] + 2) + j) * (b->cells[2] + 2) + k;
}

/* The face of one side: the outermost own cells, or the halo beyond them. */
static MPI_Datatype face(const struct block *b, int side, int is_halo) {
    int sizes[AXES], parts[AXES], begins[AXES], axis = side / 2, above = side % 2;
    MPI_Datatype type;
    for (int i = 0; i < AXES; i++) {
        sizes[i] = b->cells[i] + 2;
        parts[i] = b->cells[i];
        begins[i] = 1;
    }
    parts[axis] = 1;
    begins[axis] = above ? b->cells[axis] + is_halo : 1 - is_halo;
    MPI_Type_create_subarray(AXES, sizes, parts, begins, MPI_ORDER_C, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    return type;
}

static void set_up(struct block *b, const long *size, int wind) {
    int ranks, rank, dims[AXES], periods[AXES] = {0}, place[AXES];
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < AXES; i++) dims[i] = size[i] == 1 ? 1 : 0;
    MPI_Dims_create(ranks, AXES, dims);
    MPI_Cart_create(MPI_COMM_WORLD, AXES, dims, periods, 0, &b->grid);
    MPI_Comm_rank(b->grid, &rank);
    MPI_Cart_coords(b->grid, rank, AXES, place);
    size_t all = 1;
    for (int i = 0; i < AXES; i++) {
        b->first[i] = block_begin(size[i], dims[i], place[i]);
        b->cells[i] = (int)(block_begin(size[i], dims[i], place[i] + 1) - b->first[i]);
        if (b->cells[i] < 1)
            die("%ld cells on axis %d are too few for %d ranks", size[i], i, dims[i]);
        all *= (size_t)b->cells[i] + 2;
        MPI_Cart_shift(b->grid, i, 1, &b->neighbour[2 * i], &b->neighbour[2 * i + 1]);
    }
    for (int side = 0; side < SIDES; side++) {
        b->inner[side] = face(b, side, 0);
        b->halo[side] = face(b, side, 1);
        b->sends[side] = !wind || side == 1; /* the wind blows up the first axis */
    }
    b->now = allocate(all, sizeof(double));
    b->next = allocate(all, sizeof(double));
    for (int i = 1; i <= b->cells[0]; i++) /* a cold block with warm spots */
        for (int j = 1; j <= b->cells[1]; j++)
            for (int k = 1; k <= b->cells[2]; k++) {
                long cell = ((b->first[0] + i) * (size[1] + 2) + b->first[1] + j) * (size[2] + 2) +
                            b->first[2] + k;
                b->now[at(b, i, j, k)] = random_word(1, (uint64_t)cell) % 97 == 0 ? 100.0 : 0.0;
            }
}

static void exchange(struct block *b) {
    MPI_Request requests[2 * SIDES];
    int n = 0;
    for (int side = 0; side < SIDES; side++)
        if (b->sends[side ^ 1]) /* what the neighbour there sends is its opposite face */
            MPI_Irecv(b->now, 1, b->halo[side], b->neighbour[side], side ^ 1, b->grid,
                      &requests[n++]);
    for (int side = 0; side < SIDES; side++)
        if (b->sends[side])
            MPI_Isend(b->now, 1, b->inner[side], b->neighbour[side], side, b->grid, &requests[n++]);
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
}

static void compute(struct block *b, int wind) {
    for (int i = 1; i <= b->cells[0]; i++)
        for (int j = 1; j <= b->cells[1]; j++)
            for (int k = 1; k <= b->cells[2]; k++) {
                const double *u = b->now, here = u[at(b, i, j, k)];
                double *next = &b->next[at(b, i, j, k)];
                if (wind)
                    *next = here + 0.5 * (u[at(b, i - 1, j, k)] - here);
                else
                    *next =
                        here + 0.1 * (u[at(b, i - 1, j, k)] + u[at(b, i + 1, j, k)] +
                                      u[at(b, i, j - 1, k)] + u[at(b, i, j + 1, k)] +
                                      u[at(b, i, j, k - 1)] + u[at(b, i, j, k + 1)] - 6.0 * here);
            }
    double *swap = b->now;
    b->now = b->next;
    b->next = swap;
}

/* Rank 0 prints the change of the last step over the whole block. */
static void report(struct block *b, long step) {
    double change = 0.0, total;
    int rank;
    MPI_Comm_rank(b->grid, &rank);
    for (int i = 1; i <= b->cells[0]; i++)
        for (int j = 1; j <= b->cells[1]; j++)
            for (int k = 1; k <= b->cells[2]; k++)
                change += fabs(b->now[at(b, i, j, k)] - b->next[at(b, i, j, k)]);
    MPI_Allreduce(&change, &total, 1, MPI_DOUBLE, MPI_SUM, b->grid);
    if (rank != 0) return;
    printf("step %ld change %.12e\n", step, total);
    fflush(stdout);
}

/* Rank 0 prints a hash over what each rank has, in order of ranks. */
static void print_result(struct block *b) {
    int rank, ranks;
    uint64_t hash = HASH_START, *all = NULL;
    MPI_Comm_rank(b->grid, &rank);
    MPI_Comm_size(b->grid, &ranks);
    for (int i = 1; i <= b->cells[0]; i++)
        for (int j = 1; j <= b->cells[1]; j++)
            hash = hash_bytes(hash, &b->now[at(b, i, j, 1)], (size_t)b->cells[2] * sizeof(double));
    if (rank == 0) all = allocate((size_t)ranks, sizeof *all);
    MPI_Gather(&hash, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, b->grid);
    if (rank != 0) return;
    printf("block %016llx\n",
           (unsigned long long)hash_bytes(HASH_START, all, (size_t)ranks * sizeof *all));
    free(all);
}

int main(int argc, char **argv) {
    long size[AXES] = {96, 96, 96}, steps = 400, every = 100, wind = 0;
    struct pace pace = {.slow_ms = 5};
    const struct option options[] = {
        {"nx", "cells of the first axis", .number = &size[0]},
        {"ny", "cells of the second axis", .number = &size[1]},
        {"nz", "cells of the third axis", .number = &size[2]},
        {"steps", "time steps", .number = &steps},
        {"every", "report the change every so many steps (0: never)", .number = &every},
        {"wind", "1: a wind up the first axis carries the heat, and nothing else", .number = &wind},
        PACE_OPTIONS(pace),
        {0},
    };
    struct block block = {0};
    int rank;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Heat in a block: 7-point stencil with nonblocking halo exchange.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    set_up(&block, size, wind != 0);
    for (long s = 1; s <= steps; s++) {
        exchange(&block);
        compute(&block, wind != 0);
        if (every > 0 && s % every == 0) report(&block, s);
        keep_pace(&pace, rank);
    }
    print_result(&block);
    for (int side = 0; side < SIDES; side++) {
        MPI_Type_free(&block.inner[side]);
        MPI_Type_free(&block.halo[side]);
    }
    free(block.now);
    free(block.next);
    MPI_Comm_free(&block.grid);
    MPI_Finalize();
    return 0;
}
