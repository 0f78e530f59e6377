package bridge

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// stale is a rule that hands a pod's frames to an Ethernet address that is not the pod's.
type stale struct {
	rule *model.FrameRule
	addr netip.Addr
	// holders are the addresses of the living interfaces that hold addr.
	owners []model.MAC
}

// staleRules finds the rules of one target that are in force and write a MAC
// for an address that nobody with that address has.
func staleRules(v *node.Index, target model.FrameTarget) []stale {
	var out []stale
	for r := range model.Each(v.FrameRules) {
		addr := model.Either(target == model.TargetARPReply, r.ARPDst, r.IPDst).Addr()
		if r.Target == target && addr.IsValid() && isStale(v, r, addr) && v.Frames().InForce(r) && !idle(v, r, addr) {
			out = append(out, stale{rule: r, addr: addr, owners: ownMACs(v, addr)})
		}
	}
	return out
}

// idle reports whether a rule harms nothing, as it counted nothing although it should have: no bridge has a port that
// its frames may come in by, a match of it could not be read, or what it is about came by and did not match.
func idle(v *node.Index, r *model.FrameRule, addr netip.Addr) bool {
	port := func(ifindex int) bool {
		l := v.ByIndex[ifindex]
		return v.Bridge(l) != nil && r.In.Matches(l.Name)
	}
	switch {
	case r.Counter.Delta > 0:
		return false
	case !v.Has(model.SourceEbtables), !slices.ContainsFunc(v.Links, func(l model.Link) bool { return port(l.Index) }):
		return true // Rules that were not read may take its frames.
	case r.Counter.Added || len(r.Unknown) > 0:
		return !r.Counter.Added
	case r.Target == model.TargetARPReply:
		return slices.ContainsFunc(v.Traffic.ARP, func(a model.ARPCount) bool {
			return a.Addr == addr && !a.Reply && a.Direction == model.Ingress && port(a.IfIndex)
		})
	}
	return slices.ContainsFunc(v.HopsOf[addr], func(h *model.HopCount) bool {
		return h.Side == model.AsDestination && h.Direction == model.Ingress && port(h.IfIndex)
	})
}

// isStale reports whether the MAC that a rule writes for an address is wrong. Right are an owner's MAC; a MAC of the
// bridge on which the rule acts or of its ports, since such frames are given to the node, which routes them on; and in an
// ARP answer the gateway's, since in tunnel mode pods are sent to the fabric on purpose. For an address without an owner
// on this node, the rule must have stood through the window: a pod's rules are made and removed a little before or after
// the pod.
func isStale(v *node.Index, r *model.FrameRule, addr netip.Addr) bool {
	if v.Classifier.BridgeMACs[r.MAC] && toBridge(v, r) || r.Target == model.TargetARPReply && v.IsGatewayMAC(r.MAC) {
		return false
	}
	macs := ownMACs(v, addr)
	if len(v.Owners[addr]) == 0 && len(macs) == 0 {
		return !r.Counter.Added && !v.Classifier.Past[addr] && v.Has(model.SourcePods) &&
			(r.Counter.Delta > 0 || leadsNowhere(v, r, addr))
	}
	return len(macs) > 0 && !slices.Contains(macs, r.MAC)
}

// toBridge reports whether a rule writes the MAC of a bridge, or of a port, whose frames come in by a port that it matches.
func toBridge(v *node.Index, r *model.FrameRule) bool {
	acts := func(b *model.Link) bool {
		return slices.ContainsFunc(v.Links, func(l model.Link) bool { return v.Bridge(&l) == b && r.In.Matches(l.Name) })
	}
	return slices.ContainsFunc(v.Links, func(l model.Link) bool {
		b := v.Bridge(&l)
		if l.Kind == "bridge" {
			b = v.ByIndex[l.Index]
		}
		return b != nil && l.MAC == r.MAC && acts(b)
	})
}

// leadsNowhere reports whether a rule gives pods a MAC for their gateway that nobody is known to have, from which no
// frame comes, and by which they get no replies. Whether they asked for it in the window does not matter then.
func leadsNowhere(v *node.Index, r *model.FrameRule, gateway netip.Addr) bool {
	if _, known := v.MACNames[r.MAC]; known || len(behind(v, gateway)) == 0 {
		return false
	}
	pods := bindingsTo(v, node.Binding{Addr: gateway, MAC: r.MAC})
	return len(v.SilentBy(r.MAC, pods)) > 0 &&
		!slices.ContainsFunc(v.Traffic.MACs, func(m model.MACPair) bool { return m.Src == r.MAC }) &&
		!slices.ContainsFunc(v.Peers, func(p model.Peer) bool {
			return slices.Contains(pods, p.Local) && v.Answered(&p) && v.LeftWith(&p, r.MAC)
		})
}

// ownMACs are those that lead to an address: its pod's, or where it is the gateway of pods on a bridge that gateway's.
func ownMACs(v *node.Index, a netip.Addr) []model.MAC {
	if macs := v.PodMACs(a); len(macs) > 0 || len(v.Owners[a]) > 0 {
		return macs
	}
	for _, p := range behind(v, a) {
		if right, _ := v.GatewayMACs(p, a); len(right) > 0 {
			return right
		}
	}
	return nil
}

// behind are the pods on bridges that have the address for their gateway.
func behind(v *node.Index, gateway netip.Addr) []*model.Pod {
	if v.BridgedBy == nil {
		v.BridgedBy = map[netip.Addr][]*model.Pod{}
		for p := range model.Each(v.Pods) {
			for _, g := range p.Gateways {
				if !v.Routed(p) {
					v.BridgedBy[g.Addr] = append(v.BridgedBy[g.Addr], p)
				}
			}
		}
	}
	return v.BridgedBy[gateway]
}

// facts are the values that pages have of a rule.
func (s *stale) facts(v *node.Index) words.Facts {
	out := words.Facts{"rule": s.rule, "addr": s.addr, "owners": s.owners, "holder": v.Owner(s.rule.MAC)}
	if pods := v.Owners[s.addr]; len(pods) > 0 {
		out["link"] = pods[0].Link
	} else {
		out["behind"] = behind(v, s.addr)
	}
	return out
}
