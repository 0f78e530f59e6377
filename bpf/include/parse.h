/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Readers of packet headers. A cursor stands in the linear part of a packet;
 * each reader checks that its header lies before the end and steps over it, or
 * returns false and leaves the cursor.
 *
 * A cursor moves by constants alone. Verifiers let a variable move a pointer
 * into a packet only with CAP_PERFMON; what lies behind headers of variable
 * length is copied instead, which costs more and is seldom needed.
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

/* Tags in the frame; the outermost usually travels beside it. */
#define VLAN_TAGS 2
/* IPv6 extension headers that are stepped over. */
#define EXTENSIONS 6
/* Neighbour discovery options that are looked at. */
#define ND_OPTIONS 3

#define IP_WORDS     5 /* of a header without options */
#define IP_OFFSET    0x1fff
#define IP6_OFFSET   0xfff8
#define HOP_LIMIT_ND 255

struct cursor {
	void *pos;
	void *end;
	__u32 offset; /* of pos in the packet, which cannot be told from it */
};

/* As struct ethhdr, which is packed and so read byte by byte. */
struct ethernet {
	__u8 dst[6];
	__u8 src[6];
	__be16 proto;
};

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

/* Every extension header but the fragment's begins so. */
struct extension {
	__u8 next;
	__u8 length;
	__be16 data;
	__be32 more;
};

/* Of both families. linux/icmp.h draws in libc's socket.h. */
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

/* Copies a header from anywhere in the packet; false if it is cut off. */
#define copy_header(skb, offset, h)                                            \
	(!bpf_skb_load_bytes(skb, offset, h, sizeof(*(h))))

/* What a packet says to whoever asks whether anything returns. */
enum meaning {
	SYN = 1,
	SYNACK = 2,
	RST = 4,
	ICMP_ERROR = 8,
	ASK = 16,
	ANSWER = 32,
};

/*
 * Tables rather than branches: quicker, and what a verifier reads from them it
 * takes for unknown, so that it need not follow each value.
 */

/*
 * By the TCP flags FIN, SYN, RST, PSH and ACK. The section is named, since
 * LLVM moves a table of 32 bytes to one that BTF does not know.
 */
#define TCP_FLAGS 0x1f
#define TCP_SYN	  0x02
#define TCP_RST	  0x04
#define TCP_ACK	  0x10

static const __u8 tcp_meaning[TCP_FLAGS + 1] SEC(".rodata") = {
#define TCP_PSH_FIN(flags, means)                                              \
	[(flags)] = (means), [(flags) | 1] = (means), [(flags) | 8] = (means), \
	[(flags) | 9] = (means)
	TCP_PSH_FIN(TCP_ACK, ANSWER),
	TCP_PSH_FIN(TCP_SYN, SYN | ASK),
	TCP_PSH_FIN(TCP_SYN | TCP_ACK, SYNACK | ANSWER),
	TCP_PSH_FIN(TCP_RST, RST | ANSWER),
	TCP_PSH_FIN(TCP_RST | TCP_ACK, RST | ANSWER),
	TCP_PSH_FIN(TCP_RST | TCP_SYN, RST | ANSWER),
	TCP_PSH_FIN(TCP_RST | TCP_SYN | TCP_ACK, RST | ANSWER),
#undef TCP_PSH_FIN
};

/* By the ICMP type. */
static const __u8 icmp_meaning[256] = {
	[ICMP_ECHO] = ASK,
	[ICMP_ECHOREPLY] = ANSWER,
	[ICMP_DEST_UNREACH] = ICMP_ERROR,
	[ICMP_SOURCE_QUENCH] = ICMP_ERROR,
	[ICMP_TIME_EXCEEDED] = ICMP_ERROR,
	[ICMP_PARAMETERPROB] = ICMP_ERROR,
};

static const __u8 icmp6_meaning[256] = {
	[ICMPV6_ECHO_REQUEST] = ASK,	    [ICMPV6_ECHO_REPLY] = ANSWER,
	[ICMPV6_DEST_UNREACH] = ICMP_ERROR, [ICMPV6_PKT_TOOBIG] = ICMP_ERROR,
	[ICMPV6_TIME_EXCEED] = ICMP_ERROR,  [ICMPV6_PARAMPROB] = ICMP_ERROR,
};

#endif
