/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* One function for each difference between kernels, or between verifiers. */
#ifndef LASTHOP_COMPAT_H
#define LASTHOP_COMPAT_H

#include <linux/types.h>

/*
 * Verifiers up to 6.1 lose the bound of an index whose mask the compiler
 * moved, merged or took for redundant. This mask is applied where it stands,
 * to the register that is used.
 */
static __always_inline __u64 masked(__u64 i, __u64 mask)
{
	asm volatile("%0 &= %1" : "+r"(i) : "ri"(mask));
	return i;
}

/* The same for a bound that is no mask: i if it is below n, else 0. */
static __always_inline __u64 below(__u64 i, __u64 n)
{
	asm volatile("if %0 < %1 goto +1\n\t"
		     "%0 = 0"
		     : "+r"(i)
		     : "r"(n));
	return i;
}

#endif
