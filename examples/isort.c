/* isort: sorting integers over all ranks, after the NAS Parallel Benchmark IS: bucket sizes are
 * summed with Allreduce, buckets are divided among the ranks in equal shares, and keys are moved
 * with Alltoallv and ranked where they arrive.
 *
 * Shows collectives whose message sizes depend on data and change each iteration. As in IS two keys
 * are changed each iteration, the keys' distribution is the mean of four uniform numbers, and the
 * last iteration is verified in full: every rank's keys in order, no key lost, none larger than the
 * next rank's first. Output and result file are equal in every run of the same options. */
#include "common.h"
#include "pace.h"

enum { BUCKETS = 1024 };

struct sorter {
    int rank, ranks;
    long keys, key_limit;
    int *mine, *sorted; /* the keys as generated; those that belong here, in order */
    int *packed, *received;
    long received_count, received_room;
};

static int bucket_of(const struct sorter *s, int key) {
    return (int)((long)key * BUCKETS / s->key_limit);
}

static void generate(struct sorter *s, uint64_t seed) {
    for (long i = 0; i < s->keys; i++) {
        uint64_t sum = 0, at = (uint64_t)(s->rank * s->keys + i) * 4;
        for (uint64_t part = 0; part < 4; part++) sum += random_word(seed, at + part) >> 34;
        s->mine[i] = (int)((sum >> 2) * (uint64_t)s->key_limit >> 30);
    }
}

/* first_bucket[r] .. first_bucket[r + 1] are rank r's: as near as whole buckets allow to an equal
 * share of all keys. */
static void deal_buckets(const struct sorter *s, const long *global_sizes, int *first_bucket) {
    long total = s->keys * s->ranks, passed = 0;
    int rank = 0;
    first_bucket[0] = 0;
    for (int b = 0; b < BUCKETS; b++) {
        passed += global_sizes[b];
        while (rank + 1 < s->ranks && passed >= total * (rank + 1) / s->ranks)
            first_bucket[++rank] = b + 1;
    }
    while (rank < s->ranks) first_bucket[++rank] = BUCKETS;
}

/* Packs the keys by bucket, so that what goes to one rank lies together; `counts[r]` is how many go
 * to rank r. */
static void pack(struct sorter *s, const long *sizes, const int *first_bucket, int *counts) {
    long place[BUCKETS], at = 0;
    for (int b = 0; b < BUCKETS; b++) {
        place[b] = at;
        at += sizes[b];
    }
    for (int r = 0; r < s->ranks; r++) {
        counts[r] = 0;
        for (int b = first_bucket[r]; b < first_bucket[r + 1]; b++) counts[r] += (int)sizes[b];
    }
    for (long i = 0; i < s->keys; i++) s->packed[place[bucket_of(s, s->mine[i])]++] = s->mine[i];
}

static long offsets(int ranks, const int *counts, int *displacements) {
    long total = 0;
    for (int r = 0; r < ranks; r++) {
        displacements[r] = (int)total;
        total += counts[r];
    }
    return total;
}

static void move_keys(struct sorter *s, int *send_counts) {
    int *numbers = allocate(3 * (size_t)s->ranks, sizeof(int));
    int *send_at = numbers, *receive_counts = numbers + s->ranks,
        *receive_at = numbers + 2 * s->ranks;
    MPI_Alltoall(send_counts, 1, MPI_INT, receive_counts, 1, MPI_INT, MPI_COMM_WORLD);
    offsets(s->ranks, send_counts, send_at);
    s->received_count = offsets(s->ranks, receive_counts, receive_at);
    if (s->received_count > s->received_room) {
        free(s->received), free(s->sorted);
        s->received_room = s->received_count + s->received_count / 8;
        s->received = allocate((size_t)s->received_room, sizeof(int));
        s->sorted = allocate((size_t)s->received_room, sizeof(int));
    }
    MPI_Alltoallv(s->packed, send_counts, send_at, MPI_INT, s->received, receive_counts, receive_at,
                  MPI_INT, MPI_COMM_WORLD);
    free(numbers);
}

/* Counting sort of the keys that arrived. */
static void rank_keys(struct sorter *s) {
    long *count = allocate((size_t)s->key_limit + 1, sizeof *count);
    for (long i = 0; i < s->received_count; i++) count[s->received[i] + 1]++;
    for (long key = 0; key < s->key_limit; key++) count[key + 1] += count[key];
    for (long i = 0; i < s->received_count; i++)
        s->sorted[count[s->received[i]]++] = s->received[i];
    free(count);
}

/* A checksum of the whole sorted sequence that does not depend on where it is cut; rank 0 gets it.
 * */
static uint64_t checksum(const struct sorter *s) {
    long before = 0;
    uint64_t sum = 0, total = 0;
    MPI_Exscan(&s->received_count, &before, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (s->rank == 0) before = 0; /* Exscan leaves rank 0's undefined */
    for (long i = 0; i < s->received_count; i++)
        sum += random_word((uint64_t)s->sorted[i], (uint64_t)(before + i));
    MPI_Reduce(&sum, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    return total;
}

static void verify(const struct sorter *s) {
    long total = 0;
    int largest = s->received_count ? s->sorted[s->received_count - 1] : -1, before = -1;
    for (long i = 1; i < s->received_count; i++)
        if (s->sorted[i - 1] > s->sorted[i]) die("keys %ld and %ld are out of order", i - 1, i);
    /* The largest key of all ranks before: an empty rank passes on what it got. */
    MPI_Exscan(&largest, &before, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (s->rank > 0 && s->received_count && before > s->sorted[0])
        die("a rank before holds %d, larger than the first key here, %d", before, s->sorted[0]);
    MPI_Allreduce(&s->received_count, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (total != s->keys * s->ranks) die("%ld keys of %ld remain", total, s->keys * s->ranks);
}

static void sort_once(struct sorter *s) {
    long sizes[BUCKETS] = {0}, global_sizes[BUCKETS];
    int *first_bucket = allocate((size_t)s->ranks + 1, sizeof(int)),
        *counts = allocate((size_t)s->ranks, sizeof(int));
    for (long i = 0; i < s->keys; i++) sizes[bucket_of(s, s->mine[i])]++;
    MPI_Allreduce(sizes, global_sizes, BUCKETS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    deal_buckets(s, global_sizes, first_bucket);
    pack(s, sizes, first_bucket, counts);
    move_keys(s, counts);
    rank_keys(s);
    free(first_bucket), free(counts);
}

/* All keys in order, as 32-bit integers: rank 0 writes each rank's share in turn. */
static void write_result(const struct sorter *s, const char *path) {
    FILE *file = NULL;
    if (s->rank != 0) {
        MPI_Send(s->sorted, (int)s->received_count, MPI_INT, 0, 1, MPI_COMM_WORLD);
        return;
    }
    if (!(file = fopen(path, "wb"))) die("cannot write %s: %s", path, strerror(errno));
    for (int from = 0; from < s->ranks; from++) {
        int count = (int)s->received_count, *part = s->sorted;
        MPI_Status status;
        if (from > 0) {
            MPI_Probe(from, 1, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_INT, &count);
            part = allocate((size_t)count, sizeof *part);
            MPI_Recv(part, count, MPI_INT, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        if (fwrite(part, sizeof *part, (size_t)count, file) != (size_t)count)
            die("cannot write %s: %s", path, strerror(errno));
        if (from > 0) free(part);
    }
    if (fclose(file) != 0) die("cannot write %s: %s", path, strerror(errno));
}

int main(int argc, char **argv) {
    struct sorter s = {0};
    long iterations = 10;
    const char *out = NULL;
    struct pace pace = {.slow_ms = 5};
    s.keys = 1 << 19;
    s.key_limit = 1 << 17;
    const struct option options[] = {
        {"keys", "keys per rank", .number = &s.keys},
        {"key-limit", "keys are smaller than this", .number = &s.key_limit},
        {"iterations", "sorts, each of slightly other keys", .number = &iterations},
        PACE_OPTIONS(pace),
        {"out", "write the last sorted keys to this file (32-bit integers)", .text = &out},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Integer sort with Alltoallv, after NPB IS.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &s.ranks);
    if (s.keys < 2 * iterations || s.key_limit < BUCKETS || s.key_limit > 1L << 30)
        die("--keys must be at least 2 x --iterations, --key-limit from %d to 2^30", BUCKETS);
    s.mine = allocate((size_t)s.keys, sizeof(int));
    s.packed = allocate((size_t)s.keys, sizeof(int));
    generate(&s, 314159265);
    for (long iteration = 1; iteration <= iterations; iteration++) {
        s.mine[iteration - 1] = (int)(iteration % s.key_limit);
        s.mine[iterations + iteration - 1] = (int)(s.key_limit - iteration % s.key_limit) - 1;
        sort_once(&s);
        uint64_t sum = checksum(&s);
        if (s.rank == 0) {
            printf("iteration %ld checksum %016llx\n", iteration, (unsigned long long)sum);
            fflush(stdout);
        }
        keep_pace(&pace, s.rank);
    }
    verify(&s);
    if (out) write_result(&s, out);
    if (s.rank == 0) printf("verified %ld keys\n", s.keys * s.ranks);
    MPI_Finalize();
    return 0;
}
