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

// MissingPodRoute is the code of this finding.
const MissingPodRoute model.Code = "MissingPodRoute"

var missingPodRoute = kind{
	code:     MissingPodRoute,
	severity: model.Critical,
	find:     needing(findMissingPodRoute, model.SourceRoutes, model.SourceLinks),
	ends:     []model.HopKind{model.HopRoute},
}

func findMissingPodRoute(v *view) []finding {
	type cause struct {
		route *model.Route
		kind  string
	}
	groups := map[cause][]misroutedPod{}
	var order []cause
	var out []finding
	for _, a := range v.misroutedPods() {
		if a.decision.Discards() && v.blocked(&a) {
			continue
		}
		if a.first.IsValid() {
			if shown := missed(v, &a); len(shown) > 0 {
				out = append(out, furtherAddress(v, &a, shown))
			}
			continue
		}
		k := cause{a.decision.Route, a.decision.Type}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], a)
	}
	for _, k := range order {
		out = append(out, routedElsewhere(v, groups[k])...)
	}
	return out
}

// routedElsewhere is the finding on pods that share a route which is not theirs.
func routedElsewhere(v *view, list []misroutedPod) []finding {
	// One that was seen proves the route for all that share it.
	f := model.Finding{Confidence: model.Possible}
	var told []string
	wrong := map[netip.Addr]bool{}
	proven := slices.ContainsFunc(list, func(a misroutedPod) bool { return len(missed(v, &a)) > 0 })
	for i := range list {
		a := list[i]
		seen := missed(v, &a)
		// What a pod on a bridge gets from its neighbours there needs no route.
		shares := proven && v.bridgeOf(a.pod) != nil
		if len(seen) == 0 && !shares && !v.unusedMisrouted(&a) {
			continue
		}
		if len(seen) > 0 {
			f.Confidence = model.Proven
		}
		f.Pods = append(f.Pods, a.addr)
		wrong[a.addr] = true
		where := whither(v, &a)
		if !slices.Contains(told, where) {
			told = append(told, where)
		}
		observe(&f, model.SourceRoutes, "%s is behind %s, and the lookup %s", a.addr, a.pod.Link, lookedUp(v, &a))
		f.Evidence = append(f.Evidence, seen...)
		for _, line := range restore(v, &a) {
			if !slices.Contains(f.Fix, line) {
				f.Fix = append(f.Fix, line)
			}
		}
	}
	if len(f.Pods) == 0 {
		return nil
	}
	if f.Confidence != model.Proven {
		f.Unseen = append(f.Unseen, "a packet for the pod that went astray")
		f.Alternatives = append(f.Alternatives, "a program on the links delivers past the kernel's routing")
	}
	f.Title = fmt.Sprintf("no route to %s", words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("The node does not route %s to the pod's link: packets for it %s.", words.Addrs(f.Pods), strings.Join(told, "; "))
	f.LastHopAlive = v.place(v.uplink(), model.Ingress)
	explains := v.misroutes(wrong)
	for d := range model.Each(v.Traffic.Drops) {
		if explains(d) {
			f.Packets += d.Packets
		}
	}
	return []finding{{Finding: f, claims: explains, silences: silencesAll(f.Pods), returns: f.Pods}}
}

// misroutes accounts for the drops of packets from and to addresses that the node routes
// elsewhere than to their pods.
func (v *view) misroutes(wrong map[netip.Addr]bool) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		if wrong[d.Dst] && (d.LookupRefused() || d.Expired() || d.NeighborFailed()) {
			return true
		}
		// What the node sends itself comes back to it with its own address.
		if wrong[d.Dst] && v.nodeAddrs[d.Src] && d.Location == "ip_rcv_finish_core" {
			return true
		}
		// The reverse path filter holds that route against what the pod
		// sends, its ARP requests for a gateway among that.
		// What the node itself sends comes back with the node's address.
		return wrong[d.Dst] && v.nodeAddrs[d.Src] && d.OwnSource() || (wrong[d.Src] || wrong[d.Dst]) && d.ReverseFiltered() || wrong[d.Src] && d.Link == "" && d.NeighborFailed()
	}
}

// furtherAddress is the finding on an address that a pod's interface has beside the one
// which the node routes to it: nothing on the node gives it to the pod.
func furtherAddress(v *view, a *misroutedPod, shown []model.Evidence) finding {
	f := model.Finding{
		Severity: model.Warning, Confidence: model.Proven, Pods: []netip.Addr{a.addr}, LastHopAlive: v.place(v.uplink(), model.Ingress),
		Title: fmt.Sprintf("the node routes only %s to %s, not %s", a.first, words.PodName(a.pod), a.addr),
		Why: fmt.Sprintf("The pod's interface has %s beside %s, and the node routes only %s to the pod: packets for %s %s.",
			a.addr, a.first, a.first, a.addr, whither(v, a)),
		Fix: []string{
			"let the pod send with " + a.first.String() + ": find what adds the other address in the pod, and end that",
			fmt.Sprintf("if %s is meant: let the network plugin give it to the pod, or restore its route: %s route replace %s dev %s",
				a.addr, words.IP(a.addr), host(a.addr), words.Quote(a.pod.Link)),
		},
	}
	observe(&f, model.SourceRoutes, "%s is behind %s as well, and the lookup %s", a.addr, a.pod.Link, lookedUp(v, a))
	f.Evidence = append(f.Evidence, shown...)
	return finding{Finding: f, claims: v.misroutes(map[netip.Addr]bool{a.addr: true}), silences: silencesAll(f.Pods), returns: f.Pods}
}

// missed is what was seen of packets for the pod that went elsewhere.
func missed(v *view, a *misroutedPod) []model.Evidence {
	var out []model.Evidence
	for _, h := range v.hops[a.addr] {
		if h.Side == model.AsDestination && h.Direction == model.Egress && a.decision.Through(h.IfIndex) && h.Packets >= minPackets {
			text := fmt.Sprintf("%s egress: %s for %s", v.linkName(h.IfIndex), words.Count(h.Packets, "packet"), a.addr)
			if in := v.hop(a.addr, h.IfIndex, model.Ingress, model.AsDestination); in != nil {
				text += fmt.Sprintf("; ingress: %d of them, and with %s", in.Packets, words.TTLs(in.TTLs|h.TTLs))
			}
			out = append(out, seen(model.SourceTC, "%s", text))
		}
	}
	var l lost
	for d := range model.Each(v.Traffic.Drops) {
		if d.Dst == a.addr && (d.LookupRefused() || d.NeighborFailed()) && !v.explained(d) {
			l.add(v, d)
		}
	}
	if l.packets >= minDrops {
		out = append(out, l.evidence()...)
	}
	return out
}

// lookedUp tells the lookup's result.
func lookedUp(v *view, a *misroutedPod) string {
	asker := "for a packet from " + a.query.Src.String()
	if a.query.In != "" {
		asker += " on " + a.query.In
	}
	switch {
	case a.decision.Route != nil:
		return fmt.Sprintf("%s ends at: %s", asker, v.routeText(a.decision.Route))
	case a.decision.Rule != nil:
		return fmt.Sprintf("%s ends at the rule: %s", asker, path.RoutingRuleText(a.decision.Rule))
	}
	return asker + " finds no route"
}

// whither says where the packets go instead.
func whither(v *view, a *misroutedPod) string {
	if a.decision.Type != "unicast" {
		return "are discarded"
	}
	l := v.links[a.decision.Hops[0].IfIndex]
	switch {
	case l.Role == model.RolePodLink:
		return "go to another pod's link, " + l.Name
	case v.outer[l.Index]:
		return "leave the node again through " + l.Name
	}
	return "go to " + l.Name
}

// restore gives the commands that bring the route, or the rule, back.
func restore(v *view, a *misroutedPod) []string {
	tool := words.IP(a.addr)
	var fix []string
	target, dev := host(a.addr), a.pod.Link
	if l := v.links[a.pod.LinkIndex]; l.Master != 0 && v.links[l.Master] != nil {
		dev = v.links[l.Master].Name
		for _, p := range v.links[l.Master].Addresses {
			if p.Contains(a.addr) {
				target = p.Masked()
			}
		}
	}
	if r := a.decision.Route; r != nil && r.Table == mainTable && r.Dst.Bits() >= target.Bits() {
		fix = append(fix, fmt.Sprintf("%s route del %s", tool, v.routeWords(r)))
	}
	main := path.Decision{}
	if covering := v.routing().Covering(mainTable, a.addr); len(covering) > 0 {
		main.Type, main.Hops = covering[0].Type, []path.NextHop{{IfIndex: covering[0].IfIndex}}
	}
	if v.misses(&main, a.addr) {
		fix = append(fix, fmt.Sprintf("%s route replace %s dev %s", tool, target, words.Quote(dev)))
	}
	for _, r := range a.rules {
		switch {
		case v.leftOverRule(r, a):
			fix = append(fix, fmt.Sprintf("%s rule del %s", tool, words.RoutingRule(r)))
		case v.leftOverRoute(r, a, target):
			fix = append(fix, fmt.Sprintf("%s route del %s", tool, v.routeWords(a.decision.Route)))
		default:
			fix = append(fix, fmt.Sprintf("%s rule add to %s lookup main priority %d", tool, target, r.Priority-1))
		}
	}
	return fix
}
