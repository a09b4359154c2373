/* What is decided after failures, from what each process sends: which process takes a rank, where
 * its data comes from, and what is lost. */
#include "unit.h"

enum { RANKS = 4, SPARES = 2, PROCESSES = RANKS + SPARES };

/* One process of a job that has committed version 1, with one process on each host. */
static eyrie_ulfm_job process_of_job(int me, const char *copies, const char *no_spare) {
    eyrie_ulfm_settings settings;
    eyrie_ulfm_settings_init(&settings);
    settings.copies = copies;
    settings.no_spare = no_spare;
    settings.spares = "2";
    eyrie_ulfm_job job = {.me = me, .processes = PROCESSES, .base_size = PROCESSES, .version = 1};
    settings_read(&job, &settings);
    CHECK_EQUAL(settings_check(&job), MPI_SUCCESS);
    job.member = must_alloc(PROCESSES * sizeof *job.member);
    job.base_process = must_alloc(PROCESSES * sizeof *job.base_process);
    job.dead = must_alloc(PROCESSES);
    for (int p = 0; p < PROCESSES; p++) {
        job.base_process[p] = p;
        job.member[p] = (struct member){.node = -1, .pid = 100 + p};
        snprintf(job.member[p].host, sizeof job.member[p].host, "host%d", p);
    }
    CHECK_EQUAL(members_make_planner(&job), MPI_SUCCESS);
    CHECK_EQUAL(members_assign_ranks(&job), MPI_SUCCESS);
    job.held = layout_copy(&job.now);
    job.catalogs = must_alloc(RANKS * sizeof *job.catalogs);
    for (int r = 0; r < RANKS; r++) {
        struct entry entry = {.name = "field", .bytes = 1000 + r, .element = 1};
        job.catalogs[r] = catalog_copy(&(struct catalog){1, &entry});
    }
    return job;
}

static void give_image(eyrie_ulfm_job *job, enum kind kind, int rank) {
    image_keep(job, image_new(kind, rank, 1, 0));
}

/* Gives each rank its own data and its partners' copies. */
static void give_partner_images(eyrie_ulfm_job *job) {
    if (job->rank < 0) return;
    give_image(job, OWN, job->rank);
    for (int k = 1; k <= job->copies.partners; k++)
        give_image(job, COPY, layout_kept(&job->held, job->rank, k));
}

/* Gives each rank its own data alone. */
static void give_own_images(eyrie_ulfm_job *job) {
    if (job->rank >= 0) give_image(job, OWN, job->rank);
}

static void end_job(eyrie_ulfm_job *job) {
    job->work = job->base = job->roll = MPI_COMM_NULL;
    job->handler = MPI_ERRHANDLER_NULL;
    eyrie_ulfm_job *own = must_copy(job, sizeof *job);
    eyrie_ulfm_free(&own);
}

/* The decision of the lowest living process when these have died. `jobs` gets each process's
 * part. */
static struct plan decide(eyrie_ulfm_job *jobs, const char *copies, const char *no_spare,
                          const bool *died, void (*give_images)(eyrie_ulfm_job *)) {
    int alive[PROCESSES], count = 0;
    struct buffer info[PROCESSES] = {0}, decision = {0};
    for (int p = 0; p < PROCESSES; p++) {
        jobs[p] = process_of_job(p, copies, no_spare);
        give_images(&jobs[p]);
        if (died[p]) continue;
        plan_write_state(&jobs[p], &info[count]);
        alive[count++] = p;
    }
    plan_decide(&jobs[alive[0]], count, alive, info, &decision);
    struct plan plan;
    CHECK(plan_read(&jobs[alive[0]], &decision, &plan));
    CHECK_EQUAL(decision.at, decision.len);
    for (int i = 0; i < count; i++) free(info[i].data);
    free(decision.data);
    return plan;
}

static void end(eyrie_ulfm_job *jobs, struct plan *plan) {
    plan_free(plan);
    for (int p = 0; p < PROCESSES; p++) end_job(&jobs[p]);
}

static void a_spare_takes_the_rank_and_its_partner_sends(void) {
    eyrie_ulfm_job jobs[PROCESSES];
    for (int rank = 0; rank < RANKS; rank++) {
        bool died[PROCESSES] = {false};
        died[rank] = true;
        struct plan plan = decide(jobs, "partner", "end", died, give_partner_images);
        CHECK_EQUAL(plan.outcome, GO_ON);
        CHECK_EQUAL(plan.failures, 1);
        CHECK(plan.failed[0].process == rank && plan.failed[0].rank == rank);
        CHECK(plan.ranks == RANKS && plan.data_ranks == RANKS && !plan.squeezed &&
              !plan.protect_anew);
        CHECK(jobs[plan.process[rank]].rank < 0);
        for (int r = 0; r < RANKS; r++) {
            const struct rescue *rescue = &plan.rescue[r];
            CHECK_EQUAL(rescue->action, r == rank ? SENDS : STAYS);
            CHECK_EQUAL(rescue->to, plan.process[r]);
            if (r != rank) continue;
            CHECK_EQUAL(rescue->from_kind, COPY);
            CHECK_EQUAL(rescue->from, layout_keeper(&jobs[0].held, r, 1));
        }
        end(jobs, &plan);
    }
}

static void what_died_with_its_partner_is_lost_by_name(void) {
    eyrie_ulfm_job jobs[PROCESSES];
    bool died[PROCESSES] = {false};
    struct plan none_left = decide(jobs, "partner", "end", died, give_partner_images);
    int keeper = layout_keeper(&jobs[0].held, 1, 1);
    end(jobs, &none_left);
    died[1] = died[keeper] = true;
    struct plan plan = decide(jobs, "partner", "end", died, give_partner_images);
    CHECK_EQUAL(plan.rescue[1].action, LOST);
    CHECK(
        strstr(
            plan.note,
            "lost: rank 1's data of version 1 (field, 1001 bytes) of process 1, copy at process") !=
        NULL);
    end(jobs, &plan);
}

static void nobody_failed_and_everybody_stays(void) {
    eyrie_ulfm_job jobs[PROCESSES];
    bool died[PROCESSES] = {false};
    struct plan plan = decide(jobs, "partner", "end", died, give_partner_images);
    CHECK_EQUAL(plan.outcome, GO_ON);
    CHECK(plan.failures == 0 && plan.moves == 0 && !plan.protect_anew);
    for (int r = 0; r < RANKS; r++) CHECK(plan.process[r] == r && plan.rescue[r].action == STAYS);
    end(jobs, &plan);
}

static void a_copy_that_should_be_there_is_made_anew(void) {
    eyrie_ulfm_job jobs[PROCESSES];
    bool died[PROCESSES] = {false};
    struct plan plan = decide(jobs, "partner", "end", died, give_own_images);
    CHECK(plan.protect_anew);
    end(jobs, &plan);
}

/* Squeezing needs MPI (MPI_Dims_create): tests/ulfm/023-one-more-than-spares tests it. */
static void without_spares_the_job_ends(void) {
    eyrie_ulfm_job jobs[PROCESSES];
    bool died[PROCESSES] = {[1] = true, [4] = true, [5] = true};
    struct plan plan = decide(jobs, "none", "end", died, give_own_images);
    CHECK_EQUAL(plan.outcome, NO_WAY);
    CHECK(strstr(plan.note, "1 rank failed and 0 spares are left") != NULL);
    end(jobs, &plan);
}

static void without_copies_a_failed_rank_is_lost(void) {
    eyrie_ulfm_job jobs[PROCESSES];
    bool died[PROCESSES] = {[1] = true};
    struct plan plan = decide(jobs, "none", "end", died, give_own_images);
    CHECK_EQUAL(plan.outcome, GO_ON);
    CHECK_EQUAL(plan.rescue[1].action, LOST);
    CHECK(strstr(plan.note, "no copies were asked for") != NULL);
    end(jobs, &plan);
}

static void spares_alone_cannot_go_on(void) {
    eyrie_ulfm_job jobs[PROCESSES];
    bool died[PROCESSES] = {true, true, true, true};
    struct plan plan = decide(jobs, "partner", "squeeze", died, give_partner_images);
    CHECK_EQUAL(plan.outcome, NO_WAY);
    CHECK(strstr(plan.note, "all ranks failed at once") != NULL);
    end(jobs, &plan);
}

static void a_decision_that_is_cut_off_is_refused(void) {
    eyrie_ulfm_job job = process_of_job(0, "partner", "end");
    give_partner_images(&job);
    struct buffer info = {0}, decision = {0};
    int alive[] = {0};
    plan_write_state(&job, &info);
    plan_decide(&job, 1, alive, &info, &decision);
    size_t whole = decision.len;
    for (size_t len = 0; len < whole; len += 7) {
        struct buffer part = {.data = decision.data, .len = len};
        struct plan plan;
        CHECK(!plan_read(&job, &part, &plan));
        plan_free(&plan);
    }
    free(info.data);
    free(decision.data);
    end_job(&job);
}

static void buffers_give_back_what_was_put(void) {
    struct buffer buffer = {0};
    char text[700];
    memset(text, 'x', sizeof text);
    put_int(&buffer, INT64_MIN);
    put_bytes(&buffer, text, sizeof text);
    put_bytes(&buffer, NULL, 0);
    put_int(&buffer, -1);
    CHECK_EQUAL(get_int(&buffer), INT64_MIN);
    char got[sizeof text];
    CHECK(get_bytes(&buffer, got, sizeof got) && !memcmp(got, text, sizeof text));
    CHECK_EQUAL(get_int(&buffer), -1);
    CHECK(!get_bytes(&buffer, got, 1) && got[0] == 0); /* beyond the end */
    free(buffer.data);
}

static void wrong_settings_are_named(void) {
    static const struct {
        const char *copies, *no_spare, *method, *words;
        double wait_s;
        int64_t message_bytes;
    } wrong[] = {
        {"mirror", NULL, NULL, "copies `mirror`: write partner", 1, 0},
        {NULL, "stop", NULL, "no_spare `stop`: write end or squeeze", 1, 0},
        {NULL, NULL, "best", "best", 1, 0},
        {NULL, NULL, NULL, "wait_s 0", 0, 0},
        {NULL, NULL, NULL, "message_bytes -1", 1, -1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        eyrie_ulfm_settings settings;
        eyrie_ulfm_settings_init(&settings);
        settings.copies = wrong[i].copies;
        settings.no_spare = wrong[i].no_spare;
        settings.method = wrong[i].method;
        settings.wait_s = wrong[i].wait_s;
        settings.message_bytes = wrong[i].message_bytes;
        eyrie_ulfm_job job = {0};
        settings_read(&job, &settings);
        CHECK_EQUAL(settings_check(&job), MPI_ERR_ARG);
        CHECK(strstr(eyrie_ulfm_explain(&job), wrong[i].words) != NULL);
        end_job(&job);
    }
}

int main(void) {
    static const struct test tests[] = {
        TEST(a_spare_takes_the_rank_and_its_partner_sends),
        TEST(what_died_with_its_partner_is_lost_by_name),
        TEST(nobody_failed_and_everybody_stays),
        TEST(a_copy_that_should_be_there_is_made_anew),
        TEST(without_spares_the_job_ends),
        TEST(without_copies_a_failed_rank_is_lost),
        TEST(spares_alone_cannot_go_on),
        TEST(a_decision_that_is_cut_off_is_refused),
        TEST(buffers_give_back_what_was_put),
        TEST(wrong_settings_are_named),
    };
    return RUN(tests);
}
