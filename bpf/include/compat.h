/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One function for each difference between kernels, or between verifiers. */
#ifndef LASTHOP_COMPAT_H
#define LASTHOP_COMPAT_H

#include <linux/types.h>

/*
 * Verifiers up to 6.1 lose the bound of an index whose mask the compiler
 * moved, merged or took for redundant. This mask is applied where it stands,
 * to the register that is used.
 *
 * Bounds are masks throughout: after a comparison, an index may be known on
 * one path and unknown on another, and without CAP_PERFMON no verifier lets
 * both to the same instruction.
 */
static __always_inline __u64 masked(__u64 i, __u64 mask)
{
	asm volatile("%0 &= %1" : "+r"(i) : "ri"(mask));
	return i;
}

#endif
