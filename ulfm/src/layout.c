/* Which rank keeps which data for which other: partners and groups, on other nodes where there are
 * any. A pure function of the processes' ranks, so that all processes know it without
 * communication. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

const char *copies_parse(const char *text, struct copies *copies) {
    static const char *const forms =
        "write partner, partner:2, xor:RANKS, rs:RANKS,FAILURES, files:DIRECTORY or none";
    char end;
    memset(copies, 0, sizeof *copies);
    if (!strcmp(text, "none")) {
        copies->scheme = NO_COPIES;
    } else if (!strcmp(text, "partner")) {
        copies->scheme = PARTNER;
        copies->partners = 1;
    } else if (sscanf(text, "partner:%d%c", &copies->partners, &end) == 1) {
        copies->scheme = PARTNER;
        if (copies->partners < 1 || copies->partners > 8) return "1 to 8 partners";
    } else if (sscanf(text, "xor:%d%c", &copies->group, &end) == 1) {
        copies->scheme = GROUP;
        copies->parity = 1;
    } else if (sscanf(text, "rs:%d,%d%c", &copies->group, &copies->parity, &end) == 2) {
        copies->scheme = GROUP;
    } else if (!strncmp(text, "files:", 6) && text[6] &&
               strlen(text + 6) < sizeof copies->directory) {
        copies->scheme = FILES;
        strcpy(copies->directory, text + 6);
    } else {
        return forms;
    }
    if (copies->scheme == GROUP &&
        (copies->parity < 1 || copies->group <= copies->parity || copies->group > 32))
        return "a group has more ranks than may fail, and at most 32";
    return NULL;
}

/* Whether two processes fail together: they are on one node of the network, if one was described,
 * else on one host. */
static bool same_node(const eyrie_ulfm_job *job, int a, int b) {
    if (job->network) return job->member[a].node == job->member[b].node;
    return !strcmp(job->member[a].host, job->member[b].host);
}

struct layout layout_make(const eyrie_ulfm_job *job, int ranks, const int *process) {
    struct layout layout = {.ranks = ranks};
    size_t bytes = (size_t)ranks * sizeof(int);
    layout.process = must_copy(process, bytes);
    layout.order = must_alloc(bytes);
    layout.place = must_alloc(bytes);
    /* node: first rank on it; nth: rank's position on its node */
    int *node = must_alloc(bytes), *nth = must_alloc(bytes);
    int fullest = 1;
    for (int r = 0; r < ranks; r++) {
        node[r] = r;
        nth[r] = 0;
        for (int q = 0; q < r; q++) {
            if (!same_node(job, process[q], process[r])) continue;
            if (node[r] == r) node[r] = node[q];
            nth[r]++;
        }
        if (nth[r] + 1 > fullest) fullest = nth[r] + 1;
    }
    bool apart = job->copies.scheme == GROUP;
    int filled = 0;
    for (int outer = 0; outer < (apart ? fullest : ranks); outer++)
        for (int r = 0; r < ranks; r++)
            if ((apart ? nth[r] : node[r]) == outer) layout.order[filled++] = r;
    for (int i = 0; i < ranks; i++) layout.place[layout.order[i]] = i;
    layout.shift = fullest;
    for (int copy = 1; copy <= job->copies.partners; copy++)
        /* all ranks on one node, or nearly: a copy there is better than none */
        if (copy * layout.shift % ranks == 0) layout.shift = 1;
    layout.groups = job->copies.group && ranks > job->copies.group ? ranks / job->copies.group : 1;
    free(node);
    free(nth);
    return layout;
}

struct layout layout_copy(const struct layout *layout) {
    struct layout copy = *layout;
    size_t bytes = (size_t)layout->ranks * sizeof(int);
    copy.process = must_copy(layout->process, bytes);
    copy.order = must_copy(layout->order, bytes);
    copy.place = must_copy(layout->place, bytes);
    return copy;
}

void layout_free(struct layout *layout) {
    free(layout->process);
    free(layout->order);
    free(layout->place);
    *layout = (struct layout){0};
}

static int along(const struct layout *layout, int rank, int steps) {
    int n = layout->ranks;
    return layout->order[((layout->place[rank] + steps) % n + n) % n];
}

int layout_keeper(const struct layout *layout, int rank, int copy) {
    return along(layout, rank, copy * layout->shift);
}

int layout_kept(const struct layout *layout, int rank, int copy) {
    return along(layout, rank, -copy * layout->shift);
}

struct group group_of(const eyrie_ulfm_job *job, const struct layout *layout, int rank,
                      const struct catalog *catalogs) {
    struct group group = {.parity = job->copies.parity};
    int n = layout->ranks, most = 0;
    for (int k = 0; k < layout->groups; k++) {
        int from = (int)((int64_t)k * n / layout->groups),
            to = (int)((int64_t)(k + 1) * n / layout->groups);
        if (layout->place[rank] < from || layout->place[rank] >= to) continue;
        group.number = k;
        for (int i = from; i < to; i++) {
            int blocks = catalog_blocks(&catalogs[layout->order[i]]);
            if (blocks > most) most = blocks;
            group.catalog[group.size] = &catalogs[layout->order[i]];
            group.member[group.size++] = layout->order[i];
        }
    }
    /* A squeezed job may have fewer ranks than a group needs. Then each member keeps parity for all
     * others. */
    if (group.parity >= group.size) group.parity = group.size - 1;
    group.data = group.size - group.parity;
    group.column = (most + group.data - 1) / group.data;
    return group;
}

int group_index(const struct group *group, int rank) {
    for (int i = 0; i < group->size; i++)
        if (group->member[i] == rank) return i;
    return -1;
}

int group_shard(const struct group *group, int stripe, int index) {
    return (index - stripe + group->size) % group->size - group->parity;
}

bool group_has_data(const struct group *group, int stripe, int index) {
    return group_shard(group, stripe, index) >= 0;
}

int group_block(const struct group *group, int stripe, int index, int row) {
    int chunk = 0;
    for (int s = 0; s < stripe; s++) chunk += group_has_data(group, s, index);
    return chunk * group->column + row;
}

uint32_t group_row_len(const struct group *group, int stripe, int row) {
    uint32_t most = 0;
    for (int i = 0; i < group->size; i++) {
        if (!group_has_data(group, stripe, i)) continue;
        uint32_t len = catalog_block_len(group->catalog[i], group_block(group, stripe, i, row));
        if (len > most) most = len;
    }
    return (most + 63) / 64 * 64; /* the unit of the parity code */
}
