package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
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
func (v *index) staleRules(target model.FrameTarget) []stale {
	var out []stale
	for r := range model.Each(v.FrameRules) {
		addr := model.Either(target == model.TargetARPReply, r.ARPDst, r.IPDst).Addr()
		if r.Target == target && addr.IsValid() && isStale(v, r, addr) && v.Frames().InForce(r) && !idle(v, r, addr) {
			out = append(out, stale{rule: r, addr: addr, owners: v.ownMACs(addr)})
		}
	}
	return out
}

// idle reports whether a rule harms nothing, as it counted nothing although it should have: no bridge has a port that
// its frames may come in by, a match of it could not be read, or what it is about came by and did not match.
func idle(v *index, r *model.FrameRule, addr netip.Addr) bool {
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
	return slices.ContainsFunc(v.hops[addr], func(h *model.HopCount) bool {
		return h.Side == model.AsDestination && h.Direction == model.Ingress && port(h.IfIndex)
	})
}

// isStale reports whether the MAC that a rule writes for an address is wrong. Right are an owner's MAC; a MAC of the
// bridge or its ports, since such frames are given to the node, which routes them on; and in an ARP answer the
// gateway's, since in tunnel mode pods are sent to the fabric on purpose. For an address without an owner on this node,
// the rule must have stood through the window: a pod's rules are made and removed a little before or after the pod.
func isStale(v *index, r *model.FrameRule, addr netip.Addr) bool {
	if v.drops.BridgeMACs[r.MAC] || r.Target == model.TargetARPReply && v.isGatewayMAC(r.MAC) {
		return false
	}
	macs := v.ownMACs(addr)
	if len(v.Owners[addr]) == 0 && len(macs) == 0 {
		return !r.Counter.Added && !v.past[addr] && v.Has(model.SourcePods) &&
			(r.Counter.Delta > 0 || v.leadsNowhere(r, addr))
	}
	return len(macs) > 0 && !slices.Contains(macs, r.MAC)
}

// leadsNowhere reports whether a rule gives pods a MAC for their gateway that nobody is known to have, from which no
// frame comes, and by which they get no replies. Whether they asked for it in the window does not matter then.
func (v *index) leadsNowhere(r *model.FrameRule, gateway netip.Addr) bool {
	if _, known := v.macs[r.MAC]; known || len(v.behind(gateway)) == 0 {
		return false
	}
	pods := v.bindingsTo(binding{gateway, r.MAC})
	return len(v.silentBy(r.MAC, pods)) > 0 &&
		!slices.ContainsFunc(v.Traffic.MACs, func(m model.MACPair) bool { return m.Src == r.MAC }) &&
		!slices.ContainsFunc(v.peers, func(p model.Peer) bool {
			return slices.Contains(pods, p.Local) && v.answered(&p) && v.leftWith(&p, r.MAC)
		})
}

// ownMACs are those that lead to an address: its pod's, or where it is the gateway of pods on a bridge that gateway's.
func (v *index) ownMACs(a netip.Addr) []model.MAC {
	if macs := v.PodMACs(a); len(macs) > 0 || len(v.Owners[a]) > 0 {
		return macs
	}
	for _, p := range v.behind(a) {
		if right, _ := v.GatewayMACs(p, a); len(right) > 0 {
			return right
		}
	}
	return nil
}

// behind are the pods on bridges that have the address for their gateway.
func (v *index) behind(gateway netip.Addr) []*model.Pod {
	if v.bridgedBy == nil {
		v.bridgedBy = map[netip.Addr][]*model.Pod{}
		for p := range model.Each(v.Pods) {
			for _, g := range p.Gateways {
				if !v.routed(p) {
					v.bridgedBy[g.Addr] = append(v.bridgedBy[g.Addr], p)
				}
			}
		}
	}
	return v.bridgedBy[gateway]
}

// facts are the values that pages have of a rule.
func (s *stale) facts(v *index) facts {
	out := facts{"rule": s.rule, "addr": s.addr, "owners": s.owners, "holder": v.owner(s.rule.MAC)}
	if pods := v.Owners[s.addr]; len(pods) > 0 {
		out["link"] = pods[0].Link
	} else {
		out["behind"] = v.behind(s.addr)
	}
	return out
}

// sentToWrongMAC accounts for drops of frames for the address that carry the wrong MAC.
func sentToWrongMAC(wrong binding) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.Dst == wrong.addr && d.DstMAC == wrong.mac }
}
