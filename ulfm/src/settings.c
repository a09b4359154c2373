/* Settings: from the program and from the environment, which takes precedence. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

void eyrie_ulfm_settings_init(eyrie_ulfm_settings *settings) {
    memset(settings, 0, sizeof *settings);
    settings->node = -1;
    settings->message_bytes = 1 << 20;
    settings->wait_s = 300;
}

static char *copy_text(const char *text) {
    return text ? must_copy(text, strlen(text) + 1) : NULL;
}

static const char *from_environment(const char *name, const char *text) {
    const char *value = getenv(name);
    return value && *value ? value : text;
}

void settings_read(eyrie_ulfm_job *job, const eyrie_ulfm_settings *s) {
    const char *number;
    job->network = copy_text(from_environment("EYRIE_ULFM_NETWORK", s->network));
    job->shape_text = copy_text(from_environment("EYRIE_ULFM_JOB", s->job));
    job->spares = copy_text(from_environment("EYRIE_ULFM_SPARES", s->spares));
    job->traffic = copy_text(from_environment("EYRIE_ULFM_TRAFFIC", s->traffic));
    job->method =
        copy_text(from_environment("EYRIE_ULFM_METHOD", s->method ? s->method : "search"));
    job->copies_text =
        copy_text(from_environment("EYRIE_ULFM_COPIES", s->copies ? s->copies : "partner"));
    job->no_spare =
        copy_text(from_environment("EYRIE_ULFM_NO_SPARE", s->no_spare ? s->no_spare : "end"));
    number = getenv("EYRIE_ULFM_MESSAGE_BYTES");
    job->message_bytes = number && *number ? atoll(number) : s->message_bytes;
    number = getenv("EYRIE_ULFM_WAIT_S");
    job->wait_s = number && *number ? atof(number) : s->wait_s;
    number = getenv("EYRIE_ULFM_QUIET");
    job->quiet = number && *number ? atoi(number) != 0 : s->quiet != 0;
}

int settings_check(eyrie_ulfm_job *job) {
    char why[256] = "";
    const char *wrong = copies_parse(job->copies_text, &job->copies);
    if (wrong) return explain(job, MPI_ERR_ARG, "copies `%s`: %s", job->copies_text, wrong);
    if (!eyrie_planner_knows(job->method, why, sizeof why))
        return explain(job, MPI_ERR_ARG, "%s", why);
    if (strcmp(job->no_spare, "end") && strcmp(job->no_spare, "squeeze"))
        return explain(job, MPI_ERR_ARG, "no_spare `%s`: write end or squeeze", job->no_spare);
    if (!(job->wait_s > 0 && job->wait_s < 1e7))
        return explain(job, MPI_ERR_ARG, "wait_s %g: a number of seconds above 0", job->wait_s);
    if (job->message_bytes < 0)
        return explain(job, MPI_ERR_ARG, "message_bytes %lld: at least 0",
                       (long long)job->message_bytes);
    return MPI_SUCCESS;
}
