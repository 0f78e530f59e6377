//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counts packets of pods that the kernel frees without delivering them.
 *
 * The tracepoint fires for every network namespace of the machine. The program
 * filters by namespace first, then by address.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "shared.h"
#include "addr.h"
#include "compat.h"
#include "maps.h"
#include "vmlinux.h"

#define SECOND	  1000000000ULL
#define DST_NOREF 1UL
/* mac_header of a packet without one. */
#define UNSET 0xffff

/* Set by Go: whether the tracepoint has a reason (Linux 5.17). */
const volatile bool has_reason = false;
/* Events per second and CPU. */
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

/* Keeps the type in BTF, from which bpf2go generates the Go type. */
const struct drop_event *const event_type = NULL;

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

/* The Ethernet header, if there is one, and the network header. */
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
 * The network namespace of a packet: that of its device, else of its socket,
 * else of its route.
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

static __always_inline bool is_pod(struct addr a)
{
	__u32 slot = local_slot(a);
	struct counted_addr *s;

	if (!slot)
		return false;
	s = counted_at(slot);
	return s && s->kind == KIND_POD;
}

/* Reads the IP header, and the Ethernet header if there is one. */
static __always_inline bool read_head(struct sk_buff *skb, struct head *h)
{
	void *head = skb->head;
	__u32 network = skb->network_header;
	__u32 mac = skb->mac_header;

	if (mac + HEAD_MACS == network)
		return !bpf_probe_read_kernel(
			h->dst_mac, HEAD_MACS + sizeof(h->ip6), head + mac);
	if (mac != UNSET && mac + HEAD_MACS < network &&
	    bpf_probe_read_kernel(h->dst_mac, HEAD_MACS, head + mac))
		return false;
	return !bpf_probe_read_kernel(&h->ip6, sizeof(h->ip6), head + network);
}

/* The packet's length from the network header on; skb->data may be past it. */
static __always_inline __u32 network_length(struct sk_buff *skb)
{
	return skb->len +
	       ((void *)skb->data - (void *)(skb->head + skb->network_header));
}

/*
 * Fills in the fields of the IP header. Returns LOST_MAX, or why it could not:
 * LOST_MALFORMED or LOST_UNREADABLE.
 */
static __always_inline enum lost
read_ends(struct sk_buff *skb, const struct head *h, struct drop_key *key)
{
	bool ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 size = ipv4 ? sizeof(h->ip) : sizeof(h->ip6);

	if (skb->tail - skb->network_header < size)
		return network_length(skb) < size ? LOST_MALFORMED
						  : LOST_UNREADABLE;
	if (h->ip.version != (ipv4 ? 4 : 6))
		return LOST_MALFORMED;
	if (ipv4) {
		key->src = addr_v4(h->ip.saddr);
		key->dst = addr_v4(h->ip.daddr);
		key->proto = h->ip.protocol;
	} else {
		key->src = addr_v6(&h->ip6.saddr);
		key->dst = addr_v6(&h->ip6.daddr);
		key->proto = h->ip6.nexthdr;
	}
	return LOST_MAX;
}

static __always_inline bool may_send(__u64 now)
{
	__u32 zero = 0;
	struct second *s = bpf_map_lookup_elem(&seconds, &zero);

	if (!s)
		return false;
	if (now - s->begin >= SECOND) {
		s->begin = now;
		s->events = 0;
	}
	return s->events++ < event_rate;
}

static __always_inline void send(struct sk_buff *skb, const struct head *h,
				 const struct drop_key *key, __u64 count)
{
	void *network = skb->head + skb->network_header;
	__u32 linear = skb->tail - skb->network_header;
	__u64 now = bpf_ktime_get_ns();
	struct drop_event *e;

	if (!may_send(now)) {
		lose(LOST_RATE);
		return;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose(LOST_RING);
		return;
	}
	e->key = *key;
	e->nanoseconds = now;
	e->count = count;
	e->length = network_length(skb);
	e->protocol = skb->protocol;
	__builtin_memcpy(e->src_mac, h->src_mac, sizeof(e->src_mac));
	__builtin_memset(e->pad, 0, sizeof(e->pad));
	if (linear >= HEAD_MAX) {
		e->head_length = HEAD_MAX;
		bpf_probe_read_kernel(e->head, HEAD_MAX, network);
	} else {
		e->head_length = linear;
		bpf_probe_read_kernel(e->head, masked(linear, HEAD_MAX - 1),
				      network);
	}
	/* User space polls once a second and needs no wakeup. */
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

/*
 * Increments the count of a key on this CPU and returns it, 0 if the table is
 * full. Since Linux 6.1 a tracepoint program does not nest on one CPU. Before,
 * a nested drop may go uncounted: an atomic add would cost as much as the rest
 * of the program.
 */
static __always_inline __u64 count_drop(const struct drop_key *key)
{
	__u64 *n = bpf_map_lookup_elem(&drops, key);
	__u64 one = 1;

	if (!n) {
		if (!bpf_map_update_elem(&drops, key, &one, BPF_NOEXIST))
			return 1;
		/* Another CPU added the key first, or the table is full. */
		n = bpf_map_lookup_elem(&drops, key);
		if (!n) {
			lose(LOST_DROP);
			return 0;
		}
	}
	return ++*n;
}

SEC("tp_btf/kfree_skb")
int lasthop_drop(__u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct drop_key key = {};
	struct head h = {};
	enum lost why;
	__u64 n;

	key.netns = namespace_of(skb, &key.ifindex);
	if (!bpf_map_lookup_elem(&namespaces, &key.netns))
		return 0;
	if (skb->protocol != bpf_htons(ETH_P_IP) &&
	    skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	why = read_head(skb, &h) ? read_ends(skb, &h, &key) : LOST_UNREADABLE;
	if (why != LOST_MAX) {
		lose(why);
		return 0;
	}
	if (!is_pod(key.src) && !is_pod(key.dst))
		return 0;
	key.location = ctx[1];
	key.reason = has_reason ? ctx[2] : 0;
	__builtin_memcpy(key.dst_mac, h.dst_mac, sizeof(key.dst_mac));
	n = count_drop(&key);
	/* The 1st, 2nd, 4th, 8th … drop with this key. */
	if (n && !(n & (n - 1)))
		send(skb, &h, &key, n);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
