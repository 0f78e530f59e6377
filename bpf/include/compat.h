/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Workarounds for differences between kernels and their verifiers. */
#ifndef LASTHOP_COMPAT_H
#define LASTHOP_COMPAT_H

#include <linux/types.h>

/*
 * Bounds an index by a mask that the compiler can neither move, merge nor
 * remove. Verifiers up to Linux 6.1 lose the bound otherwise.
 *
 * Indexes are masked rather than compared. After a comparison an index may be
 * a constant on one path and unknown on another, and without CAP_PERFMON the
 * verifier rejects pointer arithmetic that differs by path.
 */
static __always_inline __u64 masked(__u64 i, __u64 mask)
{
	asm volatile("%0 &= %1" : "+r"(i) : "ri"(mask));
	return i;
}

/*
 * Hides from the compiler where a pointer came from. Else it merges stores of
 * several paths into one, to an address that differs by path.
 */
#define OPAQUE(pointer) asm volatile("" : "+r"(pointer))

#ifdef LASTHOP_VMLINUX_H
/*
 * What no other network namespace ever has, while the inode of one that is gone
 * is given to the next. 0 before Linux 5.12, which makes it on demand.
 */
static __always_inline __u64 cookie_of(struct net *net)
{
	return bpf_core_field_exists(net->net_cookie) ? net->net_cookie : 0;
}

/*
 * The words that programs of tc may write (cb of struct __sk_buff), NULL where
 * the kernel's types do not tell. Linux 6.17 grew what is before them.
 */
static __always_inline const __u32 *hook_words(struct sk_buff *skb)
{
	struct qdisc_skb_cb *cb = (void *)skb->cb;

	return bpf_core_field_exists(cb->data) ? (void *)cb->data : NULL;
}
#endif

#endif
