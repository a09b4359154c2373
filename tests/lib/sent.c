/* Preloaded into ranks, counts what they send by point-to-point calls: MPI's own profiling
 * interface (PMPI), so nothing of Eyrie. At MPI_Finalize each rank writes what it has sent into the
 * file sent-RANK, a line for each rank that it has sent to: "to messages bytes acknowledged", the
 * last of which is how many of the messages were synchronous. Then it waits for the file
 * ../counted. Messages to the rank itself do not count. */

#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

static long messages[MOST], bytes[MOST], synchronous[MOST];

/* Persistent requests: what each start of them sends. */
static struct {
    MPI_Request request;
    int to, is_synchronous;
    long bytes;
} persistent[MOST];

static int in_world(int to, MPI_Comm comm) {
    MPI_Group of_comm, of_world;
    int found;
    if (to == MPI_PROC_NULL) return -1;
    PMPI_Comm_group(comm, &of_comm);
    PMPI_Comm_group(MPI_COMM_WORLD, &of_world);
    PMPI_Group_translate_ranks(of_comm, 1, &to, of_world, &found);
    PMPI_Group_free(&of_comm);
    PMPI_Group_free(&of_world);
    return found;
}

static long size_of(int count, MPI_Datatype type) {
    int size;
    PMPI_Type_size(type, &size);
    return (long)count * size;
}

static void add(int to, long size, int is_synchronous) {
    int me;
    PMPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (to < 0 || to == me) return;
    if (to >= MOST) abort();
    messages[to]++;
    bytes[to] += size;
    synchronous[to] += is_synchronous;
}

static void count(int n, MPI_Datatype type, int to, MPI_Comm comm, int is_synchronous) {
    add(in_world(to, comm), size_of(n, type), is_synchronous);
}

#define BLOCKING(name, is_synchronous)                                                             \
    int MPI_##name(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {   \
        count(n, type, to, comm, is_synchronous);                                                  \
        return PMPI_##name(data, n, type, to, tag, comm);                                          \
    }
#define NONBLOCKING(name, is_synchronous)                                                          \
    int MPI_##name(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,     \
                   MPI_Request *request) {                                                         \
        count(n, type, to, comm, is_synchronous);                                                  \
        return PMPI_##name(data, n, type, to, tag, comm, request);                                 \
    }
#define PERSISTENT(name, is_synchronous)                                                           \
    int MPI_##name(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,     \
                   MPI_Request *request) {                                                         \
        int made = PMPI_##name(data, n, type, to, tag, comm, request);                             \
        keep(*request, in_world(to, comm), size_of(n, type), is_synchronous);                      \
        return made;                                                                               \
    }

static void keep(MPI_Request request, int to, long size, int is_synchronous) {
    for (int i = 0; i < MOST; i++) {
        if (persistent[i].request == (MPI_Request)0 || persistent[i].request == request) {
            persistent[i].request = request;
            persistent[i].to = to;
            persistent[i].bytes = size;
            persistent[i].is_synchronous = is_synchronous;
            return;
        }
    }
    abort();
}

static void started(MPI_Request request) {
    for (int i = 0; i < MOST; i++)
        if (persistent[i].request != (MPI_Request)0 && persistent[i].request == request)
            add(persistent[i].to, persistent[i].bytes, persistent[i].is_synchronous);
}

BLOCKING(Send, 0)
BLOCKING(Ssend, 1)
BLOCKING(Rsend, 0)
BLOCKING(Bsend, 0)
NONBLOCKING(Isend, 0)
NONBLOCKING(Issend, 1)
NONBLOCKING(Irsend, 0)
NONBLOCKING(Ibsend, 0)
PERSISTENT(Send_init, 0)
PERSISTENT(Ssend_init, 1)
PERSISTENT(Rsend_init, 0)
PERSISTENT(Bsend_init, 0)

int MPI_Start(MPI_Request *request) {
    started(*request);
    return PMPI_Start(request);
}

int MPI_Startall(int n, MPI_Request *requests) {
    for (int i = 0; i < n; i++) started(requests[i]);
    return PMPI_Startall(n, requests);
}

int MPI_Request_free(MPI_Request *request) {
    for (int i = 0; i < MOST; i++) /* Another request may have the same number later. */
        if (*request != (MPI_Request)0 && persistent[i].request == *request) persistent[i].to = -1;
    return PMPI_Request_free(request);
}

int MPI_Sendrecv(const void *data, int n, MPI_Datatype type, int to, int tag, void *into, int room,
                 MPI_Datatype as, int from, int its_tag, MPI_Comm comm, MPI_Status *status) {
    count(n, type, to, comm, 0);
    return PMPI_Sendrecv(data, n, type, to, tag, into, room, as, from, its_tag, comm, status);
}

int MPI_Sendrecv_replace(void *data, int n, MPI_Datatype type, int to, int tag, int from,
                         int its_tag, MPI_Comm comm, MPI_Status *status) {
    /* The library may send it by a call that counts it. */
    long before[3];
    int rank = in_world(to, comm);
    if (rank >= 0) {
        before[0] = messages[rank], before[1] = bytes[rank], before[2] = synchronous[rank];
    }
    int done = PMPI_Sendrecv_replace(data, n, type, to, tag, from, its_tag, comm, status);
    if (rank >= 0) {
        messages[rank] = before[0], bytes[rank] = before[1], synchronous[rank] = before[2];
        count(n, type, to, comm, 0);
    }
    return done;
}

int MPI_Finalize(void) {
    char name[32], unfinished[40];
    struct timespec moment = {0, 5000000};
    int me;
    PMPI_Comm_rank(MPI_COMM_WORLD, &me);
    snprintf(name, sizeof name, "sent-%d", me);
    snprintf(unfinished, sizeof unfinished, "%s.new", name);
    FILE *file = fopen(unfinished, "w");
    if (!file) abort();
    for (int to = 0; to < MOST; to++)
        if (messages[to])
            fprintf(file, "%d %ld %ld %ld\n", to, messages[to], bytes[to], synchronous[to]);
    if (fclose(file) || rename(unfinished, name)) abort();
    while (access("../counted", F_OK)) nanosleep(&moment, NULL);
    return PMPI_Finalize();
}
