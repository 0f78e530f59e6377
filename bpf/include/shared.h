/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The values that the programs write and Go reads, or the other way round.
 * Their Go types are generated from here (gen.go).
 */
#ifndef LASTHOP_SHARED_H
#define LASTHOP_SHARED_H

#include <stdbool.h>
#include <linux/types.h>

enum limit {
	/* Pairs of MACs that one leg holds. */
	LEG_MACS = 4,
	/* Subjects that share their low 16 address bits. Go adds no more. */
	CHAIN_MAX = 8,
	/* Places for links, and how many are tried. Go adds none elsewhere. */
	LINK_TABLE = 4096,
	LINK_TRIES = 4,
	/* Places for a pair of addresses. */
	PEER_WAYS = 4,
	/* The head of a dropped packet that an event keeps. */
	HEAD_MAX = 128,
};

enum direction {
	INGRESS,
	EGRESS,
	DIRECTIONS,
};

enum side {
	SOURCE,
	DESTINATION,
	SIDES,
	/* Legs of one subject on one link. */
	LINK_LEGS = (int)DIRECTIONS * (int)SIDES,
};

/* An IPv6 address, or an IPv4 one mapped into it, as it is on the wire. */
struct addr {
	__be64 hi;
	__be64 lo;
};

enum subject_kind {
	KIND_NONE,
	KIND_POD,
	KIND_NODE,
	KIND_REMOTE, /* a range of addresses on another node */
};

/*
 * What is counted: an address, or a range. Its value in the map goes on with
 * one row of __u16, the leg's number by link, direction and side; 0 is none.
 */
struct subject {
	struct addr addr;
	__u16 next;  /* the next subject of the same low address bits */
	__u16 close; /* looked at closely: its pairs are counted everywhere */
	enum subject_kind kind;
};

/* A pair of MACs, both in the order of the frame: destination, source. */
struct mac_pair {
	__u64 packets;
	__u8 dst[6];
	__u8 src[6];
	__u8 pad[4];
};

/* One subject on one link, in one direction, on one side, on one CPU. */
struct leg {
	__u64 packets;
	__u64 bytes;
	__u64 ttls;
	__u64 syn;
	__u64 synack;
	__u64 rst;
	__u64 icmp_errors;
	/* On egress: forwarded, from a link that is no uplink or from one. */
	__u64 inner;
	__u64 outer;
	__u64 macs_lost;
	struct mac_pair macs[LEG_MACS];
};

/* Whose a leg is. */
struct owner {
	__u16 subject;
	__u16 link;
	__u8 direction;
	__u8 side;
	__u8 pad[2];
};

/* Which pairs of addresses are counted on a link. */
enum pair_scope {
	PAIRS_BEYOND = 1, /* of an end that is local and one that is not */
	PAIRS_CLOSE = 2,  /* of those that are looked at closely */
};

/* A link by its index; an index of 0 is a free place. */
struct link {
	__u32 ifindex;
	__u16 slot;
	__u8 pairs; /* enum pair_scope */
	bool bare;  /* its frames have no Ethernet header */
};

struct peer_count {
	__u64 packets;
	__u64 asks;
	__u64 answers;
	__u64 icmp_errors;
};

/* A local address and a remote one at an uplink, on one CPU. */
struct peer {
	struct addr remote;
	__u16 subject; /* 0 is a free place */
	__u16 link;
	__u8 pad[4];
	struct peer_count count[DIRECTIONS];
};

/*
 * The two ends of packets at a link, counted where one of them is an address
 * that is looked at closely.
 */
struct pair_key {
	struct addr src;
	struct addr dst;
	__u32 ifindex;
	__u8 direction;
	__u8 pad[3];
};

/* An ARP or neighbour discovery message. */
struct neigh_key {
	struct addr addr; /* asked for, or answered for */
	__u32 ifindex;
	__u8 mac[6]; /* the sender's, as the message claims */
	__u8 direction;
	__u8 reply;
	__u8 pad[4];
};

struct prefix_key {
	__u32 length;
	__u8 addr[16];
};

struct drop_key {
	struct addr src;
	struct addr dst;
	__u64 location;
	__u32 reason;
	__u32 ifindex;
	__u32 netns;
	__u8 dst_mac[6];
	__u8 proto;
	__u8 pad[5];
};

struct drop_event {
	struct drop_key key;
	__u64 nanoseconds; /* CLOCK_MONOTONIC */
	__u64 count;	   /* of its kind, on its CPU */
	__u32 length;	   /* of the packet, from the network header on */
	__be16 protocol;
	__u16 head_length;
	__u8 src_mac[6];
	__u8 pad[2];
	__u8 head[HEAD_MAX];
};

/* Packets that a CPU could not count, by why. */
enum lost {
	LOST_UNPARSED, /* not what its headers claim */
	LOST_LINK,     /* on a link that has no slot */
	LOST_LEG,      /* no leg was free */
	LOST_PEER,     /* no place for the pair of addresses */
	LOST_NEIGH,    /* no place for the ARP or ND message */
	LOST_DROP,     /* no place for the kind of drop */
	LOST_RING,     /* the event did not fit the ring buffer */
	LOST_RATE,     /* the event was one too many for this second */
	LOST_MAX,
};

_Static_assert(sizeof(struct addr) == 16, "addr");
_Static_assert(sizeof(struct subject) == 24, "subject");
_Static_assert(sizeof(struct mac_pair) == 24, "mac_pair");
_Static_assert(sizeof(struct leg) == 80 + LEG_MACS * 24, "leg");
_Static_assert(sizeof(struct owner) == 8, "owner");
_Static_assert(sizeof(struct link) == 8, "link");
_Static_assert(sizeof(struct peer) == 88, "peer");
_Static_assert(sizeof(struct pair_key) == 40, "pair_key");
_Static_assert(sizeof(struct neigh_key) == 32, "neigh_key");
_Static_assert(sizeof(struct prefix_key) == 20, "prefix_key");
_Static_assert(sizeof(struct drop_key) == 64, "drop_key");
_Static_assert(sizeof(struct drop_event) == 96 + HEAD_MAX, "drop_event");

#endif
