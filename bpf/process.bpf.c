//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Remembers who the processes of the machine are and were: a program that
 * changes a route has ended before anybody can look.
 *
 * It runs when a process begins, executes a program, or ends, and never for a
 * packet. No argument of a command line is read.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "vmlinux.h"

#define NAME 16

struct process {
	/* By CLOCK_MONOTONIC; ended is 0 while it runs. */
	__u64 began;
	__u64 ended;
	/* The number of its cgroup, of version 2. */
	__u64 cgroup;
	__u32 parent;
	/* Its number in its own PID namespace. */
	__u32 inner;
	/* The inode of its network namespace. */
	__u32 netns;
	__u32 pad;
	char name[NAME];
	char parent_name[NAME];
};

_Static_assert(sizeof(struct process) == 72, "process");

/* By number, in the first PID namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u32);
	__type(value, struct process);
	__uint(max_entries, 4096);
} processes SEC(".maps");

/* The number is the first of struct upid. */
static __always_inline __u32 inner_of(struct task_struct *leader)
{
	struct pid *pid = leader->thread_pid;
	void *numbers =
		(void *)pid + bpf_core_field_offset(struct pid, numbers);
	__u32 nr = 0;

	bpf_probe_read_kernel(
		&nr, sizeof(nr),
		numbers + pid->level * bpf_core_type_size(struct upid));
	return nr;
}

static __always_inline void remember(struct task_struct *task, __u64 began,
				     __u64 ended)
{
	struct task_struct *leader = task->group_leader;
	struct task_struct *parent = leader->real_parent->group_leader;
	struct process p = { .began = began, .ended = ended };
	__u32 pid = task->tgid;

	/* At a fork this is the parent's, in which the child begins. */
	p.cgroup = bpf_get_current_cgroup_id();
	p.parent = parent->tgid;
	p.inner = inner_of(leader);
	p.netns = task->nsproxy->net_ns->ns.inum;
	bpf_probe_read_kernel(p.name, NAME, leader->comm);
	bpf_probe_read_kernel(p.parent_name, NAME, parent->comm);
	bpf_map_update_elem(&processes, &pid, &p, BPF_ANY);
}

SEC("tp_btf/sched_process_fork")
int lasthop_fork(__u64 *ctx)
{
	struct task_struct *child = (struct task_struct *)ctx[1];

	if (child->pid == child->tgid)
		remember(child, bpf_ktime_get_ns(), 0);
	return 0;
}

/* Of one that began earlier it is known no more when that was. */
SEC("tp_btf/sched_process_exec")
int lasthop_exec(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 pid = task->tgid;
	struct process *p = bpf_map_lookup_elem(&processes, &pid);

	if (!p) {
		remember(task, 0, 0);
		return 0;
	}
	p->cgroup = bpf_get_current_cgroup_id();
	p->netns = task->nsproxy->net_ns->ns.inum;
	bpf_probe_read_kernel(p->name, NAME, task->comm);
	return 0;
}

/* Its last thread ends. It has its namespaces still. */
SEC("tp_btf/sched_process_exit")
int lasthop_exit(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 pid = task->tgid;
	struct process *p;

	if (task->signal->live.counter)
		return 0;
	p = bpf_map_lookup_elem(&processes, &pid);
	if (!p) {
		remember(task, 0, bpf_ktime_get_ns());
		return 0;
	}
	p->cgroup = bpf_get_current_cgroup_id();
	p->netns = task->nsproxy->net_ns->ns.inum;
	p->ended = bpf_ktime_get_ns();
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
