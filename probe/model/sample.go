package model

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Sample is the head of one freed packet.
type Sample struct {
	Time time.Time
	// Began is when the first of its kind was freed, zero if that is not known.
	Began    time.Time `json:",omitzero"`
	Reason   Reason
	Location string `redact:"keep"`
	IfIndex  int
	Link     string `redact:"link"`
	Netns    uint32
	// Src and Dst are those of the drop; see Ends.
	Src, Dst       netip.Addr
	SrcMAC, DstMAC MAC
	Cilium         CiliumDrop
	// Protocol is the EtherType.
	Protocol uint16
	// Length is the packet's, Head what of it was kept, from the network header on.
	Length int
	Head   []byte
	// Count is how many of its kind there had been on its CPU.
	Count uint64
}

// Drop is the drop that the sample was taken of, as far as the sample shows it.
func (s *Sample) Drop() Drop {
	return Drop{Src: s.Src, Dst: s.Dst, Reason: s.Reason, Location: s.Location, IfIndex: s.IfIndex, Link: s.Link, Netns: s.Netns,
		DstMAC: s.DstMAC, Cilium: s.Cilium, Packets: 1, First: s.Time, Last: s.Time}
}

// Key is that of the sample's drop.
func (s *Sample) Key() Drop {
	d := s.Drop()
	return d.Key()
}

// Numbers of IP protocols.
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
)

// Network says where the network headers of a packet's head end, IPv6's extensions among them, and what follows: 0
// where that is not known, as behind one that is cut off. A later fragment, which is not first, begins with no header.
func Network(head []byte) (proto uint8, size int, first bool) {
	switch {
	case len(head) >= 20 && head[0]>>4 == 4:
		size = min(max(20, int(head[0]&0xf)*4), len(head))
		return head[9], size, binary.BigEndian.Uint16(head[6:])&0x1fff == 0
	case len(head) < 40 || head[0]>>4 != 6:
		return 0, 0, true
	}
	const hopByHop, routing, fragment, authentication, options = 0, 43, 44, 51, 60
	for proto, size, first = head[6], 40, true; first; {
		rest, long, unit := head[size:], 8, map[uint8]int{hopByHop: 8, routing: 8, options: 8, authentication: 4}[proto]
		if unit == 0 && proto != fragment {
			break
		}
		if len(rest) >= long {
			long += int(rest[1]) * unit
		}
		if len(rest) < long {
			return 0, len(head), true
		}
		first, proto, size = proto != fragment || rest[2] == 0 && rest[3]&^7 == 0, rest[0], size+long
	}
	return proto, size, first
}

// Proto is the packet's protocol, 0 where its network header was not kept whole.
func (s *Sample) Proto() uint8 {
	proto, _, _ := Network(s.head())
	return proto
}

// Ends are the addresses that the packet had: where its source was translated, or it is a reply to one, Src and Dst have
// the pod's in place of the node's. They are not valid where its network header was not kept whole.
func (s *Sample) Ends() (src, dst netip.Addr) {
	h, at, size := s.head(), 8, 16
	if _, headers, _ := Network(h); headers == 0 {
		return src, dst
	}
	if h[0]>>4 == 4 {
		at, size = 12, 4
	}
	src, _ = netip.AddrFromSlice(h[at : at+size])
	dst, _ = netip.AddrFromSlice(h[at+size : at+2*size])
	return src, dst
}

// head is Head, nil of no sample.
func (s *Sample) head() []byte {
	if s == nil {
		return nil
	}
	return s.Head
}

// Transport is what follows the network header, nil where that was not kept or the packet is a later fragment.
func (s *Sample) Transport() []byte {
	proto, size, first := Network(s.head())
	return Either(proto != 0 && first, s.head()[size:], nil)
}

// Ports are those of TCP or UDP; ok is false where they are not known.
func (s *Sample) Ports() (src, dst uint16, ok bool) {
	t := s.Transport()
	if p := s.Proto(); len(t) < 4 || p != TCP && p != UDP {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:]), true
}

// TCPFlags are a segment's FIN, SYN, RST and ACK; ok is false of other packets.
func (s *Sample) TCPFlags() (flags byte, ok bool) {
	const at = 13
	t := s.Transport()
	if s.Proto() != TCP || len(t) <= at {
		return 0, false
	}
	return t[at] & 0x17, true
}

// Late reports whether a sample is a segment of a connection that its socket has
// closed already, not a request to a closed port. A SYN and ACK is a reply too.
func (s *Sample) Late() bool {
	const syn, ack = 0x02, 0x10
	flags, is := s.TCPFlags()
	return is && flags&(syn|ack) != syn
}

// ICMPType is the type of a message of ICMP, or of ICMPv6 where v6 is set; ok is false of other packets.
func (s *Sample) ICMPType() (kind uint8, v6, ok bool) {
	t, proto := s.Transport(), s.Proto()
	if len(t) == 0 || proto != ICMP && proto != ICMPv6 {
		return 0, false, false
	}
	return t[0], proto == ICMPv6, true
}

// isICMP reports whether the packet is an ICMP message of one type, or one of ICMPv6 of the other.
func (s *Sample) isICMP(type4, type6 int) bool {
	kind, v6, ok := s.ICMPType()
	return ok && int(kind) == Either(v6, type6, type4)
}

// Advertises reports whether the packet is a neighbour advertisement: what replies to a request for a MAC of IPv6.
func (s *Sample) Advertises() bool { return s.isICMP(-1, 136) }

// Redirects reports whether the packet is an ICMP redirect.
func (s *Sample) Redirects() bool { return s.isICMP(5, 137) }

// IsReply reports whether the packet is the first reply of a flow: a SYN-ACK, or an echo reply.
func (s *Sample) IsReply() bool {
	flags, ok := s.TCPFlags()
	return ok && flags == 0x12 || s.isICMP(0, 129)
}

// GoesOn reports whether the segment is one within a connection.
func (s *Sample) GoesOn() bool {
	flags, ok := s.TCPFlags()
	return ok && flags&0x07 == 0
}

// Closes reports whether the segment ends a connection.
func (s *Sample) Closes() bool {
	flags, _ := s.TCPFlags()
	return flags&0x05 != 0
}
