/* Reports what a recovery did: to the program, as a line for people, and as JSON. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* Copies the plan into the report of the job. */
void report_set(eyrie_ulfm_job *job, struct plan *plan) {
    plan_free(&job->last);
    job->last = *plan;
    memset(plan, 0, sizeof *plan);
    eyrie_ulfm_report *report = &job->report;
    if (job->last.outcome == FINISHED) return;
    report->recovery++;
    report->failures = job->last.failures;
    report->failed = job->last.failed;
    report->moves = job->last.moves;
    report->moved = job->last.moved;
    report->method = job->last.method;
    report->note = job->last.note;
    report->busiest_before = job->last.busiest_before;
    report->busiest_after = job->last.busiest_after;
    report->slowdown = job->last.slowdown;
    report->version = job->last.version;
    report->squeezed = job->last.squeezed;
    report_say(job);
}

static void append(char **text, size_t *len, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *more = NULL;
    int wrote = vasprintf(&more, format, arguments);
    va_end(arguments);
    if (wrote < 0) return;
    char *grown = realloc(*text, *len + (size_t)wrote + 1);
    if (grown) {
        memcpy(grown + *len, more, (size_t)wrote + 1);
        *text = grown;
        *len += (size_t)wrote;
    }
    free(more);
}

/* Appends a process with its node and host. */
static void append_process(const eyrie_ulfm_job *job, char **text, size_t *len, int process) {
    const struct member *member = &job->member[process];
    char node[64];
    eyrie_planner_node_name(job->planner, (uint32_t)member->node, node, sizeof node);
    if (job->network)
        append(text, len, "process %d (node %s, host %s)", process, node, member->host);
    else
        append(text, len, "process %d (host %s)", process, member->host);
}

void report_say(eyrie_ulfm_job *job) {
    const struct plan *last = &job->last;
    const eyrie_ulfm_report *report = &job->report;
    if (job->quiet || !members_is_leader(job)) return;
    char *text = NULL;
    size_t len = 0;
    append(&text, &len, "eyrie-ulfm: recovery %d: ", report->recovery);
    if (last->failures == 0) append(&text, &len, "no process failed");
    for (int i = 0; i < last->failures; i++) {
        append(&text, &len, "%s%s", i ? ", " : "", last->failed[i].rank >= 0 ? "" : "spare ");
        if (last->failed[i].rank >= 0) append(&text, &len, "rank %d at ", last->failed[i].rank);
        append_process(job, &text, &len, last->failed[i].process);
        append(&text, &len, " failed");
    }
    if (last->outcome == NO_WAY) {
        append(&text, &len, "; the job cannot go on: %s", last->note);
    } else {
        for (int i = 0; i < last->moves && i < 8; i++) {
            append(&text, &len, "; rank %d to ", last->moved[i].rank);
            append_process(job, &text, &len, last->moved[i].to);
        }
        if (last->moves > 8) append(&text, &len, "; %d more move", last->moves - 8);
        if (last->squeezed) append(&text, &len, "; %d ranks go on", last->ranks);
        if (strcmp(last->method, "none"))
            append(&text, &len, "; %s, busiest link %lld -> %lld messages", last->method,
                   (long long)last->busiest_before, (long long)last->busiest_after);
        if (last->note[0]) append(&text, &len, " (%s)", last->note);
        append(
            &text, &len,
            "; version %lld; ms: gather %.1f, shrink %.1f, plan %.1f, transfer %.1f, protect %.1f, rebuild %.1f",
            (long long)last->version, report->gather_ms, report->shrink_ms, report->plan_ms,
            report->transfer_ms, report->protect_ms, report->rebuild_ms);
        if (report->attempts > 1) append(&text, &len, "; %d attempts", report->attempts);
    }
    append(&text, &len, "\n");
    if (text) fputs(text, stderr);
    free(text);
}

const eyrie_ulfm_report *eyrie_ulfm_last_report(const eyrie_ulfm_job *job) {
    return &job->report;
}

static void append_string(char **text, size_t *len, const char *string) {
    append(text, len, "\"");
    for (const char *c = string; *c; c++) {
        if (*c == '"' || *c == '\\')
            append(text, len, "\\%c", *c);
        else if ((unsigned char)*c < 32)
            append(text, len, " ");
        else
            append(text, len, "%c", *c);
    }
    append(text, len, "\"");
}

const char *eyrie_ulfm_report_json(const eyrie_ulfm_job *constant) {
    eyrie_ulfm_job *job = (eyrie_ulfm_job *)constant; /* keeps the text */
    const eyrie_ulfm_report *r = &job->report;
    size_t len = 0;
    free(job->json);
    job->json = NULL;
    append(&job->json, &len, "{\"recovery\": %d, \"attempts\": %d, \"failed\": [", r->recovery,
           r->attempts);
    for (int i = 0; i < r->failures; i++)
        append(&job->json, &len, "%s{\"process\": %d, \"rank\": %d, \"node\": %d}", i ? ", " : "",
               r->failed[i].process, r->failed[i].rank, job->member[r->failed[i].process].node);
    append(&job->json, &len, "], \"moved\": [");
    for (int i = 0; i < r->moves; i++)
        append(&job->json, &len, "%s{\"rank\": %d, \"from\": %d, \"to\": %d}", i ? ", " : "",
               r->moved[i].rank, r->moved[i].from, r->moved[i].to);
    append(&job->json, &len, "], \"method\": ");
    append_string(&job->json, &len, r->method ? r->method : "none");
    append(&job->json, &len, ", \"note\": ");
    append_string(&job->json, &len, r->note ? r->note : "");
    append(
        &job->json, &len,
        ", \"busiest_before\": %lld, \"busiest_after\": %lld, \"slowdown\": %.6g, \"version\": %lld, \"squeezed\": %s",
        (long long)r->busiest_before, (long long)r->busiest_after, r->slowdown,
        (long long)r->version, r->squeezed ? "true" : "false");
    append(
        &job->json, &len,
        ", \"gather_ms\": %.3f, \"shrink_ms\": %.3f, \"plan_ms\": %.3f, \"transfer_ms\": %.3f, \"protect_ms\": %.3f, \"rebuild_ms\": %.3f, "
        "\"restore_ms\": %.3f}",
        r->gather_ms, r->shrink_ms, r->plan_ms, r->transfer_ms, r->protect_ms, r->rebuild_ms,
        r->restore_ms);
    return job->json ? job->json : "{}";
}
