/* Decides what happens after a failure. One process receives what the others have, asks the planner
 * where ranks go, finds the source of the data of each rank, and sends the decision to all. This
 * file does not communicate. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* --- buffers --- */

void put_bytes(struct buffer *buffer, const void *bytes, size_t len) {
    if (buffer->len + len > buffer->room) {
        size_t room = 2 * (buffer->len + len) + 256;
        unsigned char *data = must_alloc(room);
        if (buffer->len) memcpy(data, buffer->data, buffer->len);
        free(buffer->data);
        buffer->data = data;
        buffer->room = room;
    }
    if (len) memcpy(buffer->data + buffer->len, bytes, len);
    buffer->len += len;
}

void put_int(struct buffer *buffer, int64_t value) {
    put_bytes(buffer, &value, sizeof value);
}

bool get_bytes(struct buffer *buffer, void *bytes, size_t len) {
    bool there = buffer->at + len <= buffer->len;
    if (there && len) memcpy(bytes, buffer->data + buffer->at, len);
    if (!there) memset(bytes, 0, len);
    buffer->at += len;
    return there;
}

int64_t get_int(struct buffer *buffer) {
    int64_t value;
    get_bytes(buffer, &value, sizeof value);
    return value;
}

void put_catalog(struct buffer *buffer, const struct catalog *catalog) {
    put_int(buffer, catalog->count);
    put_bytes(buffer, catalog->entry, (size_t)catalog->count * sizeof *catalog->entry);
}

struct catalog get_catalog(struct buffer *buffer) {
    struct catalog catalog = {.count = (int)get_int(buffer)};
    if (catalog.count < 0 || (size_t)catalog.count * sizeof *catalog.entry > buffer->len)
        catalog.count = 0;
    catalog.entry = must_alloc((size_t)catalog.count * sizeof *catalog.entry);
    get_bytes(buffer, catalog.entry, (size_t)catalog.count * sizeof *catalog.entry);
    return catalog;
}

/* --- what each process has --- */

struct holding {
    int32_t process, kind, rank, stripe, which;
    int64_t version;
};

void plan_write_state(const eyrie_ulfm_job *job, struct buffer *info) {
    int64_t count = 0;
    for (struct image *image = job->images; image; image = image->next)
        count += image->version == job->version;
    put_int(info, job->finished);
    put_int(info, job->version);
    put_int(info, count);
    for (struct image *image = job->images; image; image = image->next) {
        if (image->version != job->version) continue;
        struct holding holding = {job->me,       image->kind,  image->rank,
                                  image->stripe, image->which, image->version};
        put_bytes(info, &holding, sizeof holding);
    }
}

struct known {
    eyrie_ulfm_job *job;
    int alive_count;
    const int *alive;
    bool *lives; /* by process */
    bool all_finished;
    struct holding *holding;
    int64_t holdings;
};

static struct known read_infos(eyrie_ulfm_job *job, int count, const int *alive,
                               struct buffer *info) {
    struct known known = {.job = job, .alive_count = count, .alive = alive, .all_finished = true};
    known.lives = must_alloc((size_t)job->processes);
    size_t room = 0;
    for (int i = 0; i < count; i++) room += info[i].len / sizeof(struct holding) + 1;
    known.holding = must_alloc(room * sizeof *known.holding);
    for (int i = 0; i < count; i++) {
        known.lives[alive[i]] = true;
        int64_t finished = get_int(&info[i]), version = get_int(&info[i]),
                holdings = get_int(&info[i]);
        if (job->rank_of[alive[i]] >= 0) {
            known.all_finished &= finished != 0;
            if (version != job->version)
                give_up(
                    job,
                    "process %d has version %lld and process %d version %lld: this is a fault of the library or of MPI",
                    alive[i], (long long)version, job->me, (long long)job->version);
        }
        for (int64_t h = 0; h < holdings && get_bytes(&info[i], &known.holding[known.holdings],
                                                      sizeof(struct holding));
             h++)
            known.holdings += known.holding[known.holdings].version == job->version;
    }
    return known;
}

static int holder(const struct known *known, enum kind kind, int rank, int stripe, int which,
                  int preferred) {
    int found = -1;
    for (int64_t h = 0; h < known->holdings; h++) {
        const struct holding *x = &known->holding[h];
        if (x->kind != (int)kind || x->rank != rank ||
            (kind == PARITY && (x->stripe != stripe || x->which != which)))
            continue;
        if (x->process == preferred) return preferred;
        if (found < 0 || x->process < found) found = x->process;
    }
    return found;
}

/* --- which process becomes which rank --- */

static uint32_t node_of(const eyrie_ulfm_job *job, int process) {
    return (uint32_t)job->member[process].node;
}

static void set_note(struct plan *plan, const char *text) {
    snprintf(plan->note, sizeof plan->note, "%s", text);
}

static int ask_planner(const struct known *known, const char *method, int ranks, const int *process,
                       uint32_t *placement, EyriePlanResult *result) {
    eyrie_ulfm_job *job = known->job;
    int failed_count = 0, spare_count = 0;
    uint32_t *at = must_alloc((size_t)ranks * sizeof *at);
    uint32_t *failed = must_alloc((size_t)job->processes * sizeof *failed),
             *spares = must_alloc((size_t)job->processes * sizeof *spares);
    for (int r = 0; r < ranks; r++) at[r] = node_of(job, process[r]);
    for (int p = 0; p < job->processes; p++) {
        if (!known->lives[p])
            failed[failed_count++] = node_of(job, p);
        else if (job->rank_of[p] < 0)
            spares[spare_count++] = node_of(job, p);
    }
    memset(result, 0, sizeof *result);
    int code = eyrie_planner_plan(job->planner, method, at, failed, (size_t)failed_count, spares,
                                  (size_t)spare_count, placement, result);
    free(at);
    free(failed);
    free(spares);
    return code;
}

static void copy_numbers(struct plan *plan, const EyriePlanResult *result) {
    strcpy(plan->method, result->method);
    plan->busiest_before = (int64_t)result->busiest_before;
    plan->busiest_after = (int64_t)result->busiest_after;
    plan->slowdown = result->ratio;
}

static void substitute(const struct known *known, struct plan *plan, const char *method) {
    eyrie_ulfm_job *job = known->job;
    EyriePlanResult result;
    uint32_t *placement = must_alloc((size_t)plan->ranks * sizeof *placement);
    int code = ask_planner(known, method, plan->ranks, plan->process, placement, &result);
    if (code != EYRIE_PLAN_FOUND) {
        plan->outcome = NO_WAY;
        set_note(plan, result.note);
    } else {
        copy_numbers(plan, &result);
        set_note(plan, result.note);
        for (int r = 0; r < plan->ranks; r++) {
            int to = job->process_of_node[placement[r]];
            if (to == plan->process[r]) continue;
            plan->moved[plan->moves++] = (eyrie_ulfm_moved){r, plan->process[r], to};
            plan->process[r] = to;
        }
    }
    free(placement);
}

static void squeeze(const struct known *known, struct plan *plan) {
    eyrie_ulfm_job *job = known->job;
    EyriePlanResult result;
    uint32_t *placement = must_alloc((size_t)job->planned_ranks * sizeof *placement);
    /* The planner plans a squeeze from the job before the first squeeze: neighbours share a
     * node. */
    int code = ask_planner(known, "squeeze", job->planned_ranks, job->planned, placement, &result);
    if (code == EYRIE_PLAN_FOUND)
        copy_numbers(plan, &result);
    else
        set_note(plan, result.note); /* there is no estimate, but the job can go on */
    free(placement);
    strcpy(plan->method, "squeeze");
    plan->squeezed = true;
    int left = 0;
    for (int r = 0; r < plan->ranks; r++)
        if (known->lives[plan->process[r]]) plan->process[left++] = plan->process[r];
    plan->ranks = left;
    memset(plan->shape, 0, sizeof plan->shape);
    if (left > 0) MPI_Dims_create(left, plan->axes, plan->shape);
}

/* Spares alone cannot go on: only ranks know which versions were committed, and in which form. */
static void note_all_failed(const eyrie_ulfm_job *job, struct plan *plan) {
    set_note(
        plan,
        "all ranks failed at once, and with them what was committed: spares alone cannot go on");
    size_t len = strlen(plan->note);
    if (job->copies.scheme == FILES)
        snprintf(plan->note + len, sizeof plan->note - len,
                 "; the files eyrie-%016llx-* are left in %s", (unsigned long long)job->nonce,
                 job->copies.directory);
}

static void place(const struct known *known, struct plan *plan) {
    eyrie_ulfm_job *job = known->job;
    int lost = 0, spares = 0;
    for (int i = 0; i < job->base_size; i++) {
        int p = job->base_process[i];
        if (known->lives[p]) {
            spares += job->rank_of[p] < 0;
            continue;
        }
        lost += job->rank_of[p] >= 0;
        plan->failed[plan->failures++] = (eyrie_ulfm_failed){p, job->rank_of[p]};
    }
    strcpy(plan->method, "none");
    if (lost == 0) {
        /* A spare failed, or a rank asked for the last version: all processes keep their ranks. */
        plan->squeezed = job->squeezed;
        if (known->all_finished) plan->outcome = FINISHED;
        return;
    }
    if (lost == plan->ranks) {
        plan->outcome = NO_WAY;
        note_all_failed(job, plan);
        return;
    }
    bool ask = !strcmp(job->method, "squeeze"), may = !strcmp(job->no_spare, "squeeze");
    if (ask || job->ever_squeezed || (lost > spares && may)) {
        if (!ask && lost > spares) set_note(plan, "no spare was left");
        squeeze(known, plan);
    } else if (lost > spares) {
        plan->outcome = NO_WAY;
        snprintf(
            plan->note, sizeof plan->note,
            "%d rank%s failed and %d spare%s left: give the job more spares, or let it squeeze (no_spare)",
            lost, lost == 1 ? "" : "s", spares, spares == 1 ? " is" : "s are");
    } else {
        substitute(known, plan, job->method);
    }
}

/* --- where the data of each rank comes from --- */

static bool decodable(const struct known *known, const struct group *group, int rank,
                      struct rescue *rescue) {
    int self = group_index(group, rank), n = group->size;
    rescue->members = must_alloc((size_t)(n + n * group->parity) * sizeof *rescue->members);
    for (int i = 0; i < n; i++) {
        rescue->members[i] = i == self ? -1 : holder(known, OWN, group->member[i], 0, 0, -1);
        for (int p = 0; p < group->parity; p++)
            rescue->members[n + i * group->parity + p] =
                holder(known, PARITY, group->number, i, p, -1);
    }
    for (int s = 0; s < n; s++) {
        if (!group_has_data(group, s, self)) continue;
        int lost = 0, parities = 0;
        for (int i = 0; i < n; i++) lost += group_has_data(group, s, i) && rescue->members[i] < 0;
        for (int p = 0; p < group->parity; p++)
            parities += rescue->members[n + s * group->parity + p] >= 0;
        if (lost > parities) return false;
    }
    rescue->header = holder(known, HEADER, rank, 0, 0, -1);
    return rescue->header >= 0;
}

/* The process that rebuilds data that no rank takes: a living member of the group. */
static int adopter(const struct known *known, const struct group *group) {
    const eyrie_ulfm_job *job = known->job;
    for (int i = 0; group && i < group->size; i++)
        if (known->lives[job->held.process[group->member[i]]])
            return job->held.process[group->member[i]];
    return known->alive[0];
}

static void note_lost(const struct known *known, struct plan *plan, int rank) {
    const eyrie_ulfm_job *job = known->job;
    char *text = plan->note;
    size_t room = sizeof plan->note, len = strlen(text);
    int process = job->held.process[rank];
    len += (size_t)snprintf(text + len, room - len, "%slost: rank %d's data of version %lld (",
                            len ? "; " : "", rank, (long long)job->version);
    const struct catalog *catalog = &job->catalogs[rank];
    for (int i = 0; i < catalog->count && len < room; i++)
        len += (size_t)snprintf(text + len, room - len, "%s%s, %lld bytes", i ? "; " : "",
                                catalog->entry[i].name, (long long)catalog->entry[i].bytes);
    if (len < room) len += (size_t)snprintf(text + len, room - len, ") of process %d", process);
    for (int k = 1; job->copies.scheme == PARTNER && k <= job->copies.partners &&
                    k < job->held.ranks && len < room;
         k++) {
        int keeper = job->held.process[layout_keeper(&job->held, rank, k)];
        len += (size_t)snprintf(text + len, room - len, ", copy %s process %d%s", "at", keeper,
                                known->lives[keeper] ? " (not whole)" : " (failed)");
    }
    if (len < room && job->copies.scheme == GROUP)
        len += (size_t)snprintf(text + len, room - len, ", more of its group failed than %d",
                                job->copies.parity);
    if (len < room && job->copies.scheme == FILES)
        len += (size_t)snprintf(text + len, room - len, ", its file is damaged");
    if (len < room && job->copies.scheme == NO_COPIES)
        snprintf(text + len, room - len, ", no copies were asked for");
}

static void find_data(const struct known *known, struct plan *plan) {
    eyrie_ulfm_job *job = known->job;
    plan->version = job->version;
    plan->data_ranks = job->version > 0 ? job->held.ranks : 0;
    plan->rescue = must_alloc((size_t)plan->data_ranks * sizeof *plan->rescue);
    for (int r = 0; r < plan->data_ranks; r++) {
        struct rescue *rescue = &plan->rescue[r];
        int to = plan->squeezed ? -1 : plan->process[r];
        *rescue = (struct rescue){
            .action = SENDS, .to = to, .from = holder(known, OWN, r, 0, 0, to), .from_kind = OWN};
        if (rescue->from >= 0 && (to < 0 || rescue->from == to)) rescue->action = STAYS;
        if (rescue->from >= 0) continue;
        rescue->from = holder(known, COPY, r, 0, 0, to);
        rescue->from_kind = COPY;
        if (rescue->from >= 0) {
            if (to < 0) rescue->action = STAYS;
            continue;
        }
        if (job->copies.scheme == GROUP) {
            struct group group = group_of(job, &job->held, r, job->catalogs);
            rescue->action = decodable(known, &group, r, rescue) ? DECODES : LOST;
            rescue->from = rescue->to = to >= 0 ? to : adopter(known, &group);
        } else if (job->copies.scheme == FILES && holder(known, BAD_FILE, r, 0, 0, -1) < 0) {
            rescue->action = READS;
            rescue->from = rescue->to = to >= 0 ? to : adopter(known, NULL);
        } else {
            rescue->action = LOST;
        }
        rescue->from_kind = OWN;
        if (rescue->action == LOST) note_lost(known, plan, r);
    }
}

/* Whether a living process does not have something that it should keep for others, because it was
 * found damaged. */
static bool copies_missing(const struct known *known) {
    const eyrie_ulfm_job *job = known->job;
    const struct layout *held = &job->held;
    for (int r = 0; job->version > 0 && r < held->ranks; r++) {
        for (int k = 1;
             job->copies.scheme == PARTNER && k <= job->copies.partners && k < held->ranks; k++) {
            int keeper = held->process[layout_keeper(held, r, k)];
            if (known->lives[keeper] && holder(known, COPY, r, 0, 0, keeper) != keeper) return true;
        }
        if (job->copies.scheme != GROUP || !known->lives[held->process[r]]) continue;
        struct group group = group_of(job, held, r, job->catalogs);
        int self = group_index(&group, r);
        for (int p = 0; group.size > 1 && p < group.parity; p++) {
            int stripe = (self - p + group.size) % group.size;
            if (holder(known, PARITY, group.number, stripe, p, held->process[r]) !=
                held->process[r])
                return true;
        }
    }
    return false;
}

/* --- the decision --- */

static void put_plan(const eyrie_ulfm_job *job, const struct plan *plan, struct buffer *out) {
    put_int(out, plan->outcome);
    put_int(out, plan->version);
    put_int(out, plan->data_ranks);
    put_int(out, plan->ranks);
    put_bytes(out, plan->process, (size_t)plan->ranks * sizeof *plan->process);
    put_int(out, plan->squeezed);
    put_int(out, plan->axes);
    put_bytes(out, plan->shape, sizeof plan->shape);
    put_int(out, plan->protect_anew);
    put_int(out, plan->failures);
    put_bytes(out, plan->failed, (size_t)plan->failures * sizeof *plan->failed);
    put_int(out, plan->moves);
    put_bytes(out, plan->moved, (size_t)plan->moves * sizeof *plan->moved);
    put_bytes(out, plan->method, sizeof plan->method);
    put_bytes(out, plan->note, sizeof plan->note);
    put_int(out, plan->busiest_before);
    put_int(out, plan->busiest_after);
    put_bytes(out, &plan->slowdown, sizeof plan->slowdown);
    /* A spare that joins does not know which processes hold the committed version. */
    put_bytes(out, job->held.process, (size_t)plan->data_ranks * sizeof(int));
    put_int(out, job->held_axes);
    put_bytes(out, job->held_shape, sizeof job->held_shape);
    for (int r = 0; r < plan->data_ranks; r++) put_catalog(out, &job->catalogs[r]);
    for (int r = 0; r < plan->data_ranks; r++) {
        const struct rescue *rescue = &plan->rescue[r];
        put_int(out, rescue->action);
        put_int(out, rescue->from);
        put_int(out, rescue->from_kind);
        put_int(out, rescue->to);
        put_int(out, rescue->header);
        if (rescue->action != DECODES) continue;
        struct group group = group_of(job, &job->held, r, job->catalogs);
        put_bytes(out, rescue->members,
                  (size_t)(group.size + group.size * group.parity) * sizeof *rescue->members);
    }
}

void plan_decide(eyrie_ulfm_job *job, int count, const int *alive, struct buffer *info,
                 struct buffer *decision) {
    struct known known = read_infos(job, count, alive, info);
    struct plan plan = {
        .outcome = GO_ON, .ranks = job->now.ranks, .axes = job->axes, .slowdown = 1};
    memcpy(plan.shape, job->shape, sizeof plan.shape);
    plan.process = must_copy(job->now.process, (size_t)job->now.ranks * sizeof(int));
    plan.failed = must_alloc((size_t)job->processes * sizeof *plan.failed);
    plan.moved = must_alloc((size_t)job->processes * sizeof *plan.moved);
    place(&known, &plan);
    if (plan.outcome == GO_ON) {
        find_data(&known, &plan);
        plan.protect_anew = copies_missing(&known);
    }
    put_plan(job, &plan, decision);
    plan_free(&plan);
    free(known.lives);
    free(known.holding);
}

static void *get_array(struct buffer *in, int64_t count, size_t size) {
    if (count < 0 || (size_t)count * size > in->len) count = 0;
    void *items = must_alloc((size_t)count * size);
    get_bytes(in, items, (size_t)count * size);
    return items;
}

bool plan_read(eyrie_ulfm_job *job, struct buffer *in, struct plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->outcome = (enum outcome)get_int(in);
    plan->version = get_int(in);
    plan->data_ranks = (int)get_int(in);
    plan->ranks = (int)get_int(in);
    plan->process = get_array(in, plan->ranks, sizeof *plan->process);
    plan->squeezed = get_int(in) != 0;
    plan->axes = (int)get_int(in);
    get_bytes(in, plan->shape, sizeof plan->shape);
    plan->protect_anew = get_int(in) != 0;
    plan->failures = (int)get_int(in);
    plan->failed = get_array(in, plan->failures, sizeof *plan->failed);
    plan->moves = (int)get_int(in);
    plan->moved = get_array(in, plan->moves, sizeof *plan->moved);
    get_bytes(in, plan->method, sizeof plan->method);
    get_bytes(in, plan->note, sizeof plan->note);
    plan->busiest_before = get_int(in);
    plan->busiest_after = get_int(in);
    get_bytes(in, &plan->slowdown, sizeof plan->slowdown);
    int *held = get_array(in, plan->data_ranks, sizeof *held);
    int axes = (int)get_int(in), shape[MOST_AXES];
    get_bytes(in, shape, sizeof shape);
    bool learns = plan->data_ranks > 0 && job->version != plan->version; /* a spare */
    if (learns) {
        for (int r = 0; job->catalogs && r < job->held.ranks; r++) catalog_free(&job->catalogs[r]);
        free(job->catalogs);
        layout_free(&job->held);
        job->held = layout_make(job, plan->data_ranks, held);
        job->catalogs = must_alloc((size_t)plan->data_ranks * sizeof *job->catalogs);
        job->version = plan->version;
        job->held_axes = axes;
        memcpy(job->held_shape, shape, sizeof shape);
    }
    for (int r = 0; r < plan->data_ranks; r++) {
        struct catalog catalog = get_catalog(in);
        if (learns)
            job->catalogs[r] = catalog;
        else
            catalog_free(&catalog);
    }
    free(held);
    plan->rescue = must_alloc((size_t)plan->data_ranks * sizeof *plan->rescue);
    for (int r = 0; r < plan->data_ranks; r++) {
        struct rescue *rescue = &plan->rescue[r];
        rescue->action = (enum action)get_int(in);
        rescue->from = (int)get_int(in);
        rescue->from_kind = (enum kind)get_int(in);
        rescue->to = (int)get_int(in);
        rescue->header = (int)get_int(in);
        if (rescue->action != DECODES) continue;
        struct group group = group_of(job, &job->held, r, job->catalogs);
        rescue->members =
            get_array(in, group.size + group.size * group.parity, sizeof *rescue->members);
    }
    return in->at <= in->len;
}

void plan_free(struct plan *plan) {
    for (int r = 0; plan->rescue && r < plan->data_ranks; r++) free(plan->rescue[r].members);
    free(plan->rescue);
    free(plan->process);
    free(plan->failed);
    free(plan->moved);
    memset(plan, 0, sizeof *plan);
}
