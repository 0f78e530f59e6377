package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// ForeignSNAT is the code of this finding.
const ForeignSNAT model.Code = "ForeignSNAT"

var foreignSNAT = kind{
	code:     ForeignSNAT,
	severity: model.Critical,
	find:     needing(findForeignSNAT, model.SourceLinks, model.SourceRoutes, model.SourceConntrack, model.SourcePods),
	ends:     []model.HopKind{model.HopConntrack, model.HopBeyond},
}

// foreignFlows are the flows of pods that leave with an address that is not the node's.
type foreignFlows struct {
	addr netip.Addr
	// asking never saw a reply, though their first packet wants one, or none in the window.
	// asks is how often they asked at least. worked: one from before the window did.
	asking []*model.Flow
	asks   int
	// begun of them began in the window: the others may be older than the mending
	// of the rule.
	begun  int
	worked bool
}

func findForeignSNAT(v *view) []finding {
	found, replied := map[netip.Addr]*foreignFlows{}, map[netip.Addr]bool{}
	for f := range model.Each(v.Flows) {
		a := f.Reply.Dst
		if !v.givenAway(f) {
			continue
		}
		if f.Replied && !f.Start.IsZero() {
			replied[a] = true
			continue
		}
		g := found[a]
		if g == nil {
			g = &foreignFlows{addr: a}
			found[a] = g
		}
		g.worked = g.worked || f.Replied
		switch unheard := v.goesUnheard(f); {
		case unheard && (f.Replied || wantsReply(f)):
			// It asked before the window and in it.
			g.asking, g.asks = append(g.asking, f), g.asks+2
		case f.Replied:
		case !f.Start.After(v.Window.End.Add(-settled)) && wantsReply(f):
			g.asking, g.asks = append(g.asking, f), g.asks+1
			if !f.Start.IsZero() {
				g.begun++
			}
		}
	}
	var out []finding
	for _, a := range sorted(found) {
		g := found[a]
		if replied[a] || g.asks < minPackets {
			continue
		}
		if r := v.translatesTo(g); r != nil || g.begun >= minPackets {
			out = append(out, finding{Finding: v.foreignSource(g, r)})
		}
	}
	return out
}

// givenAway reports whether a flow of a pod has a source address that is neither the
// node's nor a pod's.
func (v *view) givenAway(f *model.Flow) bool {
	a := f.Reply.Dst
	return len(v.pods[f.Original.Src]) > 0 && a != f.Original.Src && !v.hasAddr(a) && len(v.pods[a]) == 0 && !v.past[a]
}

// wantsReply reports whether the first packet of a flow does.
func wantsReply(f *model.Flow) bool {
	return f.Proto == tcp || f.Proto == icmp4 || f.Proto == icmp6 || f.Proto == udp && f.Original.DstPort == dnsPort
}

// hasAddr reports whether an address is the node's: a link has it, or a local
// route covers it.
func (v *view) hasAddr(a netip.Addr) bool {
	return v.nodeAddrs[a] || slices.ContainsFunc(v.Routes, func(r model.Route) bool { return r.Type == "local" && r.Dst.Contains(a) })
}

// foreignSource is the finding on an address, and the rule that translates to it;
// nil where that is not known.
func (v *view) foreignSource(g *foreignFlows, r *model.PacketRule) model.Finding {
	pods, remotes := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, f := range g.asking {
		pods[f.Original.Src], remotes[f.Reply.Src] = true, true
	}
	first, targets := g.asking[0], sorted(remotes)
	f := model.Finding{
		Confidence: model.Likely,
		Pods:       sorted(pods),
		Peers:      hosts(targets),
		Title:      fmt.Sprintf("%s leave with %s, which the node does not have", words.Addrs(sorted(pods)), g.addr),
		Why: fmt.Sprintf("What these pods send to %s gets the source address %s, which no link of this node has. Replies go to that address, and none "+
			"comes back here.", words.Addrs(targets), g.addr),
		Unseen:       []string{fmt.Sprintf("where the network leads packets for %s", g.addr)},
		LastHopAlive: v.place(v.pods[first.Original.Src][0].Link, model.Ingress),
	}
	observe(&f, model.SourceConntrack, "%s to %s UNREPLIED, the reply is expected at %s; %s like it, and none with a reply",
		first.Original.Src, first.Original.Dst, g.addr, words.Count(uint64(len(g.asking)), "flow"))
	observe(&f, model.SourceLinks, "no link has %s", g.addr)
	elsewhere := answering(v, func(a netip.Addr) bool { return remotes[a] })
	switch {
	case len(targets) == 1:
		f.Severity = model.Warning
		f.Alternatives = append(f.Alternatives, fmt.Sprintf("the network leads %s to this node, and %s is down", g.addr, targets[0]))
	case g.worked:
		f.Alternatives = append(f.Alternatives, "the targets, or the network before them, are down: flows from before the window had replies")
	case len(elsewhere) > 0:
		f.Confidence = model.Proven
		observe(&f, model.SourceTC, "replies come from %s, to other addresses", words.Addrs(elsewhere))
	}
	if who := v.holderOf(g.addr); who != "" {
		observe(&f, model.SourceNodes, "%s is an address of %s", g.addr, who)
	}
	forget := "conntrack -D --reply-dst " + g.addr.String()
	if r == nil {
		f.Confidence = weaker(f.Confidence, model.Likely)
		f.Unseen = append(f.Unseen, "what translates: no rule that was read does so now")
		f.Fix = []string{forget}
		return f
	}
	f.Evidence = append(f.Evidence, packetRuleEvidence("this rule translates them", r))
	f.Fix = []string{
		fmt.Sprintf("find out whether %s is meant to lead to this node: in a cloud its NIC needs it too", g.addr),
		"if it is not meant:", v.withoutSNAT(r, first), forget,
	}
	return f
}

// holderOf is the other node that has an address, as far as the cluster is known.
func (v *view) holderOf(a netip.Addr) string {
	for n := range model.Each(v.Cluster.Nodes) {
		if slices.Contains(n.Addresses, a) {
			return "node " + n.Name
		}
	}
	return ""
}

// translatesTo is the rule that gives the flows their address, nil where none
// does any more, or it was not read.
func (v *view) translatesTo(g *foreignFlows) *model.PacketRule {
	tables := path.NewTables(v.Snapshot)
	for _, f := range g.asking {
		nat := tables.Source(v.leavingPacket(f))
		if nat.Translated && (nat.Rule.To.Addr() == g.addr || nat.Rule.Target == "SNAT" && strings.Contains(nat.Rule.Text, "-")) {
			return nat.Rule
		}
	}
	for r := range model.Each(v.PacketRules) {
		if r.Target == "SNAT" && r.To.Addr() == g.addr {
			return r
		}
	}
	return nil
}

// leavingPacket is a flow's packet as POSTROUTING sees it first.
func (v *view) leavingPacket(f *model.Flow) path.Packet {
	return path.Packet{Src: f.Original.Src, Dst: f.Reply.Src, Proto: f.Proto, SrcPort: f.Original.SrcPort, DstPort: f.Reply.SrcPort,
		Out: []string{v.outLink(f.Reply.Src)}, New: !f.Start.IsZero()}
}

// withoutSNAT is the command after which such a packet gets no foreign address:
// it deletes the rule where others decide then, else it masquerades instead.
func (v *view) withoutSNAT(r *model.PacketRule, f *model.Flow) string {
	rest := *v.Snapshot
	rest.PacketRules = slices.DeleteFunc(slices.Clone(v.PacketRules), func(o model.PacketRule) bool {
		return o.Backend == r.Backend && o.Family == r.Family && o.Table == r.Table && o.Chain == r.Chain && o.Number == r.Number && o.Handle == r.Handle
	})
	if path.NewTables(&rest).Source(v.leavingPacket(f)).Rule != nil {
		return words.UndoPacketRule(r)
	}
	before, _, snat := strings.Cut(r.Text, "-j SNAT")
	after := "-j MASQUERADE"
	if r.Native {
		before, _, snat = strings.Cut(r.Text, "snat ")
		after = "masquerade"
	}
	if !snat {
		return words.UndoPacketRule(r)
	}
	return words.ReplacePacketRule(r, before+after)
}
