/* Communicators made from the working one. Ranks lie in rows of two. The first of a row waits, on
 * the row's communicator, for the second, which lives but has left to recover from a failure that
 * only it has seen. Only eyrie_ulfm_derived ends that wait. A communicator that the program frees
 * while nothing has failed, or after the job, must not be used any more. derived --steps 400
 * --every 20 --victim PROCESS --at STEP --callback 0|1 --unknown 0|1 --out FILE */
#include <signal.h>

#include "../examples/grid.h"

struct world {
    long process, victim, at, steps, every, unknown;
    MPI_Comm row, own; /* own: of this process alone, made where one that was freed may have been */
    int rank, step;
    double sum;
    const char *out;
};

static int make_row(eyrie_ulfm_job *job, struct world *w, MPI_Comm *row) {
    MPI_Comm comm = eyrie_ulfm_comm(job);
    MPI_Comm_rank(comm, &w->rank);
    int code = MPI_Comm_split(comm, w->rank / 2, w->rank, row);
    if (code == MPI_SUCCESS && !w->unknown) code = eyrie_ulfm_derived(job, *row);
    return code;
}

/* Exchanges first with the rank of the other row, then with that of this row. */
static int step(eyrie_ulfm_job *job, struct world *w) {
    MPI_Comm comm = eyrie_ulfm_comm(job);
    double mine = w->sum + w->rank, other = 0, row = 0;
    if (w->process == w->victim && w->step == w->at) raise(SIGKILL);
    int code = swap_messages(&mine, w->rank ^ 2, &other, w->rank ^ 2, 1, 0, comm);
    if (code != MPI_SUCCESS) return code;
    if (w->rank % 2 == 0)
        code = MPI_Recv(&row, 1, MPI_DOUBLE, 1, 0, w->row, MPI_STATUS_IGNORE);
    else
        code = MPI_Send(&other, 1, MPI_DOUBLE, 0, 0, w->row);
    if (code != MPI_SUCCESS) return code;
    w->sum = w->sum * 0.5 + other + 3 * row;
    w->step++;
    return MPI_SUCCESS;
}

static int body(eyrie_ulfm_job *job, int64_t version, void *context) {
    struct world *w = context;
    if (version == 0) w->sum = w->step = 0;
    if (w->row != MPI_COMM_NULL) MPI_Comm_free(&w->row);
    if (w->own != MPI_COMM_NULL && MPI_Barrier(w->own) != MPI_SUCCESS) {
        fprintf(stderr, "derived: a communicator that the library does not know was revoked\n");
        leave_at_once(7);
    }
    int code = make_row(job, w, &w->row);
    while (code == MPI_SUCCESS && w->step < w->steps) {
        if (w->step % w->every == 0) {
            code = eyrie_ulfm_commit(job, NULL);
            /* Replaces the communicator, as adaptive programs do. */
            if (code == MPI_SUCCESS) code = MPI_Comm_free(&w->row);
            if (code == MPI_SUCCESS && w->own == MPI_COMM_NULL)
                code = MPI_Comm_dup(MPI_COMM_SELF, &w->own);
            if (code == MPI_SUCCESS) code = make_row(job, w, &w->row);
        }
        if (code == MPI_SUCCESS) code = step(job, w);
    }
    double all[4];
    if (code == MPI_SUCCESS)
        code = MPI_Gather(&w->sum, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, 0, eyrie_ulfm_comm(job));
    if (code == MPI_SUCCESS && w->rank == 0) {
        FILE *file = fopen(w->out, "wb");
        fwrite(all, sizeof all, 1, file);
        fclose(file);
    }
    return code;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct world w = {
        .row = MPI_COMM_NULL, .own = MPI_COMM_NULL, .out = option_text(argc, argv, "--out", "out")};
    int process, code;
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    w.process = process;
    w.victim = option(argc, argv, "--victim", -1);
    w.at = option(argc, argv, "--at", -1);
    w.steps = option(argc, argv, "--steps", 400);
    w.every = option(argc, argv, "--every", 20);
    w.unknown = option(argc, argv, "--unknown", 0);
    eyrie_ulfm_job *job;
    if (eyrie_ulfm_init(MPI_COMM_WORLD, NULL, &job) != MPI_SUCCESS) leave_at_once(1);
    eyrie_ulfm_register(job, "sum", &w.sum, 1, MPI_DOUBLE);
    eyrie_ulfm_register(job, "step", &w.step, 1, MPI_INT);
    if (option(argc, argv, "--callback", 0)) {
        code = eyrie_ulfm_run(job, body, &w);
    } else {
        do {
            int64_t version;
            code = eyrie_ulfm_recover(job, &version);
            if (eyrie_ulfm_comm(job) == MPI_COMM_NULL) break;
            if (code == MPI_SUCCESS) code = body(job, version, &w);
            if (code == MPI_SUCCESS) code = eyrie_ulfm_finish(job);
        } while (eyrie_ulfm_is_failure(code));
    }
    if (code != MPI_SUCCESS) {
        fprintf(stderr, "derived: error %d: %s\n", code, eyrie_ulfm_explain(job));
        leave_at_once(3);
    }
    eyrie_ulfm_free(&job);
    if (w.own != MPI_COMM_NULL) MPI_Comm_free(&w.own);
    if (w.row != MPI_COMM_NULL) MPI_Comm_free(&w.row); /* known to a job that is gone */
    MPI_Finalize();
    return 0;
}
