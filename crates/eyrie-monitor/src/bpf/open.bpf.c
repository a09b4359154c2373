/* One call walks all processes with the kernel's open-coded task iterator (Linux 6.7) and leaves a
 * record of each in an array that user space has mapped. It never blocks and never writes to the
 * kernel. */
#include "kernel.h"

struct control {
    /* from user space */
    u32 refresh; /* read again what rarely changes */
    /* to user space */
    u32 count;
    u32 beyond; /* processes for which there was no room */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct control);
} control SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1); /* set before loading */
    __type(key, u32);
    __type(value, struct record);
} records SEC(".maps");

struct bpf_iter_task {
    u64 opaque[3];
} __attribute__((aligned(8)));

enum { ALL_THREADS = 1 };

extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task, u32 flags) __ksym;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

inline_always void visit(struct control *c, struct task_struct *task) {
    u32 at = c->count;
    int pid = task->pid;
    if (pid != task->tgid) {
        /* The threads of a process follow its first one. */
        u32 last = at - 1;
        struct record *r = bpf_map_lookup_elem(&records, &last);
        if (r && r->pid == (u32)task->tgid) add_thread(r, task);
        return;
    }
    if (!pid) /* the idle task */
        return;
    struct record *r = bpf_map_lookup_elem(&records, &at);
    if (!r) {
        c->beyond++;
        return;
    }
    c->count = at + 1;
    /* A process that has not run since the last sample is unchanged, except that it may wait for a
     * processor now, or that its pages were reclaimed: it need not be fetched from memory. No two
     * processes have the same number and the same run time to the nanosecond. */
    if (r->pid == (u32)pid && r->threads == 1 && r->own == task->se.sum_exec_runtime && !c->refresh)
        return;
    u64 start = task->start_boottime;
    if (r->pid != (u32)pid || r->start_boottime != start || c->refresh)
        fill_lasting(r, task, start);
    fill_changing(r, task);
}

SEC("syscall")
int sample(void *ctx) {
    u32 zero = 0;
    struct control *c = bpf_map_lookup_elem(&control, &zero);
    struct bpf_iter_task it;
    struct task_struct *task;
    if (!c) return 1;
    c->count = 0;
    c->beyond = 0;
    bpf_rcu_read_lock();
    bpf_iter_task_new(&it, 0, ALL_THREADS);
    while ((task = bpf_iter_task_next(&it))) visit(c, task);
    bpf_iter_task_destroy(&it);
    bpf_rcu_read_unlock();
    return 0;
}
