package diagnose

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

func findForwardingDisabled(v *view) {
	v.unforwarded(refused4, path.Forward4)
	if v.proposed == nil {
		v.unforwardedUnseen()
	}
	v.unforwarded(refused6, path.Forward6)
}

// refused4 is the link by which an IPv4 packet arrived that the node dropped because that link does not
// forward; empty for another drop. Only that link's setting counts. A link that does not forward does not
// answer for a gateway either that is not the node's own address: then the pod drops the packet.
func refused4(v *index, d *model.Drop) string {
	link := ""
	switch {
	case d.Is(model.NotForwarded) && d.Dst.Is4():
		link = d.Link
	case d.Is(model.NeighborFailed) && d.Link == "" && d.Src.Is4():
		for _, p := range v.Owners[d.Src] {
			for g := range model.Each(p.Gateways) {
				if v.unproxied(p, g) {
					link = v.ByIndex[p.LinkIndex].Name
				}
			}
		}
	}
	return model.Either(v.Settings.NotForwarding(link, false) == "", "", link)
}

// unproxied reports whether the node would answer a pod for its gateway by proxy alone, and does not, since
// the pod's link does not forward.
func (v *index) unproxied(p *model.Pod, g *model.Neighbor) bool {
	return g.Addr.Is4() && v.routed(p) && !v.nodeAddrs[g.Addr] &&
		v.Settings.NotForwarding(v.ByIndex[p.LinkIndex].Name, false) != ""
}

// stuck are the addresses of pods that asked for their gateway and do not learn it for this reason.
func (v *index) stuck() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.Gateways) {
			if (g.State == "FAILED" || g.State == "INCOMPLETE") && v.unproxied(p, g) {
				maps.Copy(out, setOf(sameFamily(podAddrs(p), g.Addr)))
			}
		}
	}
	return out
}

// refused6 is the same for IPv6, where one setting counts for all links. A
// gateway is not answered for by proxy either that the link itself has not.
func refused6(v *index, d *model.Drop) string {
	if v.Settings.NotForwarding("", true) == "" {
		return ""
	}
	if d.Is(model.NotForwarded) && d.Dst.Is6() {
		return d.Link
	}
	if !d.Is(model.NeighborFailed) || d.Link != "" || !d.Src.Is6() {
		return ""
	}
	for _, p := range v.Owners[d.Src] {
		l := v.ByIndex[p.LinkIndex]
		if l != nil && l.Master == 0 && slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool {
			return g.Addr.Is6() && !path.Resolved(&g) && !v.holds(l.Name, g.Addr)
		}) {
			return l.Name
		}
	}
	return ""
}

func (v *view) unforwarded(refused func(*index, *model.Drop) string, global string) {
	reportBy(v, func(d *model.Drop) (all struct{}, pod netip.Addr) {
		link := refused(v.index, d)
		if link == "" {
			return all, pod
		}
		// Of two pods the one is meant whose link it is.
		for _, p := range v.Owners[d.Src] {
			if own := v.router(p); own != nil && own.Name == link {
				return all, d.Src
			}
		}
		return all, v.pod(d)
	}, func(_ struct{}, l *lost) finding {
		links := model.SetOf(model.Map(l.drops, func(d *model.Drop) string { return refused(v.index, d) }))
		f := v.withoutForwarding(refused, links, global)
		pods := maps.Clone(l.pods)
		if global == path.Forward4 {
			maps.Copy(pods, v.stuck())
		}
		f.Pods = sorted(pods)
		f.lost, f.silences, f.facts["drops"] = l, silencesAll(f.Pods), l.evidence()
		f.LastHopAlive = v.place(refused(v.index, mostDropped(l.drops)[0]), model.Ingress)
		return f
	})
}

// withoutForwarding is a finding with the settings to blame: the node's, or those of links.
func (v *index) withoutForwarding(refused func(*index, *model.Drop) string, links map[string]bool, global string) finding {
	names, settings, all := slices.Sorted(maps.Keys(links)), []string{global}, v.Settings[global] == "0"
	if !all {
		settings = model.Map(names, func(link string) string { return path.LinkSetting(link, "forwarding") })
	}
	f := finding{facts: facts{"links": names, "settings": settings, "all": all}}
	f.claims = func(d *model.Drop) bool { return refused(v, d) != "" }
	f.LastHopAlive = v.place(names[0], model.Ingress)
	return f
}

// unforwardedUnseen reports the settings alone: pods have the node for their gateway, the link by which their
// packets arrive does not forward, and none of them was seen to leave by other means. Pods that do not learn their
// gateway make it likely.
func (v *view) unforwardedUnseen() {
	pods, links, stuck := map[netip.Addr]bool{}, map[string]bool{}, v.stuck()
	for p := range model.Each(v.Pods) {
		if link := v.router(p); link != nil && v.Settings.NotForwarding(link.Name, false) != "" {
			for _, a := range podAddrs(p) {
				if a.Is4() {
					pods[a], links[link.Name] = true, true
				}
			}
		}
	}
	leaves := func(p model.Peer) bool { return p.Out.Packets > 0 && pods[p.Local] }
	if len(pods) == 0 || len(stuck) == 0 && slices.ContainsFunc(v.peers, leaves) {
		return
	}
	f := v.withoutForwarding(refused4, links, path.Forward4)
	f.Confidence, f.Pods = model.Either(len(stuck) > 0, model.Likely, model.Possible), sorted(pods)
	f.silences = silencesAll(sorted(stuck))
	v.report(f)
}
