/* The processes, their hosts and nodes, and which of them begin as ranks and which as spares. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "job.h"

int members_learn(eyrie_ulfm_job *job, int node) {
    struct member me = {
        .pid = (int)getpid(), .node = node, .started = wait_process_start((int)getpid())};
    gethostname(me.host, sizeof me.host - 1);
    job->member = must_alloc((size_t)job->processes * sizeof *job->member);
    int code = MPI_Allgather(&me, sizeof me, MPI_BYTE, job->member, sizeof me, MPI_BYTE, job->base);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    job->nonce = now.tv_sec * 1000000007LL + now.tv_nsec + getpid();
    if (code == MPI_SUCCESS) code = MPI_Bcast(&job->nonce, 1, MPI_INT64_T, 0, job->base);
    return code;
}

int members_make_planner(eyrie_ulfm_job *job) {
    const char **hosts = must_alloc((size_t)job->processes * sizeof *hosts);
    int *nodes = must_alloc((size_t)job->processes * sizeof *nodes);
    for (int p = 0; p < job->processes; p++) {
        hosts[p] = job->member[p].host;
        nodes[p] = job->member[p].node;
    }
    EyriePlannerWords words = {.network = job->network,
                               .hosts = hosts,
                               .nodes = nodes,
                               .processes = (size_t)job->processes,
                               .job = job->shape_text,
                               .spares = job->spares,
                               .traffic = job->traffic,
                               .bytes = (uint64_t)job->message_bytes};
    char why[512] = "";
    job->planner = eyrie_planner_new(&words, why, sizeof why);
    if (job->planner) eyrie_planner_process_nodes(job->planner, nodes);
    for (int p = 0; p < job->processes; p++) job->member[p].node = nodes[p];
    free(nodes);
    free(hosts);
    return job->planner ? MPI_SUCCESS : explain(job, MPI_ERR_ARG, "%s", why);
}

/* Finds the process on each node. There must be exactly one on each node that the job uses. */
static int map_nodes(eyrie_ulfm_job *job, const uint32_t *used, size_t count) {
    size_t nodes = eyrie_planner_nodes(job->planner);
    job->process_of_node = must_alloc(nodes * sizeof *job->process_of_node);
    for (size_t n = 0; n < nodes; n++) job->process_of_node[n] = -1;
    for (int p = 0; p < job->processes; p++) job->process_of_node[job->member[p].node] = p;
    for (size_t i = 0; i < count; i++)
        if (job->process_of_node[used[i]] < 0)
            return explain(
                job, MPI_ERR_ARG,
                "the job and its spares are on %zu nodes, but no process is on node %u (%d processes)",
                count, used[i], job->processes);
    if (count < (size_t)job->processes)
        return explain(job, MPI_ERR_ARG, "%d processes: the job and its spares are %zu",
                       job->processes, count);
    return MPI_SUCCESS;
}

int members_assign_ranks(eyrie_ulfm_job *job) {
    size_t ranks = eyrie_planner_ranks(job->planner), spares = eyrie_planner_spares(job->planner);
    uint32_t *nodes = must_alloc((ranks + spares) * sizeof *nodes);
    eyrie_planner_layout(job->planner, nodes, nodes + ranks);
    int code = map_nodes(job, nodes, ranks + spares);
    int *process = must_alloc(ranks * sizeof *process);
    job->rank_of = must_alloc((size_t)job->processes * sizeof *job->rank_of);
    for (int p = 0; p < job->processes; p++) job->rank_of[p] = -1;
    for (size_t r = 0; code == MPI_SUCCESS && r < ranks; r++) {
        process[r] = job->process_of_node[nodes[r]];
        job->rank_of[process[r]] = (int)r;
    }
    if (code == MPI_SUCCESS) {
        job->rank = job->rank_of[job->me];
        job->now = layout_make(job, (int)ranks, process);
        job->planned = must_copy(process, ranks * sizeof *process);
        job->planned_ranks = (int)ranks;
        job->axes = (int)eyrie_planner_shape(job->planner, job->shape, MOST_AXES);
    }
    if (code == MPI_SUCCESS && job->copies.scheme == PARTNER &&
        job->copies.partners >= (int)ranks && ranks > 1)
        code = explain(job, MPI_ERR_ARG, "copies `%s`: %zu ranks have %zu partners",
                       job->copies_text, ranks, ranks - 1);
    if (code == MPI_SUCCESS && job->copies.scheme == GROUP && job->copies.group > (int)ranks)
        code = explain(job, MPI_ERR_ARG, "copies `%s`: the job has %zu ranks", job->copies_text,
                       ranks);
    free(process);
    free(nodes);
    return code;
}

bool members_is_leader(const eyrie_ulfm_job *job) {
    for (int r = 0; r < job->now.ranks; r++)
        if (!job->dead[job->now.process[r]]) return job->now.process[r] == job->me;
    for (int p = 0; p < job->processes; p++)
        if (!job->dead[p]) return p == job->me;
    return false;
}
