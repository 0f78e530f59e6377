/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Counts the packets of some addresses by both ends on every link. */
#ifndef LASTHOP_PAIRS_H
#define LASTHOP_PAIRS_H

#include "shared.h"
#include "addr.h"
#include "maps.h"
#include "packet.h"
#include "ranges.h"

/* Packets by address pair, link and direction. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct pair_key);
	__type(value, __u64);
	__uint(max_entries, 1);
} pairs SEC(".maps");

static __always_inline bool counts_pairs(__u32 slot)
{
	struct counted_addr *a = is_local(slot) ? counted_at(slot) : NULL;

	return a && a->pairs;
}

/* Counts the packet's pair of addresses if one of them is counted by pair. */
static __always_inline void count_pair(const struct packet *p, __u32 ifindex,
				       enum direction direction)
{
	struct pair_key key = { .src = p->src,
				.dst = p->dst,
				.ifindex = ifindex,
				.direction = direction };

	__u32 of = counts_pairs(p->src_slot)   ? p->src_slot
		   : counts_pairs(p->dst_slot) ? p->dst_slot
					       : 0;

	if (of && !count_in(&pairs, &key))
		lasthop_lose_of(of, LOST_PAIR);
}

#endif
