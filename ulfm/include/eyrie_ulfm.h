/* libeyrie-ulfm: an MPI program that uses ULFM loses processes and goes on with its spares. It
 * keeps its rank numbers, its communication pattern and the data of the last committed version. The
 * planner chooses the best place for each rank.
 *
 * Every function returns an MPI error code; its documentation names the error classes. After a
 * failure (eyrie_ulfm_is_failure) call eyrie_ulfm_recover. One thread at a time may call the
 * library. docs/ulfm.md is the guide. */
#ifndef EYRIE_ULFM_H
#define EYRIE_ULFM_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A process's part of a job. */
typedef struct eyrie_ulfm_job eyrie_ulfm_job;

/* What the job is. eyrie_ulfm_settings_init gives every field its default; the environment, where
 * it is set, wins over the program (EYRIE_ULFM_NETWORK, _JOB, _SPARES, _TRAFFIC, _MESSAGE_BYTES,
 * _METHOD, _COPIES, _NO_SPARE, _WAIT_S, _QUIET). All processes must have the same settings, but for
 * `node`. */
typedef struct eyrie_ulfm_settings {
    /* The network as `eyrie plan` has it: "torus:4x4", "fattree:18^2", "graph:FILE", "slurm:FILE"
     * ... NULL: made of the hosts (each process a node at the switch of its host, the hosts at one
     * switch). */
    const char *network;
    /* Extents of the grid of ranks, last axis fastest: "4x3". NULL: what the spares leave. */
    const char *job;
    /* Which nodes are spare: a number, "nd(d,w)", "contiguous:N", "scattered:N", "list:NODE;NODE",
     * "hosts:HOST;HOST"; "0": none. NULL: 1. */
    const char *spares;
    /* What ranks send in a step: "stencil5", "allreduce" ... NULL: the star stencil of the grid,
     * allreduce on a line. */
    const char *traffic;
    /* Bytes of a message of this traffic. Default 1 MiB. */
    int64_t message_bytes;
    /* Where failed ranks go: "0d", "1d", "2d", "3d", "hybrid", "search", "first-free", or
     * "squeeze": no spare is used, the program goes on with fewer ranks. NULL: "search". When a
     * method finds no place, the search is used instead; the report says so. */
    const char *method;
    /* How committed data is kept besides in the rank itself: "partner" (a copy at a rank on another
     * node), "partner:2" (two), "xor:G" (groups of G ranks, one may fail), "rs:G,M" (Reed-Solomon
     * groups of G, M may fail), "files:DIRECTORY", "none". NULL: "partner". */
    const char *copies;
    /* When no spare is left: "end" (eyrie_ulfm_recover returns EYRIE_ULFM_ERR_SPARES) or "squeeze".
     * NULL: "end". */
    const char *no_spare;
    /* Node of the network that this process is on, one process a node. -1: the node that has the
     * name of its host, when the network's file names one for every host (it may have more); else
     * the process's rank in the communicator. */
    int node;
    /* The longest that the library waits for other processes, in seconds. Then the job ends with a
     * message that names the processes it waited for. Must exceed the longest time that a rank
     * computes without calling MPI. Default 300. */
    double wait_s;
    /* 0: the first process reports each recovery in one line on standard error. */
    int quiet;
} eyrie_ulfm_settings;

/* Error classes of the library, known after the first eyrie_ulfm_init. */
/* the copies do not cover the failures: eyrie_ulfm_explain says exactly what is lost */
extern int EYRIE_ULFM_ERR_LOST;
extern int EYRIE_ULFM_ERR_SPARES; /* no spare is left, and squeezing was not chosen */

/* Gives every field its default. No errors. */
void eyrie_ulfm_settings_init(eyrie_ulfm_settings *settings);

/* Begins a job on the processes of `comm` (collective). Ranks return at once; spares wait inside
 * without using the CPU and return when they take a rank or the job has ended (then eyrie_ulfm_comm
 * is MPI_COMM_NULL). NULL settings: the defaults. MPI_ERR_ARG: a setting is wrong (the first
 * process says which); MPI_ERR_NO_MEM; MPIX_ERR_PROC_FAILED: a process failed before the job had
 * begun, which cannot be repaired. */
int eyrie_ulfm_init(MPI_Comm comm, const eyrie_ulfm_settings *settings, eyrie_ulfm_job **job);

/* The working communicator: the ranks, without the spares. It returns errors (MPI_ERRORS_RETURN)
 * and is another one after each recovery. MPI_COMM_NULL: this process is no rank and the job has
 * ended; leave. */
MPI_Comm eyrie_ulfm_comm(const eyrie_ulfm_job *job);

/* Extents of the grid of ranks: writes up to `room`, returns the number of axes. Changes when the
 * job is squeezed. */
int eyrie_ulfm_shape(const eyrie_ulfm_job *job, int *extents, int room);

/* Declares that `comm` was made from the working communicator, so that a recovery interrupts waits
 * on it too. The library forgets it at the recovery: free it and make it again. The program may
 * also free it at any time before. MPI_ERR_ARG; MPI_ERR_NO_MEM. */
int eyrie_ulfm_derived(eyrie_ulfm_job *job, MPI_Comm comm);

/* Registers data: `count` elements of `datatype` at `data`, known as `name` (up to 47 characters).
 * Registering a name again replaces it; NULL data removes it. Sizes may differ between ranks.
 * MPI_ERR_ARG (name, count), MPI_ERR_TYPE, MPI_ERR_NO_MEM. */
int eyrie_ulfm_register(eyrie_ulfm_job *job, const char *name, void *data, MPI_Count count,
                        MPI_Datatype datatype);

/* Commits the registered data of all ranks as a new version (collective), numbered from 1.
 * Afterwards the version counts at all ranks or at none. `version` may be NULL. Data that has not
 * changed since the last version is not sent again. MPIX_ERR_PROC_FAILED, MPIX_ERR_REVOKED:
 * recover; MPI_ERR_NO_MEM, MPI_ERR_IO: this version does not count, the last one does. */
int eyrie_ulfm_commit(eyrie_ulfm_job *job, int64_t *version);

/* The recovery point (collective). The first call returns with *version 0. After a failure it
 * repairs the job and puts the data of the last committed version in place. *version 0 says that
 * nothing was committed: begin from the start. A spare that took a rank calls it as its first call,
 * after registering its data. May return on a process that is no rank any more (eyrie_ulfm_comm is
 * MPI_COMM_NULL). Failures during the recovery are recovered from inside. EYRIE_ULFM_ERR_LOST: the
 * communicator is whole, the data is not; EYRIE_ULFM_ERR_SPARES: the job cannot go on;
 * MPI_ERR_TRUNCATE: data registered here has another size than that committed (see
 * eyrie_ulfm_repair); MPI_ERR_NO_MEM. */
int eyrie_ulfm_recover(eyrie_ulfm_job *job, int64_t *version);

/* The two halves of eyrie_ulfm_recover, for programs that register other data when their rank
 * changes or the job is squeezed: eyrie_ulfm_repair gives the communicator, eyrie_ulfm_restore puts
 * the data in place. Errors as eyrie_ulfm_recover; eyrie_ulfm_restore can also return
 * MPIX_ERR_PROC_FAILED and MPIX_ERR_REVOKED: repair again. Both do nothing when there is nothing to
 * do. */
int eyrie_ulfm_repair(eyrie_ulfm_job *job);
int eyrie_ulfm_restore(eyrie_ulfm_job *job, int64_t *version);

/* After a repair that squeezed, restore puts nothing in place, because the old data belongs to
 * another decomposition: fetch the pieces needed. 1: yes. */
int eyrie_ulfm_squeezed(const eyrie_ulfm_job *job);

/* `count` elements from element `first` of what rank `rank` (of the decomposition that was
 * committed) committed, to `into`. */
typedef struct eyrie_ulfm_piece {
    int rank;
    MPI_Count first;
    MPI_Count count;
    void *into;
} eyrie_ulfm_piece;

/* Reads pieces of data `name` of the last committed version from the ranks that have them now
 * (collective; each rank names its own pieces). Elements are those of the committed datatype; of a
 * datatype with gaps they come packed. MPI_ERR_ARG: a piece lies outside what was committed;
 * MPI_ERR_COUNT: more than 2 GiB from one rank; MPIX_ERR_PROC_FAILED, MPIX_ERR_REVOKED;
 * MPI_ERR_NO_MEM; EYRIE_ULFM_ERR_LOST. */
int eyrie_ulfm_fetch(eyrie_ulfm_job *job, const char *name, int pieces,
                     const eyrie_ulfm_piece piece[]);

/* The number of ranks that the last committed version has, and the extents of their grid as
 * eyrie_ulfm_shape. */
int eyrie_ulfm_committed_ranks(const eyrie_ulfm_job *job);
int eyrie_ulfm_committed_shape(const eyrie_ulfm_job *job, int *extents, int room);

/* Bytes of committed data `name` of this process's rank, -1 when there is none: how much a spare
 * that joined must make room for. */
int64_t eyrie_ulfm_committed_bytes(const eyrie_ulfm_job *job, const char *name);

/* Ends the job when all ranks have called it (collective); spares leave. Work that must survive
 * failures, such as writing results, belongs before it. MPIX_ERR_PROC_FAILED: a rank failed before
 * it called this: recover and compute the rest again. EYRIE_ULFM_ERR_SPARES. */
int eyrie_ulfm_finish(eyrie_ulfm_job *job);

/* The program as a callback: called at the recovery point with the version in place, again after
 * each failure, until it has returned MPI_SUCCESS on all ranks (eyrie_ulfm_finish is inside) or an
 * error that is no failure. A failure on the working communicator ends the call of the body at once
 * (by longjmp: what the body holds must be reachable from `context`). Errors: those of
 * eyrie_ulfm_recover, and what the body returns. */
typedef int (*eyrie_ulfm_body)(eyrie_ulfm_job *job, int64_t version, void *context);
int eyrie_ulfm_run(eyrie_ulfm_job *job, eyrie_ulfm_body body, void *context);

/* 1: the error code says that a process failed: call eyrie_ulfm_recover. */
int eyrie_ulfm_is_failure(int code);

/* Frees everything and sets *job to NULL. MPI_SUCCESS. */
int eyrie_ulfm_free(eyrie_ulfm_job **job);

/* What the last error of the library was about, in words. Never NULL. */
const char *eyrie_ulfm_explain(const eyrie_ulfm_job *job);

/* A process that failed or a rank that moved; `process` is the rank in the communicator that the
 * job began on. */
typedef struct eyrie_ulfm_failed {
    int process;
    int rank; /* -1: a spare */
} eyrie_ulfm_failed;
typedef struct eyrie_ulfm_moved {
    int rank; /* as it was; in a squeezed job ranks count anew */
    int from, to;
} eyrie_ulfm_moved;

/* The last repair as this process saw it. Times in milliseconds. */
typedef struct eyrie_ulfm_report {
    int recovery; /* counts from 1; 0: there was none */
    int attempts; /* more than 1: processes failed during the recovery */
    int failures, moves;
    const eyrie_ulfm_failed *failed;
    const eyrie_ulfm_moved *moved;
    const char *method;                    /* that was used */
    const char *note;                      /* why it is not the one asked for; what is lost */
    int64_t busiest_before, busiest_after; /* messages of a step on the busiest link */
    double slowdown; /* estimated communication time of a step over that before any failure */
    int64_t version;
    int squeezed;
    /* gather: until all ranks have stopped; shrink: the survivors agree on who they are; plan: what
     * data each has, and where each rank goes; transfer: data to the processes that take ranks;
     * protect: copies are completed; rebuild: the communicator; restore: data is put in place. */
    double gather_ms, shrink_ms, plan_ms, transfer_ms, protect_ms, rebuild_ms, restore_ms;
} eyrie_ulfm_report;

/* The report of the last repair; valid until the next. */
const eyrie_ulfm_report *eyrie_ulfm_last_report(const eyrie_ulfm_job *job);

/* The same as one line of JSON. */
const char *eyrie_ulfm_report_json(const eyrie_ulfm_job *job);

/* What the last commit cost this process. */
typedef struct eyrie_ulfm_cost {
    int64_t bytes;      /* registered */
    int64_t bytes_sent; /* copies that changed */
    double ms, agree_ms;
} eyrie_ulfm_cost;
void eyrie_ulfm_last_commit(const eyrie_ulfm_job *job, eyrie_ulfm_cost *cost);

#ifdef __cplusplus
}
#endif
#endif
