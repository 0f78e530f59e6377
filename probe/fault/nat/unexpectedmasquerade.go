package nat

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// masked are the flows between pods that the rules of one chain translate, the first as it was followed.
type masked struct {
	nat   path.SourceNAT
	rules []*model.PacketRule
	// marks are rules that set the mark because of which others translate.
	marks []*model.PacketRule
	flows []*model.Flow
}

func (g *masked) add(f *model.Flow, nat path.SourceNAT) {
	if g.flows = append(g.flows, f); len(g.flows) == 1 {
		g.nat = nat
	}
	if nat.Rule != nil && !slices.Contains(g.rules, nat.Rule) {
		g.rules = append(g.rules, nat.Rule)
	}
}

// maskedKey is a chain, where one exclusion is in front of all its rules. It is
// zero but for isIPv6 where the rule is not known, and has mark where a mark decides.
type maskedKey struct {
	path.ChainKey
	isIPv6, mark bool
}

// UnexpectedMasquerade reports packets between pods that leave with the node's address.
var UnexpectedMasquerade = fault.Kind{Code: "UnexpectedMasquerade", Severity: model.Warning,
	Find: unexpectedMasquerade, Rests: fault.Sources{model.SourceNAT}, Passes: true,
	Ends: fault.Hops{model.HopConntrack}, Objects: fault.Objects{"rules", "rule"},
	Else: fault.Else{"UnexpectedMasquerade !sure", "UnexpectedMasquerade !rules", "unsure"}}

func unexpectedMasquerade(v *fault.Input) {
	var chains node.Groups[maskedKey, masked]
	for f := range model.Each(v.Flows) {
		if !maskedFlow(v.Index, f) {
			continue
		}
		nat := snatRule(v.Index, f)
		var marks []*model.PacketRule
		if nat.Translated && !gives(v.Index, nat.Rule, f) {
			continue // A rule before it did.
		}
		if !nat.Translated || nat.CutOff {
			// What translated it is gone, or was not understood or followed. A
			// flow keeps its address, so an old one proves nothing.
			// Of rules that were not read, any may be a plugin's own.
			if f.Start.IsZero() || !v.Has(model.SourceNAT) {
				continue
			}
			if len(nat.Unsure) > 0 || nat.CutOff {
				nat.Rule = nil
			} else if marks, nat.Rule = v.Tables().Marked(v.LeavingPacket(f)); len(marks) == 0 {
				continue
			}
		}
		k := maskedKey{isIPv6: f.Reply.Src.Is6(), mark: len(marks) > 0}
		if r := nat.Rule; r != nil {
			if model.CNIChain(r.Chain) || r.Table == model.CNIMasqueradeTable {
				// So the CNI project's plugins masquerade what a pod sends beyond its own node's range,
				// other nodes' pods included: that is what their ipMasq means.
				continue
			}
			k.ChainKey = path.ChainOf(r)
		}
		g := chains.Of(k)
		g.add(f, nat)
		g.marks = model.With(g.marks, marks...)
	}
	for _, g := range chains.All() {
		v.Report(maskedBy(v.Index, g))
	}
	turnedBack(v)
}

func masqueraded(v *node.Index, f *model.Flow) bool {
	return f.Reply.Dst != f.Original.Src && len(v.Owners[f.Original.Src]) > 0 && v.Own[f.Reply.Dst] != nil
}

// maskedFlow reports whether a pod of the node speaks to another pod with the node's address. What a service
// address led to is left out: hairpins and node ports are translated on purpose, and so is all that a container beside
// the pods sends.
func maskedFlow(v *node.Index, f *model.Flow) bool {
	pod, peer := f.Original.Src, f.Reply.Src
	// Of the node's subnet nothing stands between a pod and its peers.
	flat := func(p netip.Prefix) bool { return p.Contains(pod) && p.Contains(peer) }
	return masqueraded(v, f) && v.Owners[pod][0].Engine == "" && peer == f.Original.Dst && peer != pod && v.Own[peer] == nil &&
		(len(v.Owners[peer]) > 0 || v.Remote(peer).IsValid() || slices.ContainsFunc(v.OnLink, flat))
}

func maskedBy(v *node.Index, g *masked) fault.Fault {
	pods, remotes := node.Clients(g.flows), node.Servers(g.flows)
	f := fault.Fault{Facts: words.Facts{
		"remotes": remotes, "first": g.flows[0], "flows": g.flows, "rules": g.rules, "marks": g.marks, "cutOff": g.nat.CutOff,
		"read": v.Has(model.SourceNAT),
		"sure": slices.ContainsFunc(remotes, func(a netip.Addr) bool { return len(v.Owners[a]) > 0 || v.Remote(a).IsValid() }),
	}}
	f.Pods, f.Peers, f.LastHopAlive = pods, model.Hosts(remotes), v.Place(v.OutLink(g.flows[0].Original.Src, g.flows[0].Reply.Src), model.Egress)
	if len(g.rules) > 0 && len(g.marks) == 0 {
		ranges := slices.Concat(v.OnLink, v.Ranges.Local, v.Ranges.Cluster)
		f.Facts["unsure"], f.Facts["targets"] = g.nat.Unsure,
			model.With(nil, model.Map(remotes, func(a netip.Addr) netip.Prefix { return rangeIn(ranges, a) })...)
	}
	return f
}

// turnedBack reports pods whose masqueraded requests are replied to, and who hear none of it: the node translates the
// replies back and hands them to the network, as it does all that is for such a pod, with a source that is not its own.
func turnedBack(v *fault.Input) {
	heard := map[netip.Addr]bool{}
	var rules node.Groups[*model.PacketRule, masked]
	for f := range model.Each(v.Flows) {
		pod := f.Original.Src
		switch {
		case f.Proto != model.TCP || f.Start.IsZero() || !f.Replied || !masqueraded(v.Index, f) || v.Own[f.Reply.Src] != nil:
		case f.State != "SYN_RECV":
			heard[pod] = true
		default:
			nat := snatRule(v.Index, f)
			rules.Of(nat.Rule).add(f, nat)
		}
	}
	for r, g := range rules.All() {
		g.flows = slices.DeleteFunc(g.flows, func(f *model.Flow) bool {
			left, again := leftAgain(v.Index, f.Original.Src)
			return heard[f.Original.Src] || again < node.MinAsks || left < again || v.LostPackets(func(d *model.Drop) bool {
				return d.Src == f.Reply.Src && d.Dst == f.Original.Src && v.Explained(d)
			}) >= node.MinDrops
		})
		if len(g.flows) >= node.MinAsks && r != nil && g.nat.Translated {
			v.Report(repliesLeaveAgain(v.Index, g))
		}
	}
}

// leftAgain counts the packets for a pod that left by an uplink, and those that the node
// itself routed to it by a bridge.
func leftAgain(v *node.Index, pod netip.Addr) (left, routed uint64) {
	for _, h := range v.HopsOf[pod] {
		if h.Side != model.AsDestination || h.Direction != model.Egress {
			continue
		}
		if l := v.ByIndex[h.IfIndex]; v.IsUplink(h.IfIndex) {
			left += h.Packets
		} else if l != nil && l.Kind == "bridge" {
			routed += h.Packets
		}
	}
	return left, routed
}

func repliesLeaveAgain(v *node.Index, g *masked) fault.Fault {
	pods, peers := node.Clients(g.flows), node.Servers(g.flows)
	link := v.OutLink(g.flows[0].Original.Src, g.flows[0].Reply.Src)
	f := fault.Fault{Page: "UnexpectedMasquerade-returned",
		Facts: words.Facts{"peers": peers, "link": link, "flows": g.flows, "rule": g.nat.Rule}}
	f.Severity, f.Packets, f.Pods, f.Peers, f.LastHopAlive = model.Critical, uint64(len(g.flows)), pods,
		model.Hosts(peers), v.Place(link, model.Ingress)
	var left []model.HopCount
	for _, a := range pods {
		n, _ := leftAgain(v, a)
		left = append(left, model.HopCount{Addr: a, Packets: n})
	}
	f.Facts["left"] = left
	return f
}
