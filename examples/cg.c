/* cg: conjugate gradients with a Jacobi preconditioner on a 3D 7-point problem, 3D decomposition.
 *
 * The solver of the Quiet paper's second experiment: "3 Allreduce and 7 to 8 neighbour exchanges an
 * iteration". Our reading: the paper's FEM mesh gives a rank 7 to 8 neighbours; a 7-point grid has
 * 6 (one per face), so the seventh exchange here is with the next rank of a ring, and carries the
 * iteration's scalars, which must be equal bit for bit on every rank. So a lost or repeated message
 * is noticed that a plain solver would miss. The 3 Allreduce are p.Ap, r.z and r.r, as in any
 * preconditioned CG. The output and the result file (the solution, by ranks) are the same in every
 * run of the same size and rank count. */
#include "common.h"
#include "pace.h"
#include <math.h>

enum { FACES = 6, SCALARS = 4 };

struct problem {
    long n[3], at[3], total; /* this rank's cells, where they begin, their number */
    int neighbour[FACES];    /* -x +x -y +y -z +z */
    int next, previous;      /* of the ring */
    double *halo[FACES], *face[FACES];
    double *diagonal;
    MPI_Comm grid;
};

static long face_cells(const struct problem *q, int axis) {
    return q->total / q->n[axis];
}

static long cell(const struct problem *q, long i, long j, long k) {
    return (i * q->n[1] + j) * q->n[2] + k;
}

/* The cell of `face` that is the `a`-th, `b`-th along the two other axes. */
static long face_cell(const struct problem *q, int face, long a, long b) {
    int axis = face / 2;
    long at = face % 2 ? q->n[axis] - 1 : 0;
    return axis == 0 ? cell(q, at, a, b) : axis == 1 ? cell(q, a, at, b) : cell(q, a, b, at);
}

static void set_up(struct problem *q, const long size[3]) {
    int ranks, rank, dims[3] = {0}, periods[3] = {0}, at[3];
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 3, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 3, dims, periods, 0, &q->grid);
    MPI_Comm_rank(q->grid, &rank);
    MPI_Cart_coords(q->grid, rank, 3, at);
    q->next = (rank + 1) % ranks;
    q->previous = (rank + ranks - 1) % ranks;
    q->total = 1;
    for (int axis = 0; axis < 3; axis++) {
        q->at[axis] = block_begin(size[axis], dims[axis], at[axis]);
        q->n[axis] = block_begin(size[axis], dims[axis], at[axis] + 1) - q->at[axis];
        if (q->n[axis] < 1)
            die("%ld cells along axis %d are too few for %d ranks", size[axis], axis, dims[axis]);
        q->total *= q->n[axis];
        MPI_Cart_shift(q->grid, axis, 1, &q->neighbour[2 * axis], &q->neighbour[2 * axis + 1]);
    }
    for (int face = 0; face < FACES; face++) {
        /* zero at the border: Dirichlet */
        q->halo[face] = allocate((size_t)face_cells(q, face / 2), sizeof(double));
        q->face[face] = allocate((size_t)face_cells(q, face / 2), sizeof(double));
    }
    q->diagonal = allocate((size_t)q->total, sizeof(double));
    for (long i = 0; i < q->n[0]; i++)
        for (long j = 0; j < q->n[1]; j++)
            for (long k = 0; k < q->n[2]; k++) /* an absorption that differs from place to place */
                q->diagonal[cell(q, i, j, k)] =
                    6.0 +
                    0.1 * (double)((q->at[0] + i + 2 * (q->at[1] + j) + 3 * (q->at[2] + k)) % 7);
}

/* Six exchanges of faces and the seventh of scalars; `mine` must come back equal from the previous
 * rank of the ring. */
static void exchange(struct problem *q, const double *v, const double *mine) {
    MPI_Request requests[2 * FACES + 2];
    double theirs[SCALARS];
    for (int face = 0; face < FACES; face++) {
        int axis = face / 2, opposite = face ^ 1;
        long count = face_cells(q, axis), inner = axis == 2 ? q->n[1] : q->n[2];
        MPI_Irecv(q->halo[face], (int)count, MPI_DOUBLE, q->neighbour[face], opposite, q->grid,
                  &requests[face]);
        for (long c = 0; c < count; c++)
            q->face[face][c] = v[face_cell(q, face, c / inner, c % inner)];
        MPI_Isend(q->face[face], (int)count, MPI_DOUBLE, q->neighbour[face], face, q->grid,
                  &requests[FACES + face]);
    }
    MPI_Irecv(theirs, SCALARS, MPI_DOUBLE, q->previous, FACES, q->grid, &requests[2 * FACES]);
    MPI_Isend(mine, SCALARS, MPI_DOUBLE, q->next, FACES, q->grid, &requests[2 * FACES + 1]);
    MPI_Waitall(2 * FACES + 2, requests, MPI_STATUSES_IGNORE);
    if (memcmp(theirs, mine, sizeof theirs) != 0)
        die("rank %d is elsewhere: iteration %.0f there, %.0f here, or its scalars differ",
            q->previous, theirs[0], mine[0]);
}

/* out = A v. The halos have the neighbours of v on other ranks. */
static void multiply(const struct problem *q, const double *v, double *out) {
    long stride[3] = {q->n[1] * q->n[2], q->n[2], 1};
    for (long i = 0; i < q->n[0]; i++)
        for (long j = 0; j < q->n[1]; j++)
            for (long k = 0; k < q->n[2]; k++) {
                long here = cell(q, i, j, k), at[3] = {i, j, k};
                long on_face[3] = {j * q->n[2] + k, i * q->n[2] + k, i * q->n[1] + j};
                double sum = q->diagonal[here] * v[here];
                for (int axis = 0; axis < 3; axis++) {
                    sum -= at[axis] > 0 ? v[here - stride[axis]] : q->halo[2 * axis][on_face[axis]];
                    sum -= at[axis] < q->n[axis] - 1 ? v[here + stride[axis]]
                                                     : q->halo[2 * axis + 1][on_face[axis]];
                }
                out[here] = sum;
            }
}

static double dot(const struct problem *q, const double *a, const double *b) {
    double mine = 0.0, all;
    for (long c = 0; c < q->total; c++) mine += a[c] * b[c];
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, q->grid);
    return all;
}

/* Solves A x = b for the right side number `which`; returns the iterations used and leaves |r| in
 * `residual`. */
static long solve(struct problem *q, long which, long limit, double tolerance, double *x,
                  double *residual) {
    double *r = allocate((size_t)q->total, sizeof *r), *z = allocate((size_t)q->total, sizeof *z);
    double *p = allocate((size_t)q->total, sizeof *p), *ap = allocate((size_t)q->total, sizeof *ap);
    double scalars[SCALARS] = {0};
    long iteration = 0;
    for (long i = 0; i < q->n[0]; i++)
        for (long j = 0; j < q->n[1]; j++)
            for (long k = 0; k < q->n[2]; k++)
                r[cell(q, i, j, k)] =
                    1.0 +
                    0.01 * (double)((q->at[0] + i + q->at[1] + j + q->at[2] + k + which) % 11);
    for (long c = 0; c < q->total; c++) {
        x[c] = 0.0;
        p[c] = z[c] = r[c] / q->diagonal[c];
    }
    double rz = dot(q, r, z), rr = dot(q, r, r), goal = tolerance * tolerance * rr;
    while (iteration < limit && rr > goal) {
        scalars[0] = (double)++iteration, scalars[1] = rz, scalars[2] = rr;
        exchange(q, p, scalars);
        multiply(q, p, ap);
        double alpha = rz / dot(q, p, ap);
        for (long c = 0; c < q->total; c++) {
            x[c] += alpha * p[c];
            r[c] -= alpha * ap[c];
            z[c] = r[c] / q->diagonal[c];
        }
        double rz_before = rz;
        rz = dot(q, r, z);
        rr = dot(q, r, r);
        scalars[3] = rz / rz_before;
        for (long c = 0; c < q->total; c++) p[c] = z[c] + scalars[3] * p[c];
    }
    *residual = sqrt(rr);
    free(r), free(z), free(p), free(ap);
    return iteration;
}

/* Rank 0 writes the parts of the solution of all ranks in order, and prints a hash over them. */
static void write_solution(const struct problem *q, double *x, const char *path) {
    int rank, ranks;
    FILE *file = NULL;
    MPI_Comm_rank(q->grid, &rank);
    MPI_Comm_size(q->grid, &ranks);
    if (rank != 0) {
        MPI_Send(x, (int)q->total, MPI_DOUBLE, 0, 20, q->grid);
        return;
    }
    if (path && !(file = fopen(path, "wb"))) die("cannot write %s: %s", path, strerror(errno));
    uint64_t hash = HASH_START;
    for (int from = 0; from < ranks; from++) {
        int count = (int)q->total;
        MPI_Status status;
        double *part = x;
        if (from > 0) {
            MPI_Probe(from, 20, q->grid, &status);
            MPI_Get_count(&status, MPI_DOUBLE, &count);
            part = allocate((size_t)count, sizeof *part);
            MPI_Recv(part, count, MPI_DOUBLE, from, 20, q->grid, MPI_STATUS_IGNORE);
        }
        hash = hash_bytes(hash, part, (size_t)count * sizeof *part);
        if (file && fwrite(part, sizeof *part, (size_t)count, file) != (size_t)count)
            die("cannot write %s: %s", path, strerror(errno));
        if (from > 0) free(part);
    }
    if (file && fclose(file) != 0) die("cannot write %s: %s", path, strerror(errno));
    printf("solution %016llx\n", (unsigned long long)hash);
}

int main(int argc, char **argv) {
    long n = 48, iterations = 1000, solves = 4;
    double tolerance = 1e-9;
    const char *out = NULL;
    struct pace pace = {.slow_ms = 5};
    const struct option options[] = {
        {"n", "cells along each of the three axes", .number = &n},
        {"iterations", "at most so many iterations a solve", .number = &iterations},
        {"solves", "right sides to solve for, one after another", .number = &solves},
        PACE_OPTIONS(pace),
        {"tolerance", "stop at this residual, relative to the first", .real = &tolerance},
        {"out", "write the last solution to this file", .text = &out},
        {0},
    };
    struct problem problem = {0};
    int rank;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Preconditioned conjugate gradients on a 3D 7-point problem.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    set_up(&problem, (const long[3]){n, n, n});
    double *x = allocate((size_t)problem.total, sizeof *x), residual = 0.0;
    for (long s = 0; s < solves; s++) {
        long used = solve(&problem, s, iterations, tolerance, x, &residual);
        if (rank == 0) {
            printf("solve %ld iterations %ld residual %.12e\n", s, used, residual);
            fflush(stdout);
        }
        keep_pace(&pace, rank);
    }
    write_solution(&problem, x, out);
    free(x);
    MPI_Comm_free(&problem.grid);
    MPI_Finalize();
    return 0;
}
