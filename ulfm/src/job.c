/* The job from its beginning to its end, and the functions that describe it. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* Makes the communicators and tables that all other parts use. */
static int begin_tables(eyrie_ulfm_job *job, MPI_Comm comm) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &job->me);
    MPI_Comm_size(comm, &job->processes);
    job->base_size = job->processes;
    job->base_process = must_alloc((size_t)job->processes * sizeof *job->base_process);
    for (int p = 0; p < job->processes; p++) job->base_process[p] = p;
    job->dead = must_alloc((size_t)job->processes);
    int code = wait_start_guard(job);
    if (code != MPI_SUCCESS) return code;
    wait_guard(job, "in eyrie_ulfm_init");
    code = MPI_Comm_dup(comm, &job->base);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(comm, &job->roll);
    if (code != MPI_SUCCESS) return code;
    MPI_Comm_set_errhandler(job->base, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(job->roll, MPI_ERRORS_RETURN);
    return MPI_SUCCESS;
}

static int begin(eyrie_ulfm_job *job, MPI_Comm comm, int node) {
    int good = begin_tables(job, comm);
    if (good == MPI_SUCCESS) good = members_learn(job, node);
    if (good != MPI_SUCCESS) return good;
    int code = settings_check(job);
    if (code == MPI_SUCCESS) code = members_make_planner(job);
    if (code == MPI_SUCCESS) code = members_assign_ranks(job);
    /* All processes find the same fault, except in what differs between hosts: files, and settings
     * from the environment. */
    int faults = code != MPI_SUCCESS;
    if (faults && job->me == 0) fprintf(stderr, "eyrie-ulfm: process 0: %s\n", job->explanation);
    good = MPI_Allreduce(MPI_IN_PLACE, &faults, 1, MPI_INT, MPI_SUM, job->base);
    if (good != MPI_SUCCESS) return good;
    if (code != MPI_SUCCESS && job->me > 0 && faults < job->processes)
        fprintf(stderr, "eyrie-ulfm: process %d: %s\n", job->me, job->explanation);
    if (code == MPI_SUCCESS && faults)
        code = explain(job, MPI_ERR_ARG, "%d of the processes cannot begin: see their messages",
                       faults);
    if (code == MPI_SUCCESS) code = MPI_Comm_create_errhandler(run_on_error, &job->handler);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_split(job->base, job->rank >= 0 ? 0 : MPI_UNDEFINED, job->rank, &job->work);
    if (code == MPI_SUCCESS && job->work != MPI_COMM_NULL)
        MPI_Comm_set_errhandler(job->work, job->handler);
    wait_unguard(job);
    return code;
}

int eyrie_ulfm_init(MPI_Comm comm, const eyrie_ulfm_settings *settings, eyrie_ulfm_job **out) {
    eyrie_ulfm_settings defaults;
    if (!out) return MPI_ERR_ARG;
    *out = NULL;
    if (!settings) {
        eyrie_ulfm_settings_init(&defaults);
        settings = &defaults;
    }
    errors_make_classes();
    eyrie_ulfm_job *job = must_alloc(sizeof *job);
    job->work = job->base = job->roll = MPI_COMM_NULL;
    job->handler = MPI_ERRHANDLER_NULL;
    job->rank = -1;
    job->report.slowdown = 1;
    job->inside = true;
    settings_read(job, settings);
    int code = begin(job, comm, settings->node);
    if (code != MPI_SUCCESS) {
        /* so that no other process waits for this one */
        if (eyrie_ulfm_is_failure(code) && job->base != MPI_COMM_NULL) FT_Comm_revoke(job->base);
        eyrie_ulfm_free(&job);
        return code;
    }
    *out = job;
    if (job->rank < 0) {
        code = repair_wait_as_spare(job);
        if (job->rank >= 0) job->state = REPAIRED;
        /* the ranks report this error; a spare just leaves */
        if (class_of(code) == EYRIE_ULFM_ERR_SPARES) code = MPI_SUCCESS;
    }
    job->inside = false;
    return code;
}

MPI_Comm eyrie_ulfm_comm(const eyrie_ulfm_job *job) {
    return job->ended ? MPI_COMM_NULL : job->work;
}

static int copy_shape(int axes, const int *shape, int *extents, int room) {
    for (int i = 0; i < axes && i < room; i++) extents[i] = shape[i];
    return axes;
}

int eyrie_ulfm_shape(const eyrie_ulfm_job *job, int *extents, int room) {
    return copy_shape(job->axes, job->shape, extents, room);
}

int eyrie_ulfm_committed_shape(const eyrie_ulfm_job *job, int *extents, int room) {
    return copy_shape(job->held_axes, job->held_shape, extents, room);
}

int eyrie_ulfm_committed_ranks(const eyrie_ulfm_job *job) {
    return job->held.ranks;
}

int eyrie_ulfm_squeezed(const eyrie_ulfm_job *job) {
    return job->squeezed;
}

int64_t eyrie_ulfm_committed_bytes(const eyrie_ulfm_job *job, const char *name) {
    if (job->rank < 0 || job->version == 0 || job->rank >= job->held.ranks || job->squeezed)
        return -1;
    const struct catalog *catalog = &job->catalogs[job->rank];
    for (int i = 0; i < catalog->count; i++)
        if (!strcmp(catalog->entry[i].name, name)) return catalog->entry[i].bytes;
    return -1;
}

int eyrie_ulfm_finish(eyrie_ulfm_job *job) {
    if (job->ended) return MPI_SUCCESS;
    if (job->state == REPAIRED) return FT_ERR_PROC_FAILED; /* recover first */
    job->inside = true;
    inject(job, "finish");
    /* All ranks must be here before one of them revokes the working communicator. Bits as in a
     * commit. */
    int bits = 3;
    wait_agree(job, job->work, &bits, "for all to finish");
    job->abandoned = !(bits & 2);
    job->finished = bits == 3;
    int code = repair_run(job);
    job->finished = false;
    if (code == MPI_SUCCESS && job->last.outcome == FINISHED) {
        job->ended = true;
        if (job->copies.scheme == FILES && members_is_leader(job)) files_remove(job);
    } else if (code == MPI_SUCCESS) {
        job->state = REPAIRED;
        code = job->rank < 0 ? repair_wait_as_spare(job) : FT_ERR_PROC_FAILED;
        if (code == MPI_SUCCESS && !job->ended) code = FT_ERR_PROC_FAILED;
    }
    job->inside = false;
    return code;
}

int eyrie_ulfm_free(eyrie_ulfm_job **pointer) {
    eyrie_ulfm_job *job = pointer ? *pointer : NULL;
    if (!job) return MPI_SUCCESS;
    wait_stop_guard(job);
    derived_drop(job, false);
    while (job->segments) eyrie_ulfm_register(job, job->segments->name, NULL, 0, MPI_BYTE);
    while (job->images) image_drop(job, job->images);
    for (int r = 0; job->catalogs && r < job->held.ranks; r++) catalog_free(&job->catalogs[r]);
    free(job->catalogs);
    layout_free(&job->now);
    layout_free(&job->held);
    plan_free(&job->last);
    if (job->work != MPI_COMM_NULL) MPI_Comm_free(&job->work);
    if (job->base != MPI_COMM_NULL) MPI_Comm_free(&job->base);
    if (job->roll != MPI_COMM_NULL) MPI_Comm_free(&job->roll);
    if (job->handler != MPI_ERRHANDLER_NULL) MPI_Errhandler_free(&job->handler);
    eyrie_planner_free(job->planner);
    void *own[] = {job->network,
                   job->shape_text,
                   job->spares,
                   job->traffic,
                   job->method,
                   job->copies_text,
                   job->no_spare,
                   job->member,
                   job->process_of_node,
                   job->dead,
                   job->base_process,
                   job->planned,
                   job->rank_of,
                   job->server,
                   job->derived,
                   job->json,
                   job};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) free(own[i]);
    block_free_pool();
    *pointer = NULL;
    return MPI_SUCCESS;
}

void eyrie_ulfm_last_commit(const eyrie_ulfm_job *job, eyrie_ulfm_cost *cost) {
    *cost = job->cost;
}
