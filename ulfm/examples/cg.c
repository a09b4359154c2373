/* Conjugate gradients for the Laplacian of a plate, whose rows are divided evenly among the ranks.
 * The program goes on when ranks fail: it checks return codes and makes the whole recovery point in
 * one call. Sums are taken in the order of ranks, so that the result does not depend on how the MPI
 * library adds. mpirun --with-ft ulfm -n 5 env EYRIE_ULFM_SPARES=1 cg --rows 32 --columns 128
 * --iterations 300 --out solution */
#include "grid.h"

struct solver {
    MPI_Comm comm;
    int rank, ranks;
    int rows, columns;     /* of this rank */
    double *x, *r, *p, *q; /* p with a row above and below */
    double rho;
    int iteration;
};

static int sum(struct solver *s, double mine, double *total) {
    double *all = malloc((size_t)s->ranks * sizeof *all);
    int code = MPI_Allgather(&mine, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, s->comm);
    *total = 0;
    for (int i = 0; i < s->ranks; i++) *total += all[i];
    free(all);
    return code;
}

static double dot(const double *a, const double *b, int n) {
    double d = 0;
    for (int i = 0; i < n; i++) d += a[i] * b[i];
    return d;
}

/* q = A p, after the rows at the borders have been exchanged. */
static int multiply(struct solver *s) {
    int up = s->rank > 0 ? s->rank - 1 : MPI_PROC_NULL,
        down = s->rank + 1 < s->ranks ? s->rank + 1 : MPI_PROC_NULL, m = s->columns;
    double *first = s->p + m, *last = s->p + (size_t)s->rows * (size_t)m;
    int code = swap_messages(first, up, last + m, down, m, 0, s->comm);
    if (code == MPI_SUCCESS) code = swap_messages(last, down, s->p, up, m, 1, s->comm);
    for (int i = 0; i < s->rows; i++)
        for (int j = 0; j < m; j++) {
            const double *p = s->p + (size_t)(i + 1) * (size_t)m + j;
            double left = j > 0 ? p[-1] : 0, right = j + 1 < m ? p[1] : 0;
            s->q[(size_t)i * (size_t)m + j] = 4 * p[0] - left - right - p[-m] - p[m];
        }
    return code;
}

static int start(struct solver *s) {
    int n = s->rows * s->columns;
    memset(s->p, 0, (size_t)(n + 2 * s->columns) * sizeof(double));
    for (int i = 0; i < n; i++) {
        s->x[i] = 0;
        s->r[i] = s->p[s->columns + i] = (double)((s->rank * n + i) * 7919LL % 1013) / 1013;
    }
    s->iteration = 0;
    return sum(s, dot(s->r, s->r, n), &s->rho);
}

static int iterate(struct solver *s) {
    int n = s->rows * s->columns;
    double pq, rho, *p = s->p + s->columns;
    int code = multiply(s);
    if (code == MPI_SUCCESS) code = sum(s, dot(p, s->q, n), &pq);
    if (code != MPI_SUCCESS) return code;
    double alpha = pq > 0 ? s->rho / pq : 0;
    for (int i = 0; i < n; i++) {
        s->x[i] += alpha * p[i];
        s->r[i] -= alpha * s->q[i];
    }
    if ((code = sum(s, dot(s->r, s->r, n), &rho)) != MPI_SUCCESS) return code;
    double beta = s->rho > 0 ? rho / s->rho : 0;
    for (int i = 0; i < n; i++) p[i] = s->r[i] + beta * p[i];
    s->rho = rho;
    s->iteration++;
    return MPI_SUCCESS;
}

static int write_out(struct solver *s, const char *path) {
    int n = s->rows * s->columns;
    double *all = s->rank == 0 ? malloc((size_t)n * (size_t)s->ranks * sizeof(double)) : NULL;
    int code = MPI_Gather(s->x, n, MPI_DOUBLE, all, n, MPI_DOUBLE, 0, s->comm);
    FILE *file = code == MPI_SUCCESS && s->rank == 0 ? fopen(path, "wb") : NULL;
    if (file) {
        fwrite(all, sizeof(double), (size_t)n * (size_t)s->ranks, file);
        fwrite(&s->rho, sizeof(double), 1, file);
        fclose(file);
    }
    free(all);
    return code;
}

static int solve(eyrie_ulfm_job *job, struct solver *s, int iterations, int every,
                 const char *out) {
    int64_t version;
    int code = eyrie_ulfm_recover(job, &version);
    if (code != MPI_SUCCESS || eyrie_ulfm_comm(job) == MPI_COMM_NULL) return code;
    s->comm = eyrie_ulfm_comm(job);
    MPI_Comm_rank(s->comm, &s->rank);
    MPI_Comm_size(s->comm, &s->ranks);
    /* Rows beyond the plate are 0. They must be set, because this process may have been a rank in
     * the middle of the plate before. */
    memset(s->p, 0, (size_t)s->columns * sizeof(double));
    memset(s->p + (size_t)(s->rows + 1) * (size_t)s->columns, 0,
           (size_t)s->columns * sizeof(double));
    if (version == 0 && (code = start(s)) != MPI_SUCCESS) return code;
    while (s->iteration < iterations) {
        if (s->iteration % every == 0 && (code = eyrie_ulfm_commit(job, NULL)) != MPI_SUCCESS)
            return code;
        if ((code = iterate(s)) != MPI_SUCCESS) return code;
    }
    if (out && (code = write_out(s, out)) != MPI_SUCCESS) return code;
    return eyrie_ulfm_finish(job);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct solver s = {.rows = (int)option(argc, argv, "--rows", 32),
                       .columns = (int)option(argc, argv, "--columns", 64)};
    size_t n = (size_t)s.rows * (size_t)s.columns;
    eyrie_ulfm_job *job;
    int code = eyrie_ulfm_init(MPI_COMM_WORLD, NULL, &job);
    if (code != MPI_SUCCESS) {
        MPI_Finalize();
        return 1;
    }
    s.x = calloc(n, sizeof(double));
    s.r = calloc(n, sizeof(double));
    s.q = calloc(n, sizeof(double));
    s.p = calloc(n + 2 * (size_t)s.columns, sizeof(double));
    eyrie_ulfm_register(job, "x", s.x, (MPI_Count)n, MPI_DOUBLE);
    eyrie_ulfm_register(job, "r", s.r, (MPI_Count)n, MPI_DOUBLE);
    eyrie_ulfm_register(job, "p", s.p + s.columns, (MPI_Count)n, MPI_DOUBLE);
    eyrie_ulfm_register(job, "rho", &s.rho, 1, MPI_DOUBLE);
    eyrie_ulfm_register(job, "iteration", &s.iteration, 1, MPI_INT);
    int iterations = (int)option(argc, argv, "--iterations", 300),
        every = (int)option(argc, argv, "--every", 25);
    while (eyrie_ulfm_comm(job) != MPI_COMM_NULL) {
        code = solve(job, &s, iterations, every, option_text(argc, argv, "--out", NULL));
        if (code != MPI_SUCCESS && !eyrie_ulfm_is_failure(code)) {
            fprintf(stderr, "cg: %s\n", eyrie_ulfm_explain(job));
            break;
        }
    }
    eyrie_ulfm_free(&job);
    free(s.x);
    free(s.r);
    free(s.q);
    free(s.p);
    if (code != MPI_SUCCESS) leave_at_once(3);
    MPI_Finalize();
    return 0;
}
