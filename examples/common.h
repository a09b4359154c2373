/* What every example needs and MPI does not provide: options of the command line, a hash, errors
 * that end the job. It must never read a clock, a random device or the environment: the examples'
 * results depend on their options alone. */
#ifndef EYRIE_EXAMPLES_COMMON_H
#define EYRIE_EXAMPLES_COMMON_H

#include <errno.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One `--name VALUE` of the command line: exactly one of `number`, `real` and `text` is set and
 * holds the default. */
struct option {
    const char *name;
    const char *help;
    long *number;
    double *real;
    const char **text;
};

/* Prints what is wrong to standard error and ends the whole job with exit code 1. */
__attribute__((noreturn, format(printf, 1, 2), unused)) static void die(const char *format, ...) {
    int rank = 0;
    va_list arguments;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "rank %d: ", rank);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* Ends the job when a call of MPI has failed. Calls on files return their errors. */
__attribute__((unused)) static void check_mpi(int error, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    int len = 0;
    if (error == MPI_SUCCESS) return;
    MPI_Error_string(error, text, &len);
    die("%s: %s", what, text);
}

static void print_usage(const char *program, const char *summary, const struct option *options) {
    printf("%s\n\nUsage: %s [OPTIONS]\n\nOptions:\n", summary, program);
    for (const struct option *o = options; o->name; o++) {
        if (o->number)
            printf("  --%-14s %s [default: %ld]\n", o->name, o->help, *o->number);
        else if (o->real)
            printf("  --%-14s %s [default: %g]\n", o->name, o->help, *o->real);
        else
            printf("  --%-14s %s [default: %s]\n", o->name, o->help, *o->text ? *o->text : "none");
    }
}

/* Stores `value` where `o` points; returns 0 if it is not a value of that kind. */
static int set_option(const struct option *o, const char *value) {
    char *end = NULL;
    errno = 0;
    if (o->number)
        *o->number = strtol(value, &end, 10);
    else if (o->real)
        *o->real = strtod(value, &end);
    else
        *o->text = value;
    return o->text || (errno == 0 && end != value && *end == '\0');
}

/* Reads `--name VALUE` pairs into `options` (ended by a NULL name), after MPI_Init. `--help` shows
 * the usage and ends the job with 0, anything unknown with 2; only rank 0 prints. */
static void parse_options(int argc, char **argv, const char *summary,
                          const struct option *options) {
    int rank, code = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i < argc && code < 0; i += 2) {
        const struct option *o = options;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            code = 0;
            break;
        }
        while (o->name && !(strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, o->name) == 0))
            o++;
        if (!o->name || i + 1 == argc || !set_option(o, argv[i + 1])) {
            if (rank == 0)
                fprintf(stderr, "%s: %s%s; see %s --help\n", argv[0], argv[i],
                        !o->name        ? ": no such option"
                        : i + 1 == argc ? ": a value is missing"
                                        : ": not a number",
                        argv[0]);
            code = 2;
        }
    }
    if (code >= 0) {
        if (rank == 0 && code == 0) print_usage(argv[0], summary, options);
        MPI_Finalize();
        exit(code);
    }
}

/* FNV-1a, 64 bits, over whole 8-byte words where it can: the examples hash megabytes in their
 * loops. */
#define HASH_START 0xcbf29ce484222325ULL
__attribute__((unused)) static uint64_t hash_bytes(uint64_t hash, const void *data, size_t length) {
    const unsigned char *p = (const unsigned char *)data;
    uint64_t word;
    for (; length >= sizeof word; length -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        hash = (hash ^ word) * 0x100000001b3ULL;
        hash ^= hash >> 29;
    }
    while (length--) hash = (hash ^ *p++) * 0x100000001b3ULL;
    return hash;
}

__attribute__((unused)) static uint64_t hash_word(uint64_t hash, uint64_t word) {
    return hash_bytes(hash, &word, sizeof word);
}

/* splitmix64: the n-th number of the sequence `seed`, without state. */
__attribute__((unused)) static uint64_t random_word(uint64_t seed, uint64_t n) {
    uint64_t z = seed * 0xd1342543de82ef95ULL + (n + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

__attribute__((unused)) static void *allocate(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) die("out of memory: %zu elements of %zu bytes", count, size);
    return p;
}

/* Computes for some time. */
__attribute__((unused)) static void take_time(uint64_t seed, long steps) {
    volatile uint64_t word = seed;
    for (long i = 0; i < steps; i++) word = word * 6364136223846793005ULL + 1;
}

/* Sends a word to the next rank of the ring; returns the word of the rank before. */
__attribute__((unused)) static uint64_t word_from_left(uint64_t word, int me, int ranks) {
    uint64_t in;
    MPI_Sendrecv(&word, 1, MPI_UINT64_T, (me + 1) % ranks, 0, &in, 1, MPI_UINT64_T,
                 (me + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return in;
}

/* Where a block of a range of `total` things split over `parts` begins; begin(parts) is `total`. */
__attribute__((unused)) static long block_begin(long total, long parts, long part) {
    return total * part / parts;
}

/* For qsort() of doubles. */
__attribute__((unused)) static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
