package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// muteHops are the next hops beyond one uplink that do not tell their MAC, and
// what was lost to them.
type muteHops struct {
	link int
	hops map[netip.Addr]*muteHop
	pods map[netip.Addr]bool
}

type muteHop struct {
	// gateway says that packets for other addresses go by it.
	gateway bool
	pods    map[netip.Addr]bool
	packets uint64
	talk
}

// silentNextHops finds the next hops of the node that nobody answers for: the
// packets that waited for their MAC are freed, and never reach the uplink's
// hook. Those of one uplink are one finding, since they may have one cause.
func (v *view) silentNextHops() []verdict {
	if !v.Has(model.SourceTC, model.SourceDrops) {
		return nil
	}
	found := map[question]*muteHop{}
	for i := range v.Traffic.Drops {
		d := &v.Traffic.Drops[i]
		if !neighborFailed(d) || !v.isUplink(d.IfIndex) || v.explained(d) {
			continue
		}
		hop, ok := v.nextHop(d)
		if !ok {
			continue
		}
		k := question{d.IfIndex, hop}
		m := found[k]
		if m == nil {
			m = &muteHop{pods: map[netip.Addr]bool{}}
			found[k] = m
		}
		m.gateway = m.gateway || hop != d.Dst
		m.packets += d.Packets
		for _, pod := range v.senders(d) {
			m.pods[pod] = true
		}
	}
	for i := range v.Traffic.ARP {
		a := &v.Traffic.ARP[i]
		switch m := found[question{a.IfIndex, a.Addr}]; {
		case m == nil:
		case !a.Reply && a.Direction == model.Egress:
			m.requests += a.Packets
		case a.Reply && a.Direction == model.Ingress:
			m.replies += a.Packets
		}
	}
	links := map[int]*muteHops{}
	for k, m := range found {
		if m.packets < minDrops || m.requests < minDrops || m.replies > 0 || len(m.pods) == 0 {
			continue
		}
		l := links[k.ifindex]
		if l == nil {
			l = &muteHops{link: k.ifindex, hops: map[netip.Addr]*muteHop{}, pods: map[netip.Addr]bool{}}
			links[k.ifindex] = l
		}
		l.hops[k.addr] = m
		maps.Copy(l.pods, m.pods)
	}
	var out []verdict
	for _, link := range slices.Sorted(maps.Keys(links)) {
		out = append(out, v.nobodyBeyond(links[link]))
	}
	return out
}

// nextHop is the address whose MAC a freed packet waited for. Of several hops
// over the same link it is the one that is not resolved.
func (v *view) nextHop(d *model.Drop) (netip.Addr, bool) {
	q := path.Query{Src: d.Src, Dst: d.Dst}
	if len(v.pods[d.Src]) > 0 {
		q = v.fromPod(d.Src, d.Dst)
	}
	decision := v.routing().Lookup(q)
	var hops []netip.Addr
	for _, h := range decision.Hops {
		if h.IfIndex != d.IfIndex {
			continue
		}
		if !h.Gateway.IsValid() {
			h.Gateway = d.Dst
		}
		hops = append(hops, h.Gateway)
	}
	if len(hops) > 1 {
		hops = slices.DeleteFunc(hops, func(a netip.Addr) bool {
			return slices.ContainsFunc(v.Neighbors, func(n model.Neighbor) bool {
				return n.IfIndex == d.IfIndex && n.Addr == a && resolved(&n)
			})
		})
	}
	if len(hops) != 1 || len(v.pods[hops[0]]) > 0 || v.past[hops[0]] {
		return netip.Addr{}, false
	}
	return hops[0], true
}

// senders are the pods that a packet is of: its source, or those that have the
// node's address in its stead.
func (v *view) senders(d *model.Drop) []netip.Addr {
	if len(v.pods[d.Src]) > 0 {
		return []netip.Addr{d.Src}
	}
	if v.translated == nil {
		v.translated = map[pair][]netip.Addr{}
		for i := range v.Flows {
			f := &v.Flows[i]
			if src := f.Original.Src; src != f.Reply.Dst && len(v.pods[src]) > 0 {
				k := pair{f.Reply.Dst, f.Reply.Src}
				v.translated[k] = append(v.translated[k], src)
			}
		}
	}
	return v.translated[pair{d.Src, d.Dst}]
}

// nobodyBeyond is the verdict on an uplink's next hops that do not answer.
func (v *view) nobodyBeyond(m *muteHops) verdict {
	link := v.linkName(m.link)
	remotes := slices.SortedFunc(maps.Keys(m.hops), netip.Addr.Compare)
	f := model.Finding{
		Severity:     model.Warning,
		Confidence:   model.Proven,
		Pods:         slices.Collect(maps.Keys(m.pods)),
		LastHopAlive: v.place(link, model.Egress),
		Title:        fmt.Sprintf("nobody answers the node for %s on %s", addrs(remotes), link),
		Why: fmt.Sprintf("The node asks on %s for the MAC of %s, the next hop of what %s send, and gets no answer. The packets are freed before they leave.",
			link, addrs(remotes), count(uint64(len(m.pods)), "pod")),
		Unseen:       []string{"why nobody answers: that shows only beyond " + link},
		Alternatives: []string{"the machine is down or gone", "the address is of another network than " + link + "'s (a wrong VLAN, subnet or mask)"},
	}
	for _, a := range remotes {
		hop := m.hops[a]
		f.Peers = append(f.Peers, host(a))
		f.Packets += hop.packets
		f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceTC, Text: fmt.Sprintf(
			"%s egress: %s for %s; ingress: no reply", link, count(hop.requests, request(a)), a)})
		if hop.gateway {
			f.Severity = model.Critical
			f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceRoutes, Text: fmt.Sprintf("%s is the gateway of routes on %s", a, link)})
		}
		for i := range v.Neighbors {
			if n := &v.Neighbors[i]; n.IfIndex == m.link && n.Addr == a {
				f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceNeighbors, Text: fmt.Sprintf("%s dev %s %s", a, link, stateOf(n))})
			}
		}
		if a.Is6() {
			f.Fix = append(f.Fix, fmt.Sprintf("ping -6 -c 3 -I %s %s", link, a))
		} else {
			f.Fix = append(f.Fix, fmt.Sprintf("arping -c 3 -I %s %s", link, a))
		}
	}
	f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceDrops, Text: count(f.Packets, "packet") + " freed, since the neighbour failed"})
	lost := func(d *model.Drop) bool {
		if d.IfIndex != m.link || !neighborFailed(d) {
			return false
		}
		hop, ok := v.nextHop(d)
		return ok && m.hops[hop] != nil
	}
	return verdict{Finding: f, explains: lost}
}
