/* waiters: queues that only the kernel holds (a pipe, a socket pair, counted events, signals read
 * by descriptor) and what waits for them (epoll, a timer, inotify). Each round every rank puts a
 * word into each queue, takes the oldest out of each, and exchanges what it has got with its
 * neighbour: a byte or a wake-up that is lost or comes twice changes all later words, or leaves a
 * rank waiting for ever.
 *
 * The output depends only on the options and the number of ranks. */
#include "common.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* How many words wait in the pipe and in each direction of the socket pair. */
enum { WAITING = 100 };

/* The number of the watch that stays. */
enum { ROOT = 3 };

enum source { PIPE, NEAR, FAR, EVENTS, SIGNALS, SOURCES };

struct queues {
    int pipe[2], sockets[2], events, signals, timer, epoll, outer_epoll, notices;
};

static void check(int ok, const char *what) {
    if (!ok) die("%s: %s", what, strerror(errno));
}

static void put(int fd, uint64_t word) {
    check(write(fd, &word, sizeof word) == (ssize_t)sizeof word, "write");
}

static uint64_t get(int fd) {
    uint64_t word;
    check(read(fd, &word, sizeof word) == (ssize_t)sizeof word, "read");
    return word;
}

static void watch(int epoll, int fd, uint64_t data) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static void put_signal(uint64_t word) {
    union sigval value = {.sival_int = (int)(word & 0x7fffffff)};
    check(sigqueue(getpid(), SIGRTMIN + 3, value) == 0, "sigqueue");
}

static uint64_t get_signal(int fd) {
    struct signalfd_siginfo info;
    check(read(fd, &info, sizeof info) == (ssize_t)sizeof info, "read of a signal");
    return (uint64_t)info.ssi_int;
}

/* The number of the watch of a directory that does not change. */
static int watch_root(struct queues *q) {
    return inotify_add_watch(q->notices, "/", IN_DELETE_SELF);
}

static void unwatch(struct queues *q, int number) {
    check(inotify_rm_watch(q->notices, number) == 0, "inotify_rm_watch");
}

static void make(struct queues *q) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    check(sigprocmask(SIG_BLOCK, &set, NULL) == 0, "sigprocmask");
    check(pipe2(q->pipe, O_CLOEXEC) == 0, "pipe2");
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, q->sockets) == 0, "socketpair");
    q->events = eventfd(0, EFD_CLOEXEC);
    q->signals = signalfd(-1, &set, SFD_CLOEXEC);
    q->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    q->epoll = epoll_create1(EPOLL_CLOEXEC);
    q->outer_epoll = epoll_create1(EPOLL_CLOEXEC);
    watch(q->epoll, q->pipe[0], PIPE);
    watch(q->epoll, q->sockets[0], NEAR);
    watch(q->epoll, q->sockets[1], FAR);
    watch(q->epoll, q->events, EVENTS);
    watch(q->epoll, q->signals, SIGNALS);
    watch(q->outer_epoll, q->epoll, 0);
    watch(q->outer_epoll, q->timer, 1);
    q->notices = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    watch(q->outer_epoll, q->notices, 2);
    for (int i = 1; i <= 2; i++) check(watch_root(q) == i, "inotify_add_watch"), unwatch(q, i);
    check(watch_root(q) == ROOT, "inotify_add_watch");
    uint64_t told[16];
    check(read(q->notices, told, sizeof told) > 0, "read of notices");
}

static void put_all(struct queues *q, uint64_t word) {
    put(q->pipe[1], word);
    put(q->sockets[0], word + 1);
    put(q->sockets[1], word + 2);
    put(q->events, word % 1000 + 1);
}

/* Takes the oldest of each queue, once epoll has said that it is there. */
static uint64_t take_all(struct queues *q, uint64_t hash) {
    uint64_t got[SOURCES] = {0};
    unsigned seen = 0;
    while (seen != (1u << SOURCES) - 1) {
        struct epoll_event all[SOURCES];
        int n = epoll_wait(q->epoll, all, SOURCES, -1);
        check(n > 0 || errno == EINTR, "epoll_wait");
        for (int i = 0; i < n; i++) {
            uint64_t source = all[i].data.u64;
            if (seen & 1u << source) continue;
            seen |= 1u << source;
            got[source] = source == PIPE     ? get(q->pipe[0])
                          : source == NEAR   ? get(q->sockets[0])
                          : source == FAR    ? get(q->sockets[1])
                          : source == EVENTS ? get(q->events)
                                             : get_signal(q->signals);
        }
    }
    return hash_bytes(hash, got, sizeof got);
}

/* Waits for the timer, by an epoll instance that watches another one. */
static void await_timer(struct queues *q, long us) {
    struct itimerspec when = {.it_value.tv_nsec = us * 1000};
    check(timerfd_settime(q->timer, 0, &when, NULL) == 0, "timerfd_settime");
    for (int expired = 0; !expired;) {
        struct epoll_event all[2];
        int n = epoll_wait(q->outer_epoll, all, 2, -1);
        check(n > 0 || errno == EINTR, "epoll_wait");
        for (int i = 0; i < n; i++) expired |= all[i].data.u64 == 1;
    }
    if (get(q->timer) != 1) die("the timer has expired more than once");
}

int main(int argc, char **argv) {
    long rounds = 2000, every = 200, pause_us = 300;
    struct option options[] = {{"rounds", "exchanges", &rounds, NULL, NULL},
                               {"every", "rounds between two lines of output", &every, NULL, NULL},
                               {"pause-us", "length of the timer's wait", &pause_us, NULL, NULL},
                               {NULL, NULL, NULL, NULL, NULL}};
    struct queues q;
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    parse_options(argc, argv, "Words that wait in queues of the kernel.", options);
    make(&q);
    uint64_t hash = random_word(5, (uint64_t)rank);
    for (int i = 0; i < WAITING; i++) put_all(&q, random_word(hash, (uint64_t)i));
    for (int i = 0; i < 8; i++) put_signal(random_word(hash, (uint64_t)i));
    for (long round = 1; round <= rounds; round++) {
        uint64_t theirs;
        put_all(&q, hash >> 1);
        put_signal(hash);
        if (round % 10 == 0) await_timer(&q, pause_us);
        if (watch_root(&q) != ROOT) die("the directory is watched by another number");
        hash = take_all(&q, hash);
        MPI_Sendrecv(&hash, 1, MPI_UINT64_T, (rank + 1) % ranks, 0, &theirs, 1, MPI_UINT64_T,
                     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        hash = hash_word(hash, theirs);
        if (round % every == 0) {
            MPI_Reduce(&hash, &theirs, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
            if (rank == 0) {
                printf("round %ld %016llx\n", round, (unsigned long long)theirs);
                fflush(stdout);
            }
        }
    }
    MPI_Finalize();
    return 0;
}
