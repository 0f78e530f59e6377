/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Counts packets by address, link, direction and side. */
#ifndef LASTHOP_HOPS_H
#define LASTHOP_HOPS_H

#include "shared.h"
#include "compat.h"
#include "links.h"
#include "maps.h"
#include "packet.h"

/*
 * Set by Go: sizes of an address's row, of the hop counters, and of the table
 * of MACs in sets of MAC_WAYS. Each is a power of 2, less one.
 */
const volatile __u32 row_mask = WAYS - 1;
const volatile __u32 hop_mask = 0;
const volatile __u32 mac_mask = 0;

/* By CPU: an array of struct hop_counter. Go sets both sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct hop_counter[1]);
	__uint(max_entries, 1);
} hop_counters SEC(".maps");

/*
 * By CPU: an array of struct mac_pair, for the pairs that a hop counter has no
 * room for. Go sets both sizes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct mac_pair[MAC_WAYS]);
	__uint(max_entries, 1);
} more_macs SEC(".maps");

/* By number of a pair of hop counters; 0 is unused. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct hop_key);
	__uint(max_entries, 1);
} hop_keys SEC(".maps");

/*
 * A ring of the numbers of pairs that Go has freed; 0 marks a free entry. It
 * has an entry for each pair.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32[1]);
	__uint(max_entries, 1);
} free_hops SEC(".maps");

struct allocator {
	struct bpf_spin_lock lock;
	__u32 used;  /* the highest number that was allocated */
	__u32 taken; /* how many were taken from free_hops, its read position */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct allocator);
	__uint(max_entries, 1);
} allocator SEC(".maps");

/* A cell of an address's row; it holds the number of a pair of hop counters. */
static __always_inline __u16 *cell_at(struct counted_addr *row, __u64 at)
{
	return (__u16 *)(row + 1) + masked(at, row_mask);
}

/*
 * Gives a cell a pair of hop counters and returns its number, 0 if all are
 * taken. The lock serialises CPUs that see a cell's first packet at once: an
 * atomic add that returns the old value needs Linux 5.12.
 */
__noinline __u32 lasthop_allocate(__u16 addr, __u16 link,
				  enum direction direction, enum side side)
{
	struct hop_key key = { .addr = addr,
			       .link = link,
			       .way = direction ^ side };
	__u32 zero = 0, number, fresh = 0, taken, last = hop_mask / SIDES;
	struct counted_addr *row = counted_at(addr);
	struct allocator *a;
	__u32 *ring, *next;
	__u16 *cell;

	if (!row)
		return 0;
	cell = cell_at(row, link * WAYS + key.way);
	a = bpf_map_lookup_elem(&allocator, &zero);
	ring = bpf_map_lookup_elem(&free_hops, &zero);
	if (!a || !ring)
		return 0;
	/*
	 * None is left without the lock only if none was taken meanwhile: who
	 * takes one counts it before clearing its entry.
	 */
	taken = *(volatile __u32 *)&a->taken;
	next = ring + masked(taken, last);
	if (!*(volatile __u32 *)next && a->used >= last &&
	    taken == *(volatile __u32 *)&a->taken)
		return *(volatile __u16 *)cell;
	bpf_spin_lock(&a->lock);
	number = *cell;
	if (!number) {
		next = ring + masked(a->taken, last);
		fresh = *next;
		if (!fresh && a->used < last)
			fresh = a->used + 1;
		*(volatile __u16 *)cell = number = fresh;
		if (fresh > a->used) {
			a->used = fresh;
		} else if (fresh) {
			*(volatile __u32 *)&a->taken = a->taken + 1;
			*(volatile __u32 *)next = 0;
		}
	}
	bpf_spin_unlock(&a->lock);
	if (fresh)
		bpf_map_update_elem(&hop_keys, &fresh, &key, BPF_ANY);
	return number;
}

/* Where a packet is counted. */
struct hop {
	const struct link *link;
	enum direction direction;
	enum origin origin;
};

/* The MACs are two words of the frame, as in struct packet. */
static __always_inline bool same_macs(const struct mac_pair *m, __u64 lo,
				      __u32 hi)
{
	return *(__u64 *)m->dst == lo && *(__u32 *)(m->dst + 8) == hi;
}

static __always_inline void set_macs(struct mac_pair *m, __u64 lo, __u32 hi)
{
	*(__u64 *)m->dst = lo;
	*(__u32 *)(m->dst + 8) = hi;
	m->packets = 1;
}

/*
 * Counts a pair of MACs that the hop counter has no room for. Returns whether
 * this CPU's table had.
 */
__noinline int lasthop_count_macs(__u32 hop, __u64 lo, __u32 hi)
{
	__u64 hash = hash64(lo * 31 + hi, (__u64)hop << 32);
	__u32 cpu = bpf_get_smp_processor_id();
	struct mac_pair *set = bpf_map_lookup_elem(&more_macs, &cpu);

	if (!set)
		return false;
	set += masked(hash, mac_mask) * MAC_WAYS;
	for (int i = 0; i < MAC_WAYS; i++) {
		struct mac_pair *m = set + i;

		if (m->hop == hop && same_macs(m, lo, hi)) {
			m->packets++;
			return true;
		}
	}
	for (int i = 0; i < MAC_WAYS; i++) {
		struct mac_pair *m = set + i;

		if (!m->hop) {
			set_macs(m, lo, hi);
			m->hop = hop;
			return true;
		}
	}
	return false;
}

static __always_inline void count_macs(struct hop_counter *c, __u32 hop,
				       __u64 lo, __u32 hi)
{
	for (int i = 0; i < HOP_MACS; i++) {
		struct mac_pair *m = &c->macs[i];

		OPAQUE(m);
		if (same_macs(m, lo, hi)) {
			m->packets++;
			return;
		}
		if (!m->packets) {
			set_macs(m, lo, hi);
			return;
		}
	}
	if (!lasthop_count_macs(hop, lo, hi))
		c->macs_lost++;
}

static __always_inline void count_hop(struct hop_counter *counters, __u32 slot,
				      enum side side, struct hop hop,
				      const struct packet *p)
{
	struct counted_addr *row = counted_at(slot);
	struct hop_counter *c;
	__u64 number;
	__u16 *cell;

	/* The CPU was plugged in after Go had sized the table. */
	if (!counters || !row)
		goto lost;
	cell = cell_at(row, hop.link->slot * WAYS + (hop.direction ^ side));
	number = *cell;
	if (!number)
		number = lasthop_allocate(slot, hop.link->slot, hop.direction,
					  side);
	if (!number)
		goto lost;
	number = number * SIDES + side;
	c = counters + masked(number, hop_mask);
	c->packets++;
	c->bytes += p->length;
	if (!(c->ttls >> (p->ttl & 63) & 1))
		c->ttls |= 1ULL << (p->ttl & 63);
	if (p->class & (SYN | SYNACK | RST | ICMP_ERROR)) {
		if (p->class & SYN)
			c->syn++;
		else if (p->class & SYNACK)
			c->synack++;
		else if (p->class & RST)
			c->rst++;
		else
			c->icmp_errors++;
	}
	if (hop.origin == INSIDE)
		c->from_inside++;
	else if (hop.origin == UPLINK)
		c->from_uplink++;
	if (!hop.link->no_ethernet)
		count_macs(c, number, p->macs_lo, p->macs_hi);
	return;
lost:
	lasthop_lose_of(slot, LOST_HOP);
}

static __always_inline void count_hops(struct hop hop, const struct packet *p)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hop_counter *counters = bpf_map_lookup_elem(&hop_counters, &cpu);

	if (p->src_slot)
		count_hop(counters, p->src_slot, SOURCE, hop, p);
	if (p->dst_slot)
		count_hop(counters, p->dst_slot, DESTINATION, hop, p);
}

#endif
