package node

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// FlowPacket is a flow's packet with its source as it was sent, and its destination as translated.
func FlowPacket(f *model.Flow) path.Packet {
	return path.Packet{Src: f.Original.Src, Dst: f.Reply.Src, Proto: f.Proto, SrcPort: f.Original.SrcPort, DstPort: f.Reply.SrcPort}.Of(f)
}

// ReplyPacket is a reply of a flow as its server sends it.
func ReplyPacket(f *model.Flow) path.Packet {
	return path.Packet{Src: f.Reply.Src, Dst: f.Reply.Dst, Proto: f.Proto, SrcPort: f.Reply.SrcPort, DstPort: f.Reply.DstPort}.Of(f)
}

// LeavingPacket is a flow's packet as POSTROUTING sees it first.
func (v *Index) LeavingPacket(f *model.Flow) path.Packet {
	p := FlowPacket(f)
	p.Out, p.New = []string{v.OutLink(p.Src, p.Dst)}, !f.Start.IsZero()
	return p
}

// Leaving are the packets of a pair as POSTROUTING sees them first, one for each protocol and port that its
// flows without a reply are to. Where there is no such flow, neither is known.
func (v *Index) Leaving(p *model.Peer) []path.Packet {
	seen := map[ProtoPort]bool{}
	var out []path.Packet
	for _, f := range v.FlowsOf(p).Silent {
		if k := (ProtoPort{Proto: f.Proto, Number: f.Reply.SrcPort}); !seen[k] {
			seen[k], out = true, append(out, v.LeavingPacket(f))
		}
	}
	if len(out) == 0 {
		out = []path.Packet{{Src: p.Local, Dst: p.Remote}}
	}
	for i := range out {
		out[i].Out = []string{v.NatLink(p.IfIndex)}
	}
	return out
}

// Outside reports whether an address is neither of this node, of its subnet, nor a pod's, and can be a target at all. Of
// an overlay the subnet is outside, too: it knows no pod's address.
func Outside(v *Index, a netip.Addr) bool {
	return a.IsGlobalUnicast() && a != model.WireServer && v.Own[a] == nil && len(v.Owners[a]) == 0 && !v.Classifier.Past[a] &&
		(!model.InAny(v.OnLink, a) || Overlay(v.Node.Plugin)) && !model.InAny(v.Ranges.Own, a) && !model.InAny(v.Ranges.Cluster, a) &&
		!v.Remote(a).IsValid()
}

// findUnhearing are the pods that send, and nothing at all comes to them.
func (v *Index) findWithoutReplies() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for h := range model.Each(v.Traffic.Hops) {
		if pods := v.Owners[h.Addr]; len(pods) != 1 || pods[0].LinkIndex != h.IfIndex {
			continue
		}
		switch _, known := out[h.Addr]; {
		case h.Side == model.AsDestination && h.Direction == model.Egress && h.Packets > 0:
			out[h.Addr] = false
		case h.Side == model.AsSource && h.Direction == model.Ingress && h.Packets >= MinDrops && !known:
			out[h.Addr] = true
		}
	}
	return out
}
