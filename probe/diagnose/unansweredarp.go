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

func findUnansweredARP(v *view) {
	// One setting that silences the node for several pods is one cause.
	var byCause groups[any, []unanswered]
	hops, watched, stuck := v.silentNextHops(), v.Has(model.SourceTC), v.stuck()
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.NextHops()) {
			pods := sameFamily(podAddrs(p), g.Addr)
			if path.Resolved(g) || len(pods) == 0 || v.silenced(pods[0], model.Host(g.Addr)) || stuck[pods[0]] {
				continue
			}
			t := v.resolutions(model.Ingress)[question{p.LinkIndex, g.Addr}]
			if v.asksBeyond(hops, p, g, t) || watched && !t.inVain() ||
				!watched && g.State != "FAILED" && g.State != "INCOMPLETE" {
				continue
			}
			x := unanswered{p, pods, facts{"pod": p, "gateway": g, "watched": watched, "requests": t.requests}}
			var cause any = g
			if right := v.fixedMAC(p, g); !right.IsZero() {
				// With the setting alone the node would still not answer: it does not for the others either, which need no answer.
				x.facts["right"] = right
			} else if setting := whySilent(v.index, p, g); setting != nil {
				x.facts["setting"] = setting
				if watched {
					cause = *setting
				}
			}
			list := byCause.of(cause)
			*list = append(*list, x)
		}
	}
	for _, list := range byCause.all() {
		v.report(unansweredGateway(v, *list))
	}
	unheldAddresses(v)
	v.silentBeyond(hops)
}

// unanswered is a pod that does not learn its gateway's MAC.
type unanswered struct {
	pod   *model.Pod
	addrs []netip.Addr
	facts facts
}

// unansweredGateway is the finding on pods that do not learn their gateways' MACs for one cause.
func unansweredGateway(v *view, list []unanswered) finding {
	f := finding{facts: list[0].facts}
	f.Severity, f.LastHopAlive = model.Critical, v.place(list[0].pod.Link, model.Ingress)
	var shown []model.Evidence
	for _, x := range list {
		packets := v.dropped(func(d *model.Drop) bool { return slices.Contains(x.addrs, d.Src) && d.Is(model.NeighborFailed) })
		x.facts["packets"] = packets
		shown = append(shown, words.Say("gateway", x.facts)...)
		f.Pods, f.Packets = append(f.Pods, x.addrs...), f.Packets+packets
	}
	f.Pods = model.Unique(f.Pods)
	f.claims = func(d *model.Drop) bool { return slices.Contains(f.Pods, d.Src) && d.Is(model.NeighborFailed) }
	f.facts["shown"], f.facts["joined"] = shown, len(list) > 1
	if f.facts["watched"] == false {
		f.Confidence = model.Possible
	}
	return f
}

// question is an address that is asked for at a link.
type question struct {
	ifindex int
	addr    netip.Addr
}

// resolution counts what came in and what went out again.
type resolution struct{ requests, replies uint64 }

// inVain reports whether nothing replied to several requests.
func (t resolution) inVain() bool { return t.requests >= minDrops && t.replies == 0 }

// resolutions counts the requests that pass links in a direction, and the replies that pass in the other: of
// each address at each link, of an address at all links, which is without one, and of all addresses at a link.
func (v *index) resolutions(asks model.Direction) map[question]resolution {
	if v.resolved[asks] == nil {
		out := map[question]resolution{}
		for a := range model.Each(v.Traffic.ARP) {
			for _, k := range []question{{a.IfIndex, a.Addr}, {0, a.Addr}, {a.IfIndex, netip.Addr{}}} {
				t := out[k]
				if !a.Reply && a.Direction == asks {
					t.requests += a.Packets
				} else if a.Reply && a.Direction != asks {
					t.replies += a.Packets
				}
				out[k] = t
			}
		}
		v.resolved[asks] = out
	}
	return v.resolved[asks]
}

// fixedMAC is the MAC that a pod should have for its gateway as another pod has a permanent
// entry for it: that of the node's end of its link, where it is routed, or else the other's.
func (v *index) fixedMAC(p *model.Pod, g *model.Neighbor) model.MAC {
	for o := range model.Each(v.Pods) {
		h := model.First(o.Gateways,
			func(h *model.Neighbor) bool { return h.Addr == g.Addr && h.State == "PERMANENT" && path.Resolved(h) })
		switch {
		case o == p || h == nil:
		case v.routed(p):
			return v.ByIndex[p.LinkIndex].MAC
		default:
			return h.MAC
		}
	}
	return model.MAC{}
}

// whySilent finds the setting that keeps the node from answering a pod for its gateway;
// nil when it is not a setting, or they are unread.
func whySilent(v *index, p *model.Pod, g *model.Neighbor) *model.Sysctl {
	l := v.router(p)
	if l == nil || !v.routed(p) && !v.nodeAddrs[g.Addr] || !v.Has(model.SourceLinks) {
		return nil
	}
	link := l.Name
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
	// The higher of the two counts. From 1 on, an address of another link is not answered for; from 8 on, none.
	for _, at := range []string{link, "all"} {
		name := path.LinkSetting(at, "arp_ignore")
		if x := set[name]; x != "" && x != "0" && (x == "8" || !v.holds(link, g.Addr)) {
			return &model.Sysctl{Name: name, Value: x}
		}
	}
	return nil
}

// everySecond is how often the kernel asks again for a neighbour that is wanted.
const everySecond = time.Second

// unheldAddresses finds the addresses of this node's own pod ranges that no pod holds
// and that its pods keep asking for.
func unheldAddresses(v *view) {
	if !v.Has(model.SourcePods, model.SourceTC) {
		return
	}
	found := map[netip.Addr]*lost{}
	for a, l := range lostBy(v, func(d *model.Drop) (addr, asker netip.Addr) {
		if !d.Is(model.NeighborFailed) || !v.vacant(d.Dst) || len(v.Owners[d.Src]) == 0 {
			return addr, asker
		}
		return d.Dst, d.Src
	}) {
		// Who asks a while for a pod that was just deleted is no news.
		often := max(uint64(v.Window.Duration()/everySecond)/2, minDrops)
		if t := v.resolutions(model.Ingress)[question{addr: a}]; t.requests >= often && t.replies == 0 {
			found[a] = l
		}
	}
	// Who asks for several addresses has one reason to.
	var byAskers groups[string, []netip.Addr]
	for _, addr := range sorted(found) {
		list := byAskers.of(fmt.Sprint(sorted(found[addr].pods)))
		*list = append(*list, addr)
	}
	for _, list := range byAskers.all() {
		v.report(nobodyHas(v.index, *list, found))
	}
}

// nobodyHas is the finding on addresses that the same pods keep asking for.
func nobodyHas(v *index, addrs []netip.Addr, found map[netip.Addr]*lost) finding {
	f := finding{page: "UnansweredARP-unheld"}
	f.Pods, f.Peers = sorted(found[addrs[0]].pods), model.Hosts(addrs)
	asker := v.Owners[f.Pods[0]][0]
	f.LastHopAlive = v.place(asker.Link, model.Ingress)
	var shown []model.Evidence
	var held [][]model.MAC
	gone := setOf(addrs)
	for i, addr := range addrs {
		f.Packets += found[addr].packets
		if i < mostEvidence {
			requests := v.resolutions(model.Ingress)[question{addr: addr}].requests
			x := facts{"addr": addr, "packets": found[addr].packets, "requests": requests}
			shown = append(shown, words.Say("absent", x)...)
		}
		if p := v.arped(addr); p != nil {
			shown = append(shown, v.arpEvidence(p))
			if p.Answered && !v.byGateway(p) {
				f.Confidence, held = model.Possible, append(held, p.MACs)
			}
		}
	}
	f.claims = func(d *model.Drop) bool { return gone[d.Dst] && d.Is(model.NeighborFailed) }
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
