/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One type for IPv4 and IPv6 addresses. */
#ifndef LASTHOP_ADDR_H
#define LASTHOP_ADDR_H

#include <linux/in6.h>
#include <bpf/bpf_endian.h>
#include "shared.h"

static __always_inline struct addr addr_v4(__be32 a)
{
	return (struct addr){ .lo = (__u64)a << 32 | bpf_htonl(0xffff) };
}

static __always_inline struct addr addr_v6(const struct in6_addr *a)
{
	const __u64 *w = (const __u64 *)a;

	return (struct addr){ .hi = w[0], .lo = w[1] };
}

#endif
