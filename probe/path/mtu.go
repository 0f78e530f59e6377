package path

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Narrow is a link whose MTU is smaller than that of the pod's, where what is too large ends, and its sender is not told.
type Narrow struct {
	// In is the link by which the packets come, Out the narrow one.
	In, Out *model.Link
	// By is the rule that drops the errors from an address of the node's that would tell the sender; nil on a bridge, which makes none.
	By   *model.PacketRule
	From netip.Addr
}

// narrow is the first such link of the packets' way; nil where all are as wide, senders learn the size, or that is not known.
func (j *journey) narrow() *Narrow {
	var in, first *model.Link
	routed := false
	for _, s := range j.steps {
		l := j.LinkByName[s.Link]
		routed = routed || s.Kind == model.HopRoute
		switch {
		case l == nil || l.MTU == 0 || s.Kind != model.HopLink && s.Kind != model.HopBridge:
		case s.direction == model.Ingress:
			if in = l; first == nil {
				first = l
			}
		case first == nil || l.MTU >= first.MTU || s.Kind == model.HopBridge || j.clamps():
		case !routed && j.Outer[l.Index]:
			return &Narrow{In: first, Out: l} // A bridge has the MTU of its smallest port.
		case routed:
			// The rule of a chain's policy is none.
			told := j.tooBig(in)
			if by, _ := j.Tables().Refused(told, "OUTPUT", "POSTROUTING"); by != nil {
				return &Narrow{In: in, Out: l, By: by, From: told.Src}
			}
			return nil
		}
	}
	return nil
}

// tooBig is the error by which the node tells the sender which size fits.
func (j *journey) tooBig(in *model.Link) Packet {
	p := Packet{Src: j.addressOf(in.Name), Dst: j.ends.Pod, Proto: model.ICMP, ICMP: "3/4", State: "related", Out: []string{in.Name}}
	if isIPv6(p.Dst) {
		p.Proto, p.ICMP = model.ICMPv6, "2/0"
	}
	return p
}

// clamps reports whether a rule writes the largest segment that TCP may send.
func (j *journey) clamps() bool {
	return slices.ContainsFunc(j.PacketRules, func(r model.PacketRule) bool { return strings.HasPrefix(r.Target, "TCPMSS") })
}
