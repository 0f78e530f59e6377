/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The table of counted addresses, which the tc and drop programs share. */
#ifndef LASTHOP_MAPS_H
#define LASTHOP_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "compat.h"
#include "shared.h"

/*
 * These variables make up .bss, which the objects share. Each object declares
 * all of them, in this order.
 *
 * slots is indexed by the last 16 bits of an address and holds the first slot
 * with these bits, 0 for none. One load rejects most addresses that are not
 * counted.
 *
 * Go writes them while programs run: a slot by a release store, once its row is
 * complete and its counts are clear. A program computes the address of the row
 * from the slot, so that no CPU reads it earlier (an address dependency); the
 * same holds for a hop counter and its number.
 */
__u16 slots[65536];

/* A hash table by ifindex, with linear probing. */
struct link links[LINK_TABLE];

/* A bitmap of the remote ranges' first 16 bits; see first_bits(). */
__u64 remote_bits[65536 / 64];

struct addr_row {
	struct counted_addr addr;
	__u16 hops[WAYS]; /* for each link */
};

/* By slot; slot 0 is unused. Go sets the value size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct addr_row);
	__uint(max_entries, 1);
} counted_addrs SEC(".maps");

/* Packets that were not counted, by enum lost. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, LOST_MAX);
} losses SEC(".maps");

/* The same by slot of the address that they are of, where that is known. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64[LOST_OF_ADDR]);
	__uint(max_entries, 1);
} addr_losses SEC(".maps");

static __always_inline struct counted_addr *counted_at(__u32 slot)
{
	return bpf_map_lookup_elem(&counted_addrs, &slot);
}

/*
 * Global functions are verified once, independently of their callers. They
 * keep rare paths from multiplying the states that the verifier explores.
 * Before Linux 5.12 their arguments must be scalars or the context.
 */

__noinline int lasthop_lose(enum lost why)
{
	__u32 i = why;
	__u64 *n = bpf_map_lookup_elem(&losses, &i);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

/* Counts a packet of an address that was not counted. */
__noinline int lasthop_lose_of(__u32 slot, enum lost why)
{
	__u64 *n = bpf_map_lookup_elem(&addr_losses, &slot);

	if (n)
		__sync_fetch_and_add(&n[masked(why, LOST_OF_ADDR - 1)], 1);
	return lasthop_lose(why);
}

/* Walks the chain from slot; returns the address's slot, or 0. */
__noinline __u32 lasthop_chained(__be64 hi, __be64 lo, __u32 slot)
{
	for (int i = 0; i < CHAIN_MAX && slot; i++) {
		struct counted_addr *s = counted_at(slot);

		if (!s)
			break;
		if (s->addr.lo == lo && s->addr.hi == hi)
			return slot;
		slot = s->next;
	}
	return 0;
}

/*
 * The slot of a local address, 0 if it is none. Most addresses are not counted
 * or are the first in their chain. These need no call, which would double the
 * cost. The row is looked up where it is used: a pointer to it, or none, for
 * each end would multiply the states that the verifier explores.
 */
static __always_inline __u32 local_slot(struct addr a)
{
	__u32 slot = slots[a.lo >> 48];
	struct counted_addr *s;

	if (!slot)
		return 0;
	s = counted_at(slot);
	if (s && s->addr.lo == a.lo && s->addr.hi == a.hi)
		return slot;
	return lasthop_chained(a.hi, a.lo, slot);
}

/* Increments an entry that all CPUs share; false if the table is full. */
static __always_inline bool count_in(void *map, void *key)
{
	__u64 *n = bpf_map_lookup_elem(map, key);
	__u64 one = 1;

	if (!n) {
		if (!bpf_map_update_elem(map, key, &one, BPF_NOEXIST))
			return true;
		/* Another CPU added the key first, or the table is full. */
		n = bpf_map_lookup_elem(map, key);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	return n;
}

/* 16 bits that depend on all of word and on the upper half of upper. */
static __always_inline __u64 hash64(__u64 word, __u64 upper)
{
	word ^= word >> 32;
	return ((word ^ upper) * 0x9e3779b97f4a7c15ULL) >> 48;
}

/* How many entries of a kind a quota has in use. */
static __always_inline __u32 held(const struct quota *q, enum far far)
{
	return q->taken[far] - q->freed[far];
}

#endif
