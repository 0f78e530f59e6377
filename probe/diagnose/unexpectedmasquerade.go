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

// UnexpectedMasquerade is the code of this finding.
const UnexpectedMasquerade model.Code = "UnexpectedMasquerade"

var unexpectedMasquerade = kind{
	code:     UnexpectedMasquerade,
	severity: model.Warning,
	find:     findUnexpectedMasquerade,
	ends:     []model.HopKind{model.HopConntrack},
	passes:   true,
}

// masked are the flows between pods that the rules of one chain translate.
type masked struct {
	nat   path.SourceNAT
	rules []*model.PacketRule
	flows []*model.Flow
}

// maskedKey is a chain, where one exclusion is in front of all its rules. It is
// zero but for isIPv6 where the rule is not known.
type maskedKey struct {
	backend              model.Backend
	family, table, chain string
	isIPv6               bool
}

func findUnexpectedMasquerade(v *view) []finding {
	tables := path.NewTables(v.Snapshot)
	groups := map[maskedKey]*masked{}
	var order []*masked
	for f := range model.Each(v.Flows) {
		if !maskedFlow(v, f) {
			continue
		}
		nat := tables.Source(v.leavingPacket(f))
		if !nat.Translated || nat.CutOff {
			// What translated it is gone, or was not understood or followed. A
			// flow keeps its address, so an old one proves nothing.
			if f.Start.IsZero() || v.Has(model.SourceNAT) && len(nat.Unsure) == 0 && !nat.CutOff {
				continue
			}
			nat.Rule = nil
		}
		if nat.Rule != nil && byPlugin(nat.Rule) {
			continue
		}
		k := maskedKey{isIPv6: f.Reply.Src.Is6()}
		if r := nat.Rule; r != nil {
			k.backend, k.family, k.table, k.chain = r.Backend, r.Family, r.Table, r.Chain
		}
		g := groups[k]
		if g == nil {
			g = &masked{nat: nat}
			groups[k] = g
			order = append(order, g)
		}
		g.flows = append(g.flows, f)
		if nat.Rule != nil && !slices.Contains(g.rules, nat.Rule) {
			g.rules = append(g.rules, nat.Rule)
		}
	}
	var out []finding
	for _, g := range order {
		out = append(out, finding{Finding: maskedBy(v, g)})
	}
	return append(out, turnedBack(v, tables)...)
}

// maskedFlow reports whether a pod of the node speaks to another pod with the
// node's address. What a service address led to is left out: hairpins and
// node ports are translated on purpose.
func maskedFlow(v *view, f *model.Flow) bool {
	pod, peer := f.Original.Src, f.Reply.Src
	if len(v.pods[pod]) == 0 || peer != f.Original.Dst || peer == pod || f.Reply.Dst == pod || !v.nodeAddrs[f.Reply.Dst] || v.nodeAddrs[peer] {
		return false
	}
	return len(v.pods[peer]) > 0 || v.remote(peer).IsValid() || flat(v, pod, peer)
}

// byPlugin reports whether a rule is one by which the CNI project's plugins
// masquerade what a pod sends beyond its own node's range, other nodes' pods
// included: that is what their ipMasq means.
func byPlugin(r *model.PacketRule) bool {
	return model.CNIChain(r.Chain) || r.Table == model.CNIMasqueradeTable
}

// flat reports whether both addresses are of the node's subnet, where nothing
// stands between a pod and its peers.
func flat(v *view, pod, peer netip.Addr) bool {
	return slices.ContainsFunc(v.onLink, func(p netip.Prefix) bool { return p.Contains(pod) && p.Contains(peer) })
}

func maskedBy(v *view, g *masked) model.Finding {
	f := model.Finding{Confidence: model.Proven}
	pods, peers := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	sure := false
	for _, flow := range g.flows {
		peer := flow.Reply.Src
		pods[flow.Original.Src], peers[peer] = true, true
		sure = sure || len(v.pods[peer]) > 0 || v.remote(peer).IsValid()
	}
	f.Pods = sorted(pods)
	remotes := sorted(peers)
	f.Peers = hosts(remotes)
	first := g.flows[0]
	f.Title = fmt.Sprintf("%s reach other pods with the node's address", words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("What these pods send to %s leaves with the address %s: it is masqueraded, which pods among themselves do not need.",
		words.Addrs(remotes), first.Reply.Dst)
	f.Evidence = []model.Evidence{seen(model.SourceConntrack,
		"%s to %s, the reply is expected from %s to %s: the source was translated; %s like it", first.Original.Src, first.Original.Dst, first.Reply.Src, first.Reply.Dst, words.Count(uint64(len(g.flows)), "flow"))}
	out := v.outLink(first.Reply.Src)
	f.LastHopAlive = v.place(out, model.Egress)
	switch {
	case g.nat.Rule != nil:
		for _, r := range g.rules {
			f.Evidence = append(f.Evidence, packetRuleEvidence("this rule translates them", r))
		}
		for _, peer := range remotes {
			if fix := excludeFix(v, g.nat.Rule, peer); !slices.Contains(f.Fix, fix) {
				f.Fix = append(f.Fix, fix)
			}
		}
		for _, r := range g.nat.Unsure {
			f.Confidence = model.Likely
			f.Unseen = append(f.Unseen, fmt.Sprintf("whether %s %s matched: %s", r.Chain, r.Text, strings.Join(r.Unknown, ", ")))
		}
	default:
		f.Confidence = model.Likely
		unseen := "the rule that translates: the nat rules could not be read whole"
		if g.nat.CutOff {
			unseen = v.natUnseen()
		}
		f.Unseen = append(f.Unseen, unseen)
		f.Fix = []string{words.IPTables(f.Pods[0]) + "-save -t nat | grep -E 'MASQUERADE|SNAT'"}
	}
	if !sure {
		f.Confidence = weaker(f.Confidence, model.Likely)
		f.Alternatives = append(f.Alternatives, "the targets are machines of the node's subnet and no pods, and the translation is meant for them")
	}
	return f
}

// excludeFix is the exclusion that belongs in front of the rule.
func excludeFix(v *view, r *model.PacketRule, peer netip.Addr) string {
	target := host(peer)
	for _, list := range [][]netip.Prefix{v.onLink, v.ranges.local, v.ranges.cluster} {
		for _, p := range list {
			if p.Contains(peer) {
				target = p
			}
		}
	}
	if r.Native {
		ip := "ip"
		if peer.Is6() {
			ip = "ip6"
		}
		return fmt.Sprintf("nft insert rule %s %s %s %s daddr %s return",
			r.Family, words.Quote(r.Table), words.Quote(r.Chain), ip, target)
	}
	return fmt.Sprintf("%s -t %s -I %s -d %s -j RETURN", words.RuleTool(r), words.Quote(r.Table), words.Quote(r.Chain), target)
}

// turnedBack are the findings on pods whose masqueraded requests are replied to, and
// who hear none of it: the node translates the replies back and hands them to the
// network, as it does all that is for such a pod, with a source that is not its own.
func turnedBack(v *view, tables *path.Tables) []finding {
	groups, heard := map[*model.PacketRule]*masked{}, map[netip.Addr]bool{}
	var order []*model.PacketRule
	for f := range model.Each(v.Flows) {
		pod := f.Original.Src
		if f.Proto != tcp || len(v.pods[pod]) == 0 || !v.nodeAddrs[f.Reply.Dst] || v.nodeAddrs[f.Reply.Src] || f.Start.IsZero() || !f.Replied {
			continue
		}
		if f.State != "SYN_RECV" {
			heard[pod] = true
			continue
		}
		nat := tables.Source(v.leavingPacket(f))
		k := nat.Rule
		if groups[k] == nil {
			groups[k] = &masked{nat: nat}
			order = append(order, k)
		}
		groups[k].flows = append(groups[k].flows, f)
	}
	var out []finding
	for _, k := range order {
		g := groups[k]
		g.flows = slices.DeleteFunc(g.flows, func(f *model.Flow) bool { return heard[f.Original.Src] || !v.leavesAgain(f.Original.Src) })
		if len(g.flows) >= minAsks && k != nil && g.nat.Translated {
			out = append(out, finding{Finding: repliesLeaveAgain(v, g)})
		}
	}
	return out
}

// leavesAgain reports whether packets for a pod left by an uplink, and those that the
// node itself routed to it by a bridge are among them.
func (v *view) leavesAgain(pod netip.Addr) bool {
	var out, routed uint64
	for _, h := range v.hops[pod] {
		if h.Side != model.AsDestination || h.Direction != model.Egress {
			continue
		}
		if l := v.links[h.IfIndex]; v.isUplink(h.IfIndex) {
			out += h.Packets
		} else if l != nil && l.Kind == "bridge" {
			routed += h.Packets
		}
	}
	return routed >= minAsks && out >= routed
}

func repliesLeaveAgain(v *view, g *masked) model.Finding {
	pods, peers := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, f := range g.flows {
		pods[f.Original.Src], peers[f.Reply.Src] = true, true
	}
	f := model.Finding{Severity: model.Critical, Confidence: model.Proven, Pods: sorted(pods), Peers: hosts(sorted(peers)), Packets: uint64(len(g.flows))}
	r, link := g.nat.Rule, v.outLink(g.flows[0].Reply.Src)
	f.LastHopAlive = v.place(link, model.Ingress)
	f.Title = fmt.Sprintf("replies to %s leave the node again", words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("What these pods send to %s is masqueraded, and replied to. The node translates the replies back, and sends what is for its "+
		"pods to the network, by %s: there they have the source of another machine, and are dropped. Pods that are reached by the network, "+
		"as in tunnel mode, must keep their own address.", words.Addrs(sorted(peers)), link)
	observe(&f, model.SourceConntrack, "%s replied to, and none acknowledged by its pod", words.Count(uint64(len(g.flows)), "connection"))
	for _, a := range f.Pods {
		var left uint64
		for _, h := range v.hops[a] {
			if h.Side == model.AsDestination && h.Direction == model.Egress && v.isUplink(h.IfIndex) {
				left += h.Packets
			}
		}
		observe(&f, model.SourceTC, "%s egress: %s for %s", link, words.Count(left, "packet"), a)
	}
	f.Evidence = append(f.Evidence, packetRuleEvidence("this rule translates them", r))
	if !r.Native {
		f.Fix = append(f.Fix, fmt.Sprintf("%s -t %s -I %s -j RETURN", words.RuleTool(r), words.Quote(r.Table), words.Quote(r.Chain)))
	}
	f.Fix = append(f.Fix, "have the network translate for the pods (a NAT gateway), and keep the node from it: nonMasqueradeCIDRs with 0.0.0.0/0 in the ip-masq-agent's configuration")
	return f
}
