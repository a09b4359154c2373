/* A 7-point stencil that goes on when ranks fail, as a callback. The body checks no return codes of
 * MPI: a failure ends it, and the library calls it again at the recovery point. Committed data that
 * is the same in all versions is sent once. mpirun --with-ft ulfm -n 9 env EYRIE_ULFM_JOB=2x2x2
 * EYRIE_ULFM_SPARES=1 stencil3d --n 48 --steps 500 --out cube */
#include "grid.h"

struct run {
    struct block block;
    double *material; /* of each point; never changes */
    int step, steps, every;
    const char *out;
};

static void sweep(struct run *r) {
    struct block *b = &r->block;
    long long row = b->count[2] + 2, plane = row * (b->count[1] + 2);
    for (int i = 0; i < b->count[0]; i++)
        for (int j = 0; j < b->count[1]; j++)
            for (int k = 0; k < b->count[2]; k++) {
                long long p = block_index(b->count, i, j, k);
                const double *u = b->now;
                double around =
                    u[p - 1] + u[p + 1] + u[p - row] + u[p + row] + u[p - plane] + u[p + plane];
                b->next[p] = u[p] + r->material[p] * (around - 6 * u[p]);
            }
    memcpy(b->now, b->next, (size_t)b->size * sizeof(double));
}

static int body(eyrie_ulfm_job *job, int64_t version, void *context) {
    struct run *r = context;
    if (eyrie_ulfm_squeezed(job)) {
        fprintf(stderr, "stencil3d goes on with spares only: see stencil2d\n");
        return MPI_ERR_UNSUPPORTED_OPERATION;
    }
    /* This process may be another rank now, with the neighbours of that rank. */
    int rank, shape[16], axes = eyrie_ulfm_shape(job, shape, 16);
    MPI_Comm_rank(eyrie_ulfm_comm(job), &rank);
    block_place(&r->block, rank, axes, shape);
    if (version == 0) {
        r->step = 0;
        block_fill(&r->block);
        for (long long p = 0; p < r->block.size; p++) r->material[p] = 0.05 + 0.1 * r->block.now[p];
    }
    for (; r->step < r->steps; r->step++) {
        if (r->step % r->every == 0) {
            int code = eyrie_ulfm_commit(job, NULL);
            if (code != MPI_SUCCESS) return code;
        }
        block_exchange(&r->block, eyrie_ulfm_comm(job));
        sweep(r);
    }
    return r->out ? block_write(&r->block, eyrie_ulfm_comm(job), r->out) : MPI_SUCCESS;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int n = (int)option(argc, argv, "--n", 24);
    struct run r = {.block = {.points = {n, n, n}},
                    .steps = (int)option(argc, argv, "--steps", 200),
                    .every = (int)option(argc, argv, "--every", 20),
                    .out = option_text(argc, argv, "--out", NULL)};
    eyrie_ulfm_job *job;
    int code = eyrie_ulfm_init(MPI_COMM_WORLD, NULL, &job);
    if (code != MPI_SUCCESS) {
        MPI_Finalize();
        return 1;
    }
    if (eyrie_ulfm_comm(job) != MPI_COMM_NULL) {
        /* Ranks may change places: all blocks must have the same size. */
        int shape[16], axes = eyrie_ulfm_shape(job, shape, 16);
        for (int a = 0; a < axes; a++)
            if (n % shape[a] != 0) MPI_Abort(MPI_COMM_WORLD, 1);
        block_make(&r.block, job);
        r.material = calloc((size_t)r.block.size, sizeof(double));
        eyrie_ulfm_register(job, "field", r.block.now, r.block.size, MPI_DOUBLE);
        eyrie_ulfm_register(job, "material", r.material, r.block.size, MPI_DOUBLE);
        eyrie_ulfm_register(job, "step", &r.step, 1, MPI_INT);
        code = eyrie_ulfm_run(job, body, &r);
        if (code != MPI_SUCCESS) fprintf(stderr, "stencil3d: %s\n", eyrie_ulfm_explain(job));
    }
    eyrie_ulfm_free(&job);
    free(r.block.now);
    free(r.block.next);
    free(r.material);
    if (code != MPI_SUCCESS) leave_at_once(3);
    MPI_Finalize();
    return 0;
}
