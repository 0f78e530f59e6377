package traffic

import (
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
)

// sampleKey is what a sample is kept for: a drop, and a kind of packet. Of a connection, its requests, replies
// and data may all be dropped by one rule, and tell different things.
type sampleKey struct {
	drop bpf.DropDropKey
	kind uint8
}

// tcpKinds are the flags FIN, SYN, RST and ACK, which tell segments apart.
const tcpKinds = 0x17

// kindOf is the packet's kind among those of its protocol: the flags of a TCP segment, the type of an ICMP
// message. It is 0 for the rest, and where the head ends before it.
func kindOf(head []byte) uint8 {
	proto, next := network(head)
	switch {
	case proto == unix.IPPROTO_TCP && len(next) > 13:
		return next[13] & tcpKinds
	case (proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6) && len(next) > 0:
		return next[0]
	}
	return 0
}

// payloadKept is how many bytes behind its headers are kept of a packet. What applications send is not for a
// report; an ICMP error needs that much of the packet that it is about (RFC 792).
const payloadKept = 8

// kept is what a sample keeps of a packet from its network header on: its headers,
// those of a packet within it, and payloadKept bytes.
func kept(head []byte) []byte {
	proto, next := network(head)
	at := len(head) - len(next)
	size := 0
	switch proto {
	case unix.IPPROTO_TCP:
		if len(next) > 12 {
			size = int(next[12]>>4) * 4
		}
	case unix.IPPROTO_UDP:
		size = 8
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		size = 8
		if isError(proto, next) {
			return head[:at+size+len(kept(next[size:]))]
		}
	case unix.IPPROTO_IPIP, unix.IPPROTO_IPV6:
		return head[:at+len(kept(next))]
	}
	return head[:min(at+size+payloadKept, len(head))]
}

// isError reports whether the ICMP message holds the head of the packet that it is about.
func isError(proto uint8, message []byte) bool {
	if len(message) < 8 {
		return false
	}
	if proto == unix.IPPROTO_ICMPV6 {
		return message[0] < 128
	}
	switch message[0] {
	case 3, 4, 5, 11, 12:
		return true
	}
	return false
}

// network splits a packet behind its network headers, and says what follows. A later
// fragment, or a header that is cut off, is followed by nothing that is known (0).
func network(head []byte) (proto uint8, next []byte) {
	switch {
	case len(head) >= 20 && head[0]>>4 == 4:
		size := max(20, int(head[0]&0xf)*4)
		if size > len(head) {
			return 0, nil
		}
		if later := int(head[6]&0x1f)<<8 | int(head[7]); later != 0 {
			return 0, head[size:]
		}
		return head[9], head[size:]
	case len(head) >= 40 && head[0]>>4 == 6:
		return behindExtensions(head[6], head[40:])
	}
	return 0, head
}

func behindExtensions(proto uint8, rest []byte) (uint8, []byte) {
	for {
		var size int
		switch proto {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			size = 8
			if len(rest) >= size {
				size += int(rest[1]) * 8
			}
		case unix.IPPROTO_AH:
			size = 8
			if len(rest) >= size {
				size += int(rest[1]) * 4
			}
		case unix.IPPROTO_FRAGMENT:
			size = 8
		default:
			return proto, rest
		}
		if size > len(rest) {
			return 0, nil
		}
		if proto == unix.IPPROTO_FRAGMENT && (rest[2] != 0 || rest[3]&^7 != 0) {
			return 0, rest[size:]
		}
		proto, rest = rest[0], rest[size:]
	}
}
