/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Counts ARP and neighbour discovery. */
#ifndef LASTHOP_NEIGH_H
#define LASTHOP_NEIGH_H

#include "shared.h"
#include "addr.h"
#include "maps.h"
#include "packet.h"

/* Few nodes have many: entries take memory as they come. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct neigh_key);
	__type(value, __u64);
	__uint(max_entries, 1);
} neighbors SEC(".maps");

static __noinline void lasthop_count_neigh(struct neigh_key *key)
{
	if (!count_in(&neighbors, key))
		lasthop_lose(LOST_NEIGH);
}

__noinline int lasthop_count_arp(struct __sk_buff *skb, __u32 offset,
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
	/* Who asks for its own address tells its MAC (RFC 5227). */
	key.reply = arp.op == bpf_htons(ARP_REPLY) ||
		    !__builtin_memcmp(arp.sender, arp.target, sizeof(ip));
	__builtin_memcpy(key.mac, arp.sender_mac, sizeof(key.mac));
	lasthop_count_neigh(&key);
	return HANDLED;
}

/* Returns PARSED for an ICMPv6 message that is not neighbour discovery. */
__noinline int lasthop_count_nd(struct __sk_buff *skb, __u32 offset,
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
	lasthop_count_neigh(&key);
	return HANDLED;
}

/* Whether the transport header may be neighbour discovery. */
static __always_inline bool may_be_nd(const struct packet *p)
{
	return p->proto == IPPROTO_ICMPV6 && p->ttl == HOP_LIMIT_ND &&
	       !p->fragment;
}

#endif
