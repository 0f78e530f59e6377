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

static __always_inline bool is_v4(struct addr a)
{
	return !a.hi && (__u32)a.lo == bpf_htonl(0xffff);
}

/* Prefix lengths of the ranges that far ends are folded to. */
#define BITS_ADDRESS 128
#define BITS_IPV4    120 /* a /24 */
#define BITS_IPV6    64

/* The first address of the range around a. */
static __always_inline struct addr fold(struct addr a, __u8 *bits)
{
	if (is_v4(a)) {
		*bits = BITS_IPV4;
		a.lo &= bpf_cpu_to_be64(~0xffULL);
	} else {
		*bits = BITS_IPV6;
		a.lo = 0;
	}
	return a;
}

#endif
