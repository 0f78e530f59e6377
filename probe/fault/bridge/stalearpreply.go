package bridge

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// StaleARPReply reports ebtables rules that answer ARP with a MAC that nobody has any more.
var StaleARPReply = fault.Kind{Code: "StaleARPReply", Severity: model.Critical, Find: staleARPReply,
	Needs: fault.Sources{model.SourceNeighbors, model.SourceRoutes},
	Rests: fault.Sources{model.SourceEbtables, model.SourceLinks}, Ends: fault.Hops{model.HopBridge},
	Objects: fault.Objects{"rule addr"}, Traits: model.ByNextHop, Else: fault.Else{"!owners"}}

func staleARPReply(v *fault.Input) {
	for _, s := range staleRules(v.Index, model.TargetARPReply) {
		v.Report(misanswered(v.Index, &s))
	}
}

func misanswered(v *node.Index, s *stale) fault.Fault {
	wrong := node.Binding{Addr: s.addr, MAC: s.rule.MAC}
	f := fault.Fault{Facts: s.facts(v), Claims: node.SentToWrongMAC(wrong), About: wrong, Effects: []any{wrong}}
	if len(s.owners) > 0 {
		f.Undoes = s.rule
	}
	f.Pods, f.LastHopAlive = []netip.Addr{s.addr}, model.Place{Direction: model.Ingress}
	var most, replies, answered uint64
	for _, m := range v.MACPairs[s.addr] {
		if m.Dst == s.rule.MAC && m.Side == model.AsDestination && m.Direction == model.Ingress {
			if f.Packets += m.Packets; m.Packets > most {
				most, f.LastHopAlive = m.Packets, v.Place(m.Link, model.Ingress)
			}
		}
	}
	for a := range model.Each(v.Traffic.ARP) {
		if a.Reply && a.Addr == s.addr && a.MAC == s.rule.MAC && a.Direction == model.Egress {
			if replies += a.Packets; a.Packets > answered {
				// The answer leaves by the port that the question came in by.
				answered, f.LastHopAlive = a.Packets, v.Place(a.Link, model.Ingress)
			}
		}
	}
	f.Facts["replies"], f.Facts["sent"] = replies, f.Packets
	if len(v.Owners[s.addr]) == 0 && len(behind(v, s.addr)) > 0 {
		f.Pods = bindingsTo(v, wrong)
		f.CutOff = v.SilentBy(s.rule.MAC, f.Pods)
		if len(s.owners) == 0 {
			x := v.SumPeers(v.InVain(node.SetOf(f.Pods)))
			f.Packets = max(f.Packets, x.Packets)
			f.Facts["lost"], f.Facts["remotes"] = x.Packets, node.Sorted(x.Peers)
		}
	} else if p := v.Arped(s.addr); p != nil && len(s.owners) == 0 {
		// The node's own request is none that the rule answers.
		f.Facts["probe"] = []model.Evidence{v.ARPEvidence(p)}
	}
	return f
}

// believing are the pods that have the entry for their gateway.
func bindingsTo(v *node.Index, e node.Binding) []netip.Addr {
	having := model.Filter(behind(v, e.Addr), func(p *model.Pod) bool {
		return slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool { return g.Addr == e.Addr && g.MAC == e.MAC })
	})
	return model.Flat(having, func(p *model.Pod) []netip.Addr { return node.SameFamily(node.PodAddrs(p), e.Addr) })
}
