/* chance: programs whose messages depend on clocks, process numbers and random devices.
 *
 * Each message carries a hash over all values that its sender has read from clocks and drawn until
 * then, and the hash of the message before. When a rank is executed again and reads or draws other
 * values, its neighbour notices it and ends with exit code 3. No clock may go back. --what is
 *   times    every clock is read in each step, and sent
 *   urandom  numbers from the random devices are sent
 *   balance  work is shared out by how long each rank took for its last share, so that the length
 *            of messages depends on clocks
 *   limit    rank 0 ends all ranks after a time limit, and polls its clock while it waits
 *   seeds    random numbers from a seed that was made of time and process number before MPI_Init
 * What is printed does not depend on any of that. It is the only example that may read a clock. */
#include "common.h"
#include "pace.h"
#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ITEMS = 1 << 16 };

static int me, ranks;
static long steps = 1500, spin = 100000, limit_ms = 800;
static uint64_t history = HASH_START, chain_out = HASH_START, chain_in = HASH_START;
static uint64_t checked;
static struct pace pace = {.slow_ms = 5};

struct message {
    uint64_t chain, history, value;
};

static void observed(uint64_t word) {
    history = hash_word(history, word);
}

/* A value of a clock, which must not be lower than the one before. */
static int64_t forward(int64_t *last, int64_t now, const char *clock) {
    if (now < *last) {
        fprintf(stderr, "rank %d: %s went back by %lld\n", me, clock, (long long)(*last - now));
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    *last = now;
    observed((uint64_t)now);
    return now;
}

static int64_t clock_ns(clockid_t clock) {
    static int64_t last[16];
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) die("clock %d: %s", (int)clock, strerror(errno));
    return forward(&last[clock], t.tv_sec * 1000000000LL + t.tv_nsec, "a clock");
}

/* What the process has used, in whole structures. */
static void read_times_used(void) {
    static int64_t user, ticks;
    struct rusage usage;
    struct tms tms;
    if (getrusage(RUSAGE_SELF, &usage) != 0) die("getrusage: %s", strerror(errno));
    forward(&user, usage.ru_utime.tv_sec * 1000000LL + usage.ru_utime.tv_usec, "getrusage");
    history = hash_bytes(history, &usage, sizeof usage);
    forward(&ticks, (int64_t)times(&tms), "times");
    history = hash_bytes(history, &tms, sizeof tms);
}

static void read_all_clocks(void) {
    static int64_t wtime, day, seconds;
    struct timeval t;
    clock_ns(CLOCK_REALTIME);
    clock_ns(CLOCK_MONOTONIC);
    clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    forward(&wtime, (int64_t)(MPI_Wtime() * 1e6), "MPI_Wtime");
    gettimeofday(&t, NULL);
    forward(&day, t.tv_sec * 1000000LL + t.tv_usec, "gettimeofday");
    forward(&seconds, (int64_t)time(NULL), "time");
    read_times_used();
}

static void draw(void) {
    unsigned char bytes[48];
    int device = open("/dev/urandom", O_RDONLY);
    if (device < 0 || read(device, bytes, 32) != 32 || getrandom(bytes + 32, 16, 0) != 16)
        die("cannot draw: %s", strerror(errno));
    close(device);
    history = hash_bytes(history, bytes, sizeof bytes);
}

/* Sends the hash of this rank's observations to the next rank, and checks that of the rank
 * before. */
static void exchange_hash(uint64_t value) {
    struct message out = {chain_out, history, value}, in;
    MPI_Sendrecv(&out, 3, MPI_UINT64_T, (me + 1) % ranks, 1, &in, 3, MPI_UINT64_T,
                 (me + ranks - 1) % ranks, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (in.chain != chain_in) {
        fprintf(stderr,
                "rank %d: message %llu does not follow on the one before: its sender has "
                "diverged from what it did\n",
                me, (unsigned long long)checked);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    chain_out = hash_bytes(chain_out, &out, sizeof out);
    chain_in = hash_bytes(chain_in, &in, sizeof in);
    observed(in.history);
    checked++;
}

/* Divides items into shares by the speed of each rank and scatters them. Each rank sums up its own
 * share. */
static void balance(void) {
    static uint64_t items[MAX_ITEMS];
    double *speeds = allocate((size_t)ranks, sizeof *speeds);
    int *counts = allocate((size_t)ranks, sizeof *counts);
    int *places = allocate((size_t)ranks, sizeof *places), share = MAX_ITEMS / ranks;
    uint64_t all = 0;
    for (long step = 0; step < steps; step++) {
        double begun = MPI_Wtime(), speed;
        take_time(history, share * (spin / 1000) / 10);
        speed = share / (MPI_Wtime() - begun + 1e-6);
        MPI_Allgather(&speed, 1, MPI_DOUBLE, speeds, 1, MPI_DOUBLE, MPI_COMM_WORLD);
        double sum = 0;
        for (int r = 0; r < ranks; r++) sum += speeds[r];
        int given = 0;
        for (int r = 0; r < ranks; r++) {
            counts[r] = r == ranks - 1 ? 4096 - given : (int)(4096 * speeds[r] / sum);
            places[r] = given;
            given += counts[r];
        }
        share = counts[me];
        for (int i = 0; me == 0 && i < 4096; i++)
            items[i] = random_word((uint64_t)step, (uint64_t)i);
        static uint64_t mine[MAX_ITEMS];
        MPI_Scatterv(items, counts, places, MPI_UINT64_T, mine, share, MPI_UINT64_T, 0,
                     MPI_COMM_WORLD);
        uint64_t part = 0, total;
        for (int i = 0; i < share; i++) part += mine[i];
        MPI_Allreduce(&part, &total, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        all = hash_word(all, total);
        observed((uint64_t)share);
        exchange_hash((uint64_t)share);
        keep_pace(&pace, me);
    }
    if (me == 0) printf("balanced: sum %016llx\n", (unsigned long long)all);
    free(speeds), free(counts), free(places);
}

/* Rank 0 ends the loop: it reads its clock and probes for a message in turn. */
static void until_limit(void) {
    double begun = MPI_Wtime();
    for (int over = 0; !over;) {
        take_time(history, spin);
        if (me == 0) {
            int there = 0;
            double now = MPI_Wtime(), pause = now + 100e-6;
            while (now < pause && !there) {
                MPI_Iprobe(MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
                now = MPI_Wtime();
                observed((uint64_t)(now * 1e6));
            }
            over = now - begun > (double)limit_ms / 1000;
        }
        MPI_Bcast(&over, 1, MPI_INT, 0, MPI_COMM_WORLD);
        exchange_hash((uint64_t)over);
    }
    if (me == 0) printf("the limit is over\n");
}

int main(int argc, char **argv) {
    uint64_t seed = (uint64_t)time(NULL) * 1000003 ^ (uint64_t)getpid();
    const char *what = "times";
    const struct option options[] = {
        {"what", "times, urandom, balance, limit or seeds", .text = &what},
        {"steps", "steps", .number = &steps},
        {"spin", "arithmetic in each step, about 1 ns each", .number = &spin},
        {"limit-ms", "time limit, in milliseconds", .number = &limit_ms},
        PACE_OPTIONS(pace),
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Messages that depend on clocks, process numbers and chance.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 1 || ranks > 4096 || steps < 1) die("1 to 4096 ranks, --steps of 1 or more");
    observed(seed);
    int pid = (int)getpid();
    if (strcmp(what, "balance") == 0) {
        balance();
    } else if (strcmp(what, "limit") == 0) {
        until_limit();
    } else {
        for (long step = 0; step < steps; step++) {
            if (strcmp(what, "times") == 0)
                read_all_clocks();
            else if (strcmp(what, "urandom") == 0)
                draw();
            else if (strcmp(what, "seeds") == 0)
                observed(random_word(seed, (uint64_t)step) ^ (uint64_t)getpid());
            else
                die("--what %s: no such thing", what);
            take_time(history, spin);
            exchange_hash((uint64_t)step);
            keep_pace(&pace, me);
        }
        if (me == 0) printf("%s: %ld steps\n", what, steps);
    }
    if (getpid() != pid) die("the process has another number");
    MPI_Finalize();
    return 0;
}
