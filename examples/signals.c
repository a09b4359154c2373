/* signals: a program that writes its restart file when it gets a signal, as many do in batch
 * systems.
 *
 * In each step the ranks add up how many signals each has got. So a rank that is executed again
 * must get them in the same steps. SIGUSR1 and SIGUSR2: each rank writes `restart-RANK` in that
 * step and goes on; SIGTERM: all end together, after the step in which the first of them got it.
 * With --rest-in STEP rank 1 makes no call of MPI in that step until it has got a signal. SIGINT is
 * ignored with --ignore 1. */
#include "common.h"
#include "pace.h"
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t got, ends;

static void on_signal(int signal) {
    if (signal == SIGTERM)
        ends = 1;
    else
        got++;
}

static void save(int rank, long step, long long sum) {
    char name[32];
    FILE *file;
    snprintf(name, sizeof name, "restart-%d", rank);
    file = fopen(name, "a");
    if (!file) die("%s: %s", name, strerror(errno));
    fprintf(file, "step %ld sum %lld\n", step, sum);
    fclose(file);
}

int main(int argc, char **argv) {
    long steps = 1000, rest_in = -1, ignore = 0, saved = 0;
    long long sum = 0, all[2] = {0, 0};
    struct pace pace = {0};
    const struct option options[] = {
        {"steps", "steps of the whole run", .number = &steps},
        {"rest-in", "in this step rank 1 rests until it gets a signal", .number = &rest_in},
        {"ignore", "1: SIGINT is ignored", .number = &ignore},
        PACE_OPTIONS(pace),
        {0},
    };
    int rank;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Writes what it starts again from at a signal.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    signal(SIGTERM, on_signal);
    if (ignore) signal(SIGINT, SIG_IGN);
    for (long step = 0; step < steps && !all[1]; step++) {
        long long mine[2] = {0, 0};
        if (step == rest_in && rank == 1) printf("rank 1 rests\n"), fflush(stdout);
        while (step == rest_in && rank == 1 && !got) usleep(10000);
        mine[0] = (step + 1) * (rank + 1) * (got + 1);
        mine[1] = ends;
        MPI_Allreduce(mine, all, 2, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
        sum += all[0];
        if (got > saved || all[1]) {
            saved = got;
            save(rank, step, sum);
            printf("rank %d has saved %ld\n", rank, saved);
            fflush(stdout);
        }
        if (rank == 0 && step % 10 == 0) printf("step %ld\n", step), fflush(stdout);
        keep_pace(&pace, rank);
    }
    if (rank == 0) printf("sum %lld\n", sum);
    MPI_Finalize();
    return 0;
}
