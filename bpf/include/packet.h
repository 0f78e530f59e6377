/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Parses a packet: its frame, IP header and transport header. */
#ifndef LASTHOP_PACKET_H
#define LASTHOP_PACKET_H

#include "shared.h"
#include "addr.h"
#include "parse.h"

/* The parsed headers of a packet. */
struct packet {
	__be16 ethertype; /* behind VLAN tags */
	struct addr src;
	struct addr dst;
	/* The addresses' slots, 0 for none. */
	__u32 src_slot;
	__u32 dst_slot;
	/* Indexes into remote_bits. */
	__u16 src_bit;
	__u16 dst_bit;
	__u32 length;
	__u8 ttl;
	__u8 proto;
	bool fragment; /* not the first: no transport header */
	bool options;  /* the transport header is not at the cursor */
	__u32 class;   /* enum packet_class */
	/* The frame's first 12 bytes: both MACs. */
	__u64 macs_lo;
	__u32 macs_hi;
};

/* How far a packet was parsed. */
enum outcome {
	PARSED,
	HANDLED,    /* nothing is left to do */
	MALFORMED,  /* the packet ends within a header, or one is wrong */
	UNREADABLE, /* a header is there, but the kernel did not copy it */
};

/* Why a header that ends at this offset was not copied. */
static __always_inline enum outcome not_copied(struct __sk_buff *skb, __u32 end)
{
	return end > skb->len ? MALFORMED : UNREADABLE;
}

static __always_inline bool is_vlan(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) ||
	       ethertype == bpf_htons(ETH_P_8021AD);
}

/* Sets the EtherType and the MACs. */
static __always_inline enum outcome
parse_frame(struct __sk_buff *skb, struct cursor *c, struct packet *p)
{
	struct ethernet *eth;

	if (!parse_ethhdr(c, &eth))
		return not_copied(skb, c->offset + sizeof(*eth));
	p->macs_lo = *(__u64 *)eth;
	p->macs_hi = *(__u32 *)((void *)eth + 8);
	p->ethertype = eth->proto;
	for (int i = 0; i < VLAN_TAGS && is_vlan(p->ethertype); i++) {
		struct vlan_tag *tag;

		if (!parse_vlanhdr(c, &tag))
			return not_copied(skb, c->offset + sizeof(*tag));
		p->ethertype = tag->proto;
	}
	return PARSED;
}

/*
 * Passes over the outer headers of a packet that came out of an ipip or sit
 * tunnel. Before Linux 5.14 these drivers leave in front of it what the MAC
 * header points to: the outer IPv4 header, or the whole frame that it came in.
 * A frame does not begin like an IPv4 header, since its destination would be a
 * group's address.
 */
static __always_inline enum outcome
skip_outer(struct __sk_buff *skb, struct cursor *c, struct packet *p)
{
	const __u8 version_ihl = 4 << 4 | IP_WORDS;
	struct ethernet *eth;
	struct iphdr *ip;

	if (c->pos + 1 > c->end)
		return not_copied(skb, 1);
	if (*(__u8 *)c->pos != version_ihl && !parse_ethhdr(c, &eth))
		return not_copied(skb, c->offset + sizeof(*eth));
	if (!parse_iphdr(c, &ip))
		return not_copied(skb, c->offset + sizeof(*ip));
	/* These drivers send none with options. */
	if (*(__u8 *)ip != version_ihl)
		return MALFORMED;
	p->length -= c->offset;
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

static __always_inline enum outcome
parse_ipv4(struct __sk_buff *skb, struct cursor *c, struct packet *p)
{
	struct iphdr *ip;

	if (!parse_iphdr(c, &ip))
		return not_copied(skb, c->offset + sizeof(*ip));
	if (!take_ipv4(ip, p))
		return MALFORMED;
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

/* The result of lasthop_skip_extensions(), packed: it must return a scalar. */
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

__noinline __u64 lasthop_skip_extensions(struct __sk_buff *skb, __u32 offset,
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

static __always_inline enum outcome
parse_ipv6(struct __sk_buff *skb, struct cursor *c, struct packet *p)
{
	struct ipv6hdr *ip;

	if (!parse_ipv6hdr(c, &ip))
		return not_copied(skb, c->offset + sizeof(*ip));
	return take_ipv6(ip, p) ? PARSED : MALFORMED;
}

/* Parses the extension headers behind an IPv6 header. */
static __always_inline enum outcome
parse_extensions(struct __sk_buff *skb, struct cursor *c, struct packet *p)
{
	union transport t;

	if (!is_extension(p->proto))
		return PARSED;
	t.word = lasthop_skip_extensions(skb, c->offset, p->proto);
	c->offset = t.offset;
	p->proto = t.proto;
	p->fragment = t.fragment;
	p->options = true;
	return t.outcome;
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
__noinline int lasthop_class_at(struct __sk_buff *skb, __u32 offset, __u8 proto)
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

/* Sets the class of a packet. */
static __always_inline enum outcome
parse_transport(struct __sk_buff *skb, struct cursor *c, struct packet *p)
{
	struct icmp_header *icmp;
	struct tcphdr *tcp;

	if (p->fragment) {
		p->class = FRAGMENT;
		return PARSED;
	}
	if (p->options) {
		int class = lasthop_class_at(skb, c->offset, p->proto);

		if (class < 0)
			return -class;
		p->class = class;
		c->offset += sizeof(*icmp);
	} else if (p->proto == IPPROTO_TCP) {
		if (!parse_tcphdr(c, &tcp))
			return not_copied(skb, c->offset + sizeof(*tcp));
		p->class = tcp_class_of(tcp);
	} else if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		if (!parse_icmphdr(c, &icmp))
			return not_copied(skb, c->offset + sizeof(*icmp));
		p->class = icmp_class_of(icmp, p->proto);
	}
	return PARSED;
}

/* The most that is parsed in place, by EtherType. TCP's is the longest. */
#define HEADERS_IPV4 (ETH_HLEN + sizeof(struct iphdr) + sizeof(struct tcphdr))
#define HEADERS_IPV6 (ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct tcphdr))
#define HEADERS_MAX  (HEADERS_IPV6 + VLAN_TAGS * sizeof(struct vlan_tag))
/* With the outer headers of a tunnel: see skip_outer(). */
#define HEADERS_OUTER (sizeof(struct iphdr) + HEADERS_IPV6)
/* Headers have even lengths. */
#define HEADER_UNIT 2

static __always_inline bool is_linear(struct __sk_buff *skb, __u32 length)
{
	return (void *)(long)skb->data + length <= (void *)(long)skb->data_end;
}

/* Where the headers end that are parsed in place; 0 in a short packet. */
static __always_inline __u32 headers_end(struct __sk_buff *skb,
					 bool no_ethernet)
{
	__be16 ethertype = skb->protocol;
	__u32 end = 0;
	__u8 proto;

	if (!no_ethernet) {
		for (int i = 0; i <= VLAN_TAGS; i++) {
			end += i ? sizeof(struct vlan_tag)
				 : sizeof(struct ethernet);
			if (bpf_skb_load_bytes(skb, end - sizeof(ethertype),
					       &ethertype, sizeof(ethertype)))
				return 0;
			if (!is_vlan(ethertype))
				break;
		}
	}
	if (ethertype == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, end + PROTO_IPV4, &proto, 1))
			return 0;
		end += sizeof(struct iphdr);
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, end + PROTO_IPV6, &proto, 1))
			return 0;
		end += sizeof(struct ipv6hdr);
	} else {
		return end;
	}
	if (proto == IPPROTO_TCP)
		end += sizeof(struct tcphdr);
	else if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6)
		end += sizeof(struct icmp_header);
	return end;
}

/*
 * Drivers may leave headers in a packet's fragments. These are pulled into the
 * linear part, as the stack would do next, if they are parsed in place. This
 * moves bytes and changes none.
 */
__noinline int lasthop_pull(struct __sk_buff *skb, bool no_ethernet, bool outer)
{
	__u32 end;

	if (outer)
		return bpf_skb_pull_data(skb, skb->len < HEADERS_OUTER
						      ? skb->len
						      : HEADERS_OUTER);
	end = headers_end(skb, no_ethernet);
	if (end > skb->len)
		return 0;
	/* A constant: see parse.h. */
	for (__u32 n = HEADER_UNIT; n <= HEADERS_MAX; n += HEADER_UNIT)
		if (end <= n)
			return is_linear(skb, n) ? 0
						 : bpf_skb_pull_data(skb, end);
	return 0;
}

/* Whether the headers of a packet with one tag and IPv4 are linear. */
static __always_inline bool is_linear_vlan(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	struct vlan_tag *tag = data + ETH_HLEN;

	return data + HEADERS_IPV4 + sizeof(*tag) <=
		       (void *)(long)skb->data_end &&
	       tag->proto == bpf_htons(ETH_P_IP);
}

/* Makes the headers linear; false if the kernel could not. */
static __always_inline bool pull(struct __sk_buff *skb, bool no_ethernet,
				 bool outer)
{
	bool linear;

	if (outer)
		linear = is_linear(skb, HEADERS_OUTER);
	else if (skb->protocol == bpf_htons(ETH_P_IP))
		linear = is_linear(skb, HEADERS_IPV4);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		linear = is_linear(skb, HEADERS_IPV6);
	else
		linear = is_linear(skb, HEADERS_MAX) || is_linear_vlan(skb);
	return linear || !lasthop_pull(skb, no_ethernet, outer);
}

#endif
