/* Which rank keeps which data: partners on other nodes, groups, the stripes of a group. */
#include "unit.h"

enum { MOST = 12 };

/* A job of `processes` processes on hosts of `on_host` processes each. */
static eyrie_ulfm_job job_on_hosts(int processes, int on_host, const char *copies) {
    static struct member members[MOST];
    eyrie_ulfm_job job = {.processes = processes, .member = members};
    for (int p = 0; p < processes; p++)
        snprintf(members[p].host, sizeof members[p].host, "host%d", p / on_host);
    CHECK(copies_parse(copies, &job.copies) == NULL);
    return job;
}

static struct layout one_rank_each(const eyrie_ulfm_job *job) {
    int process[MOST];
    for (int r = 0; r < job->processes; r++) process[r] = r;
    return layout_make(job, job->processes, process);
}

static void copies_are_parsed_or_refused(void) {
    struct copies copies;
    CHECK(copies_parse("none", &copies) == NULL && copies.scheme == NO_COPIES);
    CHECK(copies_parse("partner", &copies) == NULL && copies.scheme == PARTNER &&
          copies.partners == 1);
    CHECK(copies_parse("partner:8", &copies) == NULL && copies.partners == 8);
    CHECK(copies_parse("xor:4", &copies) == NULL && copies.scheme == GROUP && copies.group == 4 &&
          copies.parity == 1);
    CHECK(copies_parse("rs:32,31", &copies) == NULL && copies.group == 32 && copies.parity == 31);
    CHECK(copies_parse("files:/tmp", &copies) == NULL && copies.scheme == FILES &&
          !strcmp(copies.directory, "/tmp"));
    static const char *const wrong[] = {
        "",       "mirror", "partner:", "partner:0", "partner:9", "partner:2x", "xor:1",
        "xor:33", "rs:4",   "rs:4,4",   "rs:4,0",    "rs:4,2,1",  "files:",     "none "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (copies_parse(wrong[i], &copies) == NULL) printf("    `%s` was taken\n", wrong[i]);
        CHECK(copies_parse(wrong[i], &copies) != NULL);
    }
    char longer[600] = "files:";
    memset(longer + 6, 'd', sizeof longer - 7);
    CHECK(copies_parse(longer, &copies) != NULL);
}

static void partners_are_on_other_hosts_and_each_keeps_for_one(void) {
    for (int on_host = 1; on_host <= 4; on_host++) {
        eyrie_ulfm_job job = job_on_hosts(12, on_host, "partner:2");
        struct layout layout = one_rank_each(&job);
        for (int copy = 1; copy <= 2; copy++) {
            bool keeps[MOST] = {false};
            for (int r = 0; r < 12; r++) {
                int keeper = layout_keeper(&layout, r, copy);
                CHECK(!keeps[keeper]);
                keeps[keeper] = true;
                CHECK_EQUAL(layout_kept(&layout, keeper, copy), r);
                CHECK(r / on_host != keeper / on_host);
            }
        }
        for (int r = 0; r < 12; r++)
            CHECK(layout_keeper(&layout, r, 1) != layout_keeper(&layout, r, 2));
        layout_free(&layout);
    }
}

static void on_one_host_a_partner_is_at_least_another_rank(void) {
    eyrie_ulfm_job job = job_on_hosts(5, 5, "partner:3");
    struct layout layout = one_rank_each(&job);
    for (int r = 0; r < 5; r++)
        for (int copy = 1; copy <= 3; copy++) CHECK(layout_keeper(&layout, r, copy) != r);
    layout_free(&layout);
}

static void a_copied_layout_is_its_own(void) {
    eyrie_ulfm_job job = job_on_hosts(4, 2, "partner");
    struct layout layout = one_rank_each(&job), copy = layout_copy(&layout);
    int keeper = layout_keeper(&layout, 3, 1);
    layout_free(&layout);
    CHECK(layout.process == NULL && layout.ranks == 0);
    CHECK_EQUAL(layout_keeper(&copy, 3, 1), keeper);
    layout_free(&copy);
}

static struct catalog catalog_of(struct entry *entry, int64_t bytes) {
    *entry = (struct entry){.name = "field", .bytes = bytes, .element = 1};
    return (struct catalog){1, entry};
}

static void groups_take_every_rank_once_and_no_host_twice(void) {
    eyrie_ulfm_job job = job_on_hosts(12, 3, "rs:4,2");
    struct layout layout = one_rank_each(&job);
    struct catalog catalogs[MOST];
    struct entry entries[MOST];
    for (int r = 0; r < 12; r++) catalogs[r] = catalog_of(&entries[r], BLOCK_BYTES);
    CHECK_EQUAL(layout.groups, 3);
    int seen[MOST] = {0};
    for (int r = 0; r < 12; r++) {
        struct group group = group_of(&job, &layout, r, catalogs);
        CHECK_EQUAL(group.size, 4);
        CHECK_EQUAL(group.data, 2);
        CHECK_EQUAL(group.member[group_index(&group, r)], r);
        for (int i = 0; i < group.size; i++) {
            seen[group.member[i]]++;
            for (int k = 0; k < i; k++) CHECK(group.member[i] / 3 != group.member[k] / 3);
        }
        CHECK_EQUAL(group_index(&group, 99), -1);
    }
    for (int r = 0; r < 12; r++) CHECK_EQUAL(seen[r], 4); /* once by each member of its group */
    layout_free(&layout);
}

/* In each stripe `parity` members hold parity; every block of every member lies in exactly one
 * stripe and row. */
static void each_block_is_in_one_row_of_one_stripe(void) {
    eyrie_ulfm_job job = job_on_hosts(5, 1, "rs:5,2");
    struct layout layout = one_rank_each(&job);
    struct catalog catalogs[MOST];
    struct entry entries[MOST];
    for (int r = 0; r < 5; r++)
        catalogs[r] = catalog_of(&entries[r], (int64_t)(r + 3) * BLOCK_BYTES - 100);
    struct group group = group_of(&job, &layout, 0, catalogs);
    for (int stripe = 0; stripe < group.size; stripe++) {
        bool shard[MOST] = {false};
        int holders = 0;
        for (int i = 0; i < group.size; i++) {
            if (!group_has_data(&group, stripe, i)) continue;
            int at = group_shard(&group, stripe, i);
            CHECK(at >= 0 && at < group.data && !shard[at]);
            shard[at] = true;
            holders++;
        }
        CHECK_EQUAL(holders, group.data);
    }
    for (int i = 0; i < group.size; i++) {
        int blocks = catalog_blocks(group.catalog[i]), in_rows[64] = {0};
        for (int stripe = 0; stripe < group.size; stripe++)
            for (int row = 0; row < group.column && group_has_data(&group, stripe, i); row++)
                in_rows[group_block(&group, stripe, i, row)]++;
        for (int b = 0; b < blocks; b++) CHECK_EQUAL(in_rows[b], 1);
    }
    layout_free(&layout);
}

static void a_row_is_as_long_as_its_longest_block_rounded_up(void) {
    eyrie_ulfm_job job = job_on_hosts(3, 1, "xor:3");
    struct layout layout = one_rank_each(&job);
    struct entry entries[3];
    struct catalog catalogs[3] = {catalog_of(&entries[0], 1), catalog_of(&entries[1], 65),
                                  catalog_of(&entries[2], 0)};
    struct group group = group_of(&job, &layout, 0, catalogs);
    CHECK_EQUAL(group.column, 1);
    for (int stripe = 0; stripe < 3; stripe++) {
        uint32_t expected = 0;
        for (int i = 0; i < 3; i++) {
            if (!group_has_data(&group, stripe, i) || group_block(&group, stripe, i, 0) > 0)
                continue;
            uint32_t len = catalog_block_len(group.catalog[i], 0);
            if (len > expected) expected = len;
        }
        CHECK_EQUAL(group_row_len(&group, stripe, 0), (expected + 63) / 64 * 64);
    }
    layout_free(&layout);
}

static void a_squeezed_job_keeps_at_least_one_rank_of_data(void) {
    eyrie_ulfm_job job = job_on_hosts(2, 1, "rs:4,3");
    struct layout layout = one_rank_each(&job);
    struct entry entries[2];
    struct catalog catalogs[2] = {catalog_of(&entries[0], 10), catalog_of(&entries[1], 10)};
    struct group group = group_of(&job, &layout, 1, catalogs);
    CHECK_EQUAL(group.size, 2);
    CHECK_EQUAL(group.parity, 1);
    CHECK_EQUAL(group.data, 1);
    layout_free(&layout);
}

int main(void) {
    static const struct test tests[] = {
        TEST(copies_are_parsed_or_refused),
        TEST(partners_are_on_other_hosts_and_each_keeps_for_one),
        TEST(on_one_host_a_partner_is_at_least_another_rank),
        TEST(a_copied_layout_is_its_own),
        TEST(groups_take_every_rank_once_and_no_host_twice),
        TEST(each_block_is_in_one_row_of_one_stripe),
        TEST(a_row_is_as_long_as_its_longest_block_rounded_up),
        TEST(a_squeezed_job_keeps_at_least_one_rank_of_data),
    };
    return RUN(tests);
}
