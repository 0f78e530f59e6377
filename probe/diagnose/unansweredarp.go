package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// UnansweredARP is the code of this finding.
const UnansweredARP model.Code = "UnansweredARP"

var unansweredARP = kind{
	code:     UnansweredARP,
	severity: model.Warning,
	find:     findUnansweredARP,
	ends:     []model.HopKind{model.HopPod, model.HopNeighbor},
}

func findUnansweredARP(v *view) []finding {
	var out []finding
	asked, hops := v.resolutions(model.Ingress), v.silentNextHops()
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.Gateways) {
			pods := sameFamily(podAddrs(p), g.Addr)
			if path.Resolved(g) || len(pods) == 0 || v.silenced(pods[0], host(g.Addr)) {
				continue
			}
			t := asked[question{p.LinkIndex, g.Addr}]
			if v.asksBeyond(hops, p, g, t) {
				continue
			}
			for _, f := range unansweredGateway(v, p, g, t) {
				out = joinBySetting(out, f)
			}
		}
	}
	out = append(out, unheldAddresses(v, asked)...)
	return append(out, v.silentBeyond(hops)...)
}

// joinBySetting adds a finding to those that are there: one setting that silences the
// node for several pods is one cause.
func joinBySetting(list []finding, f finding) []finding {
	at := slices.IndexFunc(list, func(o finding) bool { return f.cause != nil && o.cause == f.cause })
	if at < 0 {
		return append(list, f)
	}
	o, first := &list[at], list[at].claims
	o.Pods, o.Packets = sortedPods(append(o.Pods, f.Pods...)), o.Packets+f.Packets
	o.facts["shown"] = append(o.facts["shown"].([]model.Evidence), f.facts["shown"].([]model.Evidence)...)
	o.facts["joined"] = true
	o.claims = func(d *model.Drop) bool { return first(d) || f.claims(d) }
	return list
}

// question is an address that is asked for at a link.
type question struct {
	ifindex int
	addr    netip.Addr
}

// talk counts what came in and what went out again.
type talk struct{ requests, replies uint64 }

// resolutions counts the requests that pass links in a direction, and the replies that pass
// in the other.
func (v *view) resolutions(asks model.Direction) map[question]talk {
	if v.talks[asks] == nil {
		out := map[question]talk{}
		for a := range model.Each(v.Traffic.ARP) {
			k := question{a.IfIndex, a.Addr}
			t := out[k]
			if !a.Reply && a.Direction == asks {
				t.requests += a.Packets
			} else if a.Reply && a.Direction != asks {
				t.replies += a.Packets
			}
			out[k] = t
		}
		v.talks[asks] = out
	}
	return v.talks[asks]
}

// unansweredGateway is the finding on a pod that does not learn its gateway's MAC.
func unansweredGateway(v *view, p *model.Pod, g *model.Neighbor, t talk) []finding {
	watched := v.Has(model.SourceTC)
	if watched && (t.requests < minDrops || t.replies > 0) || !watched && g.State != "FAILED" && g.State != "INCOMPLETE" {
		return nil
	}
	pods := sameFamily(podAddrs(p), g.Addr)
	f := finding{
		facts:  facts{"pod": p, "gateway": g, "watched": watched, "requests": t.requests},
		claims: func(d *model.Drop) bool { return slices.Contains(pods, d.Src) && d.NeighborFailed() },
	}
	f.Severity, f.LastHopAlive = model.Critical, v.place(p.Link, model.Ingress)
	f.Pods, f.Packets = pods, v.dropped(f.claims)
	if right, ok := v.fixedMAC(p, g); ok {
		// With the setting alone the node would still not answer: it does not for
		// the others either, which need no answer.
		f.facts["right"], f.cause = right, lostEntry{p.NetnsName, p.Interface, belief{g.Addr, right}}
	} else if setting := whySilent(v, p, g); setting != nil {
		f.facts["setting"], f.cause = setting, *setting
	}
	if !watched {
		f.Confidence, f.cause = model.Possible, nil
	}
	f.facts["packets"] = f.Packets
	f.facts["shown"] = words.Say("gateway", f.facts)
	return []finding{f}
}

// lostEntry is an entry for a gateway that a pod lacks.
type lostEntry struct {
	netns, iface string
	belief
}

// fixedMAC is the MAC that a pod should have for its gateway as another pod has a permanent
// entry for it: that of the node's end of its link, where it is routed, or else the other's.
func (v *view) fixedMAC(p *model.Pod, g *model.Neighbor) (mac model.MAC, ok bool) {
	for o := range model.Each(v.Pods) {
		h := first(o.Gateways, func(h *model.Neighbor) bool {
			return h.Addr == g.Addr && h.State == "PERMANENT" && !h.MAC.IsZero()
		})
		switch {
		case o == p || h == nil:
		case v.routed(p):
			return v.links[p.LinkIndex].MAC, true
		default:
			return h.MAC, true
		}
	}
	return model.MAC{}, false
}

// whySilent finds the setting that keeps the node from answering a pod for its gateway;
// nil when it is not a setting, or they are unread.
func whySilent(v *view, p *model.Pod, g *model.Neighbor) *model.Sysctl {
	link := p.Link
	if b := v.bridgeOf(p); b != nil && v.nodeAddrs[g.Addr] {
		link = b.Name
	} else if !v.routed(p) {
		return nil
	}
	if !v.Has(model.SourceLinks) {
		return nil
	}
	// IPv6 answers for the link's own addresses alone.
	proxy, all, own := path.LinkSetting(link, "proxy_arp"), path.LinkSetting("all", "proxy_arp"), v.nodeAddrs[g.Addr]
	if g.Addr.Is6() {
		proxy, all = path.LinkSetting6(link, "proxy_ndp"), path.LinkSetting6("all", "proxy_ndp")
		own = v.holds(link, g.Addr)
	}
	set := v.Settings
	switch {
	case !own && set[proxy] == "0" && set[all] == "0":
		return &model.Sysctl{Name: proxy, Value: "0"}
	case !own || g.Addr.Is6():
		return nil
	}
	// The higher of the two counts. From 1 on, an address of another link is
	// not answered for; from 8 on, none.
	for _, at := range []string{link, "all"} {
		name := path.LinkSetting(at, "arp_ignore")
		if x := set[name]; x != "" && x != "0" && (x == "8" || !v.holds(link, g.Addr)) {
			return &model.Sysctl{Name: name, Value: x}
		}
	}
	return nil
}

// absent is what was lost to an address that no pod holds.
type absent struct {
	lost
	talk
}

// everySecond is how often the kernel asks again for a neighbour that is wanted.
const everySecond = time.Second

// unheldAddresses finds the addresses of this node's own pod ranges that no pod holds
// and that its pods keep asking for.
func unheldAddresses(v *view, asked map[question]talk) []finding {
	if !v.Has(model.SourcePods, model.SourceTC) {
		return nil
	}
	found := map[netip.Addr]*absent{}
	for d := range model.Each(v.Traffic.Drops) {
		if d.NeighborFailed() && v.vacant(d.Dst) && len(v.pods[d.Src]) > 0 && !v.explained(d) {
			entry(found, d.Dst).addFor(d.Src, d)
		}
	}
	for k, t := range asked {
		if a := found[k.addr]; a != nil {
			a.requests += t.requests
			a.replies += t.replies
		}
	}
	// Who asks for several addresses has one reason to.
	var byAskers groups[string, []netip.Addr]
	for _, addr := range sorted(found) {
		// Who asks a while for a pod that was just deleted is no news.
		a, often := found[addr], max(uint64(v.Window.Duration()/everySecond)/2, minDrops)
		if a.packets >= minDrops && a.requests >= often && a.replies == 0 {
			list := byAskers.of(fmt.Sprint(sorted(a.pods)))
			*list = append(*list, addr)
		}
	}
	var out []finding
	for _, list := range byAskers.all() {
		out = append(out, nobodyHas(v, *list, found))
	}
	return out
}

// nobodyHas is the finding on addresses that the same pods keep asking for.
func nobodyHas(v *view, addrs []netip.Addr, found map[netip.Addr]*absent) finding {
	f := finding{page: "UnansweredARP-unheld"}
	f.Pods, f.Peers = sorted(found[addrs[0]].pods), hosts(addrs)
	asker := v.pods[f.Pods[0]][0]
	f.LastHopAlive = v.place(asker.Link, model.Ingress)
	var shown []model.Evidence
	var held [][]model.MAC
	gone := setOf(addrs)
	for i, addr := range addrs {
		a := found[addr]
		f.Packets += a.packets
		if i < mostEvidence {
			x := facts{"addr": addr, "packets": a.packets, "requests": a.requests}
			shown = append(shown, words.Say("absent", x)...)
		}
		if p := v.arped(addr); p != nil {
			shown = append(shown, v.arpEvidence(p))
			if p.Answered && !v.byGateway(p) {
				f.Confidence, held = model.Possible, append(held, p.MACs)
			}
		}
	}
	f.claims = func(d *model.Drop) bool { return gone[d.Dst] && d.NeighborFailed() }
	f.facts = facts{"addrs": addrs, "shown": shown, "held": held, "asker": asker, "scan": len(addrs) > sweep}
	if len(addrs) > sweep {
		f.Severity = model.Info
	} else {
		f.facts["first"] = addrs[:min(len(addrs), mostEvidence)]
	}
	return f
}

// mostEvidence is how many of several like addresses are shown one by one.
const mostEvidence = 3
