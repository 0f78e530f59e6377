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
#include "shared.h"
#include "addr.h"
#include "compat.h"
#include "maps.h"
#include "parse.h"

/* More than the headers that are parsed in place; see watch(). */
#define PULL_MAX 128

/*
 * Set by Go: sizes of an address's row, of the hop counters and of the peer
 * table in sets of PEER_WAYS. Each is a power of 2, less one.
 */
const volatile __u32 row_mask = LINK_HOPS - 1;
const volatile __u32 hop_mask = 0;
const volatile __u32 peer_mask = 0;
/* The first slot of the remote ranges. */
const volatile __u32 first_remote = 1;

/* Keeps the types in BTF, from which bpf2go generates the Go types. */
const enum limit *const limit_type = NULL;
const enum link_flags *const link_flags_type = NULL;

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u32);
	__uint(max_entries, 1);
} prefixes SEC(".maps");

/* By CPU: an array of struct hop_counter. Go sets both sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct hop_counter[1]);
	__uint(max_entries, 1);
} hop_counters SEC(".maps");

/* By CPU: an array of struct peer. Go sets both sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct peer[PEER_WAYS]);
	__uint(max_entries, 1);
} peers SEC(".maps");

/* By slot of a local address: packets whose peer had no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} peers_lost SEC(".maps");

/* By number of a hop counter; 0 is unused. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct hop_key);
	__uint(max_entries, 1);
} hop_keys SEC(".maps");

/*
 * A ring of the numbers of hop counters that Go has freed; 0 marks a free
 * entry. It has an entry for each hop counter.
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

/* Packets by address pair, link and direction. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct pair_key);
	__type(value, __u64);
	__uint(max_entries, 1);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct neigh_key);
	__type(value, __u64);
	__uint(max_entries, 1);
} neighbors SEC(".maps");

/* The parsed headers of a packet. */
struct packet {
	struct addr src;
	struct addr dst;
	/* Indexes into remote_bits. */
	__u16 src_bit;
	__u16 dst_bit;
	__u8 ttl;
	__u8 proto;
	bool fragment; /* not the first: no transport header */
	bool options;  /* the transport header is not at the cursor */
	/* The frame's first 12 bytes: both MACs. */
	__u64 macs_lo;
	__u32 macs_hi;
};

/* Where a packet on egress came from. */
enum origin {
	LOCAL,	/* the node itself; also every packet on ingress */
	INSIDE, /* a link that is no uplink */
	UPLINK,
};

/* How far a packet was parsed. */
enum outcome {
	PARSED,
	HANDLED,    /* nothing is left to do */
	SHORT,	    /* a header is malformed or not in the linear part */
	MALFORMED,  /* the packet ends within a header, or one is wrong */
	UNREADABLE, /* a header is there, but the kernel did not copy it */
};

/* Why a header that ends at this offset was not copied. */
static __always_inline enum outcome not_copied(struct __sk_buff *skb, __u32 end)
{
	return end > skb->len ? MALFORMED : UNREADABLE;
}

static __always_inline struct link *find_link(__u32 ifindex)
{
	for (__u32 i = 0; i < LINK_TRIES; i++) {
		struct link *l = &links[masked(ifindex + i, LINK_TABLE - 1)];

		if (l->ifindex == ifindex)
			return l;
	}
	return NULL;
}

/*
 * The kernel keeps the index of the link that last received a packet, 0 for
 * one that the node itself sends.
 */
static __always_inline enum origin origin_of(struct __sk_buff *skb,
					     enum direction direction)
{
	struct link *in;

	if (direction == INGRESS || !skb->ingress_ifindex)
		return LOCAL;
	in = find_link(skb->ingress_ifindex);
	return in && in->flags & LINK_UPLINK ? UPLINK : INSIDE;
}

/* The slot of the remote range that contains an address, or 0. */
__noinline __u32 remote_slot(__be64 hi, __be64 lo)
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

	if (!slot && remote_bits[bit / 64] >> bit % 64 & 1)
		slot = remote_slot(a.hi, a.lo);
	return slot;
}

/* Parses the frame's headers and sets proto to the EtherType. */
static __always_inline enum outcome parse_frame(struct cursor *c,
						struct packet *p, __be16 *proto)
{
	struct ethernet *eth;

	if (!parse_ethhdr(c, &eth))
		return SHORT;
	p->macs_lo = *(__u64 *)eth;
	p->macs_hi = *(__u32 *)((void *)eth + 8);
	*proto = eth->proto;
	for (int i = 0; i < VLAN_TAGS; i++) {
		struct vlan_tag *tag;

		if (*proto != bpf_htons(ETH_P_8021Q) &&
		    *proto != bpf_htons(ETH_P_8021AD))
			break;
		if (!parse_vlanhdr(c, &tag))
			return SHORT;
		*proto = tag->proto;
	}
	return PARSED;
}

/* The index in remote_bits of an IPv6 address: its first 32 bits, folded. */
static __always_inline __u16 first_bits(__be64 hi)
{
	return hi ^ hi >> 16;
}

/* Reads an IPv4 header; false if it is malformed. */
static __always_inline bool take_ipv4(const struct iphdr *ip, struct packet *p)
{
	p->src = addr_v4(ip->saddr);
	p->dst = addr_v4(ip->daddr);
	p->src_bit = ip->saddr;
	p->dst_bit = ip->daddr;
	p->ttl = ip->ttl;
	p->proto = ip->protocol;
	p->fragment = ip->frag_off & bpf_htons(IP_OFFSET);
	return ip->version == 4 && ip->ihl >= IP_WORDS;
}

static __always_inline bool take_ipv6(const struct ipv6hdr *ip,
				      struct packet *p)
{
	p->src = addr_v6(&ip->saddr);
	p->dst = addr_v6(&ip->daddr);
	p->src_bit = first_bits(p->src.hi);
	p->dst_bit = first_bits(p->dst.hi);
	p->ttl = ip->hop_limit;
	p->proto = ip->nexthdr;
	return ip->version == 6;
}

static __always_inline enum outcome parse_ipv4(struct cursor *c,
					       struct packet *p)
{
	struct iphdr *ip;

	if (!parse_iphdr(c, &ip) || !take_ipv4(ip, p))
		return SHORT;
	if (ip->ihl > IP_WORDS) {
		c->offset += (ip->ihl - IP_WORDS) * 4;
		p->options = true;
	}
	return PARSED;
}

static __always_inline bool is_extension(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING ||
	       proto == IPPROTO_DSTOPTS || proto == IPPROTO_FRAGMENT ||
	       proto == IPPROTO_AH;
}

/* The result of skip_extensions(), packed: it must return a scalar. */
union transport {
	struct {
		__u16 offset;
		__u8 proto;
		__u8 outcome;
		bool fragment;
		__u8 pad[3];
	};
	__u64 word;
};

__noinline __u64 skip_extensions(struct __sk_buff *skb, __u32 offset,
				 __u8 proto)
{
	union transport t = { .proto = proto, .outcome = PARSED };
	struct extension e;

	for (int i = 0; i < EXTENSIONS && is_extension(t.proto); i++) {
		if (!copy_header(skb, offset, &e)) {
			t.outcome = not_copied(skb, offset + sizeof(e));
			break;
		}
		if (t.proto == IPPROTO_FRAGMENT) {
			t.fragment = e.data & bpf_htons(IP6_OFFSET);
			if (t.fragment)
				break;
			offset += sizeof(e);
		} else if (t.proto == IPPROTO_AH) {
			offset += sizeof(e) + e.length * 4;
		} else {
			offset += sizeof(e) + e.length * 8;
		}
		t.proto = e.next;
	}
	t.offset = offset;
	return t.word;
}

static __always_inline __u32 tcp_class_of(const struct tcphdr *tcp)
{
	return tcp_class[((const __u8 *)tcp)[13] & TCP_FLAGS];
}

static __always_inline __u32 icmp_class_of(const struct icmp_header *icmp,
					   __u8 proto)
{
	return proto == IPPROTO_ICMP ? icmp_class[icmp->type]
				     : icmp6_class[icmp->type];
}

/*
 * Copies a transport header and returns its class; if it cannot, an outcome,
 * negated.
 */
__noinline int class_at(struct __sk_buff *skb, __u32 offset, __u8 proto)
{
	struct icmp_header icmp;
	struct tcphdr tcp;

	switch (proto) {
	case IPPROTO_TCP:
		if (!copy_header(skb, offset, &tcp))
			return -not_copied(skb, offset + sizeof(tcp));
		return tcp_class_of(&tcp);
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (!copy_header(skb, offset, &icmp))
			return -not_copied(skb, offset + sizeof(icmp));
		return icmp_class_of(&icmp, proto);
	}
	return 0;
}

static __always_inline enum outcome parse_transport(struct __sk_buff *skb,
						    struct cursor *c,
						    const struct packet *p,
						    __u32 *class)
{
	struct icmp_header *icmp;
	struct tcphdr *tcp;
	int m;

	if (p->fragment)
		return PARSED;
	if (p->options) {
		m = class_at(skb, c->offset, p->proto);
		if (m < 0)
			return -m;
		*class = m;
		c->offset += sizeof(*icmp);
	} else if (p->proto == IPPROTO_TCP) {
		if (!parse_tcphdr(c, &tcp))
			return SHORT;
		*class = tcp_class_of(tcp);
	} else if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		if (!parse_icmphdr(c, &icmp))
			return SHORT;
		*class = icmp_class_of(icmp, p->proto);
	}
	return PARSED;
}

/* Increments an entry of a hash table that all CPUs share. */
static __always_inline void count_in(void *map, void *key, enum lost full)
{
	__u64 *n = bpf_map_lookup_elem(map, key);
	__u64 one = 1;

	if (!n) {
		if (!bpf_map_update_elem(map, key, &one, BPF_NOEXIST))
			return;
		/* Another CPU added the key first, or the table is full. */
		n = bpf_map_lookup_elem(map, key);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		lose(full);
}

static __noinline void count_neigh(struct neigh_key *key)
{
	count_in(&neighbors, key, LOST_NEIGH);
}

__noinline int count_arp(struct __sk_buff *skb, __u32 offset,
			 enum direction direction)
{
	struct neigh_key key = { .ifindex = skb->ifindex,
				 .direction = direction };
	struct arp_ip arp;
	__be32 ip;

	if (!copy_header(skb, offset, &arp))
		return not_copied(skb, offset + sizeof(arp));
	if (arp.hardware != bpf_htons(ARP_ETHERNET) ||
	    arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_len != sizeof(arp.sender_mac) ||
	    arp.protocol_len != sizeof(arp.sender))
		return HANDLED;
	if (arp.op == bpf_htons(ARP_REQUEST))
		__builtin_memcpy(&ip, arp.target, sizeof(ip));
	else if (arp.op == bpf_htons(ARP_REPLY))
		__builtin_memcpy(&ip, arp.sender, sizeof(ip));
	else
		return HANDLED;
	key.addr = addr_v4(ip);
	key.reply = arp.op == bpf_htons(ARP_REPLY);
	__builtin_memcpy(key.mac, arp.sender_mac, sizeof(key.mac));
	count_neigh(&key);
	return HANDLED;
}

/* Returns PARSED for an ICMPv6 message that is not neighbour discovery. */
__noinline int count_nd(struct __sk_buff *skb, __u32 offset,
			enum direction direction)
{
	struct neigh_key key = { .ifindex = skb->ifindex,
				 .direction = direction };
	struct icmp_header icmp;
	struct nd_message nd;
	struct nd_option o;

	if (!copy_header(skb, offset, &icmp))
		return not_copied(skb, offset + sizeof(icmp));
	if (icmp.type != ND_SOLICIT && icmp.type != ND_ADVERTISE)
		return PARSED;
	if (!copy_header(skb, offset, &nd))
		return not_copied(skb, offset + sizeof(nd));
	key.addr = addr_v6(&nd.target);
	key.reply = nd.type == ND_ADVERTISE;
	offset += sizeof(nd);
	for (int i = 0; i < ND_OPTIONS; i++) {
		if (!copy_header(skb, offset, &o) || !o.length)
			break;
		if (o.type == (key.reply ? ND_TARGET : ND_SOURCE)) {
			__builtin_memcpy(key.mac, o.mac, sizeof(key.mac));
			break;
		}
		offset += o.length * 8;
	}
	count_neigh(&key);
	return HANDLED;
}

/* Parses the IPv6 and extension headers and counts neighbour discovery. */
static __always_inline enum outcome parse_ipv6(struct __sk_buff *skb,
					       struct cursor *c,
					       struct packet *p,
					       enum direction direction)
{
	struct ipv6hdr *ip;

	if (!parse_ipv6hdr(c, &ip) || !take_ipv6(ip, p))
		return SHORT;
	if (is_extension(p->proto)) {
		union transport t = { .word = skip_extensions(skb, c->offset,
							      p->proto) };

		c->offset = t.offset;
		p->proto = t.proto;
		p->fragment = t.fragment;
		p->options = true;
		if (t.outcome != PARSED)
			return t.outcome;
	}
	if (p->proto != IPPROTO_ICMPV6 || p->ttl != HOP_LIMIT_ND || p->fragment)
		return PARSED;
	return count_nd(skb, c->offset, direction);
}

/* A cell of an address's row; it holds the number of a hop counter. */
static __always_inline __u16 *cell_at(struct counted_addr *row, __u64 at)
{
	return (__u16 *)(row + 1) + masked(at, row_mask);
}

/*
 * Gives a cell a hop counter and returns the counter's number, 0 if all are
 * taken. The lock serialises CPUs that see a cell's first packet at once: an
 * atomic add that returns the old value needs Linux 5.12.
 */
__noinline __u32 allocate(__u16 addr, __u16 link, enum direction direction,
			  enum side side)
{
	struct hop_key key = {
		.addr = addr, .link = link, .direction = direction, .side = side
	};
	__u32 zero = 0, number, fresh = 0, last = hop_mask;
	struct counted_addr *row = counted_at(addr);
	struct allocator *a;
	__u32 *ring, *next;
	__u16 *cell;

	if (!row)
		return 0;
	cell = cell_at(row, link * LINK_HOPS + direction * SIDES + side);
	a = bpf_map_lookup_elem(&allocator, &zero);
	ring = bpf_map_lookup_elem(&free_hops, &zero);
	if (!a || !ring)
		return 0;
	next = ring + masked(a->taken, hop_mask);
	if (!*next && a->used >= last)
		return 0;
	bpf_spin_lock(&a->lock);
	number = *cell;
	if (!number) {
		next = ring + masked(a->taken, hop_mask);
		if (*next) {
			fresh = *next;
			*next = 0;
			a->taken++;
		} else if (a->used < last) {
			fresh = ++a->used;
		}
		*cell = number = fresh;
	}
	bpf_spin_unlock(&a->lock);
	if (fresh)
		bpf_map_update_elem(&hop_keys, &fresh, &key, BPF_ANY);
	return number;
}

/* Where a packet is counted, and the slots of its addresses. */
struct hop {
	__u32 src; /* slots, 0 for none */
	__u32 dst;
	__u16 link;
	enum direction direction;
	enum origin origin;
	bool no_ethernet;
};

/* The properties of a packet that a hop counter counts. */
struct packet_info {
	__u32 length;
	__u32 class;
	__u8 ttl;
	__u64 macs_lo;
	__u32 macs_hi;
};

static __always_inline void count_macs(struct hop_counter *c, __u64 lo,
				       __u32 hi)
{
	for (int i = 0; i < HOP_MACS; i++) {
		struct mac_pair *m = &c->macs[i];
		__u64 *mlo = (__u64 *)m->dst;
		__u32 *mhi = (__u32 *)(m->dst + 8);

		if (*mlo == lo && *mhi == hi) {
			m->packets++;
			return;
		}
		if (!m->packets) {
			*mlo = lo;
			*mhi = hi;
			m->packets = 1;
			return;
		}
	}
	c->macs_lost++;
}

static __always_inline void count_hop(struct hop_counter *counters, __u32 slot,
				      enum side side, struct hop hop,
				      struct packet_info info)
{
	struct counted_addr *row = counted_at(slot);
	struct hop_counter *c;
	__u64 number;
	__u16 *cell;

	if (!row)
		goto lost;
	cell = cell_at(row,
		       hop.link * LINK_HOPS + hop.direction * SIDES + side);
	number = *cell;
	if (!number)
		number = allocate(slot, hop.link, hop.direction, side);
	if (!number)
		goto lost;
	c = counters + masked(number, hop_mask);
	c->packets++;
	c->bytes += info.length;
	if (!(c->ttls >> (info.ttl & 63) & 1))
		c->ttls |= 1ULL << (info.ttl & 63);
	if (info.class & (SYN | SYNACK | RST | ICMP_ERROR)) {
		if (info.class & SYN)
			c->syn++;
		else if (info.class & SYNACK)
			c->synack++;
		else if (info.class & RST)
			c->rst++;
		else
			c->icmp_errors++;
	}
	if (hop.origin == INSIDE)
		c->from_inside++;
	else if (hop.origin == UPLINK)
		c->from_uplink++;
	if (!hop.no_ethernet)
		count_macs(c, info.macs_lo, info.macs_hi);
	return;
lost:
	lose(LOST_HOP);
}

static __always_inline void count_hops(struct hop hop, struct packet_info info)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct hop_counter *counters = bpf_map_lookup_elem(&hop_counters, &cpu);

	if (!counters) {
		/* Plugged in after Go had sized the table. */
		lose(LOST_HOP);
		return;
	}
	if (hop.src)
		count_hop(counters, hop.src, SOURCE, hop, info);
	if (hop.dst)
		count_hop(counters, hop.dst, DESTINATION, hop, info);
}

static __always_inline bool is_local(__u32 slot)
{
	return slot && slot < first_remote;
}

/* 16 bits that depend on all of word and on the upper half of upper. */
static __always_inline __u64 hash64(__u64 word, __u64 upper)
{
	word ^= word >> 32;
	return ((word ^ upper) * 0x9e3779b97f4a7c15ULL) >> 48;
}

/*
 * The peer's entry in this CPU's table, NULL if there is no room, or the CPU
 * was plugged in after Go had sized the table.
 *
 * An address may not hold more of a set than is free. So one that scans leaves
 * half of each set to the others, two leave a quarter.
 */
static __always_inline struct peer *find_peer(__be64 hi, __be64 lo, __u16 local,
					      __u16 link)
{
	__u64 hash = hash64(hi ^ lo, (__u64)local << 32 | (__u64)link << 48);
	__u32 cpu = bpf_get_smp_processor_id();
	struct peer *set = bpf_map_lookup_elem(&peers, &cpu);
	int held = 0;

	if (!set)
		return NULL;
	set += masked(hash, peer_mask) * PEER_WAYS;
	for (int i = 0; i < PEER_WAYS; i++) {
		struct peer *q = set + i;

		if (!q->local) {
			if (held >= PEER_WAYS - i)
				return NULL;
			q->remote.hi = hi;
			q->remote.lo = lo;
			q->link = link;
			q->local = local;
			return q;
		}
		if (q->remote.lo == lo && q->remote.hi == hi &&
		    q->local == local && q->link == link)
			return q;
		held += q->local == local;
	}
	return NULL;
}

static __always_inline void lose_peer(__u32 local)
{
	__u64 *n = bpf_map_lookup_elem(&peers_lost, &local);

	if (n)
		__sync_fetch_and_add(n, 1);
	lose(LOST_PEER);
}

/*
 * Counts a packet, or an ICMP error about one, between a local address and the
 * peer hi:lo. local_link holds the slot of the address and that of the link.
 */
__noinline int add_to_peer(__be64 hi, __be64 lo, __u32 local_link,
			   enum direction direction, __u32 class)
{
	struct peer *q = find_peer(hi, lo, local_link, local_link >> 16);
	struct peer_count *n;

	if (!q) {
		lose_peer(local_link & 0xffff);
		return 0;
	}
	n = &q->count[masked(direction, 1)];
	if (class & ICMP_ERROR) {
		n->icmp_errors++;
		return 0;
	}
	n->packets++;
	if (class & REQUEST)
		n->requests++;
	else if (class & REPLY)
		n->replies++;
	return 0;
}

/* Counts a packet of which exactly one end is a local address. */
static __always_inline void count_peer(struct addr src, struct addr dst,
				       __u32 from, __u32 to, __u16 link,
				       enum direction direction, __u32 class)
{
	if (is_local(from)) {
		if (!is_local(to))
			add_to_peer(dst.hi, dst.lo, from | link << 16,
				    direction, class);
	} else if (is_local(to)) {
		add_to_peer(src.hi, src.lo, to | link << 16, direction, class);
	}
}

static __always_inline bool counts_pairs(__u32 slot)
{
	struct counted_addr *a = is_local(slot) ? counted_at(slot) : NULL;

	return a && a->pairs;
}

/* Counts the address pair at this link if one end is counted by pair. */
static __always_inline void count_pair(struct addr src, struct addr dst,
				       __u32 from, __u32 to, __u32 ifindex,
				       enum direction direction)
{
	struct pair_key key = { .src = src,
				.dst = dst,
				.ifindex = ifindex,
				.direction = direction };

	if (counts_pairs(from) || counts_pairs(to))
		count_in(&pairs, &key, LOST_PAIR);
}

/*
 * Counts an ICMP error for the addresses of the packet that it quotes, since
 * any router may send it. The quoted packet is at offset.
 */
__noinline int count_error(struct __sk_buff *skb, __u32 offset, bool ipv6,
			   __u16 link, enum direction direction)
{
	struct packet p = {};
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
	count_peer(p.src, p.dst, local_slot(p.src), local_slot(p.dst), link,
		   direction, ICMP_ERROR);
	return PARSED;
}

/*
 * Counts the packet. It counts nothing if it returns SHORT, unless pulled is
 * set.
 */
static __always_inline enum outcome count(struct __sk_buff *skb, bool pulled,
					  enum direction direction)
{
	struct link *link = find_link(skb->ifindex);
	struct cursor c = {
		.pos = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
	};
	__be16 proto = skb->protocol;
	struct packet p = {};
	enum outcome outcome;
	__u32 class = 0;
	__u32 src, dst;
	struct packet_info info;
	struct hop hop;

	if (!link) {
		lose(LOST_LINK);
		return HANDLED;
	}
	if (!link->no_ethernet && parse_frame(&c, &p, &proto) != PARSED)
		return SHORT;
	if (proto == bpf_htons(ETH_P_IP))
		outcome = parse_ipv4(&c, &p);
	else if (proto == bpf_htons(ETH_P_IPV6))
		outcome = parse_ipv6(skb, &c, &p, direction);
	else if (proto == bpf_htons(ETH_P_ARP))
		return count_arp(skb, c.offset, direction);
	else
		return HANDLED;
	if (outcome == HANDLED || outcome == SHORT)
		return outcome;
	src = find_slot(p.src, p.src_bit);
	dst = find_slot(p.dst, p.dst_bit);
	if (!src && !dst)
		return outcome;
	if (outcome == PARSED)
		outcome = parse_transport(skb, &c, &p, &class);
	if (outcome == SHORT && !pulled)
		return SHORT;

	hop = (struct hop){ .src = src,
			    .dst = dst,
			    .link = link->slot,
			    .direction = direction,
			    .origin = origin_of(skb, direction),
			    .no_ethernet = link->no_ethernet };
	info = (struct packet_info){ .length = skb->len,
				     .class = class,
				     .ttl = p.ttl,
				     .macs_lo = p.macs_lo,
				     .macs_hi = p.macs_hi };
	count_hops(hop, info);
	if (!link->flags)
		return outcome;
	if (link->flags & LINK_PAIRS)
		count_pair(p.src, p.dst, src, dst, skb->ifindex, direction);
	if (!(link->flags & LINK_UPLINK))
		return outcome;
	if (class & ICMP_ERROR)
		return count_error(skb, c.offset,
				   proto == bpf_htons(ETH_P_IPV6), link->slot,
				   direction);
	count_peer(p.src, p.dst, src, dst, link->slot, direction, class);
	return outcome;
}

/*
 * Drivers may leave headers in a packet's fragments. Only then does the program
 * pull them into the linear part, as the stack would do next. This moves bytes
 * and changes none.
 */
static __always_inline bool pull(struct __sk_buff *skb)
{
	return !bpf_skb_pull_data(skb,
				  skb->len < PULL_MAX ? skb->len : PULL_MAX);
}

static __always_inline int watch(struct __sk_buff *skb,
				 enum direction direction)
{
	enum outcome outcome = SHORT;

	for (int pulled = 0; pulled < 2 && outcome == SHORT; pulled++) {
		if (pulled && !pull(skb))
			outcome = UNREADABLE;
		else
			outcome = count(skb, pulled, direction);
	}
	/* What is short once it was pulled is not there. */
	if (outcome == SHORT || outcome == MALFORMED)
		lose(LOST_MALFORMED);
	else if (outcome == UNREADABLE)
		lose(LOST_UNREADABLE);
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
