/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The links that packets are counted on. */
#ifndef LASTHOP_LINKS_H
#define LASTHOP_LINKS_H

#include "shared.h"
#include "compat.h"
#include "maps.h"

/* Where a packet on egress came from. */
enum origin {
	LOCAL,	/* the node itself; also every packet on ingress */
	INSIDE, /* a link that is no uplink */
	UPLINK,
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

/* Whether packets begin with the headers of a tunnel: see skip_outer(). */
static __always_inline bool has_outer(const struct link *link,
				      enum direction direction)
{
	return direction == INGRESS && link->flags & LINK_OUTER;
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

#endif
