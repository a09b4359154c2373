/* addresses: messages that carry pointers, between allocations whose sizes depend on the messages.
 *
 * Each rank keeps some hundred blocks that it allocates and frees as it goes. It asks other ranks
 * to keep pointers to its blocks, gets them back in any order, and reads each block through the
 * pointer that it got back. A rank that is re-executed must get the same addresses from malloc as
 * before, or it follows pointers to something else. */
#include "common.h"
#include "pace.h"

enum { BLOCKS = 256, AT_ONCE = 32, KEEP = 1, RETURN = 2 };

struct block {
    uint64_t number; /* of the block, from 1: what its content is made of */
    uint64_t words;
    uint64_t content[];
};

struct pointer {
    struct block *block;
    uint64_t number, hash;
};

struct state {
    int rank, ranks;
    uint64_t made, came;
    struct block *blocks[BLOCKS];
};

static struct block *make_block(struct state *s) {
    uint64_t number = ++s->made, words = 1 + random_word(number, (uint64_t)s->rank) % 400;
    struct block *b = malloc(sizeof *b + words * sizeof *b->content);
    if (!b) die("out of memory");
    b->number = number;
    b->words = words;
    for (uint64_t i = 0; i < words; i++) b->content[i] = random_word(number, i);
    return b;
}

static uint64_t hash_block(const struct block *b) {
    return hash_bytes(HASH_START, b, sizeof *b + b->words * sizeof *b->content);
}

/* Reads the block that a pointer leads to, and replaces it with another one. */
static void follow(struct state *s, struct pointer p) {
    if (p.block->number != p.number || hash_block(p.block) != p.hash)
        die("the pointer to block %llu leads elsewhere", (unsigned long long)p.number);
    for (int i = 0; i < BLOCKS; i++)
        if (s->blocks[i] == p.block) {
            free(s->blocks[i]);
            s->blocks[i] = make_block(s);
        }
    s->came++;
}

/* Receives one message of either kind: a pointer to keep is sent back at once, one of ours is
 * followed. */
static void receive(struct state *s, MPI_Status status) {
    struct pointer p;
    MPI_Recv(&p, sizeof p, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    if (status.MPI_TAG == KEEP)
        MPI_Send(&p, sizeof p, MPI_BYTE, status.MPI_SOURCE, RETURN, MPI_COMM_WORLD);
    else
        follow(s, p);
}

/* Receives the messages that have arrived; waits for more until `wanted` of our pointers are
 * back. */
static void receive_some(struct state *s, uint64_t wanted) {
    int there = 1;
    MPI_Status status;
    while (there || s->came < wanted) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, &status);
        if (there) receive(s, status);
    }
}

/* Sends a pointer to another rank to keep. The pointers that are away at one time lead to different
 * blocks, because a block is replaced when its pointer comes back. */
static void send_pointer(struct state *s, uint64_t n, int part) {
    struct block *b = s->blocks[part * (BLOCKS / AT_ONCE) +
                                (int)(random_word(n, (uint64_t)s->rank) % (BLOCKS / AT_ONCE))];
    struct pointer p = {b, b->number, hash_block(b)};
    int to = (s->rank + 1 + (int)(random_word(n, 77) % (uint64_t)(s->ranks - 1))) % s->ranks;
    MPI_Send(&p, sizeof p, MPI_BYTE, to, KEEP, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    long pointers = 16000, every = 1600;
    struct pace pace = {.slow_ms = 5};
    const struct option options[] = {
        {"pointers", "pointers that each rank sends, a multiple of 32", .number = &pointers},
        {"every", "rank 0 prints its count every so many pointers, a multiple of 32",
         .number = &every},
        PACE_OPTIONS(pace),
        {0},
    };
    struct state s = {0};
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Messages that carry pointers, between allocations.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &s.ranks);
    if (s.ranks < 2 || pointers < 1 || every < 1 || pointers % AT_ONCE || every % AT_ONCE)
        die("needs 2 ranks or more, and --pointers and --every must be multiples of %d", AT_ONCE);
    for (int i = 0; i < BLOCKS; i++) s.blocks[i] = make_block(&s);
    for (uint64_t n = 0; n < (uint64_t)pointers; n += AT_ONCE) {
        for (uint64_t i = 0; i < AT_ONCE; i++) send_pointer(&s, n + i, (int)i);
        receive_some(&s, n + AT_ONCE);
        if (s.rank == 0 && (n + AT_ONCE) % (uint64_t)every == 0) {
            printf("pointers %llu\n", (unsigned long long)(n + AT_ONCE));
            fflush(stdout);
        }
        keep_pace(&pace, s.rank);
    }
    /* Other ranks still wait for their pointers. */
    int done = 0;
    MPI_Request barrier;
    MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
    while (!done) {
        receive_some(&s, 0);
        MPI_Test(&barrier, &done, MPI_STATUS_IGNORE);
    }
    receive_some(&s, 0);
    uint64_t all;
    MPI_Reduce(&s.came, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (s.rank == 0) printf("all %llu pointers led to their blocks\n", (unsigned long long)all);
    for (int i = 0; i < BLOCKS; i++) free(s.blocks[i]);
    MPI_Finalize();
    return 0;
}
