/* uneven: ranks whose work grows unequally while the program runs.
 *
 * For moving ranks so that nodes are equally busy (`eyrie balance`). All ranks meet after each
 * step, so each step takes as long as the busiest node needs. From one rank on the work of a step
 * grows, step by step, to a multiple of what it was; that of the other ranks stays. The hash at the
 * end is over what all ranks have computed in all steps, and the same in every run. */
#include "common.h"

static uint64_t compute(uint64_t token, long spin) {
    for (long i = 0; i < spin; i++) token = token * 6364136223846793005ULL + 1442695040888963407ULL;
    return token;
}

/* Computes the same without the work: n steps of a linear congruence are one step. */
static uint64_t jump(uint64_t token, long n) {
    uint64_t a = 6364136223846793005ULL, c = 1442695040888963407ULL, factor = 1, sum = 0;
    for (; n > 0; n /= 2) {
        if (n % 2) factor *= a, sum = sum * a + c;
        c *= a + 1, a *= a;
    }
    return factor * token + sum;
}

int main(int argc, char **argv) {
    long steps = 200, spin = 2000000, from = 2, times = 5, grow = 100, every = 20, jumps = 0;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {"from", "the work of the ranks from this one on grows", .number = &from},
        {"times", "to so many times as much", .number = &times},
        {"grow", "in so many steps", .number = &grow},
        {"jumps", "1: compute the same without the work", .number = &jumps},
        {"every", "rank 0 prints the step every so many steps (0: never)", .number = &every},
        {0},
    };
    int rank;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Ranks whose work grows unequally, and that meet after each step.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (steps < 0 || spin < 0 || times < 1 || grow < 1)
        die("--steps and --spin must be 0 or more, --times and --grow 1 or more");
    uint64_t token = (uint64_t)rank, all = 0;
    for (long step = 1; step <= steps; step++) {
        long grown = step < grow ? step : grow;
        long extra = rank < from ? 0 : spin * (times - 1) * grown / grow;
        token = (jumps ? jump : compute)(token ^ all, spin + extra);
        MPI_Allreduce(&token, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0 && every > 0 && step % every == 0) {
            printf("step %ld\n", step);
            fflush(stdout);
        }
    }
    if (rank == 0) printf("uneven %016llx\n", (unsigned long long)hash_word(HASH_START, all));
    MPI_Finalize();
    return 0;
}
