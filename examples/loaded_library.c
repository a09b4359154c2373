/* loaded_library: a library is copied to a temporary name, loaded, and its file removed at once
 * (netty, JITs, compilers of kernels); after some steps another copy takes its place. What the
 * library computes from its own memory gets into what ranks send. */
#include "common.h"
#include <dlfcn.h>
#include <unistd.h>

typedef uint64_t (*function)(uint64_t);

static void copy(const char *from, const char *to) {
    char bytes[65536];
    size_t n;
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    if (!in || !out) die("%s, %s: %s", from, to, strerror(errno));
    while ((n = fread(bytes, 1, sizeof bytes, in)) > 0)
        if (fwrite(bytes, 1, n, out) != n) die("%s: %s", to, strerror(errno));
    fclose(in);
    if (fclose(out) != 0) die("%s: %s", to, strerror(errno));
}

/* A copy of it, in the place of the one that was loaded before. */
static void *loaded(void *before, const char *library, int me, long step) {
    char name[64];
    if (before) dlclose(before);
    snprintf(name, sizeof name, "./plug-%d-%ld.so", me, step);
    copy(library, name);
    void *handle = dlopen(name, RTLD_NOW);
    if (!handle) die("%s", dlerror());
    unlink(name);
    return handle;
}

int main(int argc, char **argv) {
    long steps = 80, every = 20, rest_ms = 20;
    const char *library = "plug.so";
    const struct option options[] = {
        {"steps", "steps", .number = &steps},
        {"every", "steps after which another copy is loaded", .number = &every},
        {"rest-ms", "milliseconds of rest in each step", .number = &rest_ms},
        {"library", "the library", .text = &library},
        {0},
    };
    int me, ranks;
    void *handle = NULL;
    function plug = NULL;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "A library under a temporary name.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t state = random_word((uint64_t)me, 0), sum;
    for (long step = 0; step < steps; step++) {
        if (step % every == every / 2) {
            handle = loaded(handle, library, me, step);
            /* ISO C has no cast between these. */
            *(void **)&plug = dlsym(handle, "plug");
        }
        if (plug) state = hash_word(state, plug(state));
        state = hash_word(state, word_from_left(state + (uint64_t)step, me, ranks));
        if (me == 0 && step % 10 == 0)
            printf("step %ld %016llx\n", step, (unsigned long long)state);
        usleep((useconds_t)rest_ms * 1000);
    }
    MPI_Reduce(&state, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0) printf("%ld steps: sum %016llx\n", steps, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
