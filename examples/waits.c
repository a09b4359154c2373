/* waits: waits in every way the system has, and reports a wait that was too short or ended for a
 * reason outside the program.
 *
 * Each wait of --ms milliseconds must take that long and return what an undisturbed one returns.
 * Waits that never end by themselves must be ended by a timer's signal only. Some waits are system
 * calls without the C library, as programs without one make them. After each wait an Allreduce
 * checks that it was right on all ranks. With --in-thread 1 a second thread makes the waits, and
 * the first one waits for it. With --in-thread 2 a second thread is in a call of MPI meanwhile, on
 * one rank after the other. */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ms = 300;
static int event;
static volatile sig_atomic_t alarms;

static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static struct timespec in_ms(void) {
    return (struct timespec){ms / 1000, ms % 1000 * 1000000};
}

/* Sets a timer that sends one signal after --ms. */
static void alarm_once(void) {
    const struct itimerval timer = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

#define RAW(number)                                                                                \
    __asm__ volatile("movl %[nr], %%eax\n\tsyscall"                                                \
                     : "=&a"(result)                                                               \
                     : [nr] "i"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)                 \
                     : "rcx", "r11", "memory")

/* System calls made directly, without the functions of the C library. */
static long raw_nanosleep(const struct timespec *time, struct timespec *rest) {
    long result, a = (long)time, b = (long)rest, c = 0;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    RAW(SYS_nanosleep);
    return result;
}

static long raw_ppoll(struct timespec *time) {
    long result, a = 0, b = 0, c = (long)time;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    RAW(SYS_ppoll);
    return result;
}

static long raw_pause(void) {
    long result, a = 0, b = 0, c = 0;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    RAW(SYS_pause);
    return result;
}

/* Each returns 1 when the wait returned what an undisturbed one does. */
static int sleeps(void) {
    return sleep((ms + 999) / 1000) == 0;
}
static int usleeps(void) {
    return usleep(ms * 1000) == 0;
}

static int nanosleeps(void) {
    const struct timespec time = in_ms();
    return nanosleep(&time, NULL) == 0;
}

static int clock_nanosleeps(void) {
    const struct timespec time = in_ms();
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL) == 0;
}

static int polls(void) {
    struct pollfd fd = {.fd = event, .events = POLLIN};
    return poll(&fd, 1, ms) == 0;
}

static int ppolls(void) {
    const struct timespec time = in_ms();
    struct pollfd fd = {.fd = event, .events = POLLIN};
    return ppoll(&fd, 1, &time, NULL) == 0;
}

static int selects(void) {
    struct timeval time = {ms / 1000, ms % 1000 * 1000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(event, &set);
    return select(event + 1, &set, NULL, NULL, &time) == 0;
}

static int pselects(void) {
    const struct timespec time = in_ms();
    return pselect(0, NULL, NULL, NULL, &time, NULL) == 0;
}

static int sigtimedwaits(void) {
    const struct timespec time = in_ms();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    return sigtimedwait(&set, NULL, &time) == -1 && errno == EAGAIN;
}

static int raw_nanosleeps(void) {
    struct timespec time = in_ms();
    return raw_nanosleep(&time, &time) == 0;
}

static int raw_ppolls(void) {
    struct timespec time = in_ms();
    return raw_ppoll(&time) == 0;
}

static int pauses(void) {
    alarm_once();
    return pause() == -1 && errno == EINTR;
}

static int raw_pauses(void) {
    alarm_once();
    return raw_pause() == -EINTR;
}

static int sigsuspends(void) {
    sigset_t set;
    sigemptyset(&set);
    alarm_once();
    return sigsuspend(&set) == -1 && errno == EINTR;
}

static int polls_for_ever(void) {
    struct pollfd fd = {.fd = event, .events = POLLIN};
    alarm_once();
    return poll(&fd, 1, -1) == -1 && errno == EINTR;
}

static int selects_for_ever(void) {
    alarm_once();
    return select(0, NULL, NULL, NULL, NULL) == -1 && errno == EINTR;
}

static int sigwaitinfos(void) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    alarm_once();
    got = sigwaitinfo(&set, NULL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    alarms++;
    return got == SIGALRM;
}

static const struct {
    const char *name;
    int (*wait)(void);
    int alarms;
} waits[] = {
    {"sleep", sleeps, 0},
    {"usleep", usleeps, 0},
    {"nanosleep", nanosleeps, 0},
    {"clock_nanosleep", clock_nanosleeps, 0},
    {"poll", polls, 0},
    {"ppoll", ppolls, 0},
    {"select", selects, 0},
    {"pselect", pselects, 0},
    {"sigtimedwait", sigtimedwaits, 0},
    {"raw nanosleep", raw_nanosleeps, 0},
    {"raw ppoll", raw_ppolls, 0},
    {"pause", pauses, 1},
    {"raw pause", raw_pauses, 1},
    {"sigsuspend", sigsuspends, 1},
    {"poll for ever", polls_for_ever, 1},
    {"select for ever", selects_for_ever, 1},
    {"sigwaitinfo", sigwaitinfos, 1},
};

static void let_alarms(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(how, &set, NULL);
}

static void *wait_there(void *wait) {
    let_alarms(SIG_UNBLOCK);
    return (void *)(intptr_t)(*(int (**)(void))wait)();
}

/* Makes a wait in a second thread, which gets all alarms. */
static int wait_in_thread(int (*wait)(void)) {
    pthread_t thread;
    void *right;
    let_alarms(SIG_BLOCK);
    if (pthread_create(&thread, NULL, wait_there, &wait) != 0) die("no thread can be started");
    pthread_join(thread, &right);
    return (int)(intptr_t)right;
}

/* Makes a wait and measures how long it took, in seconds. */
static int timed(int (*wait)(void), double *took) {
    double begun = now();
    int right = wait();
    *took = now() - begun;
    return right;
}

static void *receive(void *from) {
    MPI_Recv(NULL, 0, MPI_INT, *(int *)from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return NULL;
}

/* Makes a wait while another thread is in a call of MPI on this rank; the last rank ends that call
 * when its own wait is over. */
static int wait_beside_mpi(int (*wait)(void), int receives, int rank, int ranks, double *took) {
    int right, from = (rank + ranks - 1) % ranks;
    pthread_t thread;
    if (receives) {
        let_alarms(SIG_BLOCK);
        if (pthread_create(&thread, NULL, receive, &from) != 0) die("no thread can be started");
        let_alarms(SIG_UNBLOCK);
    }
    right = timed(wait, took);
    if (receives)
        pthread_join(thread, NULL);
    else
        MPI_Send(NULL, 0, MPI_INT, (rank + 1) % ranks, 0, MPI_COMM_WORLD);
    return right;
}

int main(int argc, char **argv) {
    long rounds = 1, in_thread = 0;
    const char *only = NULL;
    const struct option options[] = {
        {"ms", "length of each wait", .number = &ms},
        {"rounds", "how often all of them are made", .number = &rounds},
        {"in-thread", "1: a second thread makes them; 2: one is in MPI, with two ranks",
         .number = &in_thread},
        {"only", "the name of the one to make", .text = &only},
        {0},
    };
    int rank, ranks, level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
    parse_options(argc, argv, "Waits in every way, and says when a wait was too short.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    signal(SIGALRM, on_alarm);
    event = eventfd(0, 0);
    if (event < 0) die("eventfd: %s", strerror(errno));
    for (long round = 0; round < rounds; round++)
        for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
            int right, all, receives = (int)i % 2 == rank;
            double begun, took;
            if (only && strcmp(only, waits[i].name) != 0) continue;
            if (rank == 0) {
                printf("%s:", waits[i].name);
                fflush(stdout);
            }
            alarms = 0;
            begun = now();
            if (in_thread == 2)
                right = wait_beside_mpi(waits[i].wait, receives, rank, ranks, &took);
            else if (in_thread)
                right = wait_in_thread(waits[i].wait), took = now() - begun;
            else
                right = timed(waits[i].wait, &took);
            if (!right || alarms != waits[i].alarms || took < ms / 1000.0)
                fprintf(stderr, "rank %d: %s took %.3f s of %.3f s, %s, %d alarms\n", rank,
                        waits[i].name, took, ms / 1000.0,
                        right ? "ended well" : "ended for no reason", (int)alarms);
            right = right && alarms == waits[i].alarms && took >= ms / 1000.0;
            MPI_Allreduce(&right, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
            if (rank == 0) {
                printf(" %s\n", all ? "whole" : "TOO SHORT");
                fflush(stdout);
            }
        }
    MPI_Finalize();
    return 0;
}
