/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The members of kernel structures that the programs read. The loader relocates
 * each access by the running kernel's BTF (CO-RE), so only names and nesting
 * matter here.
 */
#ifndef LASTHOP_VMLINUX_H
#define LASTHOP_VMLINUX_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)),           \
			     apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct sock_common {
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
};

struct dst_entry {
	struct net_device *dev;
	short error;
};

struct sk_buff {
	char cb[48];
	struct net_device *dev;
	struct sock *sk;
	unsigned long _skb_refdst;
	unsigned long _nfct;
	unsigned int len;
	__u8 pkt_type : 3;
	__be16 protocol;
	__u16 network_header;
	__u16 mac_header;
	unsigned int tail; /* sk_buff_data_t: an offset on 64 bits */
	unsigned char *head;
	unsigned char *data;
};

union nf_inet_addr {
	__u32 all[4];
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
};

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
};

struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct nsproxy {
	struct net *net_ns;
};

struct signal_struct {
	struct {
		int counter;
	} live;
};

struct task_struct {
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	char comm[16];
	struct nsproxy *nsproxy;
	struct signal_struct *signal;
};

/* What is in cb at a hook of tc. */
struct qdisc_skb_cb {
	unsigned char data[20];
};

#pragma clang attribute pop

#endif
