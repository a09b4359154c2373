/* Waiting for other processes, always with a bound. Requests are tested in a loop. A thread watches
 * the few calls of MPI that block (shrink, split). When the bound is reached, the job ends with a
 * message that names the processes it waited for.
 *
 * A process cannot see which others have not come to an agreement. So a process that waits for long
 * sends a note to the processes of the two lowest living ranks. When these reach the bound, they
 * know which processes are missing. Agreements that end soon send no notes. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "job.h"

enum { TAG_NOTE = 1, SPINS = 20, NAMES_ROOM = 3000 };
static const double NOTE_AFTER_MS = 1000, GRACE_MS = 1500, LOOK_EVERY_MS = 2;

double wait_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

void pause_briefly(struct pause *pause) {
    if (++pause->polls > SPINS) sched_yield();
}

/* When a process of this host was started, in clock ticks since boot; 0: there is no such process.
 * `state` may be NULL. */
static unsigned long long read_start(int pid, char *state) {
    char path[64], line[1024], letter = 0;
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *stat = fopen(path, "r");
    char *end = stat && fgets(line, sizeof line, stat) ? strrchr(line, ')') : NULL;
    if (end)
        sscanf(end + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &letter, &started);
    if (stat) fclose(stat);
    if (state) *state = letter;
    return started;
}

unsigned long long wait_process_start(int pid) {
    return read_start(pid, NULL);
}

static bool on_this_host(const eyrie_ulfm_job *job, int process) {
    return job->member && !strcmp(job->member[process].host, job->member[job->me].host);
}

/* "process 4 (rank 3, node 0,3, host a; stopped)": a process as the library knows it, with its
 * state if it is on this host. */
void wait_describe(const eyrie_ulfm_job *job, int process, char *text, size_t room) {
    if (!job->member) {
        snprintf(text, room, "process %d", process);
        return;
    }
    const struct member *member = &job->member[process];
    char rank[32] = "spare", node[64] = "", state[32] = "";
    if (job->rank_of && job->rank_of[process] >= 0)
        snprintf(rank, sizeof rank, "rank %d", job->rank_of[process]);
    if (job->planner && job->network) {
        char name[48];
        eyrie_planner_node_name(job->planner, (uint32_t)member->node, name, sizeof name);
        snprintf(node, sizeof node, ", node %s", name);
    }
    if (on_this_host(job, process)) {
        char letter;
        if (read_start(member->pid, &letter) != member->started)
            strcpy(state, "; gone");
        else if (letter == 'T' || letter == 't')
            strcpy(state, "; stopped");
        else if (letter == 'Z')
            strcpy(state, "; dead");
    }
    snprintf(text, room, "process %d (%s%s, host %s, pid %d%s)", process, rank, node, member->host,
             member->pid, state);
}

/* Appends descriptions of processes, as many as fit. */
static void describe_all(const eyrie_ulfm_job *job, const bool *missing, char *text, size_t room) {
    size_t len = 0;
    text[0] = 0;
    for (int p = 0; p < job->processes; p++) {
        char one[256];
        if (!missing[p]) continue;
        wait_describe(job, p, one, sizeof one);
        int wrote = snprintf(text + len, room - len, "%s%s", len ? ", " : "", one);
        if (wrote < 0 || len + (size_t)wrote >= room) break;
        len += (size_t)wrote;
    }
}

/* Names the processes that were waited for, and ends the job. Also kills those of them on this host
 * that are stopped, because no other process would end them. */
static void give_up_waiting(const eyrie_ulfm_job *job, const bool *missing, const char *which,
                            const char *what) {
    char names[NAMES_ROOM], self[256], letter;
    describe_all(job, missing, names, sizeof names);
    wait_describe(job, job->me, self, sizeof self);
    for (int p = 0; p < job->processes; p++) {
        if (!missing[p] || !on_this_host(job, p)) continue;
        int pid = job->member[p].pid;
        if (read_start(pid, &letter) == job->member[p].started && (letter == 'T' || letter == 't'))
            kill(pid, SIGKILL);
    }
    give_up(job, "%s waited %.1f s %s for %s%s", self, job->wait_s, what, which,
            names[0] ? names : "unknown processes");
}

MPI_Request *waits_add(struct waits *waits, int process) {
    if (waits->count == waits->room) {
        int room = waits->room ? 2 * waits->room : 32;
        MPI_Request *request = must_alloc((size_t)room * sizeof *request);
        int *peer = must_alloc((size_t)room * sizeof *peer);
        if (waits->count) {
            memcpy(request, waits->request, (size_t)waits->count * sizeof *request);
            memcpy(peer, waits->process, (size_t)waits->count * sizeof *peer);
        }
        free(waits->request);
        free(waits->process);
        waits->room = room;
        waits->request = request;
        waits->process = peer;
    }
    waits->request[waits->count] = MPI_REQUEST_NULL;
    waits->process[waits->count] = process;
    return &waits->request[waits->count++];
}

/* Tests requests in the order in which they were made, up to the first that is not complete:
 * testing that one makes MPI progress, and testing hundreds more would only cost time. Now and then
 * all are tested, because a later one may have failed. The first error is returned. */
int waits_poll(struct waits *waits) {
    double now = wait_now_ms();
    bool all = now > waits->look_at;
    if (all) waits->look_at = now + LOOK_EVERY_MS;
    int first = MPI_SUCCESS;
    for (int i = waits->done; i < waits->count; i++) {
        int done = 1, code = MPI_SUCCESS;
        if (waits->request[i] != MPI_REQUEST_NULL)
            code = MPI_Test(&waits->request[i], &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS && first == MPI_SUCCESS) first = code;
        if (done && i == waits->done) waits->done++;
        if (!done && !all) break;
    }
    return first;
}

int waits_all(eyrie_ulfm_job *job, struct waits *waits, MPI_Comm comm, const char *what) {
    double until = wait_now_ms() + job->wait_s * 1e3 + (waits->second_hand ? GRACE_MS : 0);
    struct pause pause = {0};
    int first = MPI_SUCCESS;
    while (waits->done < waits->count) {
        int code = waits_poll(waits);
        if (code != MPI_SUCCESS && first == MPI_SUCCESS) {
            first = code;
            FT_Comm_revoke(comm); /* so that the others, and our other requests, stop waiting */
        }
        if (wait_now_ms() > until) {
            bool *missing = must_alloc((size_t)job->processes);
            for (int i = waits->done; i < waits->count; i++)
                if (waits->request[i] != MPI_REQUEST_NULL) missing[waits->process[i]] = true;
            give_up_waiting(job, missing, "", what);
        }
        pause_briefly(&pause);
    }
    free(waits->request);
    free(waits->process);
    *waits = (struct waits){0};
    return first;
}

/* The living processes of the two lowest ranks collect notes. */
static int collectors(const eyrie_ulfm_job *job, int found[2]) {
    int count = 0;
    for (int r = 0; r < job->now.ranks && count < 2; r++)
        if (!job->dead[job->now.process[r]]) found[count++] = job->now.process[r];
    return count;
}

static void send_notes(eyrie_ulfm_job *job) {
    int to[2], count = collectors(job, to);
    for (int i = 0; i < count; i++) {
        MPI_Request request;
        if (to[i] == job->me) continue;
        if (MPI_Isend(&job->agreements, 1, MPI_INT, to[i], TAG_NOTE, job->roll, &request) ==
            MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

/* Receives the notes that have arrived, and marks the processes that have not come to this
 * agreement. */
static void collect_notes(eyrie_ulfm_job *job, bool *missing) {
    for (int r = 0; r < job->now.ranks; r++) {
        int p = job->now.process[r], there = 0, number = -1;
        missing[p] = !job->dead[p] && p != job->me;
        while (MPI_Iprobe(p, TAG_NOTE, job->roll, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
               there) {
            if (MPI_Recv(&number, 1, MPI_INT, p, TAG_NOTE, job->roll, MPI_STATUS_IGNORE) !=
                MPI_SUCCESS)
                break;
            if (number == job->agreements) missing[p] = false;
        }
    }
}

int wait_agree(eyrie_ulfm_job *job, MPI_Comm comm, int *bits, const char *what) {
    bool on_work = comm == job->work;
    if (on_work) job->agreements++;
    int done = 0, to[2], collecting = 0;
    for (int i = collectors(job, to); i-- > 0;) collecting |= to[i] == job->me;
    /* The collectors know more, so they report first. */
    double begin = wait_now_ms(),
           until = begin + job->wait_s * 1e3 + (on_work && collecting ? 0 : 2 * GRACE_MS);
    double note_at =
        begin + (job->wait_s * 500 < NOTE_AFTER_MS ? job->wait_s * 500 : NOTE_AFTER_MS);
    struct pause pause = {0};
    MPI_Request request;
    int code = FT_Comm_iagree(comm, bits, &request);
    if (code != MPI_SUCCESS) return code;
    while (!done) {
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done || code != MPI_SUCCESS) break;
        double now = wait_now_ms();
        if (on_work && now > note_at) {
            send_notes(job);
            note_at = until * 2;
        }
        if (now > until) {
            bool *missing = must_alloc((size_t)job->processes);
            for (int p = 0; p < job->processes; p++)
                missing[p] = p != job->me && !job->dead[p] && (!on_work || job->rank_of[p] >= 0);
            if (on_work && collecting) collect_notes(job, missing);
            give_up_waiting(job, missing, on_work && collecting ? "" : "one or more of ", what);
        }
        pause_briefly(&pause);
    }
    return code;
}

/* --- calls that block --- */

struct guard {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    eyrie_ulfm_job *job;
    const char *what; /* NULL: nothing is watched */
    double until;
    bool stop;
};

static void *watch(void *argument) {
    struct guard *guard = argument;
    pthread_mutex_lock(&guard->lock);
    while (!guard->stop) {
        if (!guard->what) {
            pthread_cond_wait(&guard->changed, &guard->lock);
            continue;
        }
        struct timespec at = {
            (time_t)(guard->until / 1e3),
            (long)((guard->until - 1e3 * (double)(time_t)(guard->until / 1e3)) * 1e6)};
        if (pthread_cond_timedwait(&guard->changed, &guard->lock, &at) != ETIMEDOUT ||
            !guard->what || wait_now_ms() < guard->until)
            continue;
        const eyrie_ulfm_job *job = guard->job;
        bool *missing = must_alloc((size_t)job->processes);
        for (int i = 0; i < job->base_size; i++) {
            int p = job->base_process[i];
            missing[p] = p != job->me && !job->dead[p];
        }
        give_up_waiting(job, missing, "one or more of ", guard->what);
    }
    pthread_mutex_unlock(&guard->lock);
    return NULL;
}

int wait_start_guard(eyrie_ulfm_job *job) {
    struct guard *guard = must_alloc(sizeof *guard);
    pthread_condattr_t clock;
    guard->job = job;
    pthread_mutex_init(&guard->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&guard->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (pthread_create(&guard->thread, NULL, watch, guard) != 0) {
        free(guard);
        return MPI_ERR_NO_MEM;
    }
    job->guard = guard;
    return MPI_SUCCESS;
}

static void set_guard(eyrie_ulfm_job *job, const char *what) {
    struct guard *guard = job->guard;
    pthread_mutex_lock(&guard->lock);
    guard->what = what;
    guard->until = wait_now_ms() + job->wait_s * 1e3 + 2 * GRACE_MS;
    pthread_cond_signal(&guard->changed);
    pthread_mutex_unlock(&guard->lock);
}

void wait_guard(eyrie_ulfm_job *job, const char *what) {
    set_guard(job, what);
}

void wait_unguard(eyrie_ulfm_job *job) {
    set_guard(job, NULL);
}

void wait_stop_guard(eyrie_ulfm_job *job) {
    struct guard *guard = job->guard;
    if (!guard) return;
    pthread_mutex_lock(&guard->lock);
    guard->stop = true;
    pthread_cond_signal(&guard->changed);
    pthread_mutex_unlock(&guard->lock);
    pthread_join(guard->thread, NULL);
    pthread_cond_destroy(&guard->changed);
    pthread_mutex_destroy(&guard->lock);
    free(guard);
    job->guard = NULL;
}
