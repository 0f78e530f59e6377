/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Types shared by the programs and user space. gen.go generates the Go types
 * from this file.
 */
#ifndef LASTHOP_SHARED_H
#define LASTHOP_SHARED_H

#include <stdbool.h>
#include <linux/types.h>

enum limit {
	/* MAC pairs in a hop counter, and associativity of the table of more.
	 */
	HOP_MACS = 2,
	MAC_WAYS = 16,
	/* Addresses that share their low 16 bits. Go adds no more. */
	CHAIN_MAX = 8,
	/* Entries of the link table, and how many a lookup probes. */
	LINK_TABLE = 4096,
	LINK_TRIES = 4,
	/* Associativity of the peer table. */
	PEER_WAYS = 8,
	/* Bytes of a dropped packet that an event keeps. */
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
	/*
	 * A link leads to an address, if what comes from the address enters by
	 * it and what is for it leaves by it, or it is the other way round: the
	 * direction is equal to the side, or not. So an address has two pairs
	 * of hop counters on a link, with a counter by side, and mostly uses
	 * one.
	 */
	WAYS = SIDES,
};

/* An IPv6 or IPv4-mapped address, in network byte order. */
struct addr {
	__be64 hi;
	__be64 lo;
};

enum addr_kind {
	KIND_NONE,
	KIND_POD,
	KIND_NODE,
	KIND_REMOTE, /* a range of addresses on another node */
};

/*
 * An address, or a range, whose packets are counted. In the map a row of __u16
 * follows: numbers of pairs of hop counters by link and way; 0 is none.
 */
struct counted_addr {
	struct addr addr;
	__u16 next;  /* the next slot whose address has the same low bits */
	__u16 pairs; /* its packets are counted by address pair on each link */
	enum addr_kind kind;
};

/*
 * A frame's MACs, in the order of the Ethernet header. hop is set in the table
 * of further pairs only: the number of the hop counter, 0 in a free entry.
 */
struct mac_pair {
	__u64 packets;
	__u8 dst[6];
	__u8 src[6];
	__u32 hop;
};

/* One address at one link, direction and side, on one CPU. */
struct hop_counter {
	__u64 packets;
	__u64 bytes;
	__u64 ttls;
	__u64 syn;
	__u64 synack;
	__u64 rst;
	__u64 icmp_errors;
	/* Forwarded packets on egress, by the link that they came in by. */
	__u64 from_inside;
	__u64 from_uplink;
	__u64 macs_lost;
	struct mac_pair macs[HOP_MACS];
};

/* What a pair of hop counters counts: slots of the address and the link. */
struct hop_key {
	__u16 addr;
	__u16 link;
	__u8 way; /* direction ^ side */
	__u8 pad[3];
};

enum link_flags {
	LINK_UPLINK = 1, /* leads off the node: peers are counted */
	LINK_PAIRS = 2,	 /* address pairs are counted */
	LINK_OUTER = 4,	 /* packets come in behind a tunnel's headers */
};

/* A link; ifindex 0 marks a free entry. */
struct link {
	__u32 ifindex;
	__u16 slot;
	__u8 flags;	  /* enum link_flags */
	bool no_ethernet; /* its packets have no Ethernet header */
};

struct peer_count {
	__u64 packets;
	__u64 requests;
	__u64 replies;
	__u32 icmp_errors;
	__u32 fragments; /* after the first; wraps */
};

/*
 * How far ends are told apart. A local address has a quota of far ends that are
 * counted one by one, and of ranges, /24 or /64, that count those beyond it.
 */
enum far {
	FAR_ADDRESS,
	FAR_RANGE,
	FAR_OTHERS,
	FARS,
};

/* Entries of a quota. The programs write taken, Go writes freed. */
struct quota {
	__u32 taken[FARS];
	__u32 freed[FARS];
};

/* Packets of a local and a remote address at an uplink, on one CPU. */
struct peer {
	struct addr remote; /* the first one of a range */
	__u16 local; /* slot of the local address, 0 marks a free entry */
	__u16 link;
	__u8 bits; /* of the remote prefix: 128 is an address */
	__u8 pad[3];
	struct peer_count count[DIRECTIONS];
};

/* A local address's share of the peers on one CPU. */
struct peer_share {
	struct quota quota;
	/* Packets of far ends that no entry was left for. */
	__u32 others_link; /* the last one's */
	__u32 pad;
	struct peer_count others[DIRECTIONS];
};

/* Source and destination of packets at a link and direction. */
struct pair_key {
	struct addr src;
	struct addr dst;
	__u32 ifindex;
	__u8 direction;
	__u8 pad[3];
};

/* An ARP or neighbour discovery message. */
struct neigh_key {
	struct addr addr; /* the target */
	__u32 ifindex;
	__u8 mac[6]; /* the sender's, as the message says */
	__u8 direction;
	__u8 reply;
	__u8 pad[4];
};

struct prefix_key {
	__u32 length;
	__u8 addr[16];
};

/*
 * What a program of Cilium's leaves in a packet that it drops: see
 * read_cilium(). All zero where none did.
 */
struct cilium_drop {
	__u32 src_identity; /* 0: not known, as that of the destination */
	__u32 dst_identity;
	__u16 endpoint; /* whose policy it was, on ingress */
	__u16 line;
	__u8 file;
	__u8 reason;
	__s8 error; /* more about the reason, mostly an errno */
	__u8 pad;
};

struct drop_key {
	struct addr src;
	struct addr dst;
	__u64 location;
	__u32 reason;
	__u32 ifindex;
	struct cilium_drop cilium;
	__u32 netns;
	__u8 dst_mac[6];
	__u8 proto;
	__u8 far;    /* enum far */
	__u16 local; /* slot of the pod whose quota the entry is of */
	__u8 bits;   /* of the far end's prefix: 128 is an address */
	__u8 far_is_src;
};

struct drop_event {
	struct drop_key key;
	struct addr src; /* the packet's; those of the key may be of ranges */
	struct addr dst;
	__u64 nanoseconds; /* CLOCK_MONOTONIC */
	__u64 count;	   /* drops with this key on this CPU so far */
	__u32 length;	   /* of the packet, from the network header on */
	__be16 protocol;
	__u16 head_length;
	__u8 src_mac[6];
	__u8 pad[2];
	__u8 head[HEAD_MAX];
};

/* Reasons of drops at hooks of programs: of tc, and that without a name. */
enum hook_reason {
	HOOK_INGRESS,
	HOOK_EGRESS,
	HOOK_UNNAMED,
	HOOK_REASONS,
};

/* Why a packet was not counted. */
enum lost {
	/* These are counted by address, too. */
	LOST_HOP,  /* no free hop counter */
	LOST_PEER, /* the CPU has no table of peers */
	LOST_PAIR, /* no room for the address pair */
	LOST_DROP, /* no room for the drop's key */
	LOST_OF_ADDR,
	LOST_MALFORMED = LOST_OF_ADDR, /* headers cut off or wrong */
	LOST_UNREADABLE, /* the headers are there, but could not be read */
	LOST_LINK,	 /* the link has no slot */
	LOST_NEIGH,	 /* no room for the ARP or ND message */
	LOST_RING,	 /* the ring buffer was full */
	LOST_RATE,	 /* the event exceeded the rate limit */
	LOST_MAX,
};

_Static_assert(LOST_OF_ADDR == 4, "a power of 2");

_Static_assert(sizeof(struct addr) == 16, "addr");
_Static_assert(sizeof(struct counted_addr) == 24, "counted_addr");
_Static_assert(sizeof(struct mac_pair) == 24, "mac_pair");
_Static_assert(sizeof(struct hop_counter) == 80 + HOP_MACS * 24, "hop_counter");
_Static_assert(sizeof(struct hop_key) == 8, "hop_key");
_Static_assert(sizeof(struct link) == 8, "link");
_Static_assert(sizeof(struct peer) == 88, "peer");
_Static_assert(sizeof(struct pair_key) == 40, "pair_key");
_Static_assert(sizeof(struct neigh_key) == 32, "neigh_key");
_Static_assert(sizeof(struct prefix_key) == 20, "prefix_key");
_Static_assert(sizeof(struct cilium_drop) == 16, "cilium_drop");
_Static_assert(sizeof(struct drop_key) == 80, "drop_key");
_Static_assert(sizeof(struct peer_share) == 96, "peer_share");
_Static_assert(sizeof(struct drop_event) == 144 + HEAD_MAX, "drop_event");

#endif
