//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Does nothing. The benchmarks measure the cost of a hook with it. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

SEC("tc")
int lasthop_empty(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
