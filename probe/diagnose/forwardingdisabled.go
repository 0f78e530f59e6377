package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// ForwardingDisabled is the code of this finding.
const ForwardingDisabled model.Code = "ForwardingDisabled"

var forwardingDisabled = kind{
	code:     ForwardingDisabled,
	severity: model.Critical,
	find:     findForwardingDisabled,
	ends:     []model.HopKind{model.HopRoute, model.HopPod}, // nor does such a link answer for a gateway
}

func findForwardingDisabled(v *view) []finding {
	out := unforwarded(v, v.refused4, path.Forward4)
	if out == nil {
		out = unforwardedUnseen(v)
	}
	return append(out, unforwarded(v, v.unforwarded6, path.Forward6)...)
}

// refused4 is the link by which an IPv4 packet arrived that the node dropped
// because that link does not forward; empty for another drop. Only that link's
// setting counts. A link that does not forward does not answer for a gateway
// either that is not the node's own address: then the pod drops the packet.
func (v *view) refused4(d *model.Drop) string {
	link := ""
	switch {
	case d.LookupRefusedFor("IP_INADDRERRORS") && d.Dst.Is4():
		link = d.Link
	case d.NeighborFailed() && d.Link == "" && d.Src.Is4():
		for _, p := range v.pods[d.Src] {
			if l := v.router(p); l != nil && !v.nodeAddrs[p.Gateways[0].Addr] {
				link = l.Name
			}
		}
	}
	if v.sysctls().NotForwarding(link, false) == "" {
		return ""
	}
	return link
}

// unforwarded6 is the same for IPv6, where one setting counts for all links. A
// gateway is not answered for by proxy either that the link itself has not.
func (v *view) unforwarded6(d *model.Drop) string {
	if v.sysctls().NotForwarding("", true) == "" {
		return ""
	}
	if d.Location == "ip6_forward" && (d.Reason == "" || d.Reason == "NOT_SPECIFIED" || d.Reason == "IP_INADDRERRORS") {
		return d.Link
	}
	if !d.NeighborFailed() || d.Link != "" || !d.Src.Is6() {
		return ""
	}
	for _, p := range v.pods[d.Src] {
		l := v.links[p.LinkIndex]
		if l != nil && l.Master == 0 && slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool {
			return g.Addr.Is6() && !path.Resolved(&g) && !v.holds(l.Name, g.Addr)
		}) {
			return l.Name
		}
	}
	return ""
}

// unforwardable accounts for the drops that have a link that does not forward.
func unforwardable(refused func(*model.Drop) string) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return refused(d) != "" }
}

// unforwarded is the finding on drops for want of forwarding.
func unforwarded(v *view, refused func(*model.Drop) string, global string) []finding {
	var l lost
	links := map[string]bool{}
	for d := range model.Each(v.Traffic.Drops) {
		link := refused(d)
		if link == "" || !v.ofPod(d) {
			continue
		}
		links[link] = true
		// Of two pods the one is meant whose link it is.
		pod := v.pod(d)
		for _, p := range v.pods[d.Src] {
			if own := v.router(p); own != nil && own.Name == link {
				pod = d.Src
			}
		}
		l.addFor(pod, d)
	}
	if l.packets < minDrops {
		return nil
	}
	names := slices.Sorted(maps.Keys(links))
	first := refused(mostDropped(l.drops)[0])
	f := l.finding()
	f.LastHopAlive = v.place(first, model.Ingress)
	f.Why = fmt.Sprintf("The kernel dropped %s that arrived through %s and were for somebody else, because forwarding is off there.",
		words.Count(l.packets, "packet"), strings.Join(names, ", "))
	blameForwarding(v, &f, names, global)
	f.Evidence = append(f.Evidence, l.evidence()...)
	return []finding{{Finding: f, claims: unforwardable(refused), silences: silencesAll(f.Pods)}}
}

// blameForwarding names the setting: the node's, or those of single links.
func blameForwarding(v *view, f *model.Finding, links []string, global string) {
	if v.sysctls()[global] == "0" {
		f.Title = "the node does not forward"
		observe(f, model.SourceSysctl, "%s = 0", global)
		f.Fix = append(f.Fix, words.SetSysctl(global, "1"))
		return
	}
	f.Title = "forwarding is off on " + strings.Join(links, ", ")
	for _, link := range links {
		name := path.LinkSetting(link, "forwarding")
		observe(f, model.SourceSysctl, "%s = 0", name)
		f.Fix = append(f.Fix, words.SetSysctl(name, "1"))
	}
}

// unforwardedUnseen is the finding on the settings alone: pods have the node
// for their gateway, the link by which their packets arrive does not forward,
// and none of them was seen to leave by other means.
func unforwardedUnseen(v *view) []finding {
	leaves := map[netip.Addr]bool{}
	for p := range model.Each(v.peers) {
		if p.Out.Packets > 0 {
			leaves[p.Local] = true
		}
	}
	f := model.Finding{Confidence: model.Possible}
	links := map[string]bool{}
	for p := range model.Each(v.Pods) {
		link := v.router(p)
		if link == nil || v.sysctls().NotForwarding(link.Name, false) == "" {
			continue
		}
		for _, a := range p.Addresses {
			if !a.Addr().Is4() {
				continue
			}
			if leaves[a.Addr()] {
				return nil
			}
			f.Pods = append(f.Pods, a.Addr())
			links[link.Name] = true
		}
	}
	if len(f.Pods) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(links))
	f.LastHopAlive = v.place(names[0], model.Ingress)
	f.Why = fmt.Sprintf("Pods have the node for their gateway, and what they send arrives through %s, where forwarding is off.", strings.Join(names, ", "))
	f.Unseen = []string{"a packet of a pod that was dropped for it"}
	f.Alternatives = []string{"a program on the link forwards past the kernel's routing"}
	blameForwarding(v, &f, names, path.Forward4)
	return []finding{{Finding: f, claims: unforwardable(v.refused4)}}
}
