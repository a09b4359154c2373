/* For tests that do something to a job while it runs: rank 0, and so every rank, runs slowly until
 * a file exists. It must never change what is computed. */
#ifndef EYRIE_EXAMPLES_PACE_H
#define EYRIE_EXAMPLES_PACE_H

#include <time.h>
#include <unistd.h>

struct pace {
    const char *slow_until;
    long slow_ms;
};

#define PACE_OPTIONS(pace)                                                                         \
    {"slow-until", "rank 0 rests after each step until this file exists",                          \
     .text = &(pace).slow_until},                                                                  \
    {                                                                                              \
        "slow-ms", "for so many milliseconds", .number = &(pace).slow_ms                           \
    }

/* Called after each step of a rank. When its rest is cut short, it does not rest again. */
static void keep_pace(struct pace *pace, int rank) {
    struct timespec time = {pace->slow_ms / 1000, pace->slow_ms % 1000 * 1000000};
    if (rank != 0 || !pace->slow_until) return;
    if (access(pace->slow_until, F_OK) == 0)
        pace->slow_until = NULL;
    else
        nanosleep(&time, NULL);
}

#endif
