//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What the benchmarks compare the programs with. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* The fields of an IPv4 packet that tell its flow: addresses and ports. */
struct flow {
	__be32 src;
	__be32 dst;
	__be32 ports;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow);
	__type(value, __u64);
	__uint(max_entries, 65536);
} flows SEC(".maps");

/* Does nothing: what the hook costs. */
SEC("tc")
int lasthop_empty(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

/* The least that counting packets by flow costs: one look-up and an add. */
SEC("tc")
int lasthop_reference(struct __sk_buff *skb)
{
	struct iphdr *ip = (void *)(long)skb->data + ETH_HLEN;
	__be32 *ports = (void *)(ip + 1);
	struct flow key;
	__u64 one = 1;
	__u64 *n;

	if ((void *)(ports + 1) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	key = (struct flow){ ip->saddr, ip->daddr, *ports };
	n = bpf_map_lookup_elem(&flows, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&flows, &key, &one, BPF_ANY);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
