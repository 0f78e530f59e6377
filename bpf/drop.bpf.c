//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counts the packets of pods that the kernel frees without delivering them.
 *
 * The tracepoint is the whole machine's. First the packet's namespace is
 * looked for, then its addresses: only then is anything counted.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "shared.h"
#include "compat.h"
#include "maps.h"
#include "vmlinux.h"

#define SECOND	  1000000000ULL
#define DST_NOREF 1UL
/* Of mac_header, when there is none. */
#define UNSET 0xffff

/* Set by Go: whether this kernel's tracepoint tells the reason (5.17). */
const volatile bool has_reason = false;
/* Events that a CPU sends in a second at most. */
const volatile __u32 event_rate = 1;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u8);
	__uint(max_entries, 1);
} namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__type(key, struct drop_key);
	__type(value, __u64);
	__uint(max_entries, 1);
} drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

struct second {
	__u64 begin;
	__u64 events;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct second);
	__uint(max_entries, 1);
} seconds SEC(".maps");

/* The frame's header, if it is there, just before the network header. */
struct head {
	__u8 pad[2];
	__u8 dst_mac[6];
	__u8 src_mac[6];
	__be16 proto;
	union {
		struct iphdr ip;
		struct ipv6hdr ip6;
	};
};

#define HEAD_MACS 14

_Static_assert(sizeof(struct head) == 2 + HEAD_MACS + 40, "head");

/*
 * The namespace of a packet: its device's, else, on its way out of a socket
 * or along a route, that of these.
 */
static __always_inline __u32 namespace_of(struct sk_buff *skb, __u32 *ifindex)
{
	struct net_device *dev = skb->dev;
	struct dst_entry *dst;
	struct sock *sk;

	if (dev) {
		*ifindex = dev->ifindex;
		return dev->nd_net.net->ns.inum;
	}
	sk = skb->sk;
	if (sk)
		return sk->__sk_common.skc_net.net->ns.inum;
	dst = (void *)(skb->_skb_refdst & ~DST_NOREF);
	if (!dst)
		return 0;
	return BPF_CORE_READ(dst, dev, nd_net.net, ns.inum);
}
