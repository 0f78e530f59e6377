package nat

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// foreignFlows are the flows of pods that leave with an address that is not the node's.
type foreignFlows struct {
	addr netip.Addr
	// asking never saw a reply, though their first packet wants one, or none in the window.
	// asks is how often they asked at least. worked: one from before the window did.
	asking []*model.Flow
	asks   int
	// begun of them began in the window: the others may be older than the mending of the rule.
	begun  int
	worked bool
}

// ForeignSNAT reports that another program than the node's rules gives pods' packets an address that is not theirs.
var ForeignSNAT = fault.Kind{Code: "ForeignSNAT", Severity: model.Critical, Find: foreignSNAT,
	Needs: fault.Sources{model.SourceLinks, model.SourceRoutes, model.SourceConntrack, model.SourcePods},
	Ends:  fault.Hops{model.HopConntrack, model.HopBeyond}, Objects: fault.Objects{"addr"},
	Else: fault.Else{"!elsewhere", "!rule"}}

func foreignSNAT(v *fault.Input) {
	found, replied := map[netip.Addr]*foreignFlows{}, map[netip.Addr]bool{}
	for f := range model.Each(v.Flows) {
		a := f.Reply.Dst
		if !GivenAway(v.Index, f) {
			continue
		}
		if f.Replied && !f.Start.IsZero() && len(v.Owners[f.Reply.Src]) == 0 { // A pod's replies pass here whatever they are for.
			replied[a] = true
			continue
		}
		g := model.GetOrInsert(found, a)
		g.addr, g.worked = a, g.worked || f.Replied
		switch unheard := isUnanswered(v.Index, f); {
		case unheard && (f.Replied || wantsReply(f)):
			// It asked before the window and in it.
			g.asking, g.asks = append(g.asking, f), g.asks+2
		case f.Replied:
		case v.Window.Settled(f.Start) && wantsReply(f):
			g.asking, g.asks = append(g.asking, f), g.asks+1
			if !f.Start.IsZero() {
				g.begun++
			}
		}
	}
	for _, a := range node.Sorted(found) {
		g := found[a]
		if r := translatesTo(v.Index, g); !replied[a] && g.asks >= node.MinPackets && (r != nil || g.begun >= node.MinPackets) {
			v.Report(foreignSource(v.Index, g, r))
		}
	}
}

// GivenAway reports whether a flow of a pod has a source address that is neither the node's nor a pod's.
func GivenAway(v *node.Index, f *model.Flow) bool {
	a := f.Reply.Dst
	return len(v.Owners[f.Original.Src]) > 0 && a != f.Original.Src && v.Own[a] == nil && len(v.Owners[a]) == 0 &&
		!v.Classifier.Past[a] &&
		!slices.ContainsFunc(v.Routes, func(r model.Route) bool { return r.Type == "local" && r.Dst.Contains(a) })
}

// wantsReply reports whether the first packet of a flow does.
func wantsReply(f *model.Flow) bool {
	return f.Proto == model.TCP || f.Proto == model.ICMP || f.Proto == model.ICMPv6 || f.Proto == model.UDP && f.Original.DstPort == node.DNSPort
}

// foreignSource is the finding on an address, and the rule that translates to it; nil where that is not known.
func foreignSource(v *node.Index, g *foreignFlows, r *model.PacketRule) fault.Fault {
	one, targets := g.asking[0], node.Servers(g.asking)
	f := fault.Fault{Facts: words.Facts{
		"addr": g.addr, "targets": targets, "first": one, "asking": g.asking, "rule": r, "worked": g.worked,
		"node": model.First(v.Cluster.Nodes, func(n *model.ClusterNode) bool { return slices.Contains(n.Addresses, g.addr) }),
	}}
	f.Pods, f.Peers, f.LastHopAlive = node.Clients(g.asking), model.Hosts(targets),
		v.Place(v.Owners[one.Original.Src][0].Link, model.Ingress)
	var elsewhere []netip.Addr
	if len(targets) == 1 {
		f.Severity = model.Warning
	} else if !g.worked {
		elsewhere = node.Answering(v, func(a netip.Addr) bool { return slices.Contains(targets, a) })
	}
	if f.Facts["elsewhere"] = elsewhere; r != nil {
		f.Facts["instead"] = withoutSNAT(v, r, one)
	}
	return f
}

// translatesTo is the rule that gives the flows their address, nil where none does any more, or it was not read.
func translatesTo(v *node.Index, g *foreignFlows) *model.PacketRule {
	for _, f := range g.asking {
		if nat := snatRule(v, f); nat.Translated && gives(v, nat.Rule, f) {
			return nat.Rule
		}
	}
	return model.First(v.PacketRules,
		func(r *model.PacketRule) bool { return r.Target == "SNAT" && r.To.Addr() == g.addr })
}

// sourceNAT is what the rules do with the source of a flow's packet.
func snatRule(v *node.Index, f *model.Flow) path.SourceNAT {
	return v.Tables().Source(v.LeavingPacket(f))
}

// withoutSNAT is the rule's text after which such a packet gets no foreign address: its own,
// for it to be deleted, where others decide then, else that of one that masquerades.
func withoutSNAT(v *node.Index, r *model.PacketRule, f *model.Flow) string {
	if path.NewTrial(v.State).Without([]any{r}).Tables().Source(v.LeavingPacket(f)).Rule != nil {
		return r.Text
	}
	snat, masquerade := "-j SNAT", "-j MASQUERADE"
	if r.Native {
		snat, masquerade = "snat ", "masquerade"
	}
	if before, _, found := strings.Cut(r.Text, snat); found {
		return before + masquerade
	}
	return r.Text
}
