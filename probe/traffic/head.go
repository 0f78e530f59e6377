package traffic

import (
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// sampleKey is what a sample is kept for: a drop, and a kind of packet. Of a connection, its requests, replies
// and data may all be dropped by one rule, and tell different things.
type sampleKey struct {
	drop bpf.DropDropKey
	kind uint8
}

// kindOf is the packet's kind among those of its protocol: the flags of a TCP segment, the type of an ICMP
// message. It is 0 for the rest, and where the head ends before it.
func kindOf(s *model.Sample) uint8 {
	if flags, ok := s.TCPFlags(); ok {
		return flags
	}
	kind, _, _ := s.ICMPType()
	return kind
}

// payloadKept is how many bytes behind its headers are kept of a packet. What applications send is not for a
// report; an ICMP error needs that much of the packet that it is about (RFC 792).
const payloadKept = 8

// kept is what a sample keeps of a packet from its network header on: its headers,
// those of a packet within it, and payloadKept bytes.
func kept(head []byte) []byte {
	proto, at, first := model.Network(head)
	next, size := head[at:], 0
	if !first {
		proto = unix.IPPROTO_RAW
	}
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
