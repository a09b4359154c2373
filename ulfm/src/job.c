/* The job from its beginning to its end: settings, who is spare, registered data, the recovery point. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "job.h"

int EYRIE_ULFM_ERR_LOST = MPI_ERR_LASTCODE;
int EYRIE_ULFM_ERR_SPARES = MPI_ERR_LASTCODE;

/* --- small things --- */

void *must_alloc(size_t bytes) {
    void *room = calloc(1, bytes ? bytes : 1);
    if (!room) {
        fprintf(stderr, "eyrie-ulfm: no memory for a table of %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    return room;
}

void *must_copy(const void *bytes, size_t len) {
    void *copy = must_alloc(len);
    if (len) memcpy(copy, bytes, len);
    return copy;
}

static char *copy_text(const char *text) {
    return text ? must_copy(text, strlen(text) + 1) : NULL;
}

int class_of(int code) {
    int class = code;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &class);
    return class;
}

int eyrie_ulfm_is_failure(int code) {
    int class = class_of(code);
    return class == FT_ERR_PROC_FAILED || class == FT_ERR_PROC_FAILED_PENDING || class == FT_ERR_REVOKED;
}

int explain(eyrie_ulfm_job *job, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(job->explanation, sizeof job->explanation, format, arguments);
    va_end(arguments);
    return code;
}

const char *eyrie_ulfm_explain(const eyrie_ulfm_job *job) {
    return job ? job->explanation : "";
}

/* Ends this process at once. Not MPI_Abort: mpirun of Open MPI 5.0 can hang or leave processes when it is called after a failure
 * (docs/ulfm.md, limits). The others wait for us no longer, and end the same way by their own bounds. */
void give_up(const eyrie_ulfm_job *job, const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "eyrie-ulfm: process %d ends the job: %s\n", job->me, text);
    fflush(NULL);
    _exit(1);
}

bool job_is_leader(const eyrie_ulfm_job *job) {
    for (int r = 0; r < job->now.ranks; r++)
        if (!job->dead[job->now.process[r]]) return job->now.process[r] == job->me;
    for (int p = 0; p < job->processes; p++)
        if (!job->dead[p]) return p == job->me;
    return false;
}

/* --- settings --- */

void eyrie_ulfm_settings_init(eyrie_ulfm_settings *settings) {
    memset(settings, 0, sizeof *settings);
    settings->node = -1;
    settings->message_bytes = 1 << 20;
    settings->wait_s = 300;
}

static const char *from_environment(const char *name, const char *text) {
    const char *value = getenv(name);
    return value && *value ? value : text;
}

static void read_settings(eyrie_ulfm_job *job, const eyrie_ulfm_settings *s) {
    const char *number;
    job->network = copy_text(from_environment("EYRIE_ULFM_NETWORK", s->network));
    job->shape_text = copy_text(from_environment("EYRIE_ULFM_JOB", s->job));
    job->spares = copy_text(from_environment("EYRIE_ULFM_SPARES", s->spares));
    job->traffic = copy_text(from_environment("EYRIE_ULFM_TRAFFIC", s->traffic));
    job->method = copy_text(from_environment("EYRIE_ULFM_METHOD", s->method ? s->method : "search"));
    job->copies_text = copy_text(from_environment("EYRIE_ULFM_COPIES", s->copies ? s->copies : "partner"));
    job->no_spare = copy_text(from_environment("EYRIE_ULFM_NO_SPARE", s->no_spare ? s->no_spare : "end"));
    number = getenv("EYRIE_ULFM_MESSAGE_BYTES");
    job->message_bytes = number && *number ? atoll(number) : s->message_bytes;
    number = getenv("EYRIE_ULFM_WAIT_S");
    job->wait_s = number && *number ? atof(number) : s->wait_s;
    number = getenv("EYRIE_ULFM_QUIET");
    job->quiet = number && *number ? atoi(number) != 0 : s->quiet != 0;
}

static int check_settings(eyrie_ulfm_job *job) {
    char why[256] = "";
    const char *wrong = copies_parse(job->copies_text, &job->copies);
    if (wrong) return explain(job, MPI_ERR_ARG, "copies `%s`: %s", job->copies_text, wrong);
    if (!eyrie_planner_knows(job->method, why, sizeof why)) return explain(job, MPI_ERR_ARG, "%s", why);
    if (strcmp(job->no_spare, "end") && strcmp(job->no_spare, "squeeze"))
        return explain(job, MPI_ERR_ARG, "no_spare `%s`: write end or squeeze", job->no_spare);
    if (!(job->wait_s > 0 && job->wait_s < 1e7)) return explain(job, MPI_ERR_ARG, "wait_s %g: a number of seconds above 0", job->wait_s);
    if (job->message_bytes < 0) return explain(job, MPI_ERR_ARG, "message_bytes %lld: at least 0", (long long)job->message_bytes);
    return MPI_SUCCESS;
}

/* --- who is where, and who is spare --- */

static int learn_members(eyrie_ulfm_job *job, int node) {
    struct member me = {.pid = (int)getpid(), .node = node, .started = wait_process_start((int)getpid())};
    gethostname(me.host, sizeof me.host - 1);
    job->member = must_alloc((size_t)job->processes * sizeof *job->member);
    int code = MPI_Allgather(&me, sizeof me, MPI_BYTE, job->member, sizeof me, MPI_BYTE, job->base);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    job->nonce = now.tv_sec * 1000000007LL + now.tv_nsec + getpid();
    if (code == MPI_SUCCESS) code = MPI_Bcast(&job->nonce, 1, MPI_INT64_T, 0, job->base);
    return code;
}

static int make_planner(eyrie_ulfm_job *job) {
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

/* The process on each node; exactly one on each that the job uses. */
static int map_nodes(eyrie_ulfm_job *job, const uint32_t *used, size_t count) {
    size_t nodes = eyrie_planner_nodes(job->planner);
    job->process_of_node = must_alloc(nodes * sizeof *job->process_of_node);
    for (size_t n = 0; n < nodes; n++) job->process_of_node[n] = -1;
    for (int p = 0; p < job->processes; p++) job->process_of_node[job->member[p].node] = p;
    for (size_t i = 0; i < count; i++)
        if (job->process_of_node[used[i]] < 0)
            return explain(job, MPI_ERR_ARG, "the job and its spares are on %zu nodes, but no process is on node %u (%d processes)", count, used[i], job->processes);
    if (count < (size_t)job->processes)
        return explain(job, MPI_ERR_ARG, "%d processes: the job and its spares are %zu", job->processes, count);
    return MPI_SUCCESS;
}

static int assign_ranks(eyrie_ulfm_job *job) {
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
    if (code == MPI_SUCCESS && job->copies.scheme == PARTNER && job->copies.partners >= (int)ranks && ranks > 1)
        code = explain(job, MPI_ERR_ARG, "copies `%s`: %zu ranks have %zu partners", job->copies_text, ranks, ranks - 1);
    if (code == MPI_SUCCESS && job->copies.scheme == GROUP && job->copies.group > (int)ranks)
        code = explain(job, MPI_ERR_ARG, "copies `%s`: the job has %zu ranks", job->copies_text, ranks);
    free(process);
    free(nodes);
    return code;
}

/* --- errors on the working communicator --- */

static eyrie_ulfm_job *running; /* whose body is running under eyrie_ulfm_run */

/* Ends the body of eyrie_ulfm_run; otherwise the error is returned. */
static void on_error(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    eyrie_ulfm_job *job = running;
    if (!job || !job->jumping || job->inside || !eyrie_ulfm_is_failure(*code)) return;
    job->jump_code = *code;
    longjmp(job->jump, 1);
}

/* --- beginning --- */

static void make_error_classes(void) {
    if (EYRIE_ULFM_ERR_LOST != MPI_ERR_LASTCODE) return;
    MPI_Add_error_class(&EYRIE_ULFM_ERR_LOST);
    MPI_Add_error_string(EYRIE_ULFM_ERR_LOST, "EYRIE_ULFM_ERR_LOST: committed data is lost: the copies do not cover the failures");
    MPI_Add_error_class(&EYRIE_ULFM_ERR_SPARES);
    MPI_Add_error_string(EYRIE_ULFM_ERR_SPARES, "EYRIE_ULFM_ERR_SPARES: no spare is left for a failed rank");
}

/* The communicators and tables that everything else stands on. */
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
    if (good == MPI_SUCCESS) good = learn_members(job, node);
    if (good != MPI_SUCCESS) return good;
    int code = check_settings(job);
    if (code == MPI_SUCCESS) code = make_planner(job);
    if (code == MPI_SUCCESS) code = assign_ranks(job);
    /* All find the same fault, but for what differs between hosts: files, settings from the environment. */
    int faults = code != MPI_SUCCESS;
    if (faults && job->me == 0) fprintf(stderr, "eyrie-ulfm: process 0: %s\n", job->explanation);
    good = MPI_Allreduce(MPI_IN_PLACE, &faults, 1, MPI_INT, MPI_SUM, job->base);
    if (good != MPI_SUCCESS) return good;
    if (code != MPI_SUCCESS && job->me > 0 && faults < job->processes)
        fprintf(stderr, "eyrie-ulfm: process %d: %s\n", job->me, job->explanation);
    if (code == MPI_SUCCESS && faults) code = explain(job, MPI_ERR_ARG, "%d of the processes cannot begin: see their messages", faults);
    if (code == MPI_SUCCESS) code = MPI_Comm_create_errhandler(on_error, &job->handler);
    if (code == MPI_SUCCESS) code = MPI_Comm_split(job->base, job->rank >= 0 ? 0 : MPI_UNDEFINED, job->rank, &job->work);
    if (code == MPI_SUCCESS && job->work != MPI_COMM_NULL) MPI_Comm_set_errhandler(job->work, job->handler);
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
    make_error_classes();
    eyrie_ulfm_job *job = must_alloc(sizeof *job);
    job->work = job->base = job->roll = MPI_COMM_NULL;
    job->handler = MPI_ERRHANDLER_NULL;
    job->rank = -1;
    job->report.slowdown = 1;
    job->inside = true;
    read_settings(job, settings);
    int code = begin(job, comm, settings->node);
    if (code != MPI_SUCCESS) {
        if (eyrie_ulfm_is_failure(code) && job->base != MPI_COMM_NULL) FT_Comm_revoke(job->base); /* nobody waits for us */
        eyrie_ulfm_free(&job);
        return code;
    }
    *out = job;
    if (job->rank < 0) {
        code = repair_wait_as_spare(job);
        if (job->rank >= 0) job->state = REPAIRED;
        if (class_of(code) == EYRIE_ULFM_ERR_SPARES) code = MPI_SUCCESS; /* not this process's trouble: it leaves */
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

/* --- communicators of the program --- */

static int derived_key = MPI_KEYVAL_INVALID; /* on a derived communicator: its job */

/* The program frees a communicator: its handle may soon be another's. */
static int forget_derived(MPI_Comm comm, int key, void *job_of, void *unused) {
    (void)key;
    (void)unused;
    eyrie_ulfm_job *job = job_of;
    int left = 0;
    for (int i = 0; i < job->derived_count; i++)
        if (job->derived[i] != comm) job->derived[left++] = job->derived[i];
    job->derived_count = left;
    return MPI_SUCCESS;
}

int eyrie_ulfm_derived(eyrie_ulfm_job *job, MPI_Comm comm) {
    if (comm == MPI_COMM_NULL) return explain(job, MPI_ERR_ARG, "eyrie_ulfm_derived: MPI_COMM_NULL");
    if (derived_key == MPI_KEYVAL_INVALID) MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget_derived, &derived_key, NULL);
    MPI_Comm *grown = realloc(job->derived, (size_t)(job->derived_count + 1) * sizeof *grown);
    if (!grown) return explain(job, MPI_ERR_NO_MEM, "no memory for another communicator");
    job->derived = grown;
    int code = MPI_Comm_set_attr(comm, derived_key, job); /* forgets it first when it is known */
    if (code == MPI_SUCCESS) job->derived[job->derived_count++] = comm;
    return code;
}

void job_drop_derived(eyrie_ulfm_job *job, bool revoke) {
    while (job->derived_count > 0) {
        MPI_Comm comm = job->derived[--job->derived_count];
        if (revoke) FT_Comm_revoke(comm);
        MPI_Comm_delete_attr(comm, derived_key);
    }
}

/* --- registered data --- */

static void unregister(eyrie_ulfm_job *job, const char *name) {
    for (struct segment **link = &job->segments; *link; link = &(*link)->next) {
        struct segment *segment = *link;
        if (strcmp(segment->name, name)) continue;
        *link = segment->next;
        MPI_Type_free(&segment->datatype);
        free(segment);
        return;
    }
}

int eyrie_ulfm_register(eyrie_ulfm_job *job, const char *name, void *data, MPI_Count count, MPI_Datatype datatype) {
    if (!name || !*name || strlen(name) >= NAME_ROOM) return explain(job, MPI_ERR_ARG, "a name has 1 to %d characters", NAME_ROOM - 1);
    if (!data) {
        unregister(job, name);
        return MPI_SUCCESS;
    }
    if (count < 0) return explain(job, MPI_ERR_ARG, "%s: count %lld", name, (long long)count);
    MPI_Count size, lower, extent, true_lower, true_extent;
    if (datatype == MPI_DATATYPE_NULL || MPI_Type_size_x(datatype, &size) != MPI_SUCCESS || size <= 0 || size > 1 << 30)
        return explain(job, MPI_ERR_TYPE, "%s: not a datatype of data", name);
    MPI_Type_get_extent_x(datatype, &lower, &extent);
    MPI_Type_get_true_extent_x(datatype, &true_lower, &true_extent);
    if (count > INT64_MAX / size) return explain(job, MPI_ERR_ARG, "%s: count %lld is too large", name, (long long)count);
    struct segment *segment = must_alloc(sizeof *segment);
    strcpy(segment->name, name);
    segment->data = data;
    segment->count = count;
    segment->bytes = (int64_t)count * size;
    segment->element = size;
    segment->packed = extent != size || true_extent != size || true_lower != 0;
    MPI_Type_dup(datatype, &segment->datatype);
    unregister(job, name);
    /* In order of names, so that the order of registering does not matter. */
    struct segment **link = &job->segments;
    while (*link && strcmp((*link)->name, name) < 0) link = &(*link)->next;
    segment->next = *link;
    *link = segment;
    return MPI_SUCCESS;
}

int64_t eyrie_ulfm_committed_bytes(const eyrie_ulfm_job *job, const char *name) {
    if (job->rank < 0 || job->version == 0 || job->rank >= job->held.ranks || job->squeezed) return -1;
    const struct catalog *catalog = &job->catalogs[job->rank];
    for (int i = 0; i < catalog->count; i++)
        if (!strcmp(catalog->entry[i].name, name)) return catalog->entry[i].bytes;
    return -1;
}

/* --- the recovery point --- */

/* Copies committed data into one registered segment. Returns an error, or says that the image is damaged. */
static int load(eyrie_ulfm_job *job, struct segment *segment, const struct image *image, int block, bool *damaged) {
    unsigned char *bytes = segment->data;
    if (segment->packed && !(bytes = malloc((size_t)segment->bytes + 1)))
        return explain(job, MPI_ERR_NO_MEM, "no memory to unpack %s", segment->name);
    for (int64_t at = 0; at < segment->bytes; at += BLOCK_BYTES, block++) {
        const struct block *from = image->block[block];
        if (eyrie_copy_checksum(bytes + at, from->data, from->len, segment->bytes > MUCH_BYTES) != image->sum[block]) *damaged = true;
    }
    if (!segment->packed) return MPI_SUCCESS;
    int code = *damaged ? MPI_SUCCESS : segment_pack(job, segment, bytes, false);
    free(bytes);
    return code;
}

static int load_all(eyrie_ulfm_job *job, bool *damaged) {
    const struct catalog *catalog = &job->catalogs[job->rank];
    struct image *image = image_find(job, OWN, job->rank, job->version);
    int block = 0, code = MPI_SUCCESS;
    if (!image) {
        *damaged = true;
        return MPI_SUCCESS;
    }
    for (int i = 0; i < catalog->count && code == MPI_SUCCESS; i++) {
        const struct entry *entry = &catalog->entry[i];
        struct segment *segment = job->segments;
        while (segment && strcmp(segment->name, entry->name)) segment = segment->next;
        if (segment && segment->bytes != entry->bytes)
            return explain(job, MPI_ERR_TRUNCATE, "%s: rank %d committed %lld bytes, %lld are registered", entry->name, job->rank,
                           (long long)entry->bytes, (long long)segment->bytes);
        if (segment) code = load(job, segment, image, block, damaged);
        block += (int)((entry->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
    }
    if (*damaged) {
        fprintf(stderr, "eyrie-ulfm: process %d: its own data of version %lld is damaged (wrong checksum) and not used\n", job->me, (long long)job->version);
        image_drop(job, image);
    }
    return code;
}

int eyrie_ulfm_restore(eyrie_ulfm_job *job, int64_t *version) {
    if (version) *version = job->version;
    if (job->ended) return MPI_SUCCESS;
    bool nothing = job->state != REPAIRED;
    job->state = RUNNING;
    if (nothing) return MPI_SUCCESS;
    if (job->lost) return explain(job, EYRIE_ULFM_ERR_LOST, "%s", job->last.note);
    if (job->version == 0 || job->squeezed) return MPI_SUCCESS;
    job->inside = true;
    inject(job, "restore");
    double start = wait_now_ms();
    bool damaged = false;
    int code = load_all(job, &damaged);
    /* Bit 0: all is in place. Bit 1: nobody has gone to repair. Bit 2: nothing that another repair would not mend. */
    int bits = (code == MPI_SUCCESS && !damaged ? 1 : 0) | 2 | (code == MPI_SUCCESS ? 4 : 0);
    int failure = wait_agree(job, job->work, &bits, "to agree that committed data is in place");
    if (!(bits & 2)) job->abandoned = true;
    job->report.restore_ms = wait_now_ms() - start;
    job->inside = false;
    if (code != MPI_SUCCESS) return code;
    if (!(bits & 4) && (bits & 2)) return explain(job, MPI_ERR_OTHER, "another rank could not put its data in place: see its message");
    if (!(bits & 1)) return FT_ERR_REVOKED;
    return failure;
}

int eyrie_ulfm_repair(eyrie_ulfm_job *job) {
    if (job->state != RUNNING || job->ended) return MPI_SUCCESS;
    job->inside = true;
    int code = repair_run(job);
    if (code == MPI_SUCCESS && job->last.outcome == FINISHED) job->ended = true; /* all others have finished: so have we */
    if (code == MPI_SUCCESS && job->rank < 0 && !job->ended) code = repair_wait_as_spare(job);
    if (code == MPI_SUCCESS) job->state = REPAIRED;
    job->inside = false;
    return code;
}

int eyrie_ulfm_recover(eyrie_ulfm_job *job, int64_t *version) {
    int code;
    do {
        code = eyrie_ulfm_repair(job);
        if (code != MPI_SUCCESS) return code;
        code = eyrie_ulfm_restore(job, version);
    } while (eyrie_ulfm_is_failure(code));
    return code;
}

/* Files of the job in the directory of copies, at its end. */
static void remove_files(const eyrie_ulfm_job *job) {
    char prefix[64], path[1024];
    snprintf(prefix, sizeof prefix, "eyrie-%016llx-", (unsigned long long)job->nonce);
    DIR *directory = opendir(job->copies.directory);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix))) continue;
        snprintf(path, sizeof path, "%s/%s", job->copies.directory, entry->d_name);
        unlink(path);
    }
    if (directory) closedir(directory);
}

int eyrie_ulfm_finish(eyrie_ulfm_job *job) {
    if (job->ended) return MPI_SUCCESS;
    if (job->state == REPAIRED) return FT_ERR_PROC_FAILED; /* recover first */
    job->inside = true;
    inject(job, "finish");
    /* All are here before anybody takes the working communicator away. Bits as in a commit. */
    int bits = 3;
    wait_agree(job, job->work, &bits, "for all to finish");
    job->abandoned = !(bits & 2);
    job->finished = bits == 3;
    int code = repair_run(job);
    job->finished = false;
    if (code == MPI_SUCCESS && job->last.outcome == FINISHED) {
        job->ended = true;
        if (job->copies.scheme == FILES && job_is_leader(job)) remove_files(job);
    } else if (code == MPI_SUCCESS) {
        job->state = REPAIRED;
        code = job->rank < 0 ? repair_wait_as_spare(job) : FT_ERR_PROC_FAILED;
        if (code == MPI_SUCCESS && !job->ended) code = FT_ERR_PROC_FAILED;
    }
    job->inside = false;
    return code;
}

int eyrie_ulfm_run(eyrie_ulfm_job *job, eyrie_ulfm_body body, void *context) {
    for (;;) {
        int64_t version;
        volatile int code = eyrie_ulfm_recover(job, &version);
        if (code != MPI_SUCCESS || job->ended) return code;
        running = job;
        job->jumping = true;
        if (setjmp(job->jump) == 0)
            code = body(job, version, context);
        else
            code = job->jump_code;
        job->jumping = false;
        running = NULL;
        if (code == MPI_SUCCESS) code = eyrie_ulfm_finish(job);
        if (!eyrie_ulfm_is_failure(code)) return code;
    }
}

int eyrie_ulfm_free(eyrie_ulfm_job **pointer) {
    eyrie_ulfm_job *job = pointer ? *pointer : NULL;
    if (!job) return MPI_SUCCESS;
    wait_stop_guard(job);
    job_drop_derived(job, false);
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
    void *own[] = {job->network, job->shape_text, job->spares, job->traffic, job->method, job->copies_text, job->no_spare, job->member,
                   job->process_of_node, job->dead, job->base_process, job->planned, job->rank_of, job->server, job->derived, job->json, job};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) free(own[i]);
    block_free_pool();
    *pointer = NULL;
    return MPI_SUCCESS;
}

void eyrie_ulfm_last_commit(const eyrie_ulfm_job *job, eyrie_ulfm_cost *cost) {
    *cost = job->cost;
}
