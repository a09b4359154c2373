/* leave: a program that ends before it has begun with MPI or after it has finished with it.
 *
 * leave WHEN HOW CODE [FILE]. WHEN: before (MPI_Init), after (MPI_Finalize), session (a session
 * that meets no other rank), world (a session over all ranks). HOW: exit, _exit, group (the system
 * call exit_group), quick (quick_exit), exec (another program). With FILE it ends when that file
 * exists. Programs in Go end by exit_group, Python's os._exit by _exit. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void leave(const char *how, const char *code, const char *file) {
    const char *script = "until [ -z \"$2\" ] || [ -e \"$2\" ]; do sleep 0.02; done; exit $1";
    fflush(stdout);
    if (strcmp(how, "exec") == 0)
        execl("/bin/sh", "sh", "-c", script, "sh", code, file, (char *)NULL);
    while (*file && access(file, F_OK)) usleep(20000);
    if (strcmp(how, "_exit") == 0) _exit(atoi(code));
    if (strcmp(how, "group") == 0) syscall(SYS_exit_group, atoi(code));
    if (strcmp(how, "quick") == 0) quick_exit(atoi(code));
    exit(atoi(code));
}

static void add_up(MPI_Comm all) {
    int rank, sum;
    MPI_Comm_rank(all, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, all);
    if (rank == 0) printf("sum %d\n", sum);
}

static void in_a_session(int over_all) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm all;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    if (over_all) {
        MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
        MPI_Comm_create_from_group(group, "all", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &all);
        add_up(all);
        MPI_Comm_free(&all);
        MPI_Group_free(&group);
    }
    MPI_Session_finalize(&session);
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: leave WHEN HOW CODE [FILE]\n"), 2;
    if (strcmp(argv[1], "after") == 0) {
        MPI_Init(&argc, &argv);
        add_up(MPI_COMM_WORLD);
        MPI_Finalize();
    } else if (strcmp(argv[1], "before") != 0) {
        in_a_session(strcmp(argv[1], "world") == 0);
    }
    leave(argv[2], argv[3], argc > 4 ? argv[4] : "");
}
