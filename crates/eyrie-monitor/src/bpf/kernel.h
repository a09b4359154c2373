/* The kernel's structures as the BPF programs need them: only the fields that they read, by name.
 * Offsets are filled in when a program is loaded, from the running kernel's own type information
 * (CO-RE), so that one build fits all kernels. Nothing here may depend on a kernel's layout. */
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define __ksym __attribute__((section(".ksyms")))
#define __weak __attribute__((weak))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define inline_always static inline __attribute__((always_inline))

enum { BPF_MAP_TYPE_ARRAY = 2, BPF_F_MMAPABLE = 1024 };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_seq_write)(void *seq, const void *data, u32 len) = (void *)127;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct percpu_counter {
    s64 count;
};

struct mm_struct {
    /* file, anonymous, swap, shared memory; Linux 6.2 and later */
    struct percpu_counter rss_stat[4];
};

struct mm_rss_stat___old {
    s64 count[4];
};

struct mm_struct___old {
    struct mm_rss_stat___old rss_stat; /* before Linux 6.2 */
};

struct kernfs_node {
    u64 id;
};

struct cgroup {
    struct kernfs_node *kn;
};

struct css_set {
    struct cgroup *dfl_cgrp;
};

struct signal_struct {
    int nr_threads;
    u64 utime, stime, sum_sched_runtime; /* of threads that have ended */
};

struct sched_entity {
    u64 sum_exec_runtime;
};

struct task_struct {
    u32 __state;
    u32 flags;
    int exit_state;
    int pid, tgid;
    struct task_struct *real_parent;
    u64 utime, stime;
    u64 start_boottime;
    char comm[16];
    struct signal_struct *signal;
    struct sched_entity se;
    struct mm_struct *mm;
    struct css_set *cgroups;
};

struct task_struct___old {
    long state; /* before Linux 5.14 */
};

#pragma clang attribute pop

#define exists(field) __builtin_preserve_field_info(field, 2)

/* One process, as src/bpf/mod.rs reads it. */
struct record {
    u64 own;          /* ns; the run time of the first thread */
    u64 runtime;      /* ns; exact */
    u64 utime, stime; /* ns; the kernel's estimates, of which only the proportion is used */
    s64 rss_pages;
    u32 pid;
    u32 threads;
    u32 state, exit_state;
    u64 start_boottime; /* ns since boot */
    u64 cgroup;
    u32 parent;
    u32 flags;
    char comm[16];
};

inline_always s64 resident_pages(struct task_struct *task) {
    struct mm_struct *mm = task->mm;
    if (!mm) return 0;
    if (exists(((struct mm_struct___old *)0)->rss_stat.count)) {
        struct mm_struct___old *old = (void *)mm;
        return old->rss_stat.count[0] + old->rss_stat.count[1] + old->rss_stat.count[3];
    }
    return mm->rss_stat[0].count + mm->rss_stat[1].count + mm->rss_stat[3].count;
}

inline_always u32 state_of(struct task_struct *task) {
    if (exists(((struct task_struct___old *)0)->state))
        return ((struct task_struct___old *)task)->state;
    return task->__state;
}

/* Fills what changes from sample to sample, for a process's first thread and the threads that have
 * ended. */
inline_always void fill_changing(struct record *r, struct task_struct *task) {
    struct signal_struct *signal = task->signal;
    r->utime = task->utime + signal->utime;
    r->stime = task->stime + signal->stime;
    r->own = task->se.sum_exec_runtime;
    r->runtime = r->own + signal->sum_sched_runtime;
    r->threads = signal->nr_threads;
    r->rss_pages = resident_pages(task);
    r->state = state_of(task);
    r->exit_state = task->exit_state;
}

/* Fills what rarely changes. */
inline_always void fill_lasting(struct record *r, struct task_struct *task, u64 start) {
    r->pid = task->pid;
    r->start_boottime = start;
    r->parent = task->real_parent->tgid;
    r->flags = task->flags;
    r->cgroup = task->cgroups->dfl_cgrp->kn->id;
    bpf_probe_read_kernel(r->comm, sizeof(r->comm), &task->comm);
}

inline_always void add_thread(struct record *r, struct task_struct *task) {
    r->utime += task->utime;
    r->stime += task->stime;
    r->runtime += task->se.sum_exec_runtime;
}

char terms[] SEC("license") = "Dual BSD/GPL";
