/* A 5-point stencil on a flat grid that goes on when ranks fail. It checks return codes. The size
 * of a block depends on the rank, so the program allocates it between the two halves of the
 * recovery point. It also goes on with fewer ranks (squeezing). mpirun --with-ft ulfm -n 6 env
 * EYRIE_ULFM_JOB=2x2 EYRIE_ULFM_SPARES=2 stencil2d --nx 256 --ny 256 --steps 2000 --out plate */
#include "grid.h"

static void sweep(struct block *b) {
    for (int j = 0; j < b->count[1]; j++)
        for (int k = 0; k < b->count[2]; k++) {
            long long p = block_index(b->count, 0, j, k), row = b->count[2] + 2;
            b->next[p] = 0.25 * (b->now[p - 1] + b->now[p + 1] + b->now[p - row] + b->now[p + row]);
        }
    double *swap = b->now;
    b->now = b->next;
    b->next = swap;
}

/* The two arrays are exchanged every step, so they are registered anew. */
static void register_all(eyrie_ulfm_job *job, struct block *b, int *step) {
    eyrie_ulfm_register(job, "field", b->now, b->size, MPI_DOUBLE);
    eyrie_ulfm_register(job, "step", step, 1, MPI_INT);
}

/* The recovery point: allocates this rank's block, then puts the committed data in place. */
static int begin(eyrie_ulfm_job *job, struct block *b, int *step) {
    int64_t version;
    int code = eyrie_ulfm_repair(job);
    if (code != MPI_SUCCESS || eyrie_ulfm_comm(job) == MPI_COMM_NULL) return code;
    block_make(b, job);
    register_all(job, b, step);
    code = eyrie_ulfm_restore(job, &version);
    if (code != MPI_SUCCESS) return code;
    if (version == 0) {
        *step = 0;
        block_fill(b);
        return MPI_SUCCESS;
    }
    if (!eyrie_ulfm_squeezed(job)) return MPI_SUCCESS;
    eyrie_ulfm_piece when = {0, 0, 1, step};
    code = block_fetch(b, job, "field");
    if (code == MPI_SUCCESS) code = eyrie_ulfm_fetch(job, "step", 1, &when);
    return code == MPI_SUCCESS ? eyrie_ulfm_commit(job, NULL) : code;
}

static int run(eyrie_ulfm_job *job, struct block *b, int *step, int steps, int every,
               const char *out) {
    while (*step < steps) {
        if (*step % every == 0) {
            register_all(job, b, step);
            int code = eyrie_ulfm_commit(job, NULL);
            if (code != MPI_SUCCESS) return code;
        }
        int code = block_exchange(b, eyrie_ulfm_comm(job));
        if (code != MPI_SUCCESS) return code;
        sweep(b);
        ++*step;
    }
    int code = out ? block_write(b, eyrie_ulfm_comm(job), out) : MPI_SUCCESS;
    return code == MPI_SUCCESS ? eyrie_ulfm_finish(job) : code;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct block b = {
        .points = {1, (int)option(argc, argv, "--ny", 128), (int)option(argc, argv, "--nx", 128)}};
    int step = 0, steps = (int)option(argc, argv, "--steps", 1000),
        every = (int)option(argc, argv, "--every", 100);
    eyrie_ulfm_job *job;
    int code = eyrie_ulfm_init(MPI_COMM_WORLD, NULL, &job);
    if (code != MPI_SUCCESS) {
        MPI_Finalize();
        return 1;
    }
    while (eyrie_ulfm_comm(job) != MPI_COMM_NULL) {
        code = begin(job, &b, &step);
        if (code == MPI_SUCCESS && eyrie_ulfm_comm(job) != MPI_COMM_NULL)
            code = run(job, &b, &step, steps, every, option_text(argc, argv, "--out", NULL));
        if (code != MPI_SUCCESS && !eyrie_ulfm_is_failure(code)) {
            fprintf(stderr, "stencil2d: %s\n", eyrie_ulfm_explain(job));
            break;
        }
    }
    eyrie_ulfm_free(&job);
    free(b.now);
    free(b.next);
    if (code != MPI_SUCCESS) leave_at_once(3);
    MPI_Finalize();
    return 0;
}
