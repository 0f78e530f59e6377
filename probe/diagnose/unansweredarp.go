package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
	asked, hops := resolutions(v), v.silentNextHops()
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
			if found, ok := unansweredGateway(v, p, g, t); ok {
				out = joinBySetting(out, found)
			}
		}
	}
	out = append(out, unheldAddresses(v, asked)...)
	return append(out, v.silentBeyond(hops)...)
}

// joinBySetting adds a finding to those that are there: one setting that silences the
// node for several pods is one cause.
func joinBySetting(list []finding, f finding) []finding {
	at := slices.IndexFunc(list, func(o finding) bool {
		return f.Confidence == model.Proven && o.Confidence == model.Proven && slices.Equal(o.Fix, f.Fix)
	})
	if at < 0 {
		return append(list, f)
	}
	o, first := &list[at], list[at].claims
	o.Pods, o.Packets, o.Evidence = append(o.Pods, f.Pods...), o.Packets+f.Packets, append(o.Evidence, f.Evidence...)
	slices.SortFunc(o.Pods, netip.Addr.Compare)
	o.Title = "nobody answers " + words.Addrs(o.Pods) + " for their gateway"
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

// resolutions counts the requests that came from each link, and the replies that
// were sent there.
func resolutions(v *view) map[question]talk {
	out := map[question]talk{}
	for a := range model.Each(v.Traffic.ARP) {
		k := question{a.IfIndex, a.Addr}
		t := out[k]
		switch {
		case !a.Reply && a.Direction == model.Ingress:
			t.requests += a.Packets
		case a.Reply && a.Direction == model.Egress:
			t.replies += a.Packets
		}
		out[k] = t
	}
	return out
}

// unansweredGateway is the finding on a pod that does not learn its gateway's MAC.
func unansweredGateway(v *view, p *model.Pod, g *model.Neighbor, t talk) (finding, bool) {
	watched := v.Has(model.SourceTC)
	if watched && (t.requests < minDrops || t.replies > 0) || !watched && g.State != "FAILED" && g.State != "INCOMPLETE" {
		return finding{}, false
	}
	pods := sameFamily(podAddrs(p), g.Addr)
	lost := func(d *model.Drop) bool { return slices.Contains(pods, d.Src) && d.NeighborFailed() }
	f := model.Finding{
		Severity:     model.Critical,
		Confidence:   model.Likely,
		Pods:         pods,
		LastHopAlive: v.place(p.Link, model.Ingress),
		Title:        fmt.Sprintf("nobody answers %s for its gateway", words.PodName(p)),
		Packets:      v.dropped(lost),
		Evidence:     []model.Evidence{seen(model.SourcePods, "in the pod, on %s: neighbour %s %s", p.Interface, g.Addr, stateOf(g))},
	}
	if watched {
		observe(&f, model.SourceTC, "%s ingress: %s for %s; egress: no reply", p.Link, words.Count(t.requests, words.Request(g.Addr)), g.Addr)
	}
	cause, setting := whySilent(v, p, g)
	if like := v.hasFixed(p, g); like != nil {
		// With the setting alone the node would still not answer: it does not for
		// the others either, which need no answer.
		f.Title = fmt.Sprintf("%s has lost the entry for its gateway", words.PodName(p))
		f.Why = fmt.Sprintf("%s asks for the MAC of its gateway %s on %s, and gets no answer. Other pods do not ask: they have a permanent entry for it, which this pod lacks.",
			words.PodName(p), g.Addr, p.Link)
		observe(&f, model.SourcePods, "other pods: neighbour %s %s", g.Addr, stateOf(like))
		f.Fix = []string{fmt.Sprintf("%s%s neigh replace %s lladdr %s dev %s nud permanent", words.Inside(p), words.IP(g.Addr), g.Addr, v.macTowards(p, like), words.Quote(p.Interface))}
		if watched {
			f.Confidence = model.Proven
		}
	} else if setting.Name == "" {
		f.Why = fmt.Sprintf("%s asks for the MAC of its gateway %s on %s, and gets no answer.", words.PodName(p), g.Addr, p.Link)
		f.Unseen = []string{"why nobody answers"}
		f.Alternatives = []string{"a filter drops " + protocol(g.Addr), "the gateway is not there"}
		f.Fix = []string{fmt.Sprintf("ip -d link show dev %s; sysctl -a | grep -E 'arp|proxy_ndp'", words.Quote(p.Link))}
	} else {
		f.Why = fmt.Sprintf("%s asks for the MAC of its gateway %s on %s, and %s.", words.PodName(p), g.Addr, p.Link, cause)
		observe(&f, model.SourceSysctl, "%s = %s", setting.Name, setting.Value)
		f.Fix = []string{words.SetSysctl(setting.Name, flipped(setting.Value))}
		if watched {
			f.Confidence = model.Proven
		}
	}
	if !watched {
		f.Confidence = model.Possible
		f.Unseen = append(f.Unseen, protocol(g.Addr)+": packets were not watched")
	}
	if f.Packets > 0 {
		observe(&f, model.SourceDrops, "%s of the pod dropped: neighbour resolution failed", words.Count(f.Packets, "packet"))
	}
	return finding{Finding: f, claims: lost}, true
}

// hasFixed is another pod's permanent entry for the same gateway, nil where none has one.
func (v *view) hasFixed(p *model.Pod, g *model.Neighbor) *model.Neighbor {
	for o := range model.Each(v.Pods) {
		for h := range model.Each(o.Gateways) {
			if o != p && h.Addr == g.Addr && h.State == "PERMANENT" && !h.MAC.IsZero() {
				return h
			}
		}
	}
	return nil
}

// macTowards is the MAC that a pod's gateway has for it: that of the node's end of its
// link, where it is routed, or else the one that other pods have.
func (v *view) macTowards(p *model.Pod, like *model.Neighbor) model.MAC {
	if l := v.links[p.LinkIndex]; l != nil && v.routed(p) {
		return l.MAC
	}
	return like.MAC
}

// flipped is what mends a setting: off where it is on, on where it is off.
func flipped(value string) string {
	if value == "0" {
		return "1"
	}
	return "0"
}

// whySilent finds the setting that keeps the node from answering a routed pod
// for its gateway; none when it is not a setting, or they are unread.
func whySilent(v *view, p *model.Pod, g *model.Neighbor) (string, model.Sysctl) {
	link := p.Link
	if b := v.bridgeOf(p); b != nil && v.nodeAddrs[g.Addr] {
		link = b.Name
	} else if !v.routed(p) {
		return "", model.Sysctl{}
	}
	if !v.Has(model.SourceLinks) {
		return "", model.Sysctl{}
	}
	family := "ipv4"
	if g.Addr.Is6() {
		family = "ipv6"
	}
	of := func(link, setting string) model.Sysctl {
		name := "net." + family + ".conf." + strings.ReplaceAll(link, ".", "/") + "." + setting
		return model.Sysctl{Name: name, Value: v.sysctls()[name]}
	}
	if g.Addr.Is6() {
		// IPv6 answers for the link's own addresses alone.
		proxy, all := of(link, "proxy_ndp"), of("all", "proxy_ndp")
		if !v.holds(link, g.Addr) && proxy.Value == "0" && all.Value == "0" {
			return "the node answers there for what is not the link's own only with proxy_ndp, which is off", proxy
		}
		return "", model.Sysctl{}
	}
	proxy, all := of(link, "proxy_arp"), of("all", "proxy_arp")
	if !v.nodeAddrs[g.Addr] {
		if proxy.Value == "0" && all.Value == "0" {
			return "the node answers for others only with proxy_arp, which is off", proxy
		}
		return "", model.Sysctl{}
	}
	// The higher of the two counts. From 1 on, an address of another link is
	// not answered for; from 8 on, none.
	for _, s := range []model.Sysctl{of(link, "arp_ignore"), of("all", "arp_ignore")} {
		if s.Value != "" && s.Value != "0" && (s.Value == "8" || !v.holds(link, g.Addr)) {
			return "the node has that address and must not answer here, by arp_ignore", s
		}
	}
	return "", model.Sysctl{}
}

// absent is an address that no pod holds, and what was lost to it.
type absent struct {
	addr    netip.Addr
	askers  map[netip.Addr]bool
	packets uint64
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
		if !d.NeighborFailed() || len(v.pods[d.Dst]) > 0 || v.past[d.Dst] || v.nodeAddrs[d.Dst] || len(v.pods[d.Src]) == 0 ||
			!inAny(v.ranges.local, d.Dst) || v.explained(d) {
			continue
		}
		a := found[d.Dst]
		if a == nil {
			a = &absent{addr: d.Dst, askers: map[netip.Addr]bool{}}
			found[d.Dst] = a
		}
		a.askers[d.Src] = true
		a.packets += d.Packets
	}
	for k, t := range asked {
		if a := found[k.addr]; a != nil {
			a.requests += t.requests
			a.replies += t.replies
		}
	}
	// Who asks for several addresses has one reason to.
	byAskers := map[string][]*absent{}
	for _, a := range found {
		// Who asks a while for a pod that was just deleted is no news.
		often := max(uint64(v.Window.Duration()/everySecond)/2, minDrops)
		if a.packets >= minDrops && a.requests >= often && a.replies == 0 {
			who := fmt.Sprint(sorted(a.askers))
			byAskers[who] = append(byAskers[who], a)
		}
	}
	var out []finding
	for _, list := range byAskers {
		slices.SortFunc(list, func(a, b *absent) int { return a.addr.Compare(b.addr) })
		out = append(out, nobodyHas(v, list))
	}
	slices.SortFunc(out, func(a, b finding) int { return strings.Compare(a.Title, b.Title) })
	return out
}

// nobodyHas is the finding on addresses that the same pods keep asking for.
func nobodyHas(v *view, list []*absent) finding {
	askers, gone := sorted(list[0].askers), map[netip.Addr]bool{}
	f := model.Finding{
		Confidence: model.Likely, Pods: askers, LastHopAlive: v.place(v.pods[askers[0]][0].Link, model.Ingress),
		Unseen:       []string{"who had the address before"},
		Alternatives: []string{"the pod is on its way, or was deleted and its peers still send to it"},
	}
	for i, a := range list {
		gone[a.addr] = true
		f.Packets += a.packets
		if i < mostEvidence {
			observe(&f, model.SourceDrops, "%s for %s dropped: neighbour resolution failed", words.Count(a.packets, "packet"), a.addr)
			observe(&f, model.SourceTC, "%s for %s from pods, no reply", words.Count(a.requests, words.Request(a.addr)), a.addr)
			observe(&f, model.SourcePods, "no pod of this node holds %s", a.addr)
			f.Fix = append(f.Fix, "kubectl get endpointslices -A -o wide | grep "+a.addr.String())
		}
		if p := v.arped(a.addr); p != nil {
			f.Evidence = append(f.Evidence, v.arpEvidence(p))
			if p.Answered && !v.byGateway(p) {
				f.Confidence = model.Possible
				f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s has the address, is no pod that is known, and the pods' requests do not get to it", words.Addrs(p.MACs)))
			}
		}
	}
	absentees := sorted(gone)
	f.Peers = hosts(absentees)
	f.Title = "no pod has " + words.Addrs(absentees)
	what := "The address is of this node's pod range, no pod holds it, and nobody answers for it."
	if len(absentees) > 1 {
		what = "These addresses are of this node's pod range, no pod holds them, and nobody answers for them."
	}
	f.Why = fmt.Sprintf("%s of this node keep sending to %s. %s", words.Count(uint64(len(askers)), "pod"), words.Addrs(absentees), what)
	if len(absentees) > sweep {
		f.Severity = model.Info
		f.Title = fmt.Sprintf("%s asks for %d addresses that no pod has", words.Addrs(askers), len(absentees))
		f.Why += " So many are asked for by a scan."
		f.Fix = []string{"look at what runs in " + words.PodName(v.pods[askers[0]][0]) + ": a scan that is meant needs no cure"}
	}
	return finding{Finding: f, claims: func(d *model.Drop) bool { return gone[d.Dst] && d.NeighborFailed() }}
}

// mostEvidence is how many of several like addresses are shown one by one.
const mostEvidence = 3
