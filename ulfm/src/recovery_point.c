/* The recovery point: after a repair all ranks return here with the data of the last version. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* Copies committed data into one registered segment. Returns an error, or says that the image is
 * damaged. */
static int load(eyrie_ulfm_job *job, struct segment *segment, const struct image *image, int block,
                bool *damaged) {
    unsigned char *bytes = segment->data;
    if (segment->packed && !(bytes = malloc((size_t)segment->bytes + 1)))
        return explain(job, MPI_ERR_NO_MEM, "no memory to unpack %s", segment->name);
    for (int64_t at = 0; at < segment->bytes; at += BLOCK_BYTES, block++) {
        const struct block *from = image->block[block];
        if (eyrie_copy_checksum(bytes + at, from->data, from->len, segment->bytes > MUCH_BYTES) !=
            image->sum[block])
            *damaged = true;
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
            return explain(job, MPI_ERR_TRUNCATE,
                           "%s: rank %d committed %lld bytes, %lld are registered", entry->name,
                           job->rank, (long long)entry->bytes, (long long)segment->bytes);
        if (segment) code = load(job, segment, image, block, damaged);
        block += (int)((entry->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
    }
    if (*damaged) {
        fprintf(
            stderr,
            "eyrie-ulfm: process %d: its own data of version %lld is damaged (wrong checksum) and not used\n",
            job->me, (long long)job->version);
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
    /* Bit 0: all data is in place. Bit 1: no rank has left to repair the job. Bit 2: there was no
     * error that another repair would not fix. */
    int bits = (code == MPI_SUCCESS && !damaged ? 1 : 0) | 2 | (code == MPI_SUCCESS ? 4 : 0);
    int failure = wait_agree(job, job->work, &bits, "to agree that committed data is in place");
    if (!(bits & 2)) job->abandoned = true;
    job->report.restore_ms = wait_now_ms() - start;
    job->inside = false;
    if (code != MPI_SUCCESS) return code;
    if (!(bits & 4) && (bits & 2))
        return explain(job, MPI_ERR_OTHER,
                       "another rank could not put its data in place: see its message");
    if (!(bits & 1)) return FT_ERR_REVOKED;
    return failure;
}

int eyrie_ulfm_repair(eyrie_ulfm_job *job) {
    if (job->state != RUNNING || job->ended) return MPI_SUCCESS;
    job->inside = true;
    int code = repair_run(job);
    /* all other ranks have finished, so this one has too */
    if (code == MPI_SUCCESS && job->last.outcome == FINISHED) job->ended = true;
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
