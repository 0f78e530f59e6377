package neighbor

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// UnansweredARP reports pods and next hops that do not answer ARP or neighbor discovery.
var UnansweredARP = fault.Kind{Code: "UnansweredARP", Severity: model.Warning, Find: unansweredARP,
	Rests: fault.Sources{model.SourcePods, model.SourceRoutes}, Ends: fault.Hops{model.HopPod, model.HopNeighbor},
	Objects: fault.Objects{"port remotes"}, Traits: model.ByNextHop,
	Else: fault.Else{"UnansweredARP-unheld", "UnansweredARP !right !setting !noarp"}}

func unansweredARP(v *fault.Input) {
	// One setting that silences the node for several pods is one cause.
	var byCause node.Groups[any, []unanswered]
	hops, watched, stuck := v.SilentNextHops(), v.Has(model.SourceTC), v.Stuck()
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.NextHops()) {
			pods := node.SameFamily(node.PodAddrs(p), g.Addr)
			if path.Resolved(g) || len(pods) == 0 || v.Silenced(pods[0], model.Host(g.Addr)) || stuck[pods[0]] {
				continue
			}
			t := v.Resolutions(model.Ingress)[node.Question{Ifindex: p.LinkIndex, Addr: g.Addr}]
			if asksBeyond(v.Index, hops, p, g, t) || watched && !t.InVain() ||
				!watched && g.State != "FAILED" && g.State != "INCOMPLETE" || refuses(v, p, g) || unrouted(v, pods[0]) {
				continue
			}
			x := unanswered{p, pods, words.Facts{"pod": p, "gateway": g, "watched": watched, "requests": t.Requests}}
			var cause any = g
			l := v.Router(p)
			if l != nil && l.NoARP {
				x.facts["noarp"], cause = l, l
			} else if right := fixedMAC(v.Index, p, g); !right.IsZero() {
				// With the setting alone the node would still not answer: it does not for the others either, which need no answer.
				x.facts["right"] = right
			} else if setting := whySilent(v.Index, p, g); setting != nil {
				x.facts["setting"] = setting
				if watched {
					cause = *setting
				}
			} else if l != nil && !v.Routed(p) {
				// A bridge is one gateway for all.
				cause = node.Question{Ifindex: l.Index, Addr: g.Addr}
			}
			node.Put(&byCause, cause, x)
		}
	}
	for _, list := range byCause.All() {
		v.Report(unansweredGateway(v, *list))
	}
	unheldAddresses(v)
	silentBeyond(v, hops)
}

// unrouted reports whether the kernel does not answer a pod (arp_process) for want of a route, which is the cause: the node has
// no way back to it, or none to what it would be a proxy of.
func unrouted(v *fault.Input, pod netip.Addr) bool {
	back := v.Routing().Lookup(path.Query{Dst: pod})
	return back.Discards() || v.Unrouted(pod).IsValid()
}

// refuses reports whether a rule drops the pod's solicitations, or the answers to them: it is the cause.
func refuses(v *fault.Input, p *model.Pod, g *model.Neighbor) bool {
	group, pods := model.SolicitedNode(g.Addr), node.PodAddrs(p)
	return group.IsValid() && v.Dropped(func(d *model.Drop) bool {
		return d.Is(model.Netfilter) && (d.Dst == group && slices.Contains(pods, d.Src) ||
			d.Src == g.Addr && slices.Contains(pods, d.Dst) && v.Classifier.Samples.Advertised(d))
	}) > 0
}

// unanswered is a pod that does not learn its gateway's MAC.
type unanswered struct {
	pod   *model.Pod
	addrs []netip.Addr
	facts words.Facts
}

// unansweredGateway is the finding on pods that do not learn their gateways' MACs for one cause.
func unansweredGateway(v *fault.Input, list []unanswered) fault.Fault {
	f := fault.Fault{Facts: list[0].facts}
	f.Severity, f.LastHopAlive = model.Critical, v.Place(list[0].pod.Link, model.Ingress)
	var shown []model.Evidence
	for _, x := range list {
		packets := v.Dropped(func(d *model.Drop) bool { return slices.Contains(x.addrs, d.Src) && d.Is(model.NeighborFailed) })
		x.facts["packets"] = packets
		shown = append(shown, words.Say("gateway", x.facts)...)
		f.Pods, f.Packets = append(f.Pods, x.addrs...), f.Packets+packets
	}
	f.Pods = model.Unique(f.Pods)
	quiet, _ := f.Facts["noarp"].(*model.Link)
	f.Claims = func(d *model.Drop) bool {
		return slices.Contains(f.Pods, d.Src) && d.Is(model.NeighborFailed) || quiet != nil && d.IfIndex == quiet.Index && d.FromOrTo(f.Pods)
	}
	f.Facts["shown"], f.Facts["joined"] = shown, len(list) > 1
	if f.Facts["watched"] == false {
		f.Confidence = model.Possible
	}
	return f
}

// fixedMAC is the MAC that a pod should have for its gateway as another pod has a permanent
// entry for it: that of the node's end of its link, where it is routed, or else the other's.
func fixedMAC(v *node.Index, p *model.Pod, g *model.Neighbor) model.MAC {
	for o := range model.Each(v.Pods) {
		h := model.First(o.Gateways,
			func(h *model.Neighbor) bool { return h.Addr == g.Addr && h.State == "PERMANENT" && path.Resolved(h) })
		switch {
		case o == p || h == nil:
		case v.Routed(p):
			return v.ByIndex[p.LinkIndex].MAC
		default:
			return h.MAC
		}
	}
	return model.MAC{}
}

// whySilent finds the setting that keeps the node from answering a pod for its gateway;
// nil when it is not a setting, or they are unread.
func whySilent(v *node.Index, p *model.Pod, g *model.Neighbor) *model.Sysctl {
	l := v.Router(p)
	if l == nil || !v.Routed(p) && v.Own[g.Addr] == nil || !v.Has(model.SourceLinks) {
		return nil
	}
	link := l.Name
	// IPv6 answers for the link's own addresses alone.
	proxy, all, own := path.LinkSetting(link, "proxy_arp"), path.LinkSetting("all", "proxy_arp"), v.Own[g.Addr] != nil
	if g.Addr.Is6() {
		proxy, all = path.LinkSetting6(link, "proxy_ndp"), path.LinkSetting6("all", "proxy_ndp")
		own = v.Holds(link, g.Addr)
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
		if x := set[name]; x != "" && x != "0" && (x == "8" || !v.Holds(link, g.Addr)) {
			return &model.Sysctl{Name: name, Value: x}
		}
	}
	return nil
}

// everySecond is how often the kernel asks again for a neighbour that is wanted.
const everySecond = time.Second

// unheldAddresses finds the addresses of this node's own pod ranges that no pod holds
// and that its pods keep asking for.
func unheldAddresses(v *fault.Input) {
	if !v.Has(model.SourcePods, model.SourceTC) {
		return
	}
	found := map[netip.Addr]*node.Lost{}
	for a, l := range fault.LostBy(v, func(d *model.Drop) (addr, asker netip.Addr) {
		if !d.Is(model.NeighborFailed) || !v.Vacant(d.Dst) || len(v.Owners[d.Src]) == 0 {
			return addr, asker
		}
		return d.Dst, d.Src
	}) {
		// Who asks a while for a pod that was just deleted is no news.
		often := max(uint64(v.Window.Duration()/everySecond)/2, node.MinDrops)
		if t := askedFor(v.Index, a); t.Requests >= often && t.Replies == 0 {
			found[a] = l
		}
	}
	// Who asks for several addresses has one reason to.
	var byAskers node.Groups[string, []netip.Addr]
	for _, addr := range node.Sorted(found) {
		node.Put(&byAskers, fmt.Sprint(node.Sorted(found[addr].Pods)), addr)
	}
	for _, list := range byAskers.All() {
		v.Report(nobodyHas(v.Index, *list, found))
	}
}

// askedFor counts the requests for an address: the pods', or those of the node, which routes what they send there.
func askedFor(v *node.Index, a netip.Addr) node.Resolution {
	t := v.Resolutions(model.Ingress)[node.Question{Addr: a}]
	for l := range model.Each(v.Links) {
		own := v.Resolutions(model.Egress)[node.Question{Ifindex: l.Index, Addr: a}]
		if l.Kind == "bridge" && !v.Outer[l.Index] {
			t.Requests, t.Replies = t.Requests+own.Requests, t.Replies+own.Replies
		}
	}
	return t
}

// nobodyHas is the finding on addresses that the same pods keep asking for.
func nobodyHas(v *node.Index, addrs []netip.Addr, found map[netip.Addr]*node.Lost) fault.Fault {
	f := fault.Fault{Page: "UnansweredARP-unheld"}
	f.Pods, f.Peers = node.Sorted(found[addrs[0]].Pods), model.Hosts(addrs)
	asker := v.Owners[f.Pods[0]][0]
	f.LastHopAlive = v.Place(asker.Link, model.Ingress)
	var shown []model.Evidence
	var held [][]model.MAC
	gone := node.SetOf(addrs)
	for i, addr := range addrs {
		f.Packets += found[addr].Packets
		if i < node.MostEvidence {
			x := words.Facts{"addr": addr, "packets": found[addr].Packets, "requests": askedFor(v, addr).Requests}
			shown = append(shown, words.Say("absent", x)...)
		}
		if p := v.Arped(addr); p != nil {
			shown = append(shown, v.ARPEvidence(p))
			if p.Answered && !v.ByGateway(p) {
				f.Confidence, held = model.Possible, append(held, p.MACs)
			}
		}
	}
	f.Claims = func(d *model.Drop) bool { return gone[d.Dst] && d.Is(model.NeighborFailed) }
	f.Facts = words.Facts{"addrs": addrs, "shown": shown, "held": held, "asker": asker, "scan": len(addrs) > node.Sweep}
	if len(addrs) > node.Sweep {
		f.Severity = model.Info
	} else {
		f.Facts["first"] = addrs[:min(len(addrs), node.MostEvidence)]
	}
	return f
}
