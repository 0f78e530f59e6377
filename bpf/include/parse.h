/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Header parsers. A cursor points into the linear part of a packet. Each parser
 * checks that its header ends before the packet does and advances the cursor,
 * or returns false and leaves it.
 *
 * A cursor advances by constants only: without CAP_PERFMON the verifier rejects
 * variable offsets in packet pointers. Headers behind others of variable length
 * are copied instead, which is slower but rare.
 */
#ifndef LASTHOP_PARSE_H
#define LASTHOP_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/icmpv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "shared.h"

/* VLAN tags in the frame; the outermost is usually in the skb's metadata. */
#define VLAN_TAGS 2
/* IPv6 extension headers that are skipped. */
#define EXTENSIONS 6
/* Neighbour discovery options that are read. */
#define ND_OPTIONS 3

#define IP_WORDS     5 /* header length without options */
#define PROTO_IPV4   9 /* offsets of the transport protocol */
#define PROTO_IPV6   6
#define IP_OFFSET    0x1fff
#define IP6_OFFSET   0xfff8
#define HOP_LIMIT_ND 255

struct cursor {
	void *pos;
	void *end;
	__u32 offset; /* of pos from the start of the packet */
};

/* struct ethhdr is packed, so the compiler would read it byte by byte. */
struct ethernet {
	__u8 dst[6];
	__u8 src[6];
	__be16 proto;
};

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

/* The start of an IPv6 extension header. */
struct extension {
	__u8 next;
	__u8 length;
	__be16 data;
	__be32 more;
};

/* ICMP and ICMPv6. linux/icmp.h would include libc's socket.h. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 more;
};

#define ICMP_ECHOREPLY	   0
#define ICMP_DEST_UNREACH  3
#define ICMP_SOURCE_QUENCH 4
#define ICMP_ECHO	   8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

struct arp_ip {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 op;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
};

/* Neighbour solicitation and advertisement. */
struct nd_message {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 flags;
	struct in6_addr target;
};

struct nd_option {
	__u8 type;
	__u8 length; /* in units of 8 bytes */
	__u8 mac[6];
};

_Static_assert(sizeof(struct ethernet) == 14, "ethernet");
_Static_assert(sizeof(struct arp_ip) == 28, "arp_ip");
_Static_assert(sizeof(struct nd_message) == 24, "nd_message");
_Static_assert(sizeof(struct nd_option) == 8, "nd_option");

#define ARP_ETHERNET 1
#define ARP_REQUEST  1
#define ARP_REPLY    2

#define ND_SOLICIT   135
#define ND_ADVERTISE 136
#define ND_SOURCE    1
#define ND_TARGET    2

#define DEFINE_PARSE(name, type)                                               \
	static __always_inline bool parse_##name(struct cursor *c,             \
						 struct type **h)              \
	{                                                                      \
		*h = c->pos;                                                   \
		if ((void *)(*h + 1) > c->end)                                 \
			return false;                                          \
		c->pos = *h + 1;                                               \
		c->offset += sizeof(**h);                                      \
		return true;                                                   \
	}

DEFINE_PARSE(ethhdr, ethernet)
DEFINE_PARSE(vlanhdr, vlan_tag)
DEFINE_PARSE(iphdr, iphdr)
DEFINE_PARSE(ipv6hdr, ipv6hdr)
DEFINE_PARSE(tcphdr, tcphdr)
DEFINE_PARSE(icmphdr, icmp_header)

/* Copies a header from anywhere in the packet; false if it is truncated. */
#define copy_header(skb, offset, h)                                            \
	(!bpf_skb_load_bytes(skb, offset, h, sizeof(*(h))))

/* What a packet shows about requests, replies and errors. */
enum packet_class {
	SYN = 1,
	SYNACK = 2,
	RST = 4,
	ICMP_ERROR = 8,
	REQUEST = 16,
	REPLY = 32,
	FRAGMENT = 64, /* not the first, which has the transport header */
};

/*
 * Tables are faster than branches, and the verifier treats a value loaded from
 * one as unknown instead of exploring a path for each value.
 */

/*
 * By the TCP flags FIN, SYN, RST, PSH and ACK. Without the section attribute
 * LLVM puts a table of 32 bytes into .rodata.cst32, which has no BTF.
 */
#define TCP_FLAGS 0x1f
#define TCP_SYN	  0x02
#define TCP_RST	  0x04
#define TCP_ACK	  0x10

static const __u8 tcp_class[TCP_FLAGS + 1] SEC(".rodata") = {
#define TCP_PSH_FIN(flags, class)                                              \
	[(flags)] = (class), [(flags) | 1] = (class), [(flags) | 8] = (class), \
	[(flags) | 9] = (class)
	TCP_PSH_FIN(TCP_ACK, REPLY),
	TCP_PSH_FIN(TCP_SYN, SYN | REQUEST),
	TCP_PSH_FIN(TCP_SYN | TCP_ACK, SYNACK | REPLY),
	TCP_PSH_FIN(TCP_RST, RST | REPLY),
	TCP_PSH_FIN(TCP_RST | TCP_ACK, RST | REPLY),
	TCP_PSH_FIN(TCP_RST | TCP_SYN, RST | REPLY),
	TCP_PSH_FIN(TCP_RST | TCP_SYN | TCP_ACK, RST | REPLY),
#undef TCP_PSH_FIN
};

/* By ICMP type. */
static const __u8 icmp_class[256] = {
	[ICMP_ECHO] = REQUEST,
	[ICMP_ECHOREPLY] = REPLY,
	[ICMP_DEST_UNREACH] = ICMP_ERROR,
	[ICMP_SOURCE_QUENCH] = ICMP_ERROR,
	[ICMP_TIME_EXCEEDED] = ICMP_ERROR,
	[ICMP_PARAMETERPROB] = ICMP_ERROR,
};

static const __u8 icmp6_class[256] = {
	[ICMPV6_ECHO_REQUEST] = REQUEST,    [ICMPV6_ECHO_REPLY] = REPLY,
	[ICMPV6_DEST_UNREACH] = ICMP_ERROR, [ICMPV6_PKT_TOOBIG] = ICMP_ERROR,
	[ICMPV6_TIME_EXCEED] = ICMP_ERROR,  [ICMPV6_PARAMPROB] = ICMP_ERROR,
};

#endif
