package diagnose

import (
	"encoding/binary"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// sampleKey is what a sample has in common with its drops.
type sampleKey struct {
	src, dst netip.Addr
	proto    uint8
	reason   model.Reason
	netns    uint32
	ifindex  int
}

func keyOfDrop(d *model.Drop) sampleKey {
	return sampleKey{d.Src, d.Dst, d.Proto, d.Reason, d.Netns, d.IfIndex}
}

// dropSamples are the samples by what they have in common with drops.
func (v *view) dropSamples() map[sampleKey]*model.Sample {
	out := map[sampleKey]*model.Sample{}
	for s := range model.Each(v.Traffic.Samples) {
		out[sampleKey{s.Src, s.Dst, headProto(s.Head), s.Reason, s.Netns, s.IfIndex}] = s
	}
	return out
}

// Numbers of IP protocols.
const (
	icmp4 = 1
	tcp   = 6
	udp   = 17
	icmp6 = 58
)

// headProto is the protocol of a packet from its network header, 0 where that
// is cut off. It does not look behind IPv6 extension headers.
func headProto(head []byte) uint8 {
	switch {
	case len(head) >= 20 && head[0]>>4 == 4:
		return head[9]
	case len(head) >= 40 && head[0]>>4 == 6:
		return head[6]
	}
	return 0
}

// transport is what follows the network header of TCP or UDP, nil where it was
// not kept or the packet is a later fragment.
func transport(head []byte) []byte {
	p := headProto(head)
	if p != tcp && p != udp {
		return nil
	}
	size := 40
	if head[0]>>4 == 4 {
		size = int(head[0]&0xf) * 4
		if size < 20 || binary.BigEndian.Uint16(head[6:])&0x1fff != 0 {
			return nil
		}
	}
	return head[min(size, len(head)):]
}

func ports(head []byte) (src, dst uint16, ok bool) {
	t := transport(head)
	if len(t) < 4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:]), true
}
