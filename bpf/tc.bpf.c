//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counts packets at a link's tc hooks. The programs always return
 * TC_ACT_UNSPEC and never modify a packet.
 *
 * tc programs run with bottom halves disabled, so per-CPU counters need no
 * atomic operations.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "hops.h"
#include "links.h"
#include "neigh.h"
#include "packet.h"
#include "pairs.h"
#include "peers.h"
#include "ranges.h"

/* Keeps the types in BTF, from which bpf2go generates the Go types. */
const enum limit *const limit_type = NULL;
const enum link_flags *const link_flags_type = NULL;
const enum far *const far_type = NULL;

static __always_inline enum outcome
count_packet(struct __sk_buff *skb, struct link *link, enum direction direction)
{
	struct hop hop = { .link = link, .direction = direction };
	struct cursor c = {
		.pos = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
	};
	struct packet p = { .ethertype = skb->protocol, .length = skb->len };
	bool ipv6 = false;
	enum outcome outcome;

	if (!link->no_ethernet) {
		outcome = parse_frame(skb, &c, &p);
		if (outcome != PARSED)
			return outcome;
	} else if (has_outer(link, direction)) {
		outcome = skip_outer(skb, &c, &p);
		if (outcome != PARSED)
			return outcome;
	}
	switch (p.ethertype) {
	case bpf_htons(ETH_P_IP):
		outcome = parse_ipv4(skb, &c, &p);
		break;
	case bpf_htons(ETH_P_IPV6):
		outcome = parse_ipv6(skb, &c, &p);
		ipv6 = true;
		break;
	case bpf_htons(ETH_P_ARP):
		return lasthop_count_arp(skb, c.offset, direction);
	default:
		return HANDLED;
	}
	if (outcome != PARSED)
		return outcome;
	if (ipv6) {
		outcome = parse_extensions(skb, &c, &p);
		if (outcome == PARSED && may_be_nd(&p))
			outcome = lasthop_count_nd(skb, c.offset, direction);
		if (outcome == HANDLED)
			return HANDLED;
	}
	p.src_slot = find_slot(p.src, p.src_bit);
	p.dst_slot = find_slot(p.dst, p.dst_bit);
	if (!p.src_slot && !p.dst_slot)
		return outcome;
	if (outcome == PARSED)
		outcome = parse_transport(skb, &c, &p);

	hop.origin = origin_of(skb, direction);
	count_hops(hop, &p);
	if (link->flags & LINK_PAIRS)
		count_pair(&p, skb->ifindex, direction);
	if (!(link->flags & LINK_UPLINK))
		return outcome;
	if (p.class & ICMP_ERROR)
		return lasthop_count_error(skb, c.offset, ipv6, link->slot,
					   direction);
	count_peer(&p, link->slot, direction);
	return outcome;
}

static __always_inline int watch(struct __sk_buff *skb,
				 enum direction direction)
{
	struct link *link = find_link(skb->ifindex);
	enum outcome outcome;

	if (!link) {
		lasthop_lose(LOST_LINK);
		return TC_ACT_UNSPEC;
	}
	outcome = UNREADABLE;
	if (pull(skb, link->no_ethernet, has_outer(link, direction)))
		outcome = count_packet(skb, link, direction);
	if (outcome == MALFORMED)
		lasthop_lose(LOST_MALFORMED);
	else if (outcome == UNREADABLE)
		lasthop_lose(LOST_UNREADABLE);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int lasthop_ingress(struct __sk_buff *skb)
{
	return watch(skb, INGRESS);
}

SEC("tc")
int lasthop_egress(struct __sk_buff *skb)
{
	return watch(skb, EGRESS);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
