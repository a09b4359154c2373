/* Registered data: a commit copies it and a recovery point puts it back. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

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

int eyrie_ulfm_register(eyrie_ulfm_job *job, const char *name, void *data, MPI_Count count,
                        MPI_Datatype datatype) {
    if (!name || !*name || strlen(name) >= NAME_ROOM)
        return explain(job, MPI_ERR_ARG, "a name has 1 to %d characters", NAME_ROOM - 1);
    if (!data) {
        unregister(job, name);
        return MPI_SUCCESS;
    }
    if (count < 0) return explain(job, MPI_ERR_ARG, "%s: count %lld", name, (long long)count);
    MPI_Count size, lower, extent, true_lower, true_extent;
    if (datatype == MPI_DATATYPE_NULL || MPI_Type_size_x(datatype, &size) != MPI_SUCCESS ||
        size <= 0 || size > 1 << 30)
        return explain(job, MPI_ERR_TYPE, "%s: not a datatype of data", name);
    MPI_Type_get_extent_x(datatype, &lower, &extent);
    MPI_Type_get_true_extent_x(datatype, &true_lower, &true_extent);
    if (count > INT64_MAX / size)
        return explain(job, MPI_ERR_ARG, "%s: count %lld is too large", name, (long long)count);
    struct segment *segment = must_alloc(sizeof *segment);
    strcpy(segment->name, name);
    segment->data = data;
    segment->count = count;
    segment->bytes = (int64_t)count * size;
    segment->element = size;
    segment->packed = extent != size || true_extent != size || true_lower != 0;
    MPI_Type_dup(datatype, &segment->datatype);
    unregister(job, name);
    /* Sorted by name, so that the order of registering does not matter. */
    struct segment **link = &job->segments;
    while (*link && strcmp((*link)->name, name) < 0) link = &(*link)->next;
    segment->next = *link;
    *link = segment;
    return MPI_SUCCESS;
}
