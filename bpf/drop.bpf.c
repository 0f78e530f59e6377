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
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "shared.h"
#include "addr.h"
#include "vmlinux.h"
#include "compat.h"
#include "maps.h"

#define SECOND	  1000000000ULL
#define DST_NOREF 1UL
/* mac_header of a packet without one. */
#define UNSET 0xffff
/* What _nfct has beside the connection's address: how the packet belongs to it.
 */
#define NFCT_INFO      7UL
#define IP_CT_IS_REPLY 3
/* The index of lo, in every network namespace. */
#define LOOPBACK 1
/* Cilium's first reason for a drop. */
#define CILIUM_REASONS 130U

/* Set by Go: whether the tracepoint has a reason (Linux 5.17). */
const volatile bool has_reason = false;
/* The reasons of drops at hooks of programs, where it has one. */
const volatile __u32 hook_reasons[HOOK_REASONS] = {};
/* Where kfree_skb is and its size, before Linux 5.17. */
const volatile __u64 kfree_skb_at = 0;
const volatile __u64 kfree_skb_size = 0;
/* Events per second and CPU. */
const volatile __u32 event_rate = 1;
/* The size of the table of drops, and how much of it a pod may hold. */
const volatile __u32 drop_entries = 1;
const volatile __u32 drop_quota[FARS] = {};

/* By inode: the cookie that the namespace must have, 0 for any. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} namespaces SEC(".maps");

/* The number of a key's counts. Go sets the size, a power of 2. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct drop_key);
	__type(value, __u64);
	__uint(max_entries, 1);
} drops SEC(".maps");

/* Numbers that no key has. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__type(value, __u64);
	__uint(max_entries, 1);
} free_drops SEC(".maps");

/* By CPU: counts by number. Go sets both sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64[1]);
	__uint(max_entries, 1);
} drop_counts SEC(".maps");

#define RECENT 8
/* The tracepoint's own, and those that count. */
#define FRAMES 10

/* A key and its number. busy guards against a drop that nests in this one. */
struct recent_drop {
	struct drop_key key;
	__u64 number;
	__u32 generation;
	__u32 busy;
};

/*
 * What a CPU found last: a namespace whose drops count, and keys. It holds as
 * long as the generation is the same. Looking these up would take longer than
 * all the rest.
 */
struct recent {
	__u32 netns;
	__u32 generation;
	__u64 cookie;
	__u64 pad[6];
	struct recent_drop drops[RECENT];
};

/* By CPU. Go sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct recent);
	__uint(max_entries, 1);
} recents SEC(".maps");

/*
 * Go increments it when it takes a namespace, an address or a key out. 0 is
 * none.
 */
volatile __u32 drop_generation SEC(".data") = 1;

/* By slot of a pod's address. Slot 0 has the sum of all. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct quota);
	__uint(max_entries, 1);
} drop_shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

/* Keeps the type in BTF, from which bpf2go generates the Go type. */
const struct drop_event *const event_type = NULL;
const enum hook_reason *const hook_reason_type = NULL;

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

/* A packet's addresses. Those of its key may be of ranges. */
struct drop_ends {
	struct addr src;
	struct addr dst;
};

_Static_assert(sizeof(struct head) == 2 + HEAD_MACS + 40, "head");

/*
 * The network namespace of a packet, and its cookie: that of its device, else
 * of its socket, else of its route.
 */
static __always_inline __u32 namespace_of(struct sk_buff *skb, __u32 *ifindex,
					  __u64 *cookie)
{
	struct net *net;

	struct net_device *dev = skb->dev;
	struct dst_entry *dst;
	struct sock *sk;

	if (dev) {
		*ifindex = dev->ifindex;
		net = dev->nd_net.net;
		*cookie = cookie_of(net);
		return net->ns.inum;
	}
	sk = skb->sk;
	if (sk) {
		net = sk->__sk_common.skc_net.net;
		*cookie = cookie_of(net);
		return net->ns.inum;
	}
	dst = (void *)(skb->_skb_refdst & ~DST_NOREF);
	if (!dst)
		return 0;
	net = BPF_CORE_READ(dst, dev, nd_net.net);
	if (bpf_core_field_exists(net->net_cookie))
		*cookie = BPF_CORE_READ(net, net_cookie);
	return BPF_CORE_READ(net, ns.inum);
}

/* The slot of a pod's address, 0 for any other. */
static __always_inline __u32 pod_slot(struct addr a)
{
	__u32 slot = local_slot(a);
	struct counted_addr *s;

	if (!slot)
		return 0;
	s = counted_at(slot);
	return s && s->kind == KIND_POD ? slot : 0;
}

/* Reads the IP header, and the Ethernet header, which is zero if there is none.
 */
static __always_inline bool read_head(struct sk_buff *skb, struct head *h)
{
	void *head = skb->head;
	__u32 network = skb->network_header;
	__u32 mac = skb->mac_header;

	if (mac + HEAD_MACS == network)
		return !bpf_probe_read_kernel(
			h->dst_mac, HEAD_MACS + sizeof(h->ip6), head + mac);
	__builtin_memset(h, 0, 2 + HEAD_MACS);
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
				 const struct drop_key *key,
				 const struct drop_ends *ends, __u64 count)
{
	void *network = skb->head + skb->network_header;
	__u32 linear = skb->tail - skb->network_header;
	__u64 now = bpf_ktime_get_ns();
	struct drop_event *e;

	if (!may_send(now)) {
		lasthop_lose(LOST_RATE);
		return;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lasthop_lose(LOST_RING);
		return;
	}
	e->key = *key;
	e->src = ends->src;
	e->dst = ends->dst;
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

/* Makes a key of one far end that of a range, or of all others. */
static __always_inline void fold_key(struct drop_key *key, enum far far)
{
	struct addr *end = key->far_is_src ? &key->src : &key->dst;

	key->far = far;
	key->cilium.src_identity = 0;
	key->cilium.dst_identity = 0;
	if (far == FAR_OTHERS) {
		*end = (struct addr){};
		key->bits = 0;
		key->proto = 0;
	} else if (!local_slot(*end)) {
		/* There are not many local ones. */
		*end = fold(*end, &key->bits);
	}
}

/*
 * Whether a pod may have one more entry. While there is little room, pods have
 * entries of fewer kinds, so that one of which nothing was dropped yet finds
 * room.
 */
static __always_inline bool may_add(struct quota *pod, struct quota *all,
				    enum far far)
{
	__u32 used = held(all, FAR_ADDRESS) + held(all, FAR_RANGE) +
		     held(all, FAR_OTHERS);

	return held(pod, far) < drop_quota[far] &&
	       used < drop_entries / 8 * (6 + far);
}

/*
 * Increments a count on this CPU and returns it. Since Linux 6.1 a tracepoint
 * program does not nest on one CPU. Before, a nested drop may go uncounted: an
 * atomic add would cost as much as the rest of the program.
 */
static __always_inline __u64 increment(__u32 cpu, __u32 slot, __u64 number)
{
	__u64 *counts = bpf_map_lookup_elem(&drop_counts, &cpu);

	/* The CPU was plugged in after Go had sized the table. */
	if (!counts) {
		lasthop_lose_of(slot, LOST_DROP);
		return 0;
	}
	return ++counts[masked(number, drop_entries - 1)];
}

/* The number of a key, NULL if it has none and there is no room. */
static __always_inline __u64 *number_of(struct drop_key *key)
{
	__u32 slot = key->local, zero = 0;
	struct quota *pod, *all;
	__u64 free, *number;

	number = bpf_map_lookup_elem(&drops, key);
	if (number)
		return number;
	pod = bpf_map_lookup_elem(&drop_shares, &slot);
	all = bpf_map_lookup_elem(&drop_shares, &zero);
	if (!pod || !all)
		return NULL;
	for (int far = FAR_ADDRESS; far < FARS; far++) {
		if (far != FAR_ADDRESS) {
			fold_key(key, far);
			number = bpf_map_lookup_elem(&drops, key);
			if (number)
				return number;
		}
		if (!may_add(pod, all, far) ||
		    bpf_map_pop_elem(&free_drops, &free))
			continue;
		if (!bpf_map_update_elem(&drops, key, &free, BPF_NOEXIST)) {
			__sync_fetch_and_add(&pod->taken[far], 1);
			__sync_fetch_and_add(&all->taken[far], 1);
		} else {
			/* Another CPU added the key first. */
			bpf_map_push_elem(&free_drops, &free, BPF_ANY);
		}
		number = bpf_map_lookup_elem(&drops, key);
		if (number)
			return number;
	}
	return NULL;
}

/* Whether a packet's key is that of a recent drop, but for what it lacks. */
static __always_inline bool same_drop(const struct drop_key *a,
				      const struct drop_key *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;
	const __u64 mac_proto = 0xffffff; /* the last word's first bytes */

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] &&
	       x[4] == y[4] && x[5] == y[5] && x[6] == y[6] && x[7] == y[7] &&
	       x[8] == y[8] && !((x[9] ^ y[9]) & mac_proto);
}

static __always_inline struct recent_drop *recent_of(struct recent *recent,
						     const struct drop_key *key)
{
	__u64 hash = hash64(key->src.lo ^ key->dst.lo ^ key->location, 0);

	return &recent->drops[masked(hash, RECENT - 1)];
}

/* Remembers the number of a key that tells the packet's addresses. */
static __always_inline void remember(struct recent_drop *r,
				     const struct drop_key *key, __u64 number,
				     __u32 generation)
{
	if (r->busy || key->far != FAR_ADDRESS)
		return;
	r->busy = 1;
	barrier();
	r->key = *key;
	r->number = number;
	r->generation = generation;
	barrier();
	r->busy = 0;
}

/* Whether drops in this namespace count. */
static __always_inline bool is_watched(struct recent *recent, __u32 netns,
				       __u64 cookie, __u32 generation)
{
	__u64 *want;

	if (recent && recent->netns == netns && recent->cookie == cookie &&
	    recent->generation == generation)
		return true;
	want = bpf_map_lookup_elem(&namespaces, &netns);
	if (!want || (*want && cookie && *want != cookie))
		return false;
	if (!recent)
		return true;
	recent->generation = 0;
	barrier();
	recent->netns = netns;
	recent->cookie = cookie;
	barrier();
	recent->generation = generation;
	return true;
}

/*
 * What stands for the reason before Linux 5.17, which gives none: what tells
 * apart the packets that one function frees. See struct signs in Go.
 */
static __always_inline __u32 signs(struct sk_buff *skb, const struct head *h)
{
	struct dst_entry *dst = (void *)(skb->_skb_refdst & ~DST_NOREF);
	bool ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u8 ttl = ipv4 ? h->ip.ttl : h->ip6.hop_limit;
	__u32 type = BPF_CORE_READ_BITFIELD(skb, pkt_type);
	__s16 error = dst ? BPF_CORE_READ(dst, error) : 0;

	/* IPv4 has the errors of routes positive, IPv6 negative. */
	if (error < 0)
		error = -error;
	return type | (ttl <= 1) << 8 | (__u32)error << 16;
}

/* Whether a program at a hook of tc or netkit may have dropped the packet. */
static __always_inline bool at_hook(__u32 reason)
{
	return !has_reason || reason == hook_reasons[HOOK_INGRESS] ||
	       reason == hook_reasons[HOOK_EGRESS] ||
	       reason == hook_reasons[HOOK_UNNAMED];
}

/*
 * Before a program of Cilium's drops a packet it leaves five words in its
 * control block, for one that tells its agent of it (_send_drop_notify). They
 * are the same since Cilium 1.14. The kernel frees the packet at once, so they
 * are still there. Whatever else is in the control block is not taken for them.
 */
static __always_inline void read_cilium(struct sk_buff *skb,
					struct cilium_drop *c)
{
	const __u32 *word = hook_words(skb);
	__u32 reason, source;
	__u8 file;

	if (!word)
		return;
	reason = word[2];
	source = word[4]; /* the program's verdict, then a file and a line */
	file = source >> 8;
	if ((source & 0xff) != TC_ACT_SHOT || reason >> 16 ||
	    (reason & 0xff) < CILIUM_REASONS || word[3] >> 16 || !file)
		return;
	c->src_identity = word[0];
	c->dst_identity = word[1];
	c->endpoint = word[3];
	c->line = source >> 16;
	c->file = file;
	c->reason = reason;
	c->error = reason >> 8;
}

/*
 * Where the packet was freed. GCC for arm64 makes two functions of kfree_skb
 * before Linux 5.17, and then the tracepoint says that the first one called the
 * second: what called the first one is the next frame of the stack.
 */
static __always_inline __u64 location_of(__u64 *ctx)
{
	__u64 location = ctx[1], frames[FRAMES] = {};

	if (has_reason || location - kfree_skb_at >= kfree_skb_size)
		return location;
	bpf_get_stack(ctx, frames, sizeof(frames), 0);
	for (int i = 0; i < FRAMES - 1; i++)
		if (frames[i] == location)
			return frames[i + 1];
	return location;
}

/*
 * Gives a packet whose source was translated, or a reply to one, the address of
 * the pod that connection tracking has.
 */
static __always_inline void translate_back(struct sk_buff *skb,
					   struct drop_key *key)
{
	bool ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	struct addr client = {};
	unsigned long nfct;
	struct nf_conn *ct;
	__u32 slot;

	if (!bpf_core_field_exists(skb->_nfct))
		return;
	nfct = skb->_nfct;
	ct = (void *)(nfct & ~NFCT_INFO);
	if (!ct || !bpf_core_field_exists(ct->tuplehash) ||
	    bpf_probe_read_kernel(&client, sizeof(client),
				  &ct->tuplehash[0].tuple.src.u3))
		return;
	if (ipv4)
		client = addr_v4(*(__be32 *)&client);
	slot = pod_slot(client);
	if (!slot)
		return;
	key->local = slot;
	key->far_is_src = (nfct & NFCT_INFO) >= IP_CT_IS_REPLY;
	if (key->far_is_src)
		key->dst = client;
	else
		key->src = client;
}

/* Finds the pod that a packet is of; false if there is none. */
static __always_inline bool find_pod(struct sk_buff *skb, struct drop_key *key)
{
	key->bits = BITS_ADDRESS;
	key->local = pod_slot(key->src);
	if (key->local)
		return true;
	key->far_is_src = true;
	key->local = pod_slot(key->dst);
	if (!key->local)
		translate_back(skb, key);
	return key->local;
}

/* Counts the drop and returns its count on this CPU. The key may be folded. */
static __always_inline __u64 count_drop(struct sk_buff *skb,
					struct recent *recent,
					struct drop_key *key,
					struct drop_ends *ends, __u32 cpu,
					__u32 generation)
{
	struct recent_drop *r = NULL;
	__u64 number, *found;

	if (recent) {
		r = recent_of(recent, key);
		number = r->number;
		/* Not while a nested drop put another there. */
		if (r->generation == generation && !r->busy &&
		    same_drop(&r->key, key) &&
		    *(volatile __u64 *)&r->number == number) {
			key->local = r->key.local;
			key->far_is_src = r->key.far_is_src;
			key->bits = BITS_ADDRESS;
			return increment(cpu, key->local, number);
		}
	}
	if (!find_pod(skb, key))
		return 0;
	*ends = (struct drop_ends){ key->src, key->dst };
	found = number_of(key);
	if (!found) {
		lasthop_lose_of(key->local, LOST_DROP);
		return 0;
	}
	number = *found;
	if (r)
		remember(r, key, number, generation);
	return increment(cpu, key->local, number);
}

SEC("tp_btf/kfree_skb")
int lasthop_drop(__u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	__u32 cpu = bpf_get_smp_processor_id();
	struct recent *recent = bpf_map_lookup_elem(&recents, &cpu);
	__u32 generation = drop_generation;
	struct drop_key key = {};
	struct drop_ends ends;
	struct head h;
	enum lost why;
	__u64 cookie = 0;
	__u64 n;

	key.netns = namespace_of(skb, &key.ifindex, &cookie);
	if (!is_watched(recent, key.netns, cookie, generation))
		return 0;
	if (skb->protocol != bpf_htons(ETH_P_IP) &&
	    skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	why = read_head(skb, &h) ? read_ends(skb, &h, &key) : LOST_UNREADABLE;
	if (why != LOST_MAX) {
		/* What bpf(2) runs programs on as a test is freed as of lo. */
		if (key.ifindex != LOOPBACK)
			lasthop_lose(why);
		return 0;
	}
	ends = (struct drop_ends){ key.src, key.dst };
	key.location = location_of(ctx);
	key.reason = has_reason ? ctx[2] : signs(skb, &h);
	if (at_hook(key.reason))
		read_cilium(skb, &key.cilium);
	__builtin_memcpy(key.dst_mac, h.dst_mac, sizeof(key.dst_mac));
	n = count_drop(skb, recent, &key, &ends, cpu, generation);
	/* The 1st, 2nd, 4th, 8th … drop with this key. */
	if (n && !(n & (n - 1)))
		send(skb, &h, &key, &ends, n);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
