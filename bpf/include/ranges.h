/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Looks up the addresses of packets: local ones, then remote ranges. */
#ifndef LASTHOP_RANGES_H
#define LASTHOP_RANGES_H

#include "shared.h"
#include "addr.h"
#include "maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u32);
	__uint(max_entries, 1);
} prefixes SEC(".maps");

/* Set by Go: the first slot of the remote ranges. */
const volatile __u32 first_remote = 1;

static __always_inline bool is_local(__u32 slot)
{
	return slot && slot < first_remote;
}

/* The slot of the remote range that contains an address, or 0. */
__noinline __u32 lasthop_remote_slot(__be64 hi, __be64 lo)
{
	struct prefix_key key = { .length = 128 };
	__u32 *slot;

	__builtin_memcpy(key.addr, &hi, sizeof(hi));
	__builtin_memcpy(key.addr + sizeof(hi), &lo, sizeof(lo));
	slot = bpf_map_lookup_elem(&prefixes, &key);
	return slot ? *slot : 0;
}

/* The slot of an address, or 0. bit is its index in remote_bits. */
static __always_inline __u32 find_slot(struct addr a, __u64 bit)
{
	__u32 slot = local_slot(a);

	if (slot || !(remote_bits[bit / 64] >> bit % 64 & 1))
		return slot;
	return lasthop_remote_slot(a.hi, a.lo);
}

#endif
