/* locked_list: a linked list, a mutex and a counter that all ranks share by one-sided
 * communication.
 *
 * The elements lie in dynamic windows, at the addresses that malloc chose: the list is made of
 * (rank, address) pairs that travel in messages. Each rank appends elements by Compare_and_swap at
 * the tail, takes a mutex (a queue of waiting ranks, after Mellor-Crummey and Scott) to change two
 * cells that must change together, and draws numbers from a counter. The order of the ranks depends
 * on timing. In any order the list holds every element once, the two cells agree and no number is
 * drawn twice. */
#include "common.h"

#include <stddef.h>

struct link {
    int64_t rank; /* -1: no rank */
    MPI_Aint address;
};

struct element {
    struct link next;
    int64_t owner, number;
};

enum { COUNTER, LEFT, RIGHT, CELLS }; /* on rank 0 */
enum { TAIL, NEXT, MUTEX_CELLS };     /* TAIL counts on rank 0 only */
enum { NO_RANK = -1, TOKEN = 7 };

struct shared {
    int rank, ranks;
    MPI_Win elements, cells, mutex;
    int64_t *cell, *queue;
    MPI_Aint head; /* address of the first element, on rank 0 */
    struct link tail;
    struct element **own;
};

/* --- the mutex --- */

static void lock_mutex(struct shared *s) {
    int64_t me = s->rank, no_rank = NO_RANK, before;
    MPI_Win_lock_all(0, s->mutex);
    MPI_Accumulate(&no_rank, 1, MPI_INT64_T, s->rank, NEXT, 1, MPI_INT64_T, MPI_REPLACE, s->mutex);
    MPI_Win_flush(s->rank, s->mutex);
    MPI_Fetch_and_op(&me, &before, MPI_INT64_T, 0, TAIL, MPI_REPLACE, s->mutex);
    MPI_Win_flush(0, s->mutex);
    if (before != NO_RANK) {
        MPI_Accumulate(&me, 1, MPI_INT64_T, (int)before, NEXT, 1, MPI_INT64_T, MPI_REPLACE,
                       s->mutex);
        MPI_Win_flush((int)before, s->mutex);
        MPI_Recv(NULL, 0, MPI_BYTE, (int)before, TOKEN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Win_unlock_all(s->mutex);
}

static void unlock_mutex(struct shared *s) {
    int64_t me = s->rank, no_rank = NO_RANK, none = 0, next, tail;
    MPI_Win_lock_all(0, s->mutex);
    MPI_Fetch_and_op(&none, &next, MPI_INT64_T, s->rank, NEXT, MPI_NO_OP, s->mutex);
    MPI_Win_flush(s->rank, s->mutex);
    if (next == NO_RANK) {
        MPI_Compare_and_swap(&no_rank, &me, &tail, MPI_INT64_T, 0, TAIL, s->mutex);
        MPI_Win_flush(0, s->mutex);
        while (tail != me && next == NO_RANK) { /* a rank is about to queue: wait for its number */
            MPI_Fetch_and_op(&none, &next, MPI_INT64_T, s->rank, NEXT, MPI_NO_OP, s->mutex);
            MPI_Win_flush(s->rank, s->mutex);
        }
    }
    MPI_Win_unlock_all(s->mutex);
    if (next != NO_RANK) MPI_Send(NULL, 0, MPI_BYTE, (int)next, TOKEN, MPI_COMM_WORLD);
}

/* Adds to two cells that others change meanwhile, reading and writing each by itself. */
static void change_both(struct shared *s, int64_t by) {
    int64_t value[2];
    lock_mutex(s);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, s->cells);
    MPI_Get(value, 2, MPI_INT64_T, 0, LEFT, 2, MPI_INT64_T, s->cells);
    MPI_Win_flush(0, s->cells);
    if (value[0] != value[1])
        die("the cells %lld and %lld do not agree", (long long)value[0], (long long)value[1]);
    value[0] += by;
    MPI_Put(&value[0], 1, MPI_INT64_T, 0, LEFT, 1, MPI_INT64_T, s->cells);
    MPI_Win_flush(0, s->cells);
    MPI_Put(&value[0], 1, MPI_INT64_T, 0, RIGHT, 1, MPI_INT64_T, s->cells);
    MPI_Win_unlock(0, s->cells);
    unlock_mutex(s);
}

/* --- the list --- */

static MPI_Aint address_of(const void *place) {
    MPI_Aint address;
    MPI_Get_address(place, &address);
    return address;
}

static struct element *make_element(struct shared *s, int64_t number) {
    struct element *e =
        allocate(1, sizeof *e + 8 * (size_t)(random_word((uint64_t)number, 5) % 50));
    *e = (struct element){{NO_RANK, 0}, s->rank, number};
    MPI_Win_attach(s->elements, e, sizeof *e);
    return e;
}

/* Appends an element: claims the place after the last known one, which may not be the last any
 * more. */
static void append(struct shared *s, struct element *e) {
    int64_t me = s->rank, no_rank = NO_RANK, found;
    MPI_Aint address = address_of(e);
    for (;;) {
        MPI_Compare_and_swap(&me, &no_rank, &found, MPI_INT64_T, (int)s->tail.rank, s->tail.address,
                             s->elements);
        MPI_Win_flush((int)s->tail.rank, s->elements);
        MPI_Aint next = s->tail.address + (MPI_Aint)offsetof(struct link, address);
        if (found == NO_RANK) {
            MPI_Accumulate(&address, 1, MPI_AINT, (int)s->tail.rank, next, 1, MPI_AINT, MPI_REPLACE,
                           s->elements);
            MPI_Win_flush((int)s->tail.rank, s->elements);
            s->tail = (struct link){me, address};
            return;
        }
        MPI_Aint where = 0, none = 0;
        while (!where) { /* rank `found` writes the address of its element soon */
            MPI_Fetch_and_op(&none, &where, MPI_AINT, (int)s->tail.rank, next, MPI_NO_OP,
                             s->elements);
            MPI_Win_flush((int)s->tail.rank, s->elements);
        }
        s->tail = (struct link){found, where};
    }
}

/* Walks the whole list. Every element of every rank must be there once, and those of a rank in
 * order. */
static void check_list(struct shared *s, long count) {
    struct element e;
    struct link at = {0, s->head};
    int64_t *seen = allocate((size_t)s->ranks, sizeof *seen), walked = 0;
    for (;;) {
        MPI_Get(&e, sizeof e, MPI_BYTE, (int)at.rank, at.address, sizeof e, MPI_BYTE, s->elements);
        MPI_Win_flush((int)at.rank, s->elements);
        if (walked++ > 0 && (e.owner < 0 || e.owner >= s->ranks || e.number != seen[e.owner]++))
            die("element %lld of the list is number %lld of rank %lld", (long long)walked,
                (long long)e.number, (long long)e.owner);
        if (e.next.rank == NO_RANK) break;
        at = e.next;
    }
    for (int r = 0; r < s->ranks; r++)
        if (seen[r] != count)
            die("%lld elements of rank %d are in the list", (long long)seen[r], r);
    free(seen);
}

static void create(struct shared *s, int64_t **memory, int cells, MPI_Win *window) {
    MPI_Win_allocate(cells * (MPI_Aint)sizeof **memory, sizeof **memory, MPI_INFO_NULL,
                     MPI_COMM_WORLD, memory, window);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, s->rank, 0, *window);
    for (int i = 0; i < cells; i++) (*memory)[i] = window == &s->mutex ? NO_RANK : 0;
    MPI_Win_unlock(s->rank, *window);
}

int main(int argc, char **argv) {
    struct shared s = {0};
    long count = 500, every = 50;
    const struct option options[] = {
        {"elements", "elements that each rank appends", .number = &count},
        {"every", "rank 0 prints its count every so many elements", .number = &every},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "A list, a mutex and a counter shared by one-sided communication.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &s.ranks);
    if (count < 1 || every < 1) die("--elements and --every must be 1 or more");
    create(&s, &s.cell, CELLS, &s.cells);
    create(&s, &s.queue, MUTEX_CELLS, &s.mutex);
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &s.elements);
    s.own = allocate((size_t)count + 1, sizeof *s.own);
    s.own[count] = make_element(&s, -1); /* of rank 0: the list's head */
    s.head = address_of(s.own[count]);
    MPI_Bcast(&s.head, 1, MPI_AINT, 0, MPI_COMM_WORLD);
    s.tail = (struct link){0, s.head};
    int64_t one = 1, drawn, sum = 0, all, ranks = s.ranks;
    MPI_Win_lock_all(0, s.elements);
    for (long n = 0; n < count; n++) {
        append(&s, s.own[n] = make_element(&s, n));
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, s.cells);
        MPI_Fetch_and_op(&one, &drawn, MPI_INT64_T, 0, COUNTER, MPI_SUM, s.cells);
        MPI_Win_unlock(0, s.cells);
        sum += drawn;
        change_both(&s, n % 7);
        if (s.rank == 0 && (n + 1) % every == 0) {
            printf("elements %ld\n", n + 1);
            fflush(stdout);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    check_list(&s, count);
    MPI_Win_unlock_all(s.elements);
    MPI_Reduce(&sum, &all, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (s.rank == 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, s.cells);
        if (all != ranks * count * (ranks * count - 1) / 2 || s.cell[COUNTER] != ranks * count)
            die("the numbers drawn add up to %lld", (long long)all);
        printf("%lld elements, cells %lld and %lld\n", (long long)(ranks * count),
               (long long)s.cell[LEFT], (long long)s.cell[RIGHT]);
        MPI_Win_unlock(0, s.cells);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (long n = 0; n <= count; n++) {
        MPI_Win_detach(s.elements, s.own[n]);
        free(s.own[n]);
    }
    free(s.own);
    MPI_Win_free(&s.elements);
    MPI_Win_free(&s.cells);
    MPI_Win_free(&s.mutex);
    MPI_Finalize();
    return 0;
}
