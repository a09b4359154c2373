/* rma: one-sided communication in all its kinds of synchronization, checked as it goes.
 *
 * Each round: Put to the next rank and Get from the one after it between fences; Accumulate to
 * every rank under lock_all; tickets drawn with Fetch_and_op and a slot claimed with
 * Compare_and_swap under lock; a ring with post, start, complete, wait. Under Eyrie the provider
 * carries reads, writes and atomics as logged messages, of any length. The hash printed per round
 * is the same in every run. Where MPICH carries them as active messages instead
 * (MPIR_CVAR_CH4_OFI_ENABLE_RMA=0), more than 16 KiB (2,000 words) to several ranks in one epoch
 * crash MPICH 5.0.2 itself, so the default stays below. */
#include "common.h"
#include "pace.h"

enum { COUNTER, TICKETS, SLOT, CELLS }; /* of the window of counters on rank 0 */

struct windows {
    int rank, ranks, next, previous;
    long words;
    uint64_t *ring, *sums, *counters, *halo;
    MPI_Win ring_window, sum_window, counter_window, halo_window;
};

static void create(uint64_t **memory, long words, MPI_Win *window) {
    MPI_Win_allocate((MPI_Aint)words * (MPI_Aint)sizeof **memory, sizeof **memory, MPI_INFO_NULL,
                     MPI_COMM_WORLD, memory, window);
    memset(*memory, 0, (size_t)words * sizeof **memory);
}

/* Every rank puts a pattern to the next one's window, then gets from the one after that. */
static uint64_t put_and_get(struct windows *w, uint64_t round) {
    int after = (w->rank + 2) % w->ranks;
    uint64_t *out = allocate((size_t)w->words, sizeof *out),
             *in = allocate((size_t)w->words, sizeof *in), hash = HASH_START;
    for (long i = 0; i < w->words; i++)
        out[i] = random_word(round * 1000 + (uint64_t)w->rank, (uint64_t)i);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, w->ring_window);
    MPI_Put(out, (int)w->words, MPI_UINT64_T, w->next, 0, (int)w->words, MPI_UINT64_T,
            w->ring_window);
    MPI_Win_fence(0, w->ring_window);
    MPI_Get(in, (int)w->words, MPI_UINT64_T, after, 0, (int)w->words, MPI_UINT64_T, w->ring_window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, w->ring_window);
    for (long i = 0; i < w->words; i++)
        if (w->ring[i] != random_word(round * 1000 + (uint64_t)w->previous, (uint64_t)i) ||
            in[i] != random_word(round * 1000 + (uint64_t)w->next, (uint64_t)i))
            die("round %llu: word %ld of Put or Get is wrong", (unsigned long long)round, i);
    hash = hash_bytes(hash, in, (size_t)w->words * sizeof *in);
    free(out), free(in);
    return hash;
}

/* Every rank adds to every rank's sums: integers, so that the order does not matter. */
static uint64_t accumulate(struct windows *w, uint64_t round) {
    uint64_t *add = allocate((size_t)w->words, sizeof *add), hash;
    for (long i = 0; i < w->words; i++)
        add[i] = random_word(round, (uint64_t)(i * w->ranks + w->rank)) >> 16;
    MPI_Win_lock_all(0, w->sum_window);
    for (int to = 0; to < w->ranks; to++)
        MPI_Accumulate(add, (int)w->words, MPI_UINT64_T, to, 0, (int)w->words, MPI_UINT64_T,
                       MPI_SUM, w->sum_window);
    MPI_Win_flush_all(w->sum_window);
    MPI_Win_unlock_all(w->sum_window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, w->rank, 0, w->sum_window);
    hash = hash_bytes(HASH_START, w->sums, (size_t)w->words * sizeof *w->sums);
    MPI_Win_unlock(w->rank, w->sum_window);
    MPI_Barrier(MPI_COMM_WORLD); /* no rank adds for the next round before all have read */
    free(add);
    return hash;
}

/* Draws a ticket, adds it to the sum of tickets, and claims the slot if it is free: which rank gets
 * it depends on timing, the sums do not. */
static int draw_and_claim(struct windows *w, uint64_t round) {
    uint64_t one = 1, ticket, mine = round * 1000 + (uint64_t)w->rank + 1, free_mark = 0, found;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w->counter_window);
    MPI_Fetch_and_op(&one, &ticket, MPI_UINT64_T, 0, COUNTER, MPI_SUM, w->counter_window);
    MPI_Win_flush(0, w->counter_window);
    MPI_Accumulate(&ticket, 1, MPI_UINT64_T, 0, TICKETS, 1, MPI_UINT64_T, MPI_SUM,
                   w->counter_window);
    MPI_Compare_and_swap(&mine, &free_mark, &found, MPI_UINT64_T, 0, SLOT, w->counter_window);
    MPI_Win_unlock(0, w->counter_window);
    return found == free_mark;
}

/* Rank 0 checks the tickets drawn so far and frees the slot; exactly one rank must have claimed it.
 * */
static uint64_t check_tickets(struct windows *w, uint64_t round, int claimed) {
    int claims;
    uint64_t hash = HASH_START, drawn = (round + 1) * (uint64_t)w->ranks;
    MPI_Allreduce(&claimed, &claims, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (claims != 1)
        die("round %llu: %d ranks claimed one slot", (unsigned long long)round, claims);
    if (w->rank == 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, w->counter_window);
        if (w->counters[COUNTER] != drawn || w->counters[TICKETS] != drawn * (drawn - 1) / 2)
            die("round %llu: %llu tickets with the sum %llu", (unsigned long long)round,
                (unsigned long long)w->counters[COUNTER], (unsigned long long)w->counters[TICKETS]);
        w->counters[SLOT] = 0;
        hash = hash_bytes(hash, w->counters, CELLS * sizeof *w->counters);
        MPI_Win_unlock(0, w->counter_window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return hash;
}

/* Exposes the halo only to the neighbours in the ring, which put the word of their rank there. */
static uint64_t ring_of_pairs(struct windows *w, uint64_t round) {
    MPI_Group world, neighbours;
    int members[2] = {w->next, w->previous}, count = w->next == w->previous ? 1 : 2;
    uint64_t mine = random_word(round, (uint64_t)w->rank);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, count, members, &neighbours);
    MPI_Win_post(neighbours, 0, w->halo_window);
    MPI_Win_start(neighbours, 0, w->halo_window);
    MPI_Put(&mine, 1, MPI_UINT64_T, w->next, 0, 1, MPI_UINT64_T, w->halo_window);
    MPI_Put(&mine, 1, MPI_UINT64_T, w->previous, 1, 1, MPI_UINT64_T, w->halo_window);
    MPI_Win_complete(w->halo_window);
    MPI_Win_wait(w->halo_window);
    if (w->halo[0] != random_word(round, (uint64_t)w->previous) ||
        w->halo[1] != random_word(round, (uint64_t)w->next))
        die("round %llu: a neighbour's word is wrong", (unsigned long long)round);
    MPI_Group_free(&neighbours);
    MPI_Group_free(&world);
    return hash_bytes(HASH_START, w->halo, 2 * sizeof *w->halo);
}

int main(int argc, char **argv) {
    struct windows w = {.words = 1500};
    long rounds = 200, every = 20;
    const char *out = NULL;
    struct pace pace = {.slow_ms = 5};
    const struct option options[] = {
        {"words", "8-byte words put, got and accumulated at a time", .number = &w.words},
        {"rounds", "how often", .number = &rounds},
        {"every", "print the hash every so many rounds", .number = &every},
        PACE_OPTIONS(pace),
        {"out", "rank 0 writes its sums to this file at the end", .text = &out},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv,
                  "One-sided communication: fence, lock, lock_all, post-start-complete-wait.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &w.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w.ranks);
    if (w.ranks < 2 || w.words < 1 || every < 1)
        die("needs 2 ranks or more, and --words and --every of 1 or more");
    w.next = (w.rank + 1) % w.ranks;
    w.previous = (w.rank + w.ranks - 1) % w.ranks;
    create(&w.ring, w.words, &w.ring_window);
    create(&w.sums, w.words, &w.sum_window);
    create(&w.counters, CELLS, &w.counter_window);
    create(&w.halo, 2, &w.halo_window);
    uint64_t hash = HASH_START, total;
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        hash = hash_word(hash, put_and_get(&w, round));
        hash = hash_word(hash, accumulate(&w, round));
        hash = hash_word(hash, check_tickets(&w, round, draw_and_claim(&w, round)));
        hash = hash_word(hash, ring_of_pairs(&w, round));
        if ((round + 1) % (uint64_t)every == 0) {
            MPI_Reduce(&hash, &total, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
            if (w.rank == 0) {
                printf("round %llu hash %016llx\n", (unsigned long long)(round + 1),
                       (unsigned long long)total);
                fflush(stdout);
            }
        }
        keep_pace(&pace, w.rank);
    }
    if (w.rank == 0 && out) {
        FILE *file = fopen(out, "wb");
        if (!file || fwrite(w.sums, sizeof *w.sums, (size_t)w.words, file) != (size_t)w.words ||
            fclose(file) != 0)
            die("cannot write %s: %s", out, strerror(errno));
    }
    MPI_Win_free(&w.ring_window);
    MPI_Win_free(&w.sum_window);
    MPI_Win_free(&w.counter_window);
    MPI_Win_free(&w.halo_window);
    MPI_Finalize();
    return 0;
}
