//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counts packets at a link's tc hooks. The programs always return "next" and
 * write no byte of a packet.
 *
 * They run with soft interrupts off, so that what one CPU writes needs no
 * atomic operation as long as each CPU has its own.
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

/* More than the headers that are read in place; see watch(). */
#define PULL_MAX 128

/*
 * Set by Go: how many cells a subject's row has, how many legs there are, and
 * how many sets of PEER_WAYS peers, each less one and a power of 2.
 */
const volatile __u32 row_mask = LINK_LEGS - 1;
const volatile __u32 leg_mask = 0;
const volatile __u32 peer_mask = 0;
/* Slots from here on are remote ranges. */
const volatile __u32 first_remote = 1;

/* Nothing else would name the types in BTF, from which Go's are made. */
const enum limit *const limit_type = NULL;
const enum pair_scope *const pair_scope_type = NULL;

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u32);
	__uint(max_entries, 1);
} prefixes SEC(".maps");

/* By CPU: an array of struct leg, of struct peer. Go sets the sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct leg[1]);
	__uint(max_entries, 1);
} legs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct peer[PEER_WAYS]);
	__uint(max_entries, 1);
} peers SEC(".maps");

/* By leg: whose it is. Leg 0 is nobody's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct owner);
	__uint(max_entries, 1);
} owners SEC(".maps");

/*
 * Legs that Go has taken back, from whoever is gone, in a ring; 0 is a free
 * place. Go sets the size: as many as there are legs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32[1]);
	__uint(max_entries, 1);
} spare SEC(".maps");

struct allocator {
	struct bpf_spin_lock lock;
	__u32 used;  /* the highest leg that was given out */
	__u32 taken; /* how many out of spare, of which this is the next */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct allocator);
	__uint(max_entries, 1);
} allocator SEC(".maps");

/* Packets by their ends and hop, of subjects that are looked at closely. */
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

/* What of a packet is counted. */
struct packet {
	struct addr src;
	struct addr dst;
	/* What remote_bits goes by. */
	__u16 src_bit;
	__u16 dst_bit;
	__u8 ttl;
	__u8 proto;
	bool fragment; /* not the first, so without a transport header */
	bool beyond;   /* the transport header is not at the cursor */
	/* The frame's first 12 bytes, both MACs. */
	__u64 macs_lo;
	__u32 macs_hi;
};

/* Where a packet that leaves through a link came from. */
enum origin {
	OWN, /* the node itself; of any that arrives, too */
	INNER,
	OUTER,
};

/* How far a packet was understood. */
enum outcome {
	DONE,
	ENOUGH, /* there is no more to do */
	SHORT,	/* a header is not in the linear part, or is none */
	CUT,	/* its ends are known, and what is behind them is cut off */
};

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
 * A packet keeps the index of the link that it came in by on its way through
 * the node; what the node itself sends has none.
 */
static __always_inline enum origin origin_of(struct __sk_buff *skb,
					     enum direction direction)
{
	struct link *in;

	if (direction == INGRESS || !skb->ingress_ifindex)
		return OWN;
	in = find_link(skb->ingress_ifindex);
	return in && in->pairs & PAIRS_BEYOND ? OUTER : INNER;
}

/* The slot of the remote range that an address is in, or 0. */
__noinline __u32 remote(__be64 hi, __be64 lo)
{
	struct prefix_key key = { .length = 128 };
	__u32 *slot;

	__builtin_memcpy(key.addr, &hi, sizeof(hi));
	__builtin_memcpy(key.addr + sizeof(hi), &lo, sizeof(lo));
	slot = bpf_map_lookup_elem(&prefixes, &key);
	return slot ? *slot : 0;
}

/* Whose an address is; bit is what remote_bits has of it. */
static __always_inline __u32 find(struct addr a, __u64 bit)
{
	__u32 slot = local(a);

	if (!slot && remote_bits[bit / 64] >> bit % 64 & 1)
		slot = remote(a.hi, a.lo);
	return slot;
}

/* Reads up to the network header, and says which one that is. */
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
	return DONE;
}

/* Two bytes of an IPv4 address are taken as they are, four of IPv6 folded. */
static __always_inline __u16 first_bits(__be64 hi)
{
	return hi ^ hi >> 16;
}

/* What an IPv4 header says; false for one that cannot be. */
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
		p->beyond = true;
	}
	return DONE;
}

static __always_inline bool is_extension(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING ||
	       proto == IPPROTO_DSTOPTS || proto == IPPROTO_FRAGMENT ||
	       proto == IPPROTO_AH;
}

/* Where the extension headers end; a function returns a number only. */
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
	union transport t = { .proto = proto, .outcome = DONE };
	struct extension e;

	for (int i = 0; i < EXTENSIONS && is_extension(t.proto); i++) {
		if (!copy_header(skb, offset, &e)) {
			t.outcome = CUT;
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

static __always_inline __u32 tcp_says(const struct tcphdr *tcp)
{
	return tcp_meaning[((const __u8 *)tcp)[13] & TCP_FLAGS];
}

static __always_inline __u32 icmp_says(const struct icmp_header *icmp,
				       __u8 proto)
{
	return proto == IPPROTO_ICMP ? icmp_meaning[icmp->type]
				     : icmp6_meaning[icmp->type];
}

/* The meaning of a transport header that is to be copied, or -1. */
__noinline int meaning_at(struct __sk_buff *skb, __u32 offset, __u8 proto)
{
	struct icmp_header icmp;
	struct tcphdr tcp;

	switch (proto) {
	case IPPROTO_TCP:
		if (!copy_header(skb, offset, &tcp))
			return -1;
		return tcp_says(&tcp);
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (!copy_header(skb, offset, &icmp))
			return -1;
		return icmp_says(&icmp, proto);
	}
	return 0;
}

static __always_inline enum outcome parse_transport(struct __sk_buff *skb,
						    struct cursor *c,
						    const struct packet *p,
						    __u32 *meaning)
{
	struct icmp_header *icmp;
	struct tcphdr *tcp;
	int m;

	if (p->fragment)
		return DONE;
	if (p->beyond) {
		m = meaning_at(skb, c->offset, p->proto);
		if (m < 0)
			return CUT;
		*meaning = m;
		c->offset += sizeof(*icmp);
	} else if (p->proto == IPPROTO_TCP) {
		if (!parse_tcphdr(c, &tcp))
			return SHORT;
		*meaning = tcp_says(tcp);
	} else if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		if (!parse_icmphdr(c, &icmp))
			return SHORT;
		*meaning = icmp_says(icmp, p->proto);
	}
	return DONE;
}

/* Adds to a count of a table that all CPUs share. */
static __always_inline void count_in(void *map, void *key, enum lost full)
{
	__u64 *n = bpf_map_lookup_elem(map, key);
	__u64 one = 1;

	if (!n) {
		if (!bpf_map_update_elem(map, key, &one, BPF_NOEXIST))
			return;
		/* Another CPU was first, or there is no room. */
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
		return CUT;
	if (arp.hardware != bpf_htons(ARP_ETHERNET) ||
	    arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_len != sizeof(arp.sender_mac) ||
	    arp.protocol_len != sizeof(arp.sender))
		return ENOUGH;
	if (arp.op == bpf_htons(ARP_REQUEST))
		__builtin_memcpy(&ip, arp.target, sizeof(ip));
	else if (arp.op == bpf_htons(ARP_REPLY))
		__builtin_memcpy(&ip, arp.sender, sizeof(ip));
	else
		return ENOUGH;
	key.addr = addr_v4(ip);
	key.reply = arp.op == bpf_htons(ARP_REPLY);
	__builtin_memcpy(key.mac, arp.sender_mac, sizeof(key.mac));
	count_neigh(&key);
	return ENOUGH;
}

/* Returns DONE for any other ICMPv6 message. */
__noinline int count_nd(struct __sk_buff *skb, __u32 offset,
			enum direction direction)
{
	struct neigh_key key = { .ifindex = skb->ifindex,
				 .direction = direction };
	struct icmp_header icmp;
	struct nd_message nd;
	struct nd_option o;

	if (!copy_header(skb, offset, &icmp))
		return CUT;
	if (icmp.type != ND_SOLICIT && icmp.type != ND_ADVERTISE)
		return DONE;
	if (!copy_header(skb, offset, &nd))
		return CUT;
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
	return ENOUGH;
}

/* Reads the IPv6 header and those behind, and counts neighbour discovery. */
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
		p->beyond = true;
		if (t.outcome != DONE)
			return CUT;
	}
	if (p->proto != IPPROTO_ICMPV6 || p->ttl != HOP_LIMIT_ND || p->fragment)
		return DONE;
	return count_nd(skb, c->offset, direction);
}

/* The cell of a subject's row that names its leg. */
static __always_inline __u16 *cell_at(struct subject *s, __u64 at)
{
	return (__u16 *)(s + 1) + masked(at, row_mask);
}

/*
 * Gives a cell a leg, and returns it; 0 when all are taken. The lock is for
 * the CPUs that see a cell's first packet at once; adding atomically and
 * knowing the sum needs 5.12.
 */
__noinline __u32 allocate(__u16 subject, __u16 link, enum direction direction,
			  enum side side)
{
	struct owner o = { .subject = subject,
			   .link = link,
			   .direction = direction,
			   .side = side };
	__u32 zero = 0, leg, fresh = 0, last = leg_mask;
	struct subject *s = subject_at(subject);
	struct allocator *a;
	__u32 *ring, *next;
	__u16 *cell;

	if (!s)
		return 0;
	cell = cell_at(s, link * LINK_LEGS + direction * SIDES + side);
	a = bpf_map_lookup_elem(&allocator, &zero);
	ring = bpf_map_lookup_elem(&spare, &zero);
	if (!a || !ring)
		return 0;
	next = ring + masked(a->taken, leg_mask);
	if (!*next && a->used >= last)
		return 0;
	bpf_spin_lock(&a->lock);
	leg = *cell;
	if (!leg) {
		next = ring + masked(a->taken, leg_mask);
		if (*next) {
			fresh = *next;
			*next = 0;
			a->taken++;
		} else if (a->used < last) {
			fresh = ++a->used;
		}
		*cell = leg = fresh;
	}
	bpf_spin_unlock(&a->lock);
	if (fresh)
		bpf_map_update_elem(&owners, &fresh, &o, BPF_ANY);
	return leg;
}

/* Whom a packet is counted for. */
struct who {
	__u32 src; /* slots, 0 for none */
	__u32 dst;
	__u16 link;
	enum direction direction;
	enum origin origin;
	bool bare;
};

/* What of it is counted. */
struct what {
	__u32 length;
	__u32 meaning;
	__u8 ttl;
	__u64 macs_lo;
	__u32 macs_hi;
};

static __always_inline void count_macs(struct leg *leg, __u64 lo, __u32 hi)
{
	for (int i = 0; i < LEG_MACS; i++) {
		struct mac_pair *m = &leg->macs[i];
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
	leg->macs_lost++;
}

static __always_inline void count_leg(struct leg *mine, __u32 slot,
				      enum side side, struct who who,
				      struct what what)
{
	struct subject *s = subject_at(slot);
	struct leg *leg;
	__u64 number;
	__u16 *cell;

	if (!s)
		goto lost;
	cell = cell_at(s, who.link * LINK_LEGS + who.direction * SIDES + side);
	number = *cell;
	if (!number)
		number = allocate(slot, who.link, who.direction, side);
	if (!number)
		goto lost;
	leg = mine + masked(number, leg_mask);
	leg->packets++;
	leg->bytes += what.length;
	if (!(leg->ttls >> (what.ttl & 63) & 1))
		leg->ttls |= 1ULL << (what.ttl & 63);
	if (what.meaning & (SYN | SYNACK | RST | ICMP_ERROR)) {
		if (what.meaning & SYN)
			leg->syn++;
		else if (what.meaning & SYNACK)
			leg->synack++;
		else if (what.meaning & RST)
			leg->rst++;
		else
			leg->icmp_errors++;
	}
	if (who.origin == INNER)
		leg->inner++;
	else if (who.origin == OUTER)
		leg->outer++;
	if (!who.bare)
		count_macs(leg, what.macs_lo, what.macs_hi);
	return;
lost:
	lose(LOST_LEG);
}

static __always_inline void count_legs(struct who who, struct what what)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct leg *mine = bpf_map_lookup_elem(&legs, &cpu);

	if (!mine)
		return;
	if (who.src)
		count_leg(mine, who.src, SOURCE, who, what);
	if (who.dst)
		count_leg(mine, who.dst, DESTINATION, who, what);
}

static __always_inline bool is_local(__u32 slot)
{
	return slot && slot < first_remote;
}

/* 16 bits that hang on all of a word and on the upper half of another. */
static __always_inline __u64 hash64(__u64 word, __u64 upper)
{
	word ^= word >> 32;
	return ((word ^ upper) * 0x9e3779b97f4a7c15ULL) >> 48;
}

/* The pair's place in this CPU's table; NULL when its set is full. */
static __always_inline struct peer *find_peer(__be64 hi, __be64 lo,
					      __u16 subject, __u16 link)
{
	__u64 hash = hash64(hi ^ lo, (__u64)subject << 32 | (__u64)link << 48);
	__u32 cpu = bpf_get_smp_processor_id();
	struct peer *set = bpf_map_lookup_elem(&peers, &cpu);

	if (!set)
		return NULL;
	set += masked(hash, peer_mask) * PEER_WAYS;
	for (int i = 0; i < PEER_WAYS; i++) {
		struct peer *q = set + i;

		if (!q->subject) {
			q->remote.hi = hi;
			q->remote.lo = lo;
			q->link = link;
			q->subject = subject;
			return q;
		}
		if (q->remote.lo == lo && q->remote.hi == hi &&
		    q->subject == subject && q->link == link)
			return q;
	}
	return NULL;
}

/*
 * Counts a packet, or what an ICMP error says of one, between the subject and
 * the address hi:lo.
 */
__noinline int count_pair(__be64 hi, __be64 lo, __u32 subject_link,
			  enum direction direction, __u32 meaning)
{
	struct peer *q = find_peer(hi, lo, subject_link, subject_link >> 16);
	struct peer_count *n;

	if (!q) {
		lose(LOST_PEER);
		return 0;
	}
	n = &q->count[masked(direction, 1)];
	if (meaning & ICMP_ERROR) {
		n->icmp_errors++;
		return 0;
	}
	n->packets++;
	if (meaning & ASK)
		n->asks++;
	else if (meaning & ANSWER)
		n->answers++;
	return 0;
}

/* Counts the pair if just one of its ends is a local address. */
static __always_inline void count_peer(struct addr src, struct addr dst,
				       __u32 from, __u32 to, __u16 link,
				       enum direction direction, __u32 meaning)
{
	if (is_local(from)) {
		if (!is_local(to))
			count_pair(dst.hi, dst.lo, from | link << 16, direction,
				   meaning);
	} else if (is_local(to)) {
		count_pair(src.hi, src.lo, to | link << 16, direction, meaning);
	}
}

static __always_inline bool is_close(__u32 slot)
{
	struct subject *s = is_local(slot) ? subject_at(slot) : NULL;

	return s && s->close;
}

/* Counts the pair at this hop if one of its ends is looked at closely. */
static __always_inline void count_closely(struct addr src, struct addr dst,
					  __u32 from, __u32 to, __u32 ifindex,
					  enum direction direction)
{
	struct pair_key key = { .src = src,
				.dst = dst,
				.ifindex = ifindex,
				.direction = direction };

	if (is_close(from) || is_close(to))
		count_in(&pairs, &key, LOST_PEER);
}

/*
 * An ICMP error is about the packet that it quotes, whichever router it comes
 * from. It quotes at offset.
 */
__noinline int count_error(struct __sk_buff *skb, __u32 offset, bool ipv6,
			   __u16 link, enum direction direction)
{
	struct packet p = {};
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (ipv6) {
		if (!copy_header(skb, offset, &ip6) || !take_ipv6(&ip6, &p))
			return CUT;
	} else {
		if (!copy_header(skb, offset, &ip) || !take_ipv4(&ip, &p))
			return CUT;
	}
	count_peer(p.src, p.dst, local(p.src), local(p.dst), link, direction,
		   ICMP_ERROR);
	return DONE;
}

/*
 * Counts the packet. What it returns SHORT for was not counted, unless it was
 * pulled already.
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
	__u32 meaning = 0;
	__u32 src, dst;
	struct what what;
	struct who who;

	if (!link) {
		lose(LOST_LINK);
		return ENOUGH;
	}
	if (!link->bare && parse_frame(&c, &p, &proto) != DONE)
		return SHORT;
	if (proto == bpf_htons(ETH_P_IP))
		outcome = parse_ipv4(&c, &p);
	else if (proto == bpf_htons(ETH_P_IPV6))
		outcome = parse_ipv6(skb, &c, &p, direction);
	else if (proto == bpf_htons(ETH_P_ARP))
		return count_arp(skb, c.offset, direction);
	else
		return ENOUGH;
	if (outcome == ENOUGH || outcome == SHORT)
		return outcome;
	src = find(p.src, p.src_bit);
	dst = find(p.dst, p.dst_bit);
	if (!src && !dst)
		return outcome;
	if (outcome == DONE)
		outcome = parse_transport(skb, &c, &p, &meaning);
	if (outcome == SHORT && !pulled)
		return SHORT;

	who = (struct who){ .src = src,
			    .dst = dst,
			    .link = link->slot,
			    .direction = direction,
			    .origin = origin_of(skb, direction),
			    .bare = link->bare };
	what = (struct what){ .length = skb->len,
			      .meaning = meaning,
			      .ttl = p.ttl,
			      .macs_lo = p.macs_lo,
			      .macs_hi = p.macs_hi };
	count_legs(who, what);
	if (!link->pairs)
		return outcome;
	if (link->pairs & PAIRS_CLOSE)
		count_closely(p.src, p.dst, src, dst, skb->ifindex, direction);
	if (!(link->pairs & PAIRS_BEYOND))
		return outcome;
	if (meaning & ICMP_ERROR)
		return count_error(skb, c.offset,
				   proto == bpf_htons(ETH_P_IPV6), link->slot,
				   direction);
	count_peer(p.src, p.dst, src, dst, link->slot, direction, meaning);
	return outcome;
}

/*
 * Headers may lie beyond the linear part of a packet, where a driver left
 * them. Only then are they pulled into it, as the stack would next: that
 * moves bytes and changes none.
 */
static __always_inline int watch(struct __sk_buff *skb,
				 enum direction direction)
{
	enum outcome outcome = SHORT;

	for (int pulled = 0; pulled < 2 && outcome == SHORT; pulled++) {
		if (pulled &&
		    bpf_skb_pull_data(skb, skb->len < PULL_MAX ? skb->len
							       : PULL_MAX))
			break;
		outcome = count(skb, pulled, direction);
	}
	if (outcome == SHORT || outcome == CUT)
		lose(LOST_UNPARSED);
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
