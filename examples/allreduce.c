/* The simplest tightly coupled program: the same work on every rank, then an Allreduce, again and
 * again. A delay of one rank delays all. Prints the time of all loops as one line of JSON, so no
 * two runs are alike. */
#include "common.h"
#include <sched.h>
#include <unistd.h>

/* Work that always takes the same time and that no compiler can leave out: a chain of dependent
 * operations. */
static uint64_t work(uint64_t x, long steps) {
    for (long i = 0; i < steps; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        die("cannot run on processor %d: %s", cpu, strerror(errno));
}

int main(int argc, char **argv) {
    long loops = 1000, steps = 1000000, bound = 1;
    const struct option options[] = {
        {"loops", "how often", .number = &loops},
        {"steps", "steps of work in each loop", .number = &steps},
        {"pin", "1: each rank stays on its own processor", .number = &bound},
        {0}};
    int rank, ranks;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Loops of work and an Allreduce; their time as a JSON line.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (loops < 1 || steps < 1) die("needs at least one loop and one step");
    if (bound) pin(rank % (int)sysconf(_SC_NPROCESSORS_ONLN));
    double *us = allocate((size_t)loops, sizeof *us);
    uint64_t x = (uint64_t)rank, sum;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime(), before = begin;
    for (long i = 0; i < loops; i++) {
        x = work(x, steps);
        MPI_Allreduce(&x, &sum, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        x ^= sum;
        double now = MPI_Wtime();
        us[i] = (now - before) * 1e6;
        before = now;
    }
    double seconds = before - begin;
    if (rank == 0) {
        qsort(us, (size_t)loops, sizeof *us, by_value);
        printf(
            "{\"bench\":\"allreduce\",\"ranks\":%d,\"loops\":%ld,\"seconds\":%.6f,\"median_us\":%.3f,\"p99_us\":%.3f,"
            "\"largest_us\":%.3f,\"sum\":\"%016llx\"}\n",
            ranks, loops, seconds, us[loops / 2], us[loops * 99 / 100], us[loops - 1],
            (unsigned long long)x);
    }
    free(us);
    MPI_Finalize();
    return 0;
}
