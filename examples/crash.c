/* crash: a program that ends badly by its own fault, at a chosen rank and step.
 *
 * Every step is a Sendrecv round a ring and an Allreduce. At the chosen step the chosen rank
 * segfaults, aborts, exits, or calls MPI_Abort. With --once FILE it does so only if FILE does not
 * exist yet, and creates it first: the fault goes away when the rank is run again, as that of a bit
 * flip or an exhausted node does. Without --once the fault is at the same place in every
 * incarnation of the rank: a launcher that restarts ranks must notice that and give up. With --rank
 * -1 nothing happens and the sum is printed. */
#include "common.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Opens a file without the C library and its syscall(2), so that no launcher sees the call and
 * replays its result when the rank is run again. A fault of the hardware is not replayed either.
 * Returns a negative errno when it fails. */
static long open_unseen(const char *path, long flags, long mode) {
    long result;
    register long mode_in_r10 __asm__("r10") = mode;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_openat), "D"((long)AT_FDCWD), "S"(path), "d"(flags), "r"(mode_in_r10)
                     : "rcx", "r11", "memory");
    return result;
}

/* Whether this incarnation is to end: always without `once`, else if it creates the file. */
static int due(const char *once) {
    int file;
    if (!once) return 1;
    file = (int)open_unseen(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file < 0 && file != -EEXIST) die("cannot create %s: %s", once, strerror(-file));
    return file >= 0 && close(file) == 0;
}

static void end_badly(const char *how, int code) {
    fflush(NULL);
    if (strcmp(how, "segv") == 0) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    } else if (strcmp(how, "abort") == 0) {
        abort();
    } else if (strcmp(how, "kill") == 0) {
        raise(SIGKILL);
    } else if (strcmp(how, "exit") == 0) {
        exit(code);
    } else if (strcmp(how, "mpi-abort") == 0) {
        MPI_Abort(MPI_COMM_WORLD, code);
    } else {
        die("--how %s: must be segv, abort, kill, exit or mpi-abort", how);
    }
}

int main(int argc, char **argv) {
    long victim = 1, at_step = 50, steps = 100, code = 7;
    const char *how = "segv", *once = NULL;
    const struct option options[] = {
        {"rank", "the rank that ends badly; -1: none", .number = &victim},
        {"step", "in which step", .number = &at_step},
        {"steps", "steps of the whole run", .number = &steps},
        {"how", "segv, abort, kill (by itself), exit, or mpi-abort", .text = &how},
        {"code", "exit code for exit and mpi-abort", .number = &code},
        {"once", "only if this file does not exist; it is created", .text = &once},
        {0},
    };
    int rank, ranks;
    uint64_t sum = HASH_START;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Ends badly at a chosen rank and step.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (long step = 1; step <= steps; step++) {
        uint64_t in, all, mine = hash_word(sum, (uint64_t)rank);
        MPI_Sendrecv(&mine, 1, MPI_UINT64_T, (rank + 1) % ranks, 0, &in, 1, MPI_UINT64_T,
                     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        in = hash_word(in, (uint64_t)step);
        MPI_Allreduce(&in, &all, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        sum = hash_word(sum, all);
        if (step % 10 == 0 && rank == 0) {
            printf("step %ld sum %016llx\n", step, (unsigned long long)sum);
            fflush(stdout);
        }
        if (rank == victim && step == at_step && due(once)) end_badly(how, (int)code);
    }
    MPI_Finalize();
    return 0;
}
