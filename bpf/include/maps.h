/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What is counted: the table of subjects, which both hook families read. */
#ifndef LASTHOP_MAPS_H
#define LASTHOP_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"

/*
 * These variables make up .bss, which the objects share: all of them have all,
 * in this order.
 *
 * Direct-mapped by the last 16 bits of an address: the first subject with
 * these, 0 for none. Most packets of other addresses end here, at one load.
 */
__u16 slots[65536];

/* By index, modulo the table's size, then the next places. */
struct link links[LINK_TABLE];

/* A bit for each first 16 bits that remote ranges have; see first_bits(). */
__u64 remote_bits[65536 / 64];

/* What is counted, and the numbers of its legs. */
struct subject_row {
	struct subject subject;
	__u16 legs[LINK_LEGS]; /* as many as there are links */
};

/* Slot 0 is nobody. Go sets the size of a value. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct subject_row);
	__uint(max_entries, 1);
} subjects SEC(".maps");

/* Packets lost to counting, by enum lost. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, LOST_MAX);
} losses SEC(".maps");

static __always_inline struct subject *subject_at(__u32 slot)
{
	return bpf_map_lookup_elem(&subjects, &slot);
}

/*
 * The functions that are not static are verified once and for all arguments,
 * not again at each call with all that came before it. They are for what is
 * seldom called, and take numbers only, as verifiers before 5.12 want it.
 */

__noinline int lose(enum lost why)
{
	__u32 i = why;
	__u64 *n = bpf_map_lookup_elem(&losses, &i);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

/* The slot of a local address in the chain that begins at slot, or 0. */
__noinline __u32 chained(__be64 hi, __be64 lo, __u32 slot)
{
	for (int i = 0; i < CHAIN_MAX && slot; i++) {
		struct subject *s = subject_at(slot);

		if (!s)
			break;
		if (s->addr.lo == lo && s->addr.hi == hi)
			return slot;
		slot = s->next;
	}
	return 0;
}

/*
 * The slot of a local address, or 0. Most addresses are nobody's, or the first
 * in their chain, and known without a call: that costs as much as all the
 * rest.
 */
static __always_inline __u32 local(struct addr a)
{
	__u32 slot = slots[a.lo >> 48];
	struct subject *s;

	if (!slot)
		return 0;
	s = subject_at(slot);
	if (s && s->addr.lo == a.lo && s->addr.hi == a.hi)
		return slot;
	return chained(a.hi, a.lo, slot);
}

#endif
