/* What the unit tests share: a check that says where it failed, and the list of a program's tests.
 * Each test has a line "ok NAME" or "not ok NAME". These programs call the library's own functions
 * and never start MPI. */
#ifndef EYRIE_ULFM_UNIT_H
#define EYRIE_ULFM_UNIT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/job.h"

static int checks_failed; /* in the test that runs */

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("    %s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                   \
            checks_failed++;                                                                       \
        }                                                                                          \
    } while (0)

#define CHECK_EQUAL(is, expected)                                                                  \
    do {                                                                                           \
        long long is_ = (long long)(is), expected_ = (long long)(expected);                        \
        if (is_ != expected_) {                                                                    \
            printf("    %s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #is, is_, expected_);  \
            checks_failed++;                                                                       \
        }                                                                                          \
    } while (0)

struct test {
    const char *name;
    void (*run)(void);
};

static inline int run_tests(const struct test *tests, size_t count) {
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        checks_failed = 0;
        tests[i].run();
        printf("%s %s\n", checks_failed ? "not ok" : "ok", tests[i].name);
        failed += checks_failed > 0;
    }
    return failed > 0;
}

#define TEST(name) {#name, name}
#define RUN(tests) run_tests(tests, sizeof(tests) / sizeof *(tests))

#endif
