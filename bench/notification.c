/* notification: what a system call costs when a supervisor is asked about it (seccomp's user
 * notification), as recording the calls of all threads and of static programs would need.
 *
 *     gcc -O2 -o /tmp/notification bench/notification.c && /tmp/notification
 *
 * One call is watched, pread(2) of 1 KiB of a file that is in the page cache; getppid(2) is not.
 * The supervisor lets each watched call go on and looks at nothing, so this is the least cost. It
 * must never watch a process other than its own child. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS _IOW('!', 4, unsigned long)
#endif
#define SYNCHRONOUS 1UL
#define LISTENER 100

static void check(long result, const char *what) {
    if (result >= 0) return;
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void measure(const char *way, long calls) {
    char bytes[1024];
    int file = open("/proc/self/exe", O_RDONLY);
    check(file, "open");
    double begun = now();
    for (long i = 0; i < calls; i++) check(syscall(SYS_pread64, file, bytes, 1024, 0), "pread");
    double watched = now() - begun;
    begun = now();
    for (long i = 0; i < calls; i++) syscall(SYS_getppid);
    double other = now() - begun;
    printf("%s: pread %.2f us, getppid %.2f us\n", way, watched / (double)calls * 1e6,
           other / (double)calls * 1e6);
    fflush(stdout);
    close(file);
}

/* Installs a filter in this process that does `action` for pread(2). */
static long filter(unsigned action, unsigned flags) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

/* Lets watched calls go on until the child has ended. */
static void supervise(int listener) {
    for (;;) {
        struct seccomp_notif call = {0};
        struct seccomp_notif_resp answer = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0) {
            if (errno == EINTR) continue;
            return;
        }
        answer.id = call.id;
        answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) < 0 && errno != ENOENT) return;
    }
}

static void watched(const char *way, int synchronous) {
    int sockets[2];
    char byte = 0;
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), "socketpair");
    pid_t child = fork();
    check(child, "fork");
    if (child == 0) {
        long listener = filter(SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
        check(listener, "seccomp");
        check(dup2((int)listener, LISTENER), "dup2");
        check(write(sockets[1], &byte, 1), "write");
        check(read(sockets[1], &byte, 1), "read");
        /* Else the supervisor would never see the end. */
        close(LISTENER);
        close((int)listener);
        measure(way, 100000);
        _exit(0);
    }
    check(read(sockets[0], &byte, 1), "read");
    int process = (int)syscall(SYS_pidfd_open, child, 0);
    int listener = (int)syscall(SYS_pidfd_getfd, process, LISTENER, 0);
    check(listener, "pidfd_getfd");
    if (synchronous) check(ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNCHRONOUS), "flags");
    check(write(sockets[0], &byte, 1), "write");
    supervise(listener);
    waitpid(child, NULL, 0);
}

int main(void) {
    measure("no filter", 1000000);
    pid_t child = fork();
    check(child, "fork");
    if (child == 0) {
        check(filter(SECCOMP_RET_ALLOW, 0), "seccomp");
        measure("a filter that allows all", 1000000);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    watched("a supervisor is asked", 0);
    watched("a supervisor is asked, woken on the same processor (Linux 6.6)", 1);
    return 0;
}
