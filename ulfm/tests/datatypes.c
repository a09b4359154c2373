/* Data whose datatypes have gaps, negative bounds or overlapping extents: registered, committed,
 * put in place and fetched (packed). What lies in the gaps must never be touched, and every commit
 * is read back from a neighbour and compared. The file that is written depends neither on the
 * number of ranks nor on failures. datatypes --steps 60 --every 10 --out FILE */
#include <stddef.h>

#include "../examples/grid.h"

enum { RECORDS = 200000, COLUMNS = 600, ROWS = 50, PLANE = 40, GAP = 0x5a };

/* A record with a gap in the middle and one at the end. */
struct record {
    double value;
    char gap[12];
    int count;
    char tail[8];
};

/* This rank's part of the records and columns; the plane and the strip are the same at all ranks.
 * */
struct world {
    int rank, ranks, step;
    int record_first, records, column_first, columns, pitch;
    struct record *record; /* MPI_Type_create_struct, resized */
    /* rows of `pitch`; an element is a column: MPI_Type_vector whose extent is one double */
    double *matrix;
    /* its inside: MPI_Type_vector, one element, registered at its first point */
    double plane[PLANE][PLANE];
    /* its inside: MPI_Type_create_subarray, registered at the array's beginning */
    double cube[PLANE][PLANE];
    double strip[3 * PLANE]; /* every third, backwards from the end: a negative stride */
};

static MPI_Datatype record_type, plane_type, cube_type, strip_type;

static MPI_Datatype column_type(int pitch) {
    MPI_Datatype plain, resized;
    MPI_Type_vector(ROWS, 1, pitch, MPI_DOUBLE, &plain);
    MPI_Type_create_resized(plain, 0, sizeof(double), &resized);
    MPI_Type_commit(&resized);
    MPI_Type_free(&plain);
    return resized;
}

static void make_types(void) {
    int lengths[] = {1, 1}, sizes[] = {PLANE, PLANE}, inside[] = {PLANE - 2, PLANE - 2},
        first[] = {1, 1};
    MPI_Aint at[] = {offsetof(struct record, value), offsetof(struct record, count)};
    MPI_Datatype parts[] = {MPI_DOUBLE, MPI_INT}, plain;
    MPI_Type_create_struct(2, lengths, at, parts, &plain);
    MPI_Type_create_resized(plain, 0, sizeof(struct record), &record_type);
    MPI_Type_free(&plain);
    MPI_Type_vector(PLANE - 2, PLANE - 2, PLANE, MPI_DOUBLE, &plane_type);
    MPI_Type_create_subarray(2, sizes, inside, first, MPI_ORDER_C, MPI_DOUBLE, &cube_type);
    MPI_Type_vector(PLANE, 1, -3, MPI_DOUBLE, &strip_type);
    MPI_Datatype *all[] = {&record_type, &plane_type, &cube_type, &strip_type};
    for (int i = 0; i < 4; i++) MPI_Type_commit(all[i]);
}

static void fail(const char *what) {
    fprintf(stderr, "datatypes: %s\n", what);
    leave_at_once(7);
}

/* Allocates this rank's part and fills it with GAP. */
static void make_room(struct world *w, MPI_Comm comm) {
    MPI_Comm_rank(comm, &w->rank);
    MPI_Comm_size(comm, &w->ranks);
    block_share(RECORDS, w->ranks, w->rank, &w->record_first, &w->records);
    block_share(COLUMNS, w->ranks, w->rank, &w->column_first, &w->columns);
    w->pitch = w->columns + 3;
    free(w->record);
    free(w->matrix);
    w->record = malloc((size_t)w->records * sizeof *w->record);
    w->matrix = malloc((size_t)(ROWS * w->pitch) * sizeof *w->matrix);
    memset(w->record, GAP, (size_t)w->records * sizeof *w->record);
    memset(w->matrix, GAP, (size_t)(ROWS * w->pitch) * sizeof *w->matrix);
    memset(w->plane, GAP, sizeof w->plane);
    memset(w->cube, GAP, sizeof w->cube);
    memset(w->strip, GAP, sizeof w->strip);
}

static void fill(struct world *w) {
    w->step = 0;
    for (int i = 0; i < w->records; i++) {
        w->record[i].value = (w->record_first + i) * 0.37;
        w->record[i].count = w->record_first + i;
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < w->columns; c++)
            w->matrix[r * w->pitch + c] = r * 1000.0 + w->column_first + c;
    for (int i = 1; i < PLANE - 1; i++)
        for (int j = 1; j < PLANE - 1; j++) {
            w->plane[i][j] = i * 3.5 + j;
            w->cube[i][j] = i - j * 0.25;
        }
    for (int i = 0; i < PLANE; i++) w->strip[3 * i] = i;
}

static int is_gap(const void *bytes, size_t len) {
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < len; i++)
        if (byte[i] != GAP) return 0;
    return 1;
}

static void check_gaps(const struct world *w) {
    for (int i = 0; i < w->records; i++)
        if (!is_gap(w->record[i].gap, sizeof w->record[i].gap) ||
            !is_gap(w->record[i].tail, sizeof w->record[i].tail))
            fail("a record's gap was touched");
    for (int r = 0; r < ROWS; r++)
        if (!is_gap(&w->matrix[r * w->pitch + w->columns], 3 * sizeof(double)))
            fail("the matrix's gap was touched");
    for (int i = 0; i < PLANE; i++) {
        if (!is_gap(&w->plane[0][i], 8) || !is_gap(&w->plane[i][0], 8) ||
            !is_gap(&w->plane[PLANE - 1][i], 8) || !is_gap(&w->plane[i][PLANE - 1], 8))
            fail("the plane's border was touched");
        if (!is_gap(&w->cube[0][i], 8) || !is_gap(&w->cube[i][0], 8) ||
            !is_gap(&w->cube[PLANE - 1][i], 8) || !is_gap(&w->cube[i][PLANE - 1], 8))
            fail("the subarray's border was touched");
        if (!is_gap(&w->strip[3 * i + 1], 16)) fail("the strip's gap was touched");
    }
}

/* Changes all data by a sum over all ranks that is exact in any order. */
static int advance(struct world *w, MPI_Comm comm) {
    long long mine = 0, sum;
    for (int i = 0; i < w->records; i++) mine += w->record[i].count;
    for (int c = 0; c < w->columns; c++) mine += (long long)w->matrix[c];
    int code = MPI_Allreduce(&mine, &sum, 1, MPI_LONG_LONG, MPI_SUM, comm);
    if (code != MPI_SUCCESS) return code;
    int turn = (int)(sum % 1009);
    for (int i = 0; i < w->records; i++) {
        w->record[i].value = w->record[i].value * 0.999 + turn;
        w->record[i].count = (w->record[i].count * 3 + turn) % 100003;
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < w->columns; c++) w->matrix[r * w->pitch + c] += turn + r;
    for (int i = 1; i < PLANE - 1; i++)
        for (int j = 1; j < PLANE - 1; j++) {
            w->plane[i][j] = w->plane[i][j] * 0.5 + turn;
            w->cube[i][j] -= turn * 0.125;
        }
    for (int i = 0; i < PLANE; i++) w->strip[3 * i] = w->strip[3 * i] * 0.75 + turn;
    w->step++;
    return MPI_SUCCESS;
}

static int register_all(eyrie_ulfm_job *job, struct world *w) {
    MPI_Datatype column = column_type(w->pitch);
    int code = eyrie_ulfm_register(job, "record", w->record, w->records, record_type);
    if (code == MPI_SUCCESS)
        code = eyrie_ulfm_register(job, "matrix", w->matrix, w->columns, column);
    if (code == MPI_SUCCESS)
        code = eyrie_ulfm_register(job, "plane", &w->plane[1][1], 1, plane_type);
    if (code == MPI_SUCCESS) code = eyrie_ulfm_register(job, "cube", w->cube, 1, cube_type);
    if (code == MPI_SUCCESS)
        code = eyrie_ulfm_register(job, "strip", &w->strip[3 * (PLANE - 1)], 1, strip_type);
    if (code == MPI_SUCCESS) code = eyrie_ulfm_register(job, "step", &w->step, 1, MPI_INT);
    MPI_Type_free(&column); /* the library has its own */
    return code;
}

/* --- fetched elements come packed: those of a record are a double and an int, of a column its rows
 * --- */

enum { RECORD_BYTES = 12 };

static void unpack_records(struct world *w, const unsigned char *packed, int at, int count) {
    for (int i = 0; i < count; i++, packed += RECORD_BYTES) {
        memcpy(&w->record[at + i].value, packed, 8);
        memcpy(&w->record[at + i].count, packed + 8, 4);
    }
}

static void unpack_columns(struct world *w, const double *packed, int at, int count) {
    for (int c = 0; c < count; c++)
        for (int r = 0; r < ROWS; r++) w->matrix[r * w->pitch + at + c] = packed[c * ROWS + r];
}

/* This rank's share of `total` elements named `name`, packed, from the decomposition that was
 * committed. */
static int fetch_share(eyrie_ulfm_job *job, const char *name, int total, int first, int count,
                       size_t element, unsigned char *packed) {
    int ranks = eyrie_ulfm_committed_ranks(job), pieces = 0;
    eyrie_ulfm_piece *piece = calloc((size_t)ranks, sizeof *piece);
    for (int r = 0; r < ranks; r++) {
        int old_first, old_count;
        block_share(total, ranks, r, &old_first, &old_count);
        int low = old_first > first ? old_first : first,
            high = old_first + old_count < first + count ? old_first + old_count : first + count;
        if (low < high)
            piece[pieces++] = (eyrie_ulfm_piece){r, low - old_first, high - low,
                                                 packed + (size_t)(low - first) * element};
    }
    int code = eyrie_ulfm_fetch(job, name, pieces, piece);
    free(piece);
    return code;
}

static int fetch_all(eyrie_ulfm_job *job, struct world *w) {
    unsigned char *records = malloc((size_t)w->records * RECORD_BYTES);
    double *columns = malloc((size_t)(w->columns * ROWS) * sizeof *columns),
           plane[(PLANE - 2) * (PLANE - 2)], strip[PLANE];
    int code =
        fetch_share(job, "record", RECORDS, w->record_first, w->records, RECORD_BYTES, records);
    if (code == MPI_SUCCESS)
        code = fetch_share(job, "matrix", COLUMNS, w->column_first, w->columns,
                           ROWS * sizeof(double), (unsigned char *)columns);
    if (code == MPI_SUCCESS) {
        unpack_records(w, records, 0, w->records);
        unpack_columns(w, columns, 0, w->columns);
    }
    double (*inside[])[PLANE] = {w->plane, w->cube};
    for (int k = 0; k < 2 && code == MPI_SUCCESS; k++) {
        eyrie_ulfm_piece whole = {k, 0, 1, plane};
        code = eyrie_ulfm_fetch(job, k ? "cube" : "plane", 1, &whole);
        for (int i = 0; i < PLANE - 2 && code == MPI_SUCCESS; i++)
            memcpy(&inside[k][i + 1][1], &plane[i * (PLANE - 2)], (PLANE - 2) * sizeof(double));
    }
    eyrie_ulfm_piece pieces[] = {{0, 0, 1, strip}, {1, 0, 1, &w->step}};
    if (code == MPI_SUCCESS) code = eyrie_ulfm_fetch(job, "strip", 1, &pieces[0]);
    for (int i = 0; i < PLANE && code == MPI_SUCCESS; i++) w->strip[3 * (PLANE - 1 - i)] = strip[i];
    if (code == MPI_SUCCESS) code = eyrie_ulfm_fetch(job, "step", 1, &pieces[1]);
    free(records);
    free(columns);
    return code;
}

/* Reads the next rank's committed data back, and compares it with that rank's data as MPI packs
 * it. */
static int compare_with_neighbour(eyrie_ulfm_job *job, struct world *w) {
    MPI_Comm comm = eyrie_ulfm_comm(job);
    int next = (w->rank + 1) % w->ranks, before = (w->rank + w->ranks - 1) % w->ranks, first = 5,
        count = 1000, len = count * RECORD_BYTES, at = 0, pos = 0;
    unsigned char *mine = malloc((size_t)len), *sent = malloc((size_t)len),
                  *fetched = malloc((size_t)len);
    double columns[3 * ROWS], packed[3 * ROWS], theirs[3 * ROWS];
    MPI_Datatype column = column_type(w->pitch);
    MPI_Request request[4];
    MPI_Pack(w->record + first, count, record_type, mine, len, &at, comm);
    MPI_Pack(w->matrix + 7, 3, column, packed, sizeof packed, &pos, comm);
    MPI_Type_free(&column);
    eyrie_ulfm_piece records[] = {{next, first, count - 1, fetched},
                                  {next, first + count - 1, 1, fetched + len - RECORD_BYTES}};
    eyrie_ulfm_piece three = {next, 7, 3, columns};
    MPI_Irecv(sent, len, MPI_BYTE, next, 1, comm, &request[0]);
    MPI_Irecv(theirs, sizeof theirs, MPI_BYTE, next, 2, comm, &request[1]);
    MPI_Isend(mine, len, MPI_BYTE, before, 1, comm, &request[2]);
    MPI_Isend(packed, sizeof packed, MPI_BYTE, before, 2, comm, &request[3]);
    int code = MPI_SUCCESS;
    for (int i = 0; i < 4; i++) {
        int waited = MPI_Wait(&request[i], MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS) code = waited;
    }
    if (code == MPI_SUCCESS) code = eyrie_ulfm_fetch(job, "record", 2, records);
    if (code == MPI_SUCCESS) code = eyrie_ulfm_fetch(job, "matrix", 1, &three);
    if (code == MPI_SUCCESS &&
        (memcmp(sent, fetched, (size_t)len) || memcmp(theirs, columns, sizeof columns)))
        fail("fetched data is not what was committed");
    free(mine);
    free(sent);
    free(fetched);
    return code;
}

static int begin(eyrie_ulfm_job *job, struct world *w) {
    int64_t version;
    int code = eyrie_ulfm_repair(job);
    if (code != MPI_SUCCESS || eyrie_ulfm_comm(job) == MPI_COMM_NULL) return code;
    make_room(w, eyrie_ulfm_comm(job));
    if (register_all(job, w) != MPI_SUCCESS) fail(eyrie_ulfm_explain(job));
    code = eyrie_ulfm_restore(job, &version);
    if (code != MPI_SUCCESS) return code;
    if (version == 0) fill(w);
    if (version > 0 && eyrie_ulfm_squeezed(job)) {
        code = fetch_all(job, w);
        if (code == MPI_SUCCESS) code = eyrie_ulfm_commit(job, NULL);
    }
    check_gaps(w);
    return code;
}

static int write_all(struct world *w, MPI_Comm comm, const char *path) {
    int size = w->records * RECORD_BYTES, at = 0, code = MPI_SUCCESS;
    unsigned char *mine = malloc((size_t)size), *all = malloc((size_t)RECORDS * RECORD_BYTES + 100);
    double *columns = malloc((size_t)(w->columns * ROWS) * sizeof *columns),
           *matrix = malloc((size_t)(COLUMNS * ROWS) * sizeof *matrix);
    int *counts = calloc((size_t)w->ranks, 4 * sizeof *counts);
    MPI_Pack(w->record, w->records, record_type, mine, size, &at, comm);
    for (int c = 0; c < w->columns; c++)
        for (int r = 0; r < ROWS; r++) columns[c * ROWS + r] = w->matrix[r * w->pitch + c];
    for (int r = 0; r < w->ranks; r++) {
        int first, count;
        block_share(RECORDS, w->ranks, r, &first, &count);
        counts[r] = count * RECORD_BYTES;
        counts[w->ranks + r] = first * RECORD_BYTES;
        block_share(COLUMNS, w->ranks, r, &first, &count);
        counts[2 * w->ranks + r] = count * ROWS;
        counts[3 * w->ranks + r] = first * ROWS;
    }
    code = MPI_Gatherv(mine, size, MPI_BYTE, all, counts, counts + w->ranks, MPI_BYTE, 0, comm);
    if (code == MPI_SUCCESS)
        code = MPI_Gatherv(columns, w->columns * ROWS, MPI_DOUBLE, matrix, counts + 2 * w->ranks,
                           counts + 3 * w->ranks, MPI_DOUBLE, 0, comm);
    FILE *file = code == MPI_SUCCESS && w->rank == 0 ? fopen(path, "wb") : NULL;
    if (file) {
        fwrite(all, RECORD_BYTES, RECORDS, file);
        fwrite(matrix, sizeof(double), COLUMNS * ROWS, file);
        fwrite(w->plane, sizeof w->plane, 1, file);
        fwrite(w->cube, sizeof w->cube, 1, file);
        fwrite(w->strip, sizeof w->strip, 1, file);
        fclose(file);
    }
    free(mine);
    free(all);
    free(columns);
    free(matrix);
    free(counts);
    return code;
}

static int run(eyrie_ulfm_job *job, struct world *w, int steps, int every, const char *out) {
    while (w->step < steps) {
        int code = MPI_SUCCESS;
        if (w->step % every == 0) {
            code = eyrie_ulfm_commit(job, NULL);
            if (code == MPI_SUCCESS) code = compare_with_neighbour(job, w);
        }
        if (code == MPI_SUCCESS) code = advance(w, eyrie_ulfm_comm(job));
        if (code != MPI_SUCCESS) return code;
    }
    check_gaps(w);
    int code = write_all(w, eyrie_ulfm_comm(job), out);
    return code == MPI_SUCCESS ? eyrie_ulfm_finish(job) : code;
}

int main(int argc, char **argv) {
    static struct world w;
    eyrie_ulfm_job *job;
    MPI_Init(&argc, &argv);
    make_types();
    int steps = (int)option(argc, argv, "--steps", 60),
        every = (int)option(argc, argv, "--every", 10);
    int code = eyrie_ulfm_init(MPI_COMM_WORLD, NULL, &job);
    if (code != MPI_SUCCESS) leave_at_once(1);
    while (eyrie_ulfm_comm(job) != MPI_COMM_NULL) {
        code = begin(job, &w);
        if (code == MPI_SUCCESS && eyrie_ulfm_comm(job) != MPI_COMM_NULL)
            code = run(job, &w, steps, every, option_text(argc, argv, "--out", "out"));
        if (code != MPI_SUCCESS && !eyrie_ulfm_is_failure(code)) {
            fprintf(stderr, "datatypes: error %d: %s\n", code, eyrie_ulfm_explain(job));
            leave_at_once(3);
        }
    }
    eyrie_ulfm_free(&job);
    MPI_Finalize();
    return 0;
}
