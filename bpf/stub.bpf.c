//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What lasthop hangs into clsact. A filter of clsact outlives the process that
 * made it. The entries of a program array do not: the kernel clears them when
 * the last descriptor of the array is closed (map_release_uref). So after a
 * SIGKILL these few instructions remain, which pass every packet on, and
 * everything else is freed.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

enum { ENTRY_INGRESS, ENTRY_EGRESS, ENTRIES };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, ENTRIES);
	__type(key, __u32);
	__type(value, __u32);
} lasthop_entries SEC(".maps");

SEC("tc")
int lasthop_stub_in(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &lasthop_entries, ENTRY_INGRESS);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int lasthop_stub_out(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &lasthop_entries, ENTRY_EGRESS);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
