/* Communicators of the program that are revoked with the working one: a wait on one of them ends
 * when the job recovers. */
#include <stdlib.h>

#include "job.h"

static int derived_key = MPI_KEYVAL_INVALID; /* on a derived communicator: its job */

/* The program frees a communicator. MPI may give its handle to another one, so it is forgotten. */
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
    if (comm == MPI_COMM_NULL)
        return explain(job, MPI_ERR_ARG, "eyrie_ulfm_derived: MPI_COMM_NULL");
    if (derived_key == MPI_KEYVAL_INVALID)
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget_derived, &derived_key, NULL);
    MPI_Comm *grown = realloc(job->derived, (size_t)(job->derived_count + 1) * sizeof *grown);
    if (!grown) return explain(job, MPI_ERR_NO_MEM, "no memory for another communicator");
    job->derived = grown;
    int code = MPI_Comm_set_attr(comm, derived_key, job); /* calls forget_derived for a known one */
    if (code == MPI_SUCCESS) job->derived[job->derived_count++] = comm;
    return code;
}

void derived_drop(eyrie_ulfm_job *job, bool revoke) {
    while (job->derived_count > 0) {
        MPI_Comm comm = job->derived[--job->derived_count];
        if (revoke) FT_Comm_revoke(comm);
        MPI_Comm_delete_attr(comm, derived_key);
    }
}
