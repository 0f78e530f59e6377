package loss

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// Samples are the samples of a snapshot's drops.
type Samples map[sampleKey][]*model.Sample

// sampleKey is what a sample has in common with its drop.
type sampleKey struct {
	src, dst netip.Addr
	proto    uint8
	reason   model.Reason
	netns    uint32
	ifindex  int
}

func newSamples(t *model.Traffic) Samples {
	out := Samples{}
	for s := range model.Each(t.Samples) {
		k := sampleKey{s.Src, s.Dst, s.Proto(), s.Reason, s.Netns, s.IfIndex}
		out[k] = append(out[k], s)
	}
	return out
}

// All are the samples of a drop.
func (x Samples) All(d *model.Drop) []*model.Sample {
	return x[sampleKey{d.Src, d.Dst, d.Proto, d.Reason, d.Netns, d.IfIndex}]
}

// Of is the latest sample of a drop, nil where there is none.
func (x Samples) Of(d *model.Drop) *model.Sample {
	list := x.All(d)
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}

// Late reports whether a sample is a segment of a connection that its socket has
// closed already, not a request to a closed port. A SYN and ACK is a reply too.
func Late(s *model.Sample) bool {
	const flags, syn, ack = 13, 0x02, 0x10
	t := s.Transport()
	return s.Proto() == tcp && len(t) > flags && t[flags]&(syn|ack) != syn
}

// redirects reports whether a sample is an ICMP redirect.
func redirects(s *model.Sample) bool {
	const icmp4, icmp6, redirect4, redirect6 = 1, 58, 5, 137
	t := s.Transport()
	return len(t) > 0 && (s.Proto() == icmp4 && t[0] == redirect4 || s.Proto() == icmp6 && t[0] == redirect6)
}
