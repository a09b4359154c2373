/* Runs a body again after each failure. The error handler leaves the body with longjmp, from the
 * call that returned the error. */
#include "job.h"

static eyrie_ulfm_job *running; /* the job that is in eyrie_ulfm_run */

void run_on_error(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    eyrie_ulfm_job *job = running;
    if (!job || !job->jumping || job->inside || !eyrie_ulfm_is_failure(*code)) return;
    job->jump_code = *code;
    longjmp(job->jump, 1);
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
