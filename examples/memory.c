/* memory: ranks of a chosen size that touch a chosen part of their memory between small messages.
 *
 * For measuring checkpoints and recoveries: the image's size, how much of it changes between two
 * images, the number and size of messages in the log, and the time between them are all options.
 * Every page has different content, so that no two pages are stored as one. The hash over all
 * memory of all ranks, printed at the end, is the same in every run. */
#include "common.h"
#include "pace.h"

enum { PAGE = 4096, MIB = (1 << 20) / PAGE };

struct memory {
    unsigned char *bytes;
    long pages, touched; /* in all; in each step */
    long within;         /* the pages that are ever touched are the first so many */
    long at;             /* where the next step goes on */
};

static void fill(struct memory *m, int rank) {
    for (long page = 0; page < m->pages; page++)
        for (long i = 0; i < PAGE; i += 8) {
            uint64_t word = random_word((uint64_t)(rank * m->pages + page), (uint64_t)i);
            memcpy(m->bytes + page * PAGE + i, &word, sizeof word);
        }
}

/* Changes one word of each of the next pages. The last message decides which word, and its
 * value. */
static void touch(struct memory *m, uint64_t token) {
    for (long i = 0; i < m->touched; i++) {
        unsigned char *place = m->bytes + m->at * PAGE + (token + (uint64_t)i) % (PAGE / 8) * 8;
        uint64_t word;
        memcpy(&word, place, sizeof word);
        word = word * 31 + token;
        memcpy(place, &word, sizeof word);
        m->at = (m->at + 1) % m->within;
    }
}

static uint64_t compute(uint64_t token, long spin) {
    for (long i = 0; i < spin; i++) token = token * 6364136223846793005ULL + 1442695040888963407ULL;
    return token;
}

int main(int argc, char **argv) {
    long megabytes = 100, big_rank = -1, percent = 10, steps = 1000, spin = 1000000, message = 64,
         every = 0, gaps = 0, within = 0;
    double before = 0, longest = 0;
    struct pace pace = {.slow_ms = 5};
    const struct option options[] = {
        {"mb", "resident memory of a rank, in MiB", .number = &megabytes},
        {"rank", "only this rank is large, others have 1 MiB; -1: all are", .number = &big_rank},
        {"percent", "pages changed in each step, in percent", .number = &percent},
        {"within", "of the first so many MiB only (0: of all)", .number = &within},
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {"message", "bytes of the message each rank sends to the next in a step, a multiple of 8",
         .number = &message},
        {"every", "rank 0 prints the step every so many steps (0: never)", .number = &every},
        {"gaps", "1: rank 0 prints the longest time between two messages that it received",
         .number = &gaps},
        PACE_OPTIONS(pace),
        {0},
    };
    int rank, ranks;
    struct memory m = {0};
    MPI_Init(&argc, &argv);
    parse_options(argc, argv,
                  "Ranks of a chosen size that change a chosen part of it between small messages.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (megabytes < 1 || percent < 0 || percent > 100 || message < 8 || message % 8)
        die("--mb must be 1 or more, --percent 0 to 100, --message a multiple of 8");
    m.pages = (big_rank < 0 || big_rank == rank ? megabytes : 1) * MIB;
    m.touched = m.pages * percent / 100;
    m.within = within > 0 && within < m.pages / MIB ? within * MIB : m.pages;
    m.bytes = allocate((size_t)m.pages, PAGE);
    fill(&m, rank);
    long words = message / 8;
    uint64_t *out = allocate((size_t)words, 8), *in = allocate((size_t)words, 8),
             token = (uint64_t)rank, hash, all;
    for (long step = 1; step <= steps; step++) {
        touch(&m, token);
        token = compute(token, spin);
        for (long i = 0; i < words; i++) out[i] = token + (uint64_t)i;
        MPI_Sendrecv(out, (int)words, MPI_UINT64_T, (rank + 1) % ranks, 0, in, (int)words,
                     MPI_UINT64_T, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        token = hash_bytes(token, in, (size_t)message);
        if (gaps > 0) {
            double now = MPI_Wtime();
            if (step > 1 && now - before > longest) longest = now - before;
            before = now;
        }
        if (rank == 0 && every > 0 && step % every == 0) {
            printf("step %ld\n", step);
            fflush(stdout);
        }
        keep_pace(&pace, rank);
    }
    hash = hash_word(hash_bytes(HASH_START, m.bytes, (size_t)m.pages * PAGE), token);
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("memory %016llx\n", (unsigned long long)all);
    if (rank == 0 && gaps > 0) printf("{\"bench\": \"gaps\", \"longest_s\": %.6f}\n", longest);
    free(m.bytes), free(out), free(in);
    MPI_Finalize();
    return 0;
}
