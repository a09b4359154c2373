/* The repair: all living processes leave the working communicator and agree on who they are. They
 * receive the decision of the leader, move data where it belongs, and build the working
 * communicator again. When anything fails on the way, the survivors do all of it again.
 *
 * An agreement waits for every living member, even on a revoked communicator. So no process may
 * skip an agreement that others take part in. On the working communicator a bit of each agreement
 * says whether a process has left to repair the job; a process that leaves takes part once more to
 * clear that bit. On the new communicator every process takes part exactly once, even after
 * errors. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "job.h"

enum { MOST_ATTEMPTS = 1000 };
static const long NAP_NS_LEAST = 50 * 1000, NAP_NS_MOST = 5 * 1000 * 1000;

/* --- leaving --- */

static void leave(eyrie_ulfm_job *job) {
    derived_drop(job, true);
    if (job->work != MPI_COMM_NULL) {
        FT_Comm_revoke(job->work);
        int bits = 0;
        if (!job->abandoned) wait_agree(job, job->work, &bits, "at the beginning of a recovery");
        job->abandoned = true;
    }
    FT_Comm_revoke(job->base);
}

/* --- one attempt --- */

struct crew {
    MPI_Comm comm; /* all living processes */
    int count, self;
    int *alive;    /* process of each rank of comm */
    int *index_of; /* rank of comm of each process; -1 */
};

static void crew_make(eyrie_ulfm_job *job, struct crew *crew) {
    MPI_Group here, all;
    MPI_Comm_set_errhandler(crew->comm, MPI_ERRORS_RETURN);
    MPI_Comm_size(crew->comm, &crew->count);
    MPI_Comm_rank(crew->comm, &crew->self);
    MPI_Comm_group(crew->comm, &here);
    MPI_Comm_group(job->roll, &all);
    int *ranks = must_alloc((size_t)crew->count * sizeof *ranks);
    crew->alive = must_alloc((size_t)crew->count * sizeof *crew->alive);
    crew->index_of = must_alloc((size_t)job->processes * sizeof *crew->index_of);
    for (int i = 0; i < crew->count; i++) ranks[i] = i;
    MPI_Group_translate_ranks(here, crew->count, ranks, all, crew->alive);
    for (int p = 0; p < job->processes; p++) {
        crew->index_of[p] = -1;
        job->dead[p] = true;
    }
    for (int i = 0; i < crew->count; i++) {
        crew->index_of[crew->alive[i]] = i;
        job->dead[crew->alive[i]] = false;
    }
    MPI_Group_free(&here);
    MPI_Group_free(&all);
    free(ranks);
}

/* The process that decides: the lowest that has been a rank, because it knows the data. */
static int crew_leader(const eyrie_ulfm_job *job, const struct crew *crew) {
    for (int i = 0; i < crew->count; i++)
        if (job->rank_of[crew->alive[i]] >= 0) return i;
    return 0;
}

/* Every process sends the leader what it has. */
static int gather(eyrie_ulfm_job *job, const struct crew *crew, int leader, struct buffer *info) {
    struct waits waits = {0};
    struct buffer mine = {0};
    plan_write_state(job, &mine);
    if (crew->self != leader) {
        int64_t len = (int64_t)mine.len;
        MPI_Isend(&len, 1, MPI_INT64_T, leader, TAG_INFO, crew->comm,
                  waits_add(&waits, crew->alive[leader]));
        MPI_Isend(mine.data, (int)mine.len, MPI_BYTE, leader, TAG_INFO, crew->comm,
                  waits_add(&waits, crew->alive[leader]));
        int code = waits_all(job, &waits, crew->comm, "in a recovery, sending its state,");
        free(mine.data);
        return code;
    }
    int64_t *len = must_alloc((size_t)crew->count * sizeof *len);
    for (int i = 0; i < crew->count; i++)
        if (i != leader)
            MPI_Irecv(&len[i], 1, MPI_INT64_T, i, TAG_INFO, crew->comm,
                      waits_add(&waits, crew->alive[i]));
    int code =
        waits_all(job, &waits, crew->comm, "in a recovery, collecting the state of all processes,");
    for (int i = 0; code == MPI_SUCCESS && i < crew->count; i++) {
        if (i == leader) {
            info[i] = mine;
            continue;
        }
        info[i] = (struct buffer){must_alloc((size_t)len[i]), (size_t)len[i], (size_t)len[i], 0};
        MPI_Irecv(info[i].data, (int)len[i], MPI_BYTE, i, TAG_INFO, crew->comm,
                  waits_add(&waits, crew->alive[i]));
    }
    if (code == MPI_SUCCESS)
        code = waits_all(job, &waits, crew->comm,
                         "in a recovery, collecting the state of all processes,");
    else
        free(mine.data);
    free(len);
    return code;
}

/* Sends the leader's decision to every process, along a binomial tree. */
static int broadcast_decision(eyrie_ulfm_job *job, const struct crew *crew, int leader,
                              struct buffer *decision) {
    struct waits waits = {0};
    int n = crew->count, self = (crew->self - leader + n) % n, mask = 1, code = MPI_SUCCESS;
    int64_t len = (int64_t)decision->len;
    while (mask < n && !(self & mask)) mask <<= 1;
    if (self) {
        int from = (self - mask + leader) % n;
        MPI_Irecv(&len, 1, MPI_INT64_T, from, TAG_PLAN, crew->comm,
                  waits_add(&waits, crew->alive[from]));
        waits.second_hand = true;
        code = waits_all(job, &waits, crew->comm, "for the plan of a recovery");
        if (code != MPI_SUCCESS) return code;
        *decision = (struct buffer){must_alloc((size_t)len), (size_t)len, (size_t)len, 0};
        MPI_Irecv(decision->data, (int)len, MPI_BYTE, from, TAG_PLAN, crew->comm,
                  waits_add(&waits, crew->alive[from]));
        waits.second_hand = true;
        code = waits_all(job, &waits, crew->comm, "for the plan of a recovery");
    }
    while (code == MPI_SUCCESS && (mask >>= 1) > 0) {
        if (self + mask >= n) continue;
        int to = (self + mask + leader) % n;
        MPI_Isend(&len, 1, MPI_INT64_T, to, TAG_PLAN, crew->comm,
                  waits_add(&waits, crew->alive[to]));
        MPI_Isend(decision->data, (int)len, MPI_BYTE, to, TAG_PLAN, crew->comm,
                  waits_add(&waits, crew->alive[to]));
    }
    int rest = waits_all(job, &waits, crew->comm, "in a recovery, passing on its plan,");
    return code == MPI_SUCCESS ? rest : code;
}

static int agree_on_plan(eyrie_ulfm_job *job, const struct crew *crew, struct plan *plan) {
    int leader = crew_leader(job, crew);
    struct buffer *info = must_alloc((size_t)crew->count * sizeof *info), decision = {0};
    int code = gather(job, crew, leader, info);
    inject(job, "plan");
    if (code == MPI_SUCCESS && crew->self == leader)
        plan_decide(job, crew->count, crew->alive, info, &decision);
    for (int i = 0; i < crew->count; i++) free(info[i].data);
    free(info);
    if (code == MPI_SUCCESS) code = broadcast_decision(job, crew, leader, &decision);
    if (code == MPI_SUCCESS && !plan_read(job, &decision, plan))
        give_up(job, "the plan of a recovery is cut off");
    free(decision.data);
    return code;
}

static bool whole(const struct plan *plan) {
    for (int r = 0; r < plan->data_ranks; r++)
        if (plan->rescue[r].action == LOST) return false;
    return true;
}

static int rank_in(const struct plan *plan, int process) {
    for (int r = 0; r < plan->ranks; r++)
        if (plan->process[r] == process) return r;
    return -1;
}

/* Makes the copies that failed processes kept again, so that the job survives the next failure. */
static int protect(eyrie_ulfm_job *job, const struct crew *crew, const struct plan *plan) {
    int rank = rank_in(plan, job->me);
    if (plan->squeezed || plan->data_ranks == 0 || !whole(plan)) return MPI_SUCCESS;
    struct layout now = layout_make(job, plan->ranks, plan->process);
    struct image *image = rank >= 0 ? image_find(job, OWN, rank, plan->version) : NULL;
    job->protect_anew = plan->protect_anew;
    int code = image ? copies_protect(job, crew->comm, crew->index_of, &now, job->catalogs, rank,
                                      image, image)
                     : MPI_SUCCESS;
    job->protect_anew = false;
    layout_free(&now);
    return code;
}

struct times {
    double start, left, shrunk, planned, transferred, protected, rebuilt;
};

/* All steps between making the new communicator of all processes and the agreement on it. */
static int carry_out(eyrie_ulfm_job *job, const struct crew *crew, struct plan *plan,
                     MPI_Comm *work, struct times *times) {
    int code = agree_on_plan(job, crew, plan);
    times->planned = wait_now_ms();
    if (code != MPI_SUCCESS || plan->outcome != GO_ON) return code;
    code = transfer_run(job, crew->comm, crew->index_of, plan);
    times->transferred = wait_now_ms();
    if (code != MPI_SUCCESS) return code;
    inject(job, "protect");
    code = protect(job, crew, plan);
    times->protected = wait_now_ms();
    if (code != MPI_SUCCESS) return code;
    int rank = rank_in(plan, job->me);
    wait_guard(job, "in MPI_Comm_split of a recovery");
    code = MPI_Comm_split(crew->comm, rank >= 0 ? 0 : MPI_UNDEFINED, rank >= 0 ? rank : 0, work);
    wait_unguard(job);
    inject(job, "rebuilt");
    return code;
}

/* --- afterwards --- */

static void adopt(eyrie_ulfm_job *job, struct crew *crew, struct plan *plan, MPI_Comm work) {
    if (job->work != MPI_COMM_NULL) MPI_Comm_free(&job->work);
    job->work = work;
    job->agreements = 0;
    job->abandoned = false;
    if (plan->outcome != GO_ON) return;
    if (work != MPI_COMM_NULL) MPI_Comm_set_errhandler(work, job->handler);
    free(job->base_process);
    job->base_process = must_copy(crew->alive, (size_t)crew->count * sizeof(int));
    job->base_size = crew->count;
    layout_free(&job->now);
    job->now = layout_make(job, plan->ranks, plan->process);
    for (int p = 0; p < job->processes; p++) job->rank_of[p] = -1;
    for (int r = 0; r < plan->ranks; r++) job->rank_of[plan->process[r]] = r;
    job->rank = job->rank_of[job->me];
    job->axes = plan->axes;
    memcpy(job->shape, plan->shape, sizeof job->shape);
    job->squeezed = plan->squeezed;
    job->ever_squeezed |= plan->squeezed;
    job->lost = !whole(plan);
    free(job->server);
    job->server = must_alloc((size_t)plan->data_ranks * sizeof *job->server);
    for (int r = 0; r < plan->data_ranks; r++) {
        struct rescue *rescue = &plan->rescue[r];
        bool stays = rescue->action == STAYS;
        job->server[r] = (struct rescue){.action = rescue->action,
                                         .from = stays ? rescue->from : rescue->to,
                                         .from_kind = stays ? rescue->from_kind : OWN};
    }
    if (!plan->squeezed) {
        job->planned_ranks = plan->ranks;
        free(job->planned);
        job->planned = must_copy(plan->process, (size_t)plan->ranks * sizeof(int));
    }
    if (!plan->squeezed && plan->data_ranks > 0 && !job->lost) {
        layout_free(&job->held);
        job->held = layout_copy(&job->now);
        copies_prune(job);
    }
}

static void replace_base(eyrie_ulfm_job *job, struct crew *crew) {
    MPI_Comm_free(&job->base);
    job->base = crew->comm;
    free(crew->alive);
    free(crew->index_of);
}

int repair_run(eyrie_ulfm_job *job) {
    struct times times = {.start = wait_now_ms()};
    leave(job);
    inject(job, "repair");
    times.left = wait_now_ms();
    for (int attempt = 1;; attempt++) {
        struct crew crew = {0};
        struct plan plan = {0};
        MPI_Comm work = MPI_COMM_NULL;
        double began = wait_now_ms();
        wait_guard(job, "in MPI_Comm_shrink of a recovery");
        int code = FT_Comm_shrink(job->base, &crew.comm);
        wait_unguard(job);
        if (code != MPI_SUCCESS)
            give_up(job, "MPI_Comm_shrink returned error class %d", class_of(code));
        times.shrunk = wait_now_ms();
        crew_make(job, &crew);
        inject(job, "shrunk");
        code = carry_out(job, &crew, &plan, &work, &times);
        if (code != MPI_SUCCESS) FT_Comm_revoke(crew.comm);
        int bits = code == MPI_SUCCESS;
        wait_agree(job, crew.comm, &bits, "to agree on a recovery");
        times.rebuilt = wait_now_ms();
        if (bits == 1) {
            int before = job->rank;
            adopt(job, &crew, &plan, work);
            replace_base(job, &crew);
            job->report.attempts = attempt;
            job->report.gather_ms = times.left - times.start;
            job->report.shrink_ms = times.shrunk - began;
            job->report.plan_ms = times.planned - times.shrunk;
            job->report.transfer_ms = times.transferred - times.planned;
            job->report.protect_ms = times.protected - times.transferred;
            job->report.rebuild_ms = times.rebuilt - times.protected;
            job->report.restore_ms = 0;
            report_set(job, &plan);
            (void)before;
            if (job->last.outcome == NO_WAY)
                return explain(job, EYRIE_ULFM_ERR_SPARES, "%s", job->last.note);
            return MPI_SUCCESS;
        }
        if (work != MPI_COMM_NULL) MPI_Comm_free(&work);
        FT_Comm_revoke(crew.comm);
        replace_base(job, &crew);
        plan_free(&plan);
        if (attempt == MOST_ATTEMPTS) give_up(job, "%d attempts to recover have failed", attempt);
    }
}

/* --- a spare --- */

static bool any_rank_lives(eyrie_ulfm_job *job, MPI_Group failed, int count) {
    MPI_Group all;
    int *ranks = must_alloc((size_t)count * sizeof *ranks),
        *process = must_alloc((size_t)count * sizeof *process);
    for (int i = 0; i < count; i++) ranks[i] = i;
    MPI_Comm_group(job->roll, &all);
    MPI_Group_translate_ranks(failed, count, ranks, all, process);
    int left = job->now.ranks;
    for (int i = 0; i < count; i++) left -= process[i] >= 0 && job->rank_of[process[i]] >= 0;
    MPI_Group_free(&all);
    free(ranks);
    free(process);
    return left > 0;
}

/* Failures of other processes do not wake a spare: the ranks do, by revoking the communicator of
 * all processes. Only when no rank is left, the spares must notice it themselves. */
static bool must_wake(eyrie_ulfm_job *job) {
    MPI_Group failed;
    int count, acknowledged;
    if (FT_Comm_get_failed(job->base, &failed) != MPI_SUCCESS) return true;
    MPI_Group_size(failed, &count);
    bool wake = !any_rank_lives(job, failed, count);
    FT_Comm_ack_failed(job->base, count, &acknowledged);
    MPI_Group_free(&failed);
    return wake;
}

/* Sleeps until the communicator is revoked, and checks ever less often. No message is ever sent to
 * a sleeping spare. */
static void sleep_as_spare(eyrie_ulfm_job *job) {
    char nothing;
    MPI_Request request;
    long nap = NAP_NS_LEAST;
    inject(job, "spare");
    if (MPI_Irecv(&nothing, 1, MPI_CHAR, MPI_ANY_SOURCE, TAG_INFO, job->base, &request) !=
        MPI_SUCCESS)
        return;
    for (int done = 0; !done;) {
        int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            /* revoked; the request is complete */
            if (class_of(code) != FT_ERR_PROC_FAILED_PENDING) return;
            if (must_wake(job)) break;
            continue;
        }
        nanosleep(&(struct timespec){0, nap}, NULL);
        if (nap < NAP_NS_MOST) nap = nap * 5 / 4;
    }
    if (request != MPI_REQUEST_NULL) {
        MPI_Cancel(&request);
        MPI_Request_free(&request);
    }
}

int repair_wait_as_spare(eyrie_ulfm_job *job) {
    while (job->rank < 0 && !job->ended) {
        sleep_as_spare(job);
        int code = repair_run(job);
        if (code != MPI_SUCCESS) {
            job->ended = true;
            return code;
        }
        if (job->last.outcome == FINISHED) job->ended = true;
    }
    return MPI_SUCCESS;
}
