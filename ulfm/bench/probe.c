/* The program that bench.py measures with: commits of data, each beside a memcpy of the same bytes,
 * then a recovery. Rank 0 prints one line of JSON for each measurement. Arguments: --kb (each rank)
 * --commits --share (percent of data that changes) --kill */
#include <math.h>
#include <signal.h>
#include <time.h>

#include "../examples/grid.h"

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double slowest(double mine, MPI_Comm comm) {
    double most = mine;
    MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, comm);
    return most;
}

static void measure_commits(eyrie_ulfm_job *job, char *data, char *copy, size_t bytes, int commits,
                            int share) {
    MPI_Comm comm = eyrie_ulfm_comm(job);
    int rank;
    MPI_Comm_rank(comm, &rank);
    for (int i = -2; i < commits; i++) { /* the first two allocate the memory */
        for (size_t at = 0; at < bytes * (size_t)share / 100; at += 64) data[at]++;
        MPI_Barrier(comm);
        double begin = now_ms();
        memcpy(copy, data, bytes);
        double copied = slowest(now_ms() - begin, comm);
        begin = now_ms();
        if (eyrie_ulfm_commit(job, NULL) != MPI_SUCCESS) return;
        double committed = slowest(now_ms() - begin, comm);
        eyrie_ulfm_cost cost;
        eyrie_ulfm_last_commit(job, &cost);
        if (rank == 0 && i >= 0)
            printf(
                "{\"commit_ms\": %.4f, \"memcpy_ms\": %.4f, \"agree_ms\": %.4f, \"sent\": %lld}\n",
                committed, copied, cost.agree_ms, (long long)cost.bytes_sent);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    size_t bytes = (size_t)option(argc, argv, "--kb", 1024) << 10;
    int commits = (int)option(argc, argv, "--commits", 5),
        share = (int)option(argc, argv, "--share", 100), rank, size;
    eyrie_ulfm_job *job;
    if (eyrie_ulfm_init(MPI_COMM_WORLD, NULL, &job) != MPI_SUCCESS) leave_at_once(1);
    char *data = malloc(bytes), *copy = malloc(bytes);
    memset(data, 1, bytes);
    memset(copy, 1, bytes);
    double killed = 0;
    eyrie_ulfm_register(job, "data", data, (MPI_Count)bytes, MPI_BYTE);
    eyrie_ulfm_register(job, "killed", &killed, 1, MPI_DOUBLE);
    while (eyrie_ulfm_comm(job) != MPI_COMM_NULL) {
        int64_t version;
        double begin = now_ms();
        int code = eyrie_ulfm_recover(job, &version);
        if (code != MPI_SUCCESS) leave_at_once(3);
        MPI_Comm comm = eyrie_ulfm_comm(job);
        if (comm == MPI_COMM_NULL) break;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        if (version == 0) {
            measure_commits(job, data, copy, bytes, commits, share);
            killed = now_ms() + 20;
            if (eyrie_ulfm_commit(job, NULL) != MPI_SUCCESS) continue;
            if (option(argc, argv, "--kill", 0)) {
                MPI_Bcast(&killed, 1, MPI_DOUBLE, 0, comm);
                while (now_ms() < killed) continue;
                if (rank == size - 1) raise(SIGKILL);
                while (MPI_Barrier(comm) == MPI_SUCCESS) continue;
                /* detection, until the recovery puts the committed value back */
                killed = now_ms() - killed;
                fprintf(stderr, "detected %d %.3f\n", rank, killed);
                continue;
            }
        } else {
            const eyrie_ulfm_report *r = eyrie_ulfm_last_report(job);
            double mine[] = {r->gather_ms,  r->shrink_ms,  r->plan_ms,   r->transfer_ms,
                             r->protect_ms, r->rebuild_ms, r->restore_ms},
                   mean[7];
            double whole = now_ms() - begin;
            if (rank == size - 1) { /* the spare: its clock began long before */
                memset(mine, 0, sizeof mine);
                whole = 0;
            }
            whole = slowest(whole, comm);
            /* Means, because a rank that is quick in one phase waits in the next. Taking the
             * slowest rank of each phase would count that time twice. */
            MPI_Allreduce(mine, mean, 7, MPI_DOUBLE, MPI_SUM, comm);
            for (int i = 0; i < 7; i++) mean[i] /= size - 1;
            if (rank == 0)
                printf(
                    "{\"gather\": %.3f, \"shrink\": %.3f, \"plan\": %.3f, \"transfer\": %.3f, \"protect\": %.3f, \"rebuild\": %.3f, \"restore\": %.3f, "
                    "\"total\": %.3f}\n",
                    mean[0], mean[1], mean[2], mean[3], mean[4], mean[5], mean[6], whole);
        }
        fflush(stdout);
        if (eyrie_ulfm_finish(job) == MPI_SUCCESS) break;
    }
    eyrie_ulfm_free(&job);
    free(data);
    free(copy);
    MPI_Finalize();
    return 0;
}
