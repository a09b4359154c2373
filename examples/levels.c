/* levels: a program that says what it finds of its processor and computes in wide registers.
 *
 * Rank 0 prints which of the instructions that libraries choose their code by the C library uses.
 * Then the ranks pass words round a ring for so many steps. With --use avx or --use avx512 each
 * step leaves a word in registers of that kind, as compiled code does: such a program uses more
 * than `eyrie run --cpu x86-64-v2` lets libraries use. Where the processor lacks them it says so
 * and goes on without. */
#include "common.h"
#include "pace.h"
#include <sys/platform/x86.h>

/* Upper half of a vector of AVX, which no function of this program touches otherwise. */
static void use_avx(uint64_t word) {
    uint64_t words[4] = {word, word, word, word | 1};
    __asm__ volatile("vmovdqu %0, %%ymm15" : : "m"(words) : "xmm15");
}

/* A mask register of AVX-512. */
static void use_avx512(uint64_t word) {
    uint32_t mask = (uint32_t)word | 1;
    __asm__ volatile("kmovw %0, %%k7" : : "r"(mask));
}

int main(int argc, char **argv) {
    long steps = 400;
    const char *use = "";
    struct pace pace = {0};
    const struct option options[] = {
        {"steps", "steps of the whole run", .number = &steps},
        {"use", "avx or avx512: registers to use beyond the level", .text = &use},
        PACE_OPTIONS(pace),
        {0},
    };
    int rank, ranks;
    uint64_t word, sum = 0;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Says what the C library uses of the processor.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0) {
        printf("uses:%s%s%s%s\n", CPU_FEATURE_ACTIVE(SSE4_2) ? " sse4_2" : "",
               CPU_FEATURE_ACTIVE(AVX2) ? " avx2" : "", CPU_FEATURE_ACTIVE(FMA) ? " fma" : "",
               CPU_FEATURE_ACTIVE(AVX512F) ? " avx512f" : "");
        fflush(stdout);
    }
    if (*use && !(strcmp(use, "avx") ? CPU_FEATURE_PRESENT(AVX512F) : CPU_FEATURE_PRESENT(AVX))) {
        if (rank == 0) printf("the processor has no %s\n", use);
        use = "";
    }
    word = (uint64_t)rank + 1;
    for (long step = 0; step < steps; step++) {
        word = word_from_left(word, rank, ranks) * 6364136223846793005ULL + 1;
        if (strcmp(use, "avx") == 0) use_avx(word);
        if (strcmp(use, "avx512") == 0) use_avx512(word);
        keep_pace(&pace, rank);
        if (rank == 0 && step % 50 == 0) printf("step %ld\n", step), fflush(stdout);
    }
    MPI_Reduce(&word, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("sum %016llx\n", (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
