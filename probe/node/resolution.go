package node

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// byProxy reports whether the node would answer a pod for its gateway by proxy alone.
func (v *Index) byProxy(p *model.Pod, g *model.Neighbor) bool {
	return g.Addr.Is4() && v.Routed(p) && v.Own[g.Addr] == nil
}

// Unproxied reports whether the node would answer a pod for its gateway by proxy alone, and does not, since
// the pod's link does not forward.
func (v *Index) Unproxied(p *model.Pod, g *model.Neighbor) bool {
	return v.byProxy(p, g) && v.Settings.NotForwarding(v.ByIndex[p.LinkIndex].Name, false) != ""
}

// Unrouted is a gateway for which the node does not answer a pod by proxy, since it has no route to it (arp_process); else it
// is invalid.
func (v *Index) Unrouted(pod netip.Addr) netip.Addr {
	if !v.Has(model.SourceRoutes) || HasDefault(v, false) {
		return netip.Addr{}
	}
	for _, p := range v.Owners[pod] {
		for g := range model.Each(p.Gateways) {
			if pod.Is4() && !path.Resolved(g) && v.byProxy(p, g) &&
				v.Routing().Lookup(path.Query{Src: pod, Dst: g.Addr, In: p.Link}).Route == nil {
				return g.Addr
			}
		}
	}
	return netip.Addr{}
}

// Stuck are the addresses of pods that asked for their gateway and do not learn it for this reason.
func (v *Index) Stuck() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.Gateways) {
			if (g.State == "FAILED" || g.State == "INCOMPLETE") && v.Unproxied(p, g) {
				maps.Copy(out, SetOf(SameFamily(PodAddrs(p), g.Addr)))
			}
		}
	}
	return out
}

// Question is an address that is asked for at a link.
type Question struct {
	Ifindex int
	Addr    netip.Addr
}

// Resolution counts what came in and what went out again.
type Resolution struct{ Requests, Replies uint64 }

// InVain reports whether nothing replied to several requests.
func (t Resolution) InVain() bool { return t.Requests >= MinDrops && t.Replies == 0 }

// Resolutions counts the requests that pass links in a direction, and the replies that pass in the other: of
// each address at each link, of an address at all links, which is without one, and of all addresses at a link.
func (v *Index) Resolutions(asks model.Direction) map[Question]Resolution {
	if v.resolved[asks] == nil {
		out := map[Question]Resolution{}
		for a := range model.Each(v.Traffic.ARP) {
			for _, k := range []Question{{a.IfIndex, a.Addr}, {0, a.Addr}, {a.IfIndex, netip.Addr{}}} {
				t := out[k]
				if !a.Reply && a.Direction == asks {
					t.Requests += a.Packets
				} else if a.Reply && a.Direction != asks {
					t.Replies += a.Packets
				}
				out[k] = t
			}
		}
		v.resolved[asks] = out
	}
	return v.resolved[asks]
}

// Withheld reports whether a bridge got several requests for the MAC of one of its pods and sent none to the pod's port.
func (v *Index) Withheld(p *model.Pod, a netip.Addr) bool {
	sent, b := v.Resolutions(model.Egress), v.BridgeOf(p)
	if b == nil || !v.Has(model.SourceTC) || sent[Question{p.LinkIndex, a}].Requests > 0 {
		return false
	}
	asked := sent[Question{b.Index, a}].Requests
	for l := range model.Each(v.Links) {
		if l.Master == b.Index && l.Index != p.LinkIndex {
			asked += v.Resolutions(model.Ingress)[Question{l.Index, a}].Requests
		}
	}
	return asked >= MinDrops
}

// Astray reports whether frames that a pod sends to a MAC reach no one who passes them on: neither the node, nor a next hop
// of the pod, nor who answers for all. A pod that went away may have had it.
func (v *Index) Astray(p *model.Pod, m model.MAC) bool {
	return !m.IsZero() && !m.IsMulticast() && !v.Classifier.BridgeMACs[m] && !v.IsGatewayMAC(m) &&
		!slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool { return g.MAC == m }) &&
		!slices.ContainsFunc(v.PastPods, func(o model.Pod) bool { return o.MAC == m })
}

// MostEvidence is how many of several like addresses are shown one by one.
const MostEvidence = 3
