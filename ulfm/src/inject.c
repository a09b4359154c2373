/* Failures at chosen places inside the library, for tests:
 * EYRIE_ULFM_INJECT="kill:commit@3#2,stop:repair@0" kills process 3 when it passes the place
 * `commit` the second time. Actions: kill, stop (SIGSTOP), say (only prints the line), damage (one
 * byte of each copy that the process keeps for others). Does nothing without the variable. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

enum { MOST_RULES = 32 };
struct rule {
    char action[8], place[24];
    int process, nth;
};
static struct rule rules[MOST_RULES];
static int rule_count = -1;

static void read_rules(void) {
    const char *text = getenv("EYRIE_ULFM_INJECT");
    rule_count = 0;
    char *copy = text ? strdup(text) : NULL, *rest = copy;
    for (char *word; copy && (word = strsep(&rest, ",")) && *word && rule_count < MOST_RULES;) {
        struct rule *rule = &rules[rule_count];
        rule->nth = 1;
        if (sscanf(word, "%7[^:]:%23[^@]@%d#%d", rule->action, rule->place, &rule->process,
                   &rule->nth) >= 3)
            rule_count++;
        else
            fprintf(stderr, "eyrie-ulfm: EYRIE_ULFM_INJECT: `%s`: write ACTION:PLACE@PROCESS#NTH\n",
                    word);
    }
    free(copy);
}

static void damage(eyrie_ulfm_job *job) {
    for (struct image *image = job->images; image; image = image->next)
        if (image->kind == COPY && image->version == job->version && image->blocks > 0)
            image->block[0]->data[0] ^= 1;
}

void inject(eyrie_ulfm_job *job, const char *place) {
    if (rule_count < 0) read_rules();
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (rule->process != job->me || strcmp(rule->place, place) || --rule->nth != 0) continue;
        fprintf(stderr, "eyrie-ulfm: injected: %s process %d at %s\n", rule->action, job->me,
                place);
        if (!strcmp(rule->action, "kill")) raise(SIGKILL);
        if (!strcmp(rule->action, "stop")) raise(SIGSTOP);
        if (!strcmp(rule->action, "damage")) damage(job);
    }
}
