/* shell_helper: in each step a rank writes an input, a shell computes from it, the rank reads what
 * came of it (xtb, dftb+, external force fields). The files have the same names in each step, and
 * nothing is removed: a helper that saw another step's input would give another result. */
#include "common.h"
#include <unistd.h>

static void write_number(const char *name, long number) {
    FILE *file = fopen(name, "w");
    if (!file || fprintf(file, "%ld\n", number) < 0 || fclose(file) != 0)
        die("%s: %s", name, strerror(errno));
}

/* -1: it is not there, or has no number. */
static long read_number(const char *name) {
    char line[64];
    FILE *file = fopen(name, "r");
    long number = file && fgets(line, sizeof line, file) ? strtol(line, NULL, 10) : -1;
    if (file) fclose(file);
    return number;
}

int main(int argc, char **argv) {
    long steps = 60, rest_ms = 25;
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"rest-ms", "milliseconds of rest in each step", .number = &rest_ms},
        {0},
    };
    int me, ranks;
    char in[64], out[64], command[200];
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "A shell computes from what a rank has written.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t state = random_word((uint64_t)me, 0), sum;
    snprintf(in, sizeof in, "input.%d", me);
    snprintf(out, sizeof out, "output.%d", me);
    snprintf(command, sizeof command, "read x <%s; echo $((x * 3)) >%s", in, out);
    for (long step = 0; step < steps; step++) {
        long number = step * 7 + me;
        write_number(in, number);
        int status = system(command);
        long result = read_number(out);
        if (result != number * 3)
            printf("rank %d step %ld: the helper gave %ld\n", me, step, result);
        state = hash_word(hash_word(state, (uint64_t)result), (uint64_t)status);
        state = hash_word(state, word_from_left(state + (uint64_t)step, me, ranks));
        if (me == 0 && step % 10 == 0)
            printf("step %ld %016llx\n", step, (unsigned long long)state);
        fflush(stdout);
        usleep((useconds_t)rest_ms * 1000);
    }
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0) printf("%ld steps: sum %016llx\n", steps, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
