package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// bypass is what services led from one pod of a bridge to another of it.
type bypass struct{ client, backend netip.Addr }

func findBridgeNetfilterOff(v *view) {
	for _, isIPv6 := range []bool{false, true} {
		name := path.BridgeCalls(isIPv6)
		value, known := v.Settings[name]
		if known && value != "0" {
			continue
		}
		f, pairs := v.repliesPastNode(isIPv6)
		if pairs == nil && !v.pastServices(f, isIPv6) {
			continue
		}
		f.facts["setting"], f.facts["loaded"] = name, known
		f.claims = func(d *model.Drop) bool {
			return pairs[bypass{d.Dst, d.Src}] && d.Is(model.NoSocket|model.Netfilter) || pairs[bypass{d.Src, d.Dst}] && d.Is(model.Netfilter)
		}
		v.report(*f)
	}
}

// repliesPastNode is the finding on what services lead from one pod of a bridge to
// another, who are returned: nil where that fares well.
func (v *view) repliesPastNode(isIPv6 bool) (*finding, map[bypass]bool) {
	f := &finding{facts: facts{}}
	pairs, services, flows := map[bypass]bool{}, map[netip.Addr]bool{}, uint64(0)
	for x := range model.Each(v.Flows) {
		p := bypass{x.Original.Src, x.Reply.Src}
		translated := x.Original.Dst != x.Reply.Src && x.Reply.Dst == x.Original.Src
		asks := !x.Replied && !x.Start.IsZero() && (x.Proto == tcp || v.datagramAsks(x))
		if translated && asks && p.client.Is6() == isIPv6 && p.client != p.backend && v.shareBridge(p) &&
			(v.refusesReplies(p.client) || v.filtered(p) >= minDrops) {
			pairs[p], services[x.Original.Dst] = true, true
			flows++
		}
	}
	if flows < minAsks {
		return f, nil
	}
	clients, backends, dropped := map[netip.Addr]bool{}, map[netip.Addr]bool{}, uint64(0)
	for p := range pairs {
		clients[p.client], backends[p.backend] = true, true
		dropped += v.filtered(p)
	}
	f.Pods, f.Peers, f.Packets = sorted(clients), model.Hosts(append(sorted(services), sorted(backends)...)),
		max(flows, dropped)
	bridge := v.bridgeOf(v.Owners[f.Pods[0]][0]).Name
	f.LastHopAlive = v.place(bridge, model.Ingress)
	f.facts = facts{
		"flows": flows, "services": sorted(services), "backends": sorted(backends), "bridge": bridge, "dropped": dropped,
	}
	return f, pairs
}

// pastServices makes it one on the services that pods of the uplink's own bridge ask
// in vain: the packets leave by the bridge as they are, past the rules for them.
func (v *index) pastServices(f *finding, isIPv6 bool) bool {
	x := v.sumPeers(model.Chosen(v.peers, func(p *model.Peer) bool {
		return p.Remote.Is6() == isIPv6 && len(v.Owners[p.Local]) > 0 && besideUplink(v, p) && v.unanswered(p) &&
			lasted(p) && v.serviceRule(p.Remote) != nil
	}))
	if x.requests < minAsks {
		return false
	}
	remotes, link := sorted(x.peers), v.linkName(x.link)
	f.lost, f.page, f.LastHopAlive = x, "BridgeNetfilterOff-uplink", v.place(link, model.Egress)
	f.facts = facts{"remotes": remotes, "link": link, "requests": x.requests, "rule": v.serviceRule(remotes[0])}
	return true
}

// serviceRule is a rule for what is sent to an address alone, as kube-proxy has one
// for a service; nil where there is none.
func (v *index) serviceRule(a netip.Addr) *model.PacketRule {
	return model.First(v.PacketRules, func(r *model.PacketRule) bool {
		return (r.Table == "nat" || r.Native) && !r.Dst.Not && r.Dst.Prefix.IsSingleIP() && r.Dst.Prefix.Addr() == a &&
			!slices.Contains([]string{"RETURN", "ACCEPT", "KUBE-MARK-MASQ"}, r.Target)
	})
}

func (v *index) shareBridge(p bypass) bool {
	bridge := func(a netip.Addr) *model.Link {
		if len(v.Owners[a]) == 0 {
			return nil
		}
		return v.bridgeOf(v.Owners[a][0])
	}
	b := bridge(p.client)
	return b != nil && b == bridge(p.backend)
}

func (v *view) filtered(p bypass) uint64 {
	return v.dropped(func(d *model.Drop) bool { return d.Is(model.Netfilter) && d.Src == p.client && d.Dst == p.backend })
}

// refusesReplies reports whether a pod sent resets or ICMP errors, as it does for replies to nothing that it asked.
func (v *index) refusesReplies(client netip.Addr) bool {
	return slices.ContainsFunc(v.hops[client], func(h *model.HopCount) bool {
		return h.Side == model.AsSource && h.Direction == model.Ingress && h.RST+h.ICMPErrors >= minAsks
	})
}
