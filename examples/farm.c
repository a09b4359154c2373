/* farm: a task farm in which each message proves what its sender has done, in order.
 *
 * Rank 0 hands out tasks and takes results and reports as they come (Waitany over a receive per
 * worker and one from MPI_ANY_SOURCE; Iprobe for every other report); workers poll for their next
 * task with Test, and between polls probe for gossip from any worker. So all events depend on
 * timing, even the number of tests and probes that found nothing.
 *
 * All of it, empty tests and probes included, goes into a running hash, the rank's history. Each
 * message carries the history of its sender and a chain: the hash of all the sender has sent to
 * this receiver with this tag so far. A receiver computes the same chain from the messages that it
 * got and compares. A rank that is re-executed after a failure may do something in another order,
 * or only poll once more or less. Then its next message does not fit what its earlier incarnation
 * sent: the receiver reports it and ends the job with code 3. The history also decides which worker
 * gets the next gossip.
 *
 * The output, the sum over the results of all tasks, does not depend on the order, so a disturbed
 * run prints the same. */
#include "common.h"
#include "pace.h"

enum { TASK, STOP, RESULT, EVEN_REPORT, ODD_REPORT, GOSSIP, BYE, COUNTS, TAGS };
enum { MAX_BODY = 64, REPORT_EVERY = 3 };

struct message {
    /* of the sender: to this receiver with this tag, and in all */
    uint64_t sequence, chain, history;
    uint64_t task, value;
    uint64_t body[MAX_BODY]; /* words beyond these five that are sent: by kind */
};
enum { HEAD = 5 };

static int me, ranks;
static uint64_t history = HASH_START;
/* Indexed by tag and peer, see at(). By tag, because messages of one rank with two tags may be
 * noticed in either order. */
static uint64_t *sent, *received, *chain_out, *chain_in;
static uint64_t empty_polls;
static long work = 20000;
static struct pace pace = {.slow_ms = 5};

static size_t at(int tag, int peer) {
    return (size_t)tag * (size_t)ranks + (size_t)peer;
}

static void happened(uint64_t what, uint64_t detail) {
    history = hash_word(hash_word(history, what), detail);
}

static void send_message(struct message *m, int to, int tag, int body_words) {
    size_t length = (size_t)(HEAD + body_words) * sizeof(uint64_t);
    happened(100 + (uint64_t)tag, (uint64_t)to);
    m->sequence = sent[at(tag, to)]++;
    m->chain = chain_out[at(tag, to)];
    m->history = history;
    chain_out[at(tag, to)] = hash_bytes(m->chain, m, length);
    MPI_Send(m, HEAD + body_words, MPI_UINT64_T, to, tag, MPI_COMM_WORLD);
}

/* Checks that a message follows on what its sender sent before, then adds it to the history. */
static void accept_message(const struct message *m, const MPI_Status *status) {
    int from = status->MPI_SOURCE, words;
    size_t stream = at(status->MPI_TAG, from);
    MPI_Get_count(status, MPI_UINT64_T, &words);
    if (m->sequence != received[stream] || m->chain != chain_in[stream]) {
        fprintf(
            stderr,
            "rank %d: message %llu from rank %d (tag %d) does not follow on the %llu before it: chain %016llx, expected %016llx: "
            "the sender has diverged from what it did before\n",
            me, (unsigned long long)m->sequence, from, status->MPI_TAG,
            (unsigned long long)received[stream], (unsigned long long)m->chain,
            (unsigned long long)chain_in[stream]);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    received[stream]++;
    chain_in[stream] = hash_bytes(m->chain, m, (size_t)words * sizeof(uint64_t));
    happened((uint64_t)status->MPI_TAG, (uint64_t)from);
    history = hash_bytes(history, m, (size_t)words * sizeof(uint64_t));
}

static void receive(struct message *m, int from, int tag) {
    MPI_Status status;
    MPI_Recv(m, HEAD + MAX_BODY, MPI_UINT64_T, from, tag, MPI_COMM_WORLD, &status);
    accept_message(m, &status);
}

/* Receives one message with `tag` if there is one; an empty probe is an event as well. */
static void poll_for(struct message *m, int tag) {
    MPI_Status status;
    int there;
    MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &status);
    if (!there) {
        happened(200, ++empty_polls);
        return;
    }
    receive(m, status.MPI_SOURCE, tag);
}

/* The task itself: some arithmetic whose length varies from task to task. */
static uint64_t compute(uint64_t task) {
    uint64_t value = random_word(7, task);
    for (uint64_t i = value % (uint64_t)(work + 1) + (uint64_t)work / 2; i > 0; i--)
        value = random_word(value, i);
    return value;
}

/* ---- worker ---- */

/* Polls for the next order, probing for gossip in between; returns 0 when it is to stop. */
static int next_task(struct message *m) {
    struct message gossip;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(m, HEAD + MAX_BODY, MPI_UINT64_T, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
    for (;;) {
        int done;
        MPI_Test(&request, &done, &status);
        if (done) break;
        happened(201, ++empty_polls);
        poll_for(&gossip, GOSSIP);
    }
    accept_message(m, &status);
    return status.MPI_TAG == TASK;
}

static void tell_somebody(struct message *m) {
    int to = 1 + (int)(history % (uint64_t)(ranks - 1)), words = (int)((history >> 32) % MAX_BODY);
    if (to == me) return;
    for (int i = 0; i < words; i++) m->body[i] = random_word(history, (uint64_t)i);
    send_message(m, to, GOSSIP, words);
}

static void run_worker(void) {
    struct message m = {0};
    uint64_t done = 0, gossip_sent = 0, gossip_received = 0, gossip_expected;
    while (next_task(&m)) {
        m.value = compute(m.task);
        send_message(&m, 0, RESULT, 0);
        if (++done % REPORT_EVERY == 0) {
            m.body[0] = done, m.body[1] = empty_polls;
            send_message(&m, 0, done / REPORT_EVERY % 2 ? ODD_REPORT : EVEN_REPORT, 2);
        }
        tell_somebody(&m);
    }
    /* Sends rank 0 how much gossip went to each rank. Rank 0 sends every rank how much to
     * expect. */
    struct message bye = {.task = done};
    if (ranks - 1 > MAX_BODY) die("at most %d ranks", MAX_BODY + 1);
    for (int r = 1; r < ranks; r++) bye.body[r - 1] = sent[at(GOSSIP, r)];
    for (int r = 1; r < ranks; r++) gossip_sent += sent[at(GOSSIP, r)];
    bye.value = gossip_sent;
    send_message(&bye, 0, BYE, ranks - 1);
    receive(&m, 0, COUNTS);
    gossip_expected = m.value;
    for (int r = 1; r < ranks; r++) gossip_received += received[at(GOSSIP, r)];
    for (; gossip_received < gossip_expected; gossip_received++)
        receive(&m, MPI_ANY_SOURCE, GOSSIP);
}

/* ---- rank 0 ---- */

static void post_receive(struct message *in, int from, int tag, MPI_Request *request) {
    MPI_Irecv(in, HEAD + MAX_BODY, MPI_UINT64_T, from, tag, MPI_COMM_WORLD, request);
}

/* Cancels the receive for even reports. If it is too late for that, its report counts. */
static void withdraw_receive(struct message *in, MPI_Request *request) {
    MPI_Status status;
    int cancelled;
    MPI_Cancel(request);
    MPI_Wait(request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    happened(202, (uint64_t)cancelled);
    if (!cancelled) accept_message(in, &status);
}

/* Hands out all tasks and returns the sum of their results. Receives the reports that come
 * meanwhile. */
static uint64_t hand_out(uint64_t tasks) {
    /* Slots 0 .. ranks-2 await each worker's result, the last slot an even report from any rank. */
    int any = ranks - 1;
    struct message *in = allocate((size_t)ranks, sizeof *in), out = {0}, odd;
    MPI_Request *requests = allocate((size_t)ranks, sizeof *requests);
    uint64_t next = 0, sum = 0;
    for (int slot = 0; slot < any; slot++) {
        requests[slot] = MPI_REQUEST_NULL;
        if (next == tasks) continue;
        out.task = next++;
        post_receive(&in[slot], slot + 1, RESULT, &requests[slot]);
        send_message(&out, slot + 1, TASK, 0);
    }
    post_receive(&in[any], MPI_ANY_SOURCE, EVEN_REPORT, &requests[any]);
    for (uint64_t results = 0; results < tasks;) {
        MPI_Status status;
        int slot;
        MPI_Waitany(ranks, requests, &slot, &status);
        accept_message(&in[slot], &status);
        if (slot == any) {
            post_receive(&in[any], MPI_ANY_SOURCE, EVEN_REPORT, &requests[any]);
            continue;
        }
        sum += in[slot].value;
        results++;
        if (next < tasks) {
            out.task = next++;
            post_receive(&in[slot], slot + 1, RESULT, &requests[slot]);
            send_message(&out, slot + 1, TASK, 0);
        }
        poll_for(&odd, ODD_REPORT);
        keep_pace(&pace, me);
    }
    withdraw_receive(&in[any], &requests[any]);
    free(in), free(requests);
    return sum;
}

static void run_master(uint64_t tasks) {
    struct message m = {0};
    uint64_t odd_due = 0, even_due = 0, done = 0, sum = hand_out(tasks);
    uint64_t *gossip = allocate((size_t)ranks, sizeof *gossip);
    for (int w = 1; w < ranks; w++) send_message(&m, w, STOP, 0);
    for (int w = 1; w < ranks; w++) {
        receive(&m, MPI_ANY_SOURCE, BYE);
        done += m.task;
        odd_due += (m.task / REPORT_EVERY + 1) / 2;
        even_due += m.task / REPORT_EVERY / 2;
        for (int r = 1; r < ranks; r++) gossip[r] += m.body[r - 1];
    }
    for (int r = 1; r < ranks; r++) {
        odd_due -= received[at(ODD_REPORT, r)];
        even_due -= received[at(EVEN_REPORT, r)];
    }
    for (; odd_due > 0; odd_due--) receive(&m, MPI_ANY_SOURCE, ODD_REPORT);
    for (; even_due > 0; even_due--) receive(&m, MPI_ANY_SOURCE, EVEN_REPORT);
    for (int w = 1; w < ranks; w++) {
        m.value = gossip[w];
        send_message(&m, w, COUNTS, 0);
    }
    free(gossip);
    printf("tasks %llu of %llu sum %016llx\n", (unsigned long long)done, (unsigned long long)tasks,
           (unsigned long long)sum);
}

int main(int argc, char **argv) {
    long tasks = 2000, show = 0;
    const struct option options[] = {
        {"tasks", "tasks to do", .number = &tasks},
        {"work", "mean length of a task, in steps of about 3 ns", .number = &work},
        {"show", "1: each rank's history on standard error (differs from run to run)",
         .number = &show},
        PACE_OPTIONS(pace),
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv,
                  "Task farm with MPI_ANY_SOURCE whose messages vouch for their sender's history.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2 || ranks - 1 > MAX_BODY || tasks < 0 || work < 0)
        die("needs 2 to %d ranks, and --tasks and --work of 0 or more", MAX_BODY + 1);
    sent = allocate(at(TAGS, 0), sizeof *sent);
    received = allocate(at(TAGS, 0), sizeof *received);
    chain_out = allocate(at(TAGS, 0), sizeof *chain_out);
    chain_in = allocate(at(TAGS, 0), sizeof *chain_in);
    if (me == 0)
        run_master((uint64_t)tasks);
    else
        run_worker();
    if (show)
        fprintf(stderr, "rank %d history %016llx empty polls %llu\n", me,
                (unsigned long long)history, (unsigned long long)empty_polls);
    free(sent), free(received), free(chain_out), free(chain_in);
    MPI_Finalize();
    return 0;
}
