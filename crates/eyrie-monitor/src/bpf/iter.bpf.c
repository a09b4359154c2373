/* A task iterator (Linux 5.8): each read of its file returns a record of every task, threads
 * included. User space adds them up. It never blocks and never writes to the kernel. */
#include "kernel.h"

struct bpf_iter_meta {
    void *seq;
};

struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
};

/* A thread that is not the first one of its process. */
struct thread {
    u64 mark; /* ~0: no process has run for that long */
    u64 utime, stime, runtime;
    u64 process;
};

SEC("iter/task")
int dump(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    if (!task) return 0;
    if (task->pid != task->tgid) {
        struct thread t = {~0ull, task->utime, task->stime, task->se.sum_exec_runtime, task->tgid};
        bpf_seq_write(ctx->meta->seq, &t, sizeof(t));
        return 0;
    }
    struct record r = {};
    fill_lasting(&r, task, task->start_boottime);
    fill_changing(&r, task);
    bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
    return 0;
}
