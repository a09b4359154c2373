/* What the files of the library share: a process's part of a job, and the functions of one file
 * that another uses. Programs do not see this file. The prefix of a function is the name of its
 * file. */
#ifndef EYRIE_ULFM_JOB_H
#define EYRIE_ULFM_JOB_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>

#include "eyrie_planner.h"
#include "eyrie_ulfm.h"
#include "mpi_ft.h"

enum { NAME_ROOM = 48, HOST_ROOM = 64, MOST_AXES = 16, BLOCK_BYTES = 1 << 20 };
enum { MUCH_BYTES = 4 << 20 }; /* more than a core's share of the caches: copied past them */

/* --- blocks.c: memory of images, shared between versions --- */

struct block {
    int refs;
    uint32_t len;
    unsigned char *data;
};
struct block *block_new(uint32_t len); /* NULL: no memory */
struct block *block_share(struct block *block);
void block_release(struct block *block);
void block_free_pool(void);

/* --- images.c: what a process keeps --- */

/* Registered data by name, as it was committed. */
struct entry {
    char name[NAME_ROOM];
    int64_t bytes, element;
};
struct catalog {
    int count;
    struct entry *entry;
};
void catalog_free(struct catalog *catalog);
struct catalog catalog_copy(const struct catalog *catalog);
bool catalog_equal(const struct catalog *a, const struct catalog *b);
int catalog_blocks(const struct catalog *catalog); /* how many blocks its data has */
uint32_t catalog_block_len(const struct catalog *catalog, int block);
int64_t catalog_bytes(const struct catalog *catalog);

enum kind {
    OWN,     /* a rank's data, at the process that was the rank */
    COPY,    /* the same at a partner */
    HEADER,  /* the checksums of a rank's data alone, in its group */
    PARITY,  /* a stripe's parity block column, in its group */
    BAD_FILE /* a rank's file was found damaged; has no blocks */
};
struct image {
    struct image *next;
    enum kind kind;
    int rank;          /* of PARITY: the group */
    int stripe, which; /* of PARITY */
    int64_t version;
    int blocks;
    struct block **block; /* of HEADER: NULLs */
    uint64_t *sum;
};
struct image *image_new(enum kind kind, int rank, int64_t version, int blocks);
void image_free(struct image *image);
void image_keep(eyrie_ulfm_job *job, struct image *image); /* replaces one of the same name */
struct image *image_find(const eyrie_ulfm_job *job, enum kind kind, int rank, int64_t version);
struct image *image_find_parity(const eyrie_ulfm_job *job, int group, int stripe, int which,
                                int64_t version);
void image_drop(eyrie_ulfm_job *job, struct image *image);
/* keeps those between, both included */
void image_drop_versions(eyrie_ulfm_job *job, int64_t below, int64_t above);
/* every block has its checksum */
bool image_intact(const struct image *image);

/* --- layout.c: which rank keeps which data --- */

enum scheme { NO_COPIES, PARTNER, GROUP, FILES };
struct copies {
    enum scheme scheme;
    int partners;      /* PARTNER */
    int group, parity; /* GROUP: ranks in a group, how many may fail */
    char directory[512];
};
struct layout {
    int ranks;
    int *process; /* of each rank */
    int *order;   /* ranks, those of a node together (PARTNER) or apart (GROUP) */
    int *place;   /* of each rank in the order */
    /* PARTNER: how far along the order the partner is, on another node where there is one */
    int shift;
    int groups;
};
const char *copies_parse(const char *text, struct copies *copies); /* NULL, or what is wrong */
struct layout layout_make(const eyrie_ulfm_job *job, int ranks, const int *process);
struct layout layout_copy(const struct layout *layout);
void layout_free(struct layout *layout);
/* the rank that keeps copy 1, 2 ... of `rank` */
int layout_keeper(const struct layout *layout, int rank, int copy);
/* the rank whose copy `rank` keeps */
int layout_kept(const struct layout *layout, int rank, int copy);

/* A group as one of its members or a rescuer sees it. Stripe s has its parity at members s, s+1
 * ..., its data at the others. */
struct group {
    int number, size, parity, data; /* data = size - parity */
    int member[64];                 /* ranks */
    int column;                     /* blocks of a member in one stripe */
    const struct catalog *catalog[64];
};
struct group group_of(const eyrie_ulfm_job *job, const struct layout *layout, int rank,
                      const struct catalog *catalogs);
int group_index(const struct group *group, int rank);
bool group_has_data(const struct group *group, int stripe, int index);
/* position among the stripe's data */
int group_shard(const struct group *group, int stripe, int index);
/* number of the member's block; may be beyond its last */
int group_block(const struct group *group, int stripe, int index, int row);
/* 0: no member has a block there */
uint32_t group_row_len(const struct group *group, int stripe, int row);

/* --- wait.c: every wait has a bound and names the processes it waited for --- */

struct waits {
    int count, room, done; /* of which the first `done` are complete */
    double look_at;        /* when all are tested again */
    MPI_Request *request;
    int *process;     /* waited for */
    bool second_hand; /* the one waited for may wait itself, and should report first */
};
MPI_Request *waits_add(struct waits *waits, int process);
int waits_poll(struct waits *waits);
/* Waits for all. On an error revokes `comm` and waits until the rest have ended. Frees the list.
 * */
int waits_all(eyrie_ulfm_job *job, struct waits *waits, MPI_Comm comm, const char *what);
/* Agrees on the bits that all have set; the error says whether a member has failed. On `work` the
 * processes that are late are named. */
int wait_agree(eyrie_ulfm_job *job, MPI_Comm comm, int *bits, const char *what);
/* the blocking call that follows has a bound */
void wait_guard(eyrie_ulfm_job *job, const char *what);
void wait_unguard(eyrie_ulfm_job *job);
int wait_start_guard(eyrie_ulfm_job *job);
void wait_stop_guard(eyrie_ulfm_job *job);
double wait_now_ms(void);
unsigned long long wait_process_start(int pid);
struct pause {
    int polls;
};
void pause_briefly(struct pause *pause);
void wait_describe(const eyrie_ulfm_job *job, int process, char *text, size_t room);

/* --- copies.c: commit, and completing the copies --- */

int copies_protect(eyrie_ulfm_job *job, MPI_Comm comm, const int *index_of,
                   const struct layout *now, const struct catalog *catalogs, int rank,
                   struct image *image, const struct image *old);
void copies_prune(eyrie_ulfm_job *job);
struct segment;
int segment_pack(eyrie_ulfm_job *job, struct segment *segment, unsigned char *bytes, bool pack);

/* --- groups.c --- */

int groups_protect(eyrie_ulfm_job *job, MPI_Comm comm, const int *index_of,
                   const struct layout *now, const struct catalog *catalogs, int rank,
                   struct image *image, const struct image *old, bool full);

/* --- files.c: a rank's data in a directory that all can reach --- */

int files_write(eyrie_ulfm_job *job, int rank, struct image *image, const struct image *old,
                const struct catalog *catalog);
/* NULL: damaged or gone */
struct image *files_read(eyrie_ulfm_job *job, int rank, int64_t version,
                         const struct catalog *catalog);
void files_remove(const eyrie_ulfm_job *job); /* at the end of the job */

/* --- plan.c: what happens after a failure, decided by one process --- */

enum outcome { GO_ON, FINISHED, NO_WAY };
enum action { STAYS, SENDS, DECODES, READS, LOST };
struct rescue {
    enum action action;
    int from; /* process that has the data (OWN or COPY) */
    enum kind from_kind;
    int to;     /* process that gets it; -1: it stays where it is, for eyrie_ulfm_fetch */
    int header; /* DECODES: process that has the checksums */
    /* DECODES: process of each member's image, then of each stripe's parities; -1: lost */
    int *members;
};
struct plan {
    enum outcome outcome;
    int64_t version;
    int data_ranks;
    struct rescue *rescue; /* of each rank of the committed data */
    int ranks;
    int *process; /* of each rank */
    bool squeezed;
    int axes, shape[MOST_AXES];
    bool protect_anew;
    int failures, moves;
    eyrie_ulfm_failed *failed;
    eyrie_ulfm_moved *moved;
    char method[16], note[2048];
    int64_t busiest_before, busiest_after;
    double slowdown;
};
struct buffer {
    unsigned char *data;
    size_t len, room, at;
};
void put_bytes(struct buffer *buffer, const void *bytes, size_t len);
void put_int(struct buffer *buffer, int64_t value);
bool get_bytes(struct buffer *buffer, void *bytes, size_t len);
int64_t get_int(struct buffer *buffer);
void put_catalog(struct buffer *buffer, const struct catalog *catalog);
struct catalog get_catalog(struct buffer *buffer);
/* writes what this process has, for the process that decides */
void plan_write_state(const eyrie_ulfm_job *job, struct buffer *info);
/* `info[i]` is what process `alive[i]` sent. Writes the decision. */
void plan_decide(eyrie_ulfm_job *job, int count, const int *alive, struct buffer *info,
                 struct buffer *decision);
bool plan_read(eyrie_ulfm_job *job, struct buffer *decision, struct plan *plan);
void plan_free(struct plan *plan);

/* --- transfer.c: moves the data of ranks to the processes that take them --- */

int transfer_run(eyrie_ulfm_job *job, MPI_Comm comm, const int *index_of, const struct plan *plan);

/* --- repair.c --- */

int repair_run(eyrie_ulfm_job *job);
int repair_wait_as_spare(eyrie_ulfm_job *job);

/* --- inject.c: failures at chosen places, for tests --- */

void inject(eyrie_ulfm_job *job, const char *place);

/* --- report.c --- */

void report_set(eyrie_ulfm_job *job, struct plan *plan);
void report_say(eyrie_ulfm_job *job);

/* --- the job --- */

struct member {
    char host[HOST_ROOM];
    int pid, node;
    unsigned long long started; /* start time of the process, to recognise it */
};
struct segment {
    struct segment *next;
    char name[NAME_ROOM];
    void *data;
    MPI_Count count;
    MPI_Datatype datatype;
    int64_t bytes, element;
    bool packed; /* the datatype has gaps */
};
enum state { FRESH, RUNNING, REPAIRED };

struct eyrie_ulfm_job {
    /* Settings. */
    char *network, *shape_text, *spares, *traffic, *method, *copies_text, *no_spare;
    struct copies copies;
    double wait_s;
    bool quiet;
    int64_t message_bytes;
    int64_t nonce; /* of the job, so that its files are not mistaken for those of others */

    /* Processes, known by their rank in the communicator that the job began on. */
    int me, processes;
    struct member *member;
    int *process_of_node; /* -1: none */
    bool *dead;
    MPI_Comm base; /* all living processes; replaced by each repair */
    MPI_Comm roll; /* all processes at the start; never revoked: notes of arrival at an agreement */
    int base_size;
    int *base_process; /* of each rank of base */
    EyriePlanner *planner;
    /* process of each rank while the job was whole: what the planner knows of a squeezed job */
    int *planned;
    int planned_ranks;

    /* Ranks. */
    MPI_Comm work;
    int rank;          /* -1: spare */
    int *rank_of;      /* of each process; -1 */
    struct layout now; /* which process is which rank */
    int axes, shape[MOST_AXES];
    enum state state;
    bool squeezed;      /* since the last commit */
    bool ever_squeezed; /* every later repair squeezes too */
    bool ended;         /* this process is no rank any more */
    bool finished;      /* has come to eyrie_ulfm_finish */
    /* another process has left the working communicator for a repair, in an agreement with us */
    bool abandoned;
    bool inside;    /* in the library: errors do not go to the program */
    int agreements; /* on work */

    /* Data. */
    struct segment *segments;
    struct image *images;
    int64_t version;
    struct layout held;       /* which processes hold the committed version */
    struct catalog *catalogs; /* of each rank of the committed version */
    int held_axes, held_shape[MOST_AXES];
    struct rescue *server; /* of each committed rank: where eyrie_ulfm_fetch finds it */
    bool lost;             /* part of the committed version is lost */
    /* while a repair completes the copies: some that should be there are not */
    bool protect_anew;

    /* Communicators of the program that are revoked with work. */
    MPI_Comm *derived;
    int derived_count;

    MPI_Errhandler handler;
    bool jumping;
    jmp_buf jump;
    int jump_code;

    struct guard *guard;
    char explanation[4096];
    eyrie_ulfm_report report;
    struct plan last;
    char *json;
    eyrie_ulfm_cost cost;
};

/* A copy's number, or a rank's, is added to the tag. */
enum {
    TAG_INFO = 1,
    TAG_PLAN = 2,
    TAG_HEAD = 100,
    TAG_BLOCK = 200,
    TAG_TAIL = 300,
    TAG_FETCH = 400,
    TAG_RESCUE = 1000
};

/* --- errors.c --- */

/* zeroed, for tables of the library; ends the job when there is no memory */
void *must_alloc(size_t bytes);
void *must_copy(const void *bytes, size_t len);
int explain(eyrie_ulfm_job *job, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void give_up(const eyrie_ulfm_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
int class_of(int code);
void errors_make_classes(void);

/* --- settings.c --- */

void settings_read(eyrie_ulfm_job *job, const eyrie_ulfm_settings *settings);
int settings_check(eyrie_ulfm_job *job);

/* --- members.c --- */

int members_learn(eyrie_ulfm_job *job, int node);
int members_make_planner(eyrie_ulfm_job *job);
int members_assign_ranks(eyrie_ulfm_job *job);
/* whether this process acts for the job: it has the lowest living rank */
bool members_is_leader(const eyrie_ulfm_job *job);

/* --- derived.c --- */

void derived_drop(eyrie_ulfm_job *job, bool revoke); /* forgets all of them */

/* --- run.c --- */

/* ends the body of eyrie_ulfm_run; otherwise the error is returned */
void run_on_error(MPI_Comm *comm, int *code, ...);

#endif
