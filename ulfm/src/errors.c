/* Errors: their classes, the texts for the program, and the end of a process that cannot go on.
 * Also allocates the tables of the library: a failed allocation ends the job. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

int EYRIE_ULFM_ERR_LOST = MPI_ERR_LASTCODE;
int EYRIE_ULFM_ERR_SPARES = MPI_ERR_LASTCODE;

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

int class_of(int code) {
    int class = code;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &class);
    return class;
}

int eyrie_ulfm_is_failure(int code) {
    int class = class_of(code);
    return class == FT_ERR_PROC_FAILED || class == FT_ERR_PROC_FAILED_PENDING ||
           class == FT_ERR_REVOKED;
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

/* Ends this process at once. Not MPI_Abort: mpirun of Open MPI 5.0 can hang or leave processes when
 * it is called after a failure (docs/ulfm.md, limits). Other processes wait for this one until
 * their own bounds, then end in the same way. */
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

void errors_make_classes(void) {
    if (EYRIE_ULFM_ERR_LOST != MPI_ERR_LASTCODE) return;
    MPI_Add_error_class(&EYRIE_ULFM_ERR_LOST);
    MPI_Add_error_string(
        EYRIE_ULFM_ERR_LOST,
        "EYRIE_ULFM_ERR_LOST: committed data is lost: the copies do not cover the failures");
    MPI_Add_error_class(&EYRIE_ULFM_ERR_SPARES);
    MPI_Add_error_string(EYRIE_ULFM_ERR_SPARES,
                         "EYRIE_ULFM_ERR_SPARES: no spare is left for a failed rank");
}
