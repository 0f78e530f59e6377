package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// StaleNeighbor is the code of this finding.
const StaleNeighbor model.Code = "StaleNeighbor"

var staleNeighbor = kind{
	code:     StaleNeighbor,
	severity: model.Critical,
	find:     needing(findStaleNeighbor, model.SourceNeighbors, model.SourceRoutes, model.SourceLinks, model.SourcePods),
	ends:     []model.HopKind{model.HopNeighbor},
}

func findStaleNeighbor(v *view) []finding {
	var out []finding
	silent := map[int]*finding{} // by the link, where several may have one cause
	for n := range model.Each(v.Neighbors) {
		if n.Proxy || len(v.pods[n.Addr]) == 0 {
			continue
		}
		// Only the link by which the node sends to the pod matters. Where
		// the pod is not behind that link, the route is what is wrong.
		r := v.lookup(n.Addr)
		if r == nil || r.IfIndex != n.IfIndex || r.Gateway.IsValid() {
			continue
		}
		owners := v.Behind(n.Addr, n.IfIndex)
		if len(owners) == 0 {
			continue
		}
		if !path.Resolved(n) {
			unresolved(v, n, owners[0], silent)
		} else {
			out = append(out, misdirected(v, n)...)
		}
	}
	for _, link := range slices.Sorted(maps.Keys(silent)) {
		out = append(out, *silent[link])
	}
	return out
}

// misdirected is the finding on an entry with a MAC that no owner has.
func misdirected(v *view, n *model.Neighbor) []finding {
	p := v.Misled(n)
	if p == nil || !v.stood(p) && n.State != "PERMANENT" {
		return nil
	}
	lost := misledBy(v, n)
	drops := v.dropped(func(d *model.Drop) bool { return lost(d) && d.OtherHost() })
	sent := v.frames(n.Addr, n.IfIndex, model.Egress, model.AsDestination, n.MAC)
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         []netip.Addr{n.Addr},
		LastHopAlive: v.place(v.linkName(n.IfIndex), model.Egress),
		Title:        "stale neighbour for " + n.Addr.String(),
		Why: fmt.Sprintf("The node sends what it routes to %s to the MAC %s; %s has it, %s has %s. The pod frees frames for another MAC.",
			n.Addr, n.MAC, v.owner(n.MAC), words.PodName(p), p.MAC),
		Evidence: []model.Evidence{
			seen(model.SourceNeighbors, "%s dev %s lladdr %s %s", n.Addr, v.linkName(n.IfIndex), n.MAC, n.State),
			seen(model.SourcePods, "%s is the address of the pod behind %s, with MAC %s", n.Addr, p.Link, p.MAC),
		},
		Fix: []string{fmt.Sprintf("%s neigh del %s dev %s", words.IP(n.Addr), n.Addr, words.Quote(v.linkName(n.IfIndex)))},
		// A flood is freed by every pod that it reaches.
		Packets: cmp.Or(sent, drops),
	}
	observeSome(&f, sent, model.SourceTC, "%s egress: %s for %s with the destination MAC %s",
		v.linkName(n.IfIndex), words.Count(sent, "frame"), n.Addr, n.MAC)
	observeSome(&f, drops, model.SourceDrops, "%s for %s dropped: the destination MAC is not this host's",
		words.Count(drops, "packet"), n.Addr)
	if f.Packets == 0 {
		unusedEntry(&f, n, "a packet that the node routed to the pod: there was none in the window")
	}
	return []finding{{Finding: f, claims: lost, cause: belief{n.Addr, n.MAC}}}
}

// misledBy accounts for what an entry sends to the wrong MAC. By IPv6 these are also the
// answers to the pod's own requests for its gateway's MAC, so that the pod has
// no neighbour either.
func misledBy(v *view, n *model.Neighbor) func(*model.Drop) bool {
	frames := misled(n.Addr, n.MAC)
	return func(d *model.Drop) bool {
		return frames(d) || d.Src == n.Addr && d.Src.Is6() && d.Link == "" && d.NeighborFailed()
	}
}

// unresolved adds an entry without a MAC for a pod that is there to the finding on its
// link. Without packets lost to it the entry is only a memory.
func unresolved(v *view, n *model.Neighbor, p *model.Pod, found map[int]*finding) {
	lost := func(d *model.Drop) bool { return d.Dst == n.Addr && d.NeighborFailed() }
	drops := v.dropped(lost)
	if drops < minDrops || !v.stood(p) || !p.Up {
		return
	}
	link := v.linkName(n.IfIndex)
	f := found[n.IfIndex]
	if f == nil {
		f = &finding{Finding: model.Finding{
			Severity:     model.Warning,
			Confidence:   model.Likely,
			LastHopAlive: v.place(link, model.Egress),
			Unseen:       []string{"why nobody answers there"},
		}, claims: func(*model.Drop) bool { return false }}
		found[n.IfIndex] = f
	}
	before := f.claims
	f.claims = func(d *model.Drop) bool { return lost(d) || before(d) }
	f.Pods, f.Packets = append(f.Pods, n.Addr), f.Packets+drops
	f.Title = "no neighbour for " + words.Addrs(f.Pods)
	f.Why = fmt.Sprintf("The node asks for the MAC of %s on %s, where the pod is, and gets no answer. Packets that wait for it are freed.", words.Addrs(f.Pods), link)
	observe(&f.Finding, model.SourceNeighbors, "%s dev %s %s", n.Addr, link, n.State)
	observe(&f.Finding, model.SourceDrops, "%s for %s dropped: neighbour resolution failed", words.Count(drops, "packet"), n.Addr)
	for _, a := range []string{"a bridge rule or filter drops " + protocol(n.Addr), "the pod answers no " + words.Request(n.Addr) + " (arp_ignore, NOARP)"} {
		if !slices.Contains(f.Alternatives, a) {
			f.Alternatives = append(f.Alternatives, a)
		}
	}
	f.Fix = append(f.Fix, fmt.Sprintf("%s neigh replace %s lladdr %s dev %s nud reachable", words.IP(n.Addr), n.Addr, p.MAC, words.Quote(link)))
}
