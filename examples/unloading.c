/* unloading: a rank that waits at the point where its MPI library has unloaded libfabric (Intel MPI
 * does so in MPI_Finalize).
 *
 * unloading FILE: each rank adds up the ranks; in MPI_Finalize it makes `unloaded-RANK` when
 * libfabric is not in memory any more, and waits there for FILE. With a library that keeps
 * libfabric it does not wait. */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *awaited;
static int me, is_ending;

static int is_libfabric(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    return strstr(info->dlpi_name, "libfabric") != NULL;
}

/* Replaces the C library's dlclose, for the MPI library too. */
int dlclose(void *handle) {
    int (*close_it)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "dlclose");
    int was_there = dl_iterate_phdr(is_libfabric, NULL), closed = close_it(handle);
    char name[32];
    if (is_ending && was_there && !dl_iterate_phdr(is_libfabric, NULL)) {
        snprintf(name, sizeof name, "../unloaded-%d", me);
        close(open(name, O_CREAT | O_WRONLY, 0600));
        while (access(awaited, F_OK)) usleep(10000);
    }
    return closed;
}

int main(int argc, char **argv) {
    int sum;
    if (argc < 2) return fprintf(stderr, "usage: unloading FILE\n"), 2;
    awaited = argv[1];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Allreduce(&me, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0) printf("sum %d\n", sum), fflush(stdout);
    is_ending = 1;
    MPI_Finalize();
    return 0;
}
