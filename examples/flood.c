/* flood: a rank is sent much more than it receives, while two others go on exchanging messages.
 *
 * Rank 0 sends --mb of messages to rank 1, which calls no MPI at all until --release FILE exists
 * (or --hold-ms are over, or at once). Ranks 2 and 3 send a small message to and fro --rounds times
 * and print how long a round trip took. The buffers of rank 1's backlog must neither grow without
 * bound nor stop these two. Then rank 1 receives everything and checks it. The line about the flood
 * on standard output is the same in every run; the round trips go to standard error as JSON
 * (microseconds). */
#include "common.h"
#include <time.h>
#include <unistd.h>

static void sleep_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR);
}

static void fill(uint64_t *words, long count, uint64_t message) {
    uint64_t word = random_word(17, message);
    for (long i = 0; i < count; i++) words[i] = word += 0x9e3779b97f4a7c15ULL;
}

static void send_flood(long messages, long count, uint64_t *words) {
    for (long m = 0; m < messages; m++) {
        fill(words, count, (uint64_t)m);
        MPI_Send(words, (int)count, MPI_UINT64_T, 1, 0, MPI_COMM_WORLD);
    }
}

static void take_flood(long messages, long count, uint64_t *words) {
    uint64_t hash = HASH_START, *expected = allocate((size_t)count, sizeof *expected);
    for (long m = 0; m < messages; m++) {
        MPI_Recv(words, (int)count, MPI_UINT64_T, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        fill(expected, count, (uint64_t)m);
        if (memcmp(words, expected, (size_t)count * sizeof *words) != 0)
            die("message %ld of the flood is not what was sent", m);
        hash = hash_word(hash, words[count - 1]);
    }
    free(expected);
    MPI_Send(&hash, 1, MPI_UINT64_T, 0, 1, MPI_COMM_WORLD);
}

static void talk(int rank, long rounds) {
    double *us = allocate((size_t)rounds, sizeof *us);
    for (long round = 0; round < rounds; round++) {
        long out = round, in = -1;
        double begin = MPI_Wtime();
        if (rank == 2) MPI_Send(&out, 1, MPI_LONG, 3, 2, MPI_COMM_WORLD);
        MPI_Recv(&in, 1, MPI_LONG, 5 - rank, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 3) MPI_Send(&out, 1, MPI_LONG, 2, 2, MPI_COMM_WORLD);
        if (in != round) die("round %ld got the message of round %ld", round, in);
        us[round] = (MPI_Wtime() - begin) * 1e6;
    }
    if (rank == 2 && rounds > 0) {
        qsort(us, (size_t)rounds, sizeof *us, by_value);
        fprintf(stderr, "{\"rounds\":%ld,\"median_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n",
                rounds, us[rounds / 2], us[rounds * 99 / 100], us[rounds - 1]);
    }
    free(us);
}

int main(int argc, char **argv) {
    long megabytes = 64, message = 1 << 20, hold = 0, rounds = 2000;
    const char *release = NULL;
    const struct option options[] = {
        {"mb", "size of the flood, in MiB", .number = &megabytes},
        {"message", "bytes of one message of it, a multiple of 8", .number = &message},
        {"release", "rank 1 receives nothing until this file exists", .text = &release},
        {"hold-ms", "rank 1 receives nothing for so many milliseconds", .number = &hold},
        {"rounds", "round trips between ranks 2 and 3", .number = &rounds},
        {0},
    };
    int rank, ranks;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Floods rank 1 while ranks 2 and 3 go on talking.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 4 || message < 8 || message % 8 || megabytes < 1)
        die("needs 4 ranks, --mb of 1 or more, and --message a multiple of 8");
    long messages = (megabytes * (1 << 20) + message - 1) / message, count = message / 8;
    uint64_t *words = allocate((size_t)count, sizeof *words), hash;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        send_flood(messages, count, words);
        MPI_Recv(&hash, 1, MPI_UINT64_T, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("flood of %ld messages of %ld bytes: %016llx\n", messages, message,
               (unsigned long long)hash);
    } else if (rank == 1) {
        sleep_ms(hold);
        while (release && access(release, F_OK) != 0) sleep_ms(20);
        take_flood(messages, count, words);
    } else if (rank < 4) {
        talk(rank, rounds);
    }
    free(words);
    MPI_Finalize();
    return 0;
}
