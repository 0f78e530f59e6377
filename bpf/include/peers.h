/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Counts packets between local addresses and their peers off the node. */
#ifndef LASTHOP_PEERS_H
#define LASTHOP_PEERS_H

#include "shared.h"
#include "addr.h"
#include "compat.h"
#include "maps.h"
#include "packet.h"
#include "ranges.h"

/*
 * Set by Go: how many sets of PEER_WAYS there are, a power of 2, less one; how
 * many addresses and ranges a local address may hold on each CPU.
 */
const volatile __u32 peer_mask = 0;
const volatile __u32 peer_addrs = 0;
const volatile __u32 peer_ranges = 0;

/* By CPU: an array of struct peer. Go sets both sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct peer[PEER_WAYS]);
	__uint(max_entries, 1);
} peers SEC(".maps");

/* By CPU, then slot of a local address. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct peer_share);
	__uint(max_entries, 1);
} peer_shares SEC(".maps");

/* A local address and the link of a peer. */
struct local_end {
	__u16 slot;
	__u16 link;
};

/* A peer that is looked for, and the entries that it may be in. */
struct search {
	struct addr remote;
	__u8 bits;
	struct local_end local;
	struct peer *set;
};

/* The peer's entry in this CPU's table, NULL if there is none. */
static __always_inline struct peer *find_peer(struct peer *table,
					      struct search *s)
{
	__u64 ends = (__u64)s->local.slot << 32 | (__u64)s->local.link << 48;
	__u64 hash = hash64(s->remote.hi ^ s->remote.lo, ends);

	s->set = table + masked(hash, peer_mask) * PEER_WAYS;
	for (int i = 0; i < PEER_WAYS; i++) {
		struct peer *q = s->set + i;

		if (q->local == s->local.slot && q->remote.lo == s->remote.lo &&
		    q->remote.hi == s->remote.hi && q->bits == s->bits &&
		    q->link == s->local.link)
			return q;
	}
	return NULL;
}

/*
 * Whether the local address has half of the set. This is counted in a loop of
 * its own: one that did more would multiply the states that the verifier
 * explores.
 */
static __always_inline bool has_half(const struct search *s)
{
	int mine = 0;

	for (int i = 0; i < PEER_WAYS; i++)
		if (s->set[i].local == s->local.slot && ++mine == PEER_WAYS / 2)
			return true;
	return false;
}

/* A free entry of the set, NULL if there is none. */
static __always_inline struct peer *free_peer(const struct search *s)
{
	for (int i = 0; i < PEER_WAYS; i++)
		if (!s->set[i].local)
			return s->set + i;
	return NULL;
}

/*
 * Makes an entry, unless the local address may have no more. Its addresses may
 * fill half of a set: others find room beside one that scans. The counts are
 * set here: their addresses do not depend on the load that found the entry
 * free, so that a CPU may have read them before Go cleared them.
 */
static __always_inline struct peer *add_peer(const struct search *s,
					     struct quota *quota, enum far far)
{
	__u32 most = far == FAR_ADDRESS ? peer_addrs : peer_ranges;
	struct peer *q;

	if (held(quota, far) >= most)
		return NULL;
	if (far == FAR_ADDRESS && has_half(s))
		return NULL;
	q = free_peer(s);
	if (!q)
		return NULL;
	quota->taken[far]++;
	__builtin_memset(q->count, 0, sizeof(q->count));
	q->remote = s->remote;
	q->bits = s->bits;
	q->link = s->local.link;
	q->local = s->local.slot;
	return q;
}

/*
 * Where the packets of a local and a remote address are counted on this CPU: by
 * the address, else by the range around it, else with all others.
 */
static __always_inline struct peer_count *find_counts(struct addr remote,
						      struct local_end local)
{
	struct search s = { .remote = remote,
			    .bits = BITS_ADDRESS,
			    .local = local };
	__u32 cpu = bpf_get_smp_processor_id();
	struct peer *table = bpf_map_lookup_elem(&peers, &cpu);
	__u32 index = cpu * first_remote + local.slot;
	struct peer_share *share;
	struct peer *q;

	/* The CPU was plugged in after Go had sized the tables. */
	if (!table)
		return NULL;
	q = find_peer(table, &s);
	if (q)
		return q->count;
	share = bpf_map_lookup_elem(&peer_shares, &index);
	if (!share)
		return NULL;
	q = add_peer(&s, &share->quota, FAR_ADDRESS);
	if (q)
		return q->count;
	s.remote = fold(remote, &s.bits);
	q = find_peer(table, &s);
	if (!q)
		q = add_peer(&s, &share->quota, FAR_RANGE);
	if (q)
		return q->count;
	share->others_link = local.link;
	return share->others;
}

/*
 * Counts a packet, or an ICMP error about one, between a local address and the
 * peer hi:lo. local_link holds the slot of the address and that of the link.
 */
__noinline int lasthop_add_to_peer(__be64 hi, __be64 lo, __u32 local_link,
				   enum direction direction, __u32 class)
{
	struct local_end local = { local_link, local_link >> 16 };
	struct addr remote = { hi, lo };
	struct peer_count *n = find_counts(remote, local);

	if (!n)
		return lasthop_lose_of(local.slot, LOST_PEER);
	/* A constant, since n is in either of two maps. */
	OPAQUE(n);
	if (direction == EGRESS) {
		n++;
		OPAQUE(n);
	}
	if (class & ICMP_ERROR) {
		n->icmp_errors++;
		return 0;
	}
	n->packets++;
	if (class & REQUEST)
		n->requests++;
	else if (class & REPLY)
		n->replies++;
	else if (class & FRAGMENT)
		n->fragments++;
	return 0;
}

/* Counts a packet of which exactly one end is a local address. */
static __always_inline void count_peer(const struct packet *p, __u16 link,
				       enum direction direction)
{
	if (is_local(p->src_slot)) {
		if (!is_local(p->dst_slot))
			lasthop_add_to_peer(p->dst.hi, p->dst.lo,
					    p->src_slot | link << 16, direction,
					    p->class);
	} else if (is_local(p->dst_slot)) {
		lasthop_add_to_peer(p->src.hi, p->src.lo,
				    p->dst_slot | link << 16, direction,
				    p->class);
	}
}

/*
 * Counts an ICMP error for the addresses of the packet that it quotes, since
 * any router may send it. The quoted packet is at offset.
 */
__noinline int lasthop_count_error(struct __sk_buff *skb, __u32 offset,
				   bool ipv6, __u16 link,
				   enum direction direction)
{
	struct packet p = { .class = ICMP_ERROR };
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (ipv6) {
		if (!copy_header(skb, offset, &ip6))
			return not_copied(skb, offset + sizeof(ip6));
		if (!take_ipv6(&ip6, &p))
			return MALFORMED;
	} else {
		if (!copy_header(skb, offset, &ip))
			return not_copied(skb, offset + sizeof(ip));
		if (!take_ipv4(&ip, &p))
			return MALFORMED;
	}
	p.src_slot = local_slot(p.src);
	p.dst_slot = local_slot(p.dst);
	count_peer(&p, link, direction);
	return PARSED;
}

#endif
