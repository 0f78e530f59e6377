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

// DuplicatePodIP is the code of this finding.
const DuplicatePodIP model.Code = "DuplicatePodIP"

var duplicatePodIP = kind{
	code:     DuplicatePodIP,
	severity: model.Critical,
	find:     findDuplicatePodIP,
	ends:     []model.HopKind{model.HopRoute, model.HopNeighbor, model.HopBridge, model.HopPod},
}

// together is how long two pods must have had an address at once before it is
// no handing over: the former pod's interface may outlive its lease.
const together = 3 * time.Second

func findDuplicatePodIP(v *view) []finding {
	var out []finding
	for _, a := range sorted(v.pods) {
		if holders := liveHolders(v, a); len(holders) > 1 {
			out = append(out, duplicate(v, a, holders))
		}
		for _, p := range v.pods[a] {
			if b := v.bridgeOf(p); b != nil && p.Up && !a.IsLinkLocalUnicast() && v.holds(b.Name, a) {
				out = append(out, asGateway(v, a, p, b))
			}
		}
	}
	return append(out, contested(v)...)
}

// liveHolders are the pods that have had the address up for some time, one of each
// namespace.
func liveHolders(v *view, a netip.Addr) []*model.Pod {
	if len(v.pods[a]) < 2 {
		return nil
	}
	var out []*model.Pod
	for _, p := range v.pods[a] {
		l := v.links[p.LinkIndex]
		if l == nil || !l.Up || !p.Up || !v.stood(p) && v.Window.End.Sub(p.Since) < together {
			continue
		}
		same := func(o *model.Pod) bool {
			return o.LinkIndex == p.LinkIndex || o.Netns != 0 && o.Netns == p.Netns
		}
		if !slices.ContainsFunc(out, same) {
			out = append(out, p)
		}
	}
	return out
}

func duplicate(v *view, a netip.Addr, holders []*model.Pod) finding {
	var names []string
	f := model.Finding{
		Confidence: model.Proven,
		Pods:       []netip.Addr{a},
		Title:      "two pods have " + a.String(),
	}
	for _, p := range holders {
		names = append(names, words.PodName(p))
		observe(&f, model.SourcePods, "%s: %s has %s, MAC %s, behind %s", words.PodName(p), p.Interface, a, p.MAC, p.Link)
	}
	if len(holders) > 2 {
		f.Title = fmt.Sprintf("%d pods have %s", len(holders), a)
	}
	f.Why = fmt.Sprintf("The address %s is on live interfaces of %s.", a, strings.Join(names, " and of "))
	if way := wayTo(v, a); way.Text != "" {
		f.Evidence = append(f.Evidence, way)
	}
	if r := v.lookup(a); r != nil {
		f.LastHopAlive = v.place(v.linkName(r.IfIndex), model.Egress)
	}
	f.Fix = []string{"delete the pod that the cluster does not know by this address: kubectl get pods -A -o wide | grep " + a.String()}
	return finding{Finding: f, claims: confused(a)}
}

// asGateway is the finding on a pod that has an address of its own bridge, where its
// neighbours have their gateway.
func asGateway(v *view, a netip.Addr, p *model.Pod, b *model.Link) finding {
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         []netip.Addr{a},
		LastHopAlive: v.place(b.Name, model.Ingress),
		Title:        fmt.Sprintf("%s has %s, the address of %s", words.PodName(p), a, b.Name),
		Why: fmt.Sprintf("%s is on %s of %s, and on %s, the bridge that it is behind. Of the two, pods there send to whoever answered last.",
			a, p.Interface, words.PodName(p), b.Name),
		Evidence: []model.Evidence{
			seen(model.SourceLinks, "%s has %s, MAC %s", b.Name, a, b.MAC),
			seen(model.SourcePods, "%s: %s has %s, MAC %s, behind %s", words.PodName(p), p.Interface, a, p.MAC, p.Link),
		},
		Fix: []string{"delete that pod, and keep what gives pods their addresses from giving it this one: ip link set dev " + words.Quote(p.Link) + " down # until then"},
	}
	misled := map[netip.Addr]bool{a: true}
	for o := range model.Each(v.Pods) {
		for g := range model.Each(o.Gateways) {
			if g.Addr != a {
				continue
			}
			if g.MAC == p.MAC {
				observe(&f, model.SourcePods, "%s: neighbour %s %s", words.PodName(o), a, stateOf(g))
			}
			for _, x := range podAddrs(o) {
				misled[x] = true
			}
		}
	}
	f.Pods = sorted(misled)
	return finding{Finding: f, cutOff: f.Pods, claims: func(d *model.Drop) bool {
		return confused(a)(d) || p.Netns != 0 && d.Netns == p.Netns || misled[d.Src] && d.OtherHost()
	}}
}

// wayTo says which of several owners packets are led to: by the route's link,
// or on a bridge by the neighbour entry.
func wayTo(v *view, a netip.Addr) model.Evidence {
	r := v.lookup(a)
	if r == nil || !v.Has(model.SourceRoutes) {
		return model.Evidence{}
	}
	link := v.linkName(r.IfIndex)
	for n := range model.Each(v.Neighbors) {
		if n.Addr == a && n.IfIndex == r.IfIndex && path.Resolved(n) {
			return seen(model.SourceNeighbors, "the node sends to %s by %s, to %s: %s", a, link, n.MAC, v.owner(n.MAC))
		}
	}
	return seen(model.SourceRoutes, "the node sends to %s by %s", a, link)
}

// confused accounts for what becomes of packets of an address with two owners:
// they come to the wrong one, or from the one that the route does not lead to.
func confused(a netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		if d.Dst != a && d.Src != a {
			return false
		}
		switch d.Reason {
		case "OTHERHOST", "NO_SOCKET", "NEIGH_FAILED", "IP_RPFILTER", "IP_LOCAL_SOURCE":
			return true
		case "NOT_SPECIFIED", "":
			return socketMisses(d.Location) || d.OtherHost() || d.NeighborFailed() || d.Location == "ip_rcv_finish_core"
		}
		return false
	}
}

// socketMisses reports whether a function frees what no socket wants.
func socketMisses(location string) bool {
	switch location {
	case "tcp_v4_rcv", "tcp_v6_rcv", "__udp4_lib_rcv", "__udp6_lib_rcv", "udp_rcv", "udpv6_rcv", "raw_rcv", "ping_rcv":
		return true
	}
	return false
}

// arpClaim is an answer for a pod's address with another MAC than the pod's.
type arpClaim struct {
	addr netip.Addr
	mac  model.MAC
}

// contested finds pods of this node for which somebody beyond it answers ARP
// as well.
func contested(v *view) []finding {
	if !v.Has(model.SourcePods, model.SourceLinks, model.SourceTC) {
		return nil
	}
	answers := map[arpClaim]*model.ARPCount{}
	claimed := map[model.MAC]netip.Addr{}
	proxies := map[model.MAC]bool{}
	for a := range model.Each(v.Traffic.ARP) {
		// What leaves a port may be a rule's answer, or the node's own; what
		// comes in is somebody's.
		if !a.Reply || a.Direction != model.Ingress || a.MAC.IsZero() {
			continue
		}
		if other, ok := claimed[a.MAC]; ok && other != a.Addr {
			proxies[a.MAC] = true
		}
		claimed[a.MAC] = a.Addr
		if !foreign(v, a) {
			continue
		}
		k := arpClaim{a.Addr, a.MAC}
		if old := answers[k]; old == nil || a.Packets > old.Packets {
			answers[k] = a
		}
	}
	var out []finding
	for _, a := range answers {
		// A machine that has the node's address too may well have one of its own.
		if a.Packets >= minPackets && (!proxies[a.MAC] || v.ownAddress(a.Addr) != nil) {
			out = append(out, contest(v, a))
		}
	}
	slices.SortFunc(out, func(a, b finding) int { return strings.Compare(a.Title, b.Title) })
	return out
}

// foreign reports whether an ARP answer is for a pod that stood through the
// window, or for the node itself, by a MAC that is neither of this node nor the fabric's,
// which answers for all.
func foreign(v *view, a *model.ARPCount) bool {
	owners := v.pods[a.Addr]
	if own := v.ownAddress(a.Addr); own != nil && (own.Index == a.IfIndex || own.Index == v.masterOf(a.IfIndex)) {
		_, known := v.macs[a.MAC]
		return !known && !v.isGatewayMAC(a.MAC)
	}
	if len(owners) == 0 || len(v.podMACs(a.Addr)) == 0 || v.past[a.Addr] || v.isGatewayMAC(a.MAC) {
		return false
	}
	if _, known := v.macs[a.MAC]; known {
		return false
	}
	return v.stood(owners[0])
}

// ownAddress is the link that leads off the node and has an address as its first one;
// nil where none does. Further ones may be virtual, and move from node to node.
func (v *view) ownAddress(a netip.Addr) *model.Link {
	i := slices.IndexFunc(v.Links, func(l model.Link) bool { return v.outer[l.Index] && len(l.Addresses) > 0 && l.Addresses[0].Addr() == a })
	if i < 0 {
		return nil
	}
	return &v.Links[i]
}

func (v *view) masterOf(ifindex int) int {
	if l := v.links[ifindex]; l != nil {
		return l.Master
	}
	return 0
}

// contestNode is the finding on the node's own address, which another machine has too.
func contestNode(v *view, a *model.ARPCount, own *model.Link) finding {
	f := model.Finding{
		Confidence:   model.Likely,
		LastHopAlive: v.place(a.Link, model.Ingress),
		Title:        fmt.Sprintf("%s also answers for %s, the node's address", a.MAC, a.Addr),
		Why: fmt.Sprintf("%s has the address %s, and a machine behind it with the MAC %s answers ARP for it too. What is for the node, "+
			"and the replies to all pods that have its address, go to whoever answered last.", own.Name, a.Addr, a.MAC),
		Evidence: []model.Evidence{
			seen(model.SourceTC, "%s ingress: %s that %s is at %s", a.Link, words.Plural(a.Packets, "ARP reply", "ARP replies"), a.Addr, a.MAC),
			seen(model.SourceLinks, "%s has it, with MAC %s", own.Name, own.MAC),
		},
		Unseen:       []string{"the other machine: it is not on this node"},
		Alternatives: []string{"a machine that answers ARP for others (proxy_arp)"},
		Fix:          []string{"find the machine with the MAC " + a.MAC.String() + " behind " + words.Quote(a.Link) + ", and give it another address"},
	}
	everything := v.allSilent()
	return finding{
		Finding:  f,
		claims:   func(d *model.Drop) bool { return d.OtherHost() && d.Link == a.Link },
		silences: func(asker netip.Addr, _ netip.Prefix) bool { return everything || asker == a.Addr },
	}
}

func contest(v *view, a *model.ARPCount) finding {
	if own := v.ownAddress(a.Addr); own != nil {
		return contestNode(v, a, own)
	}
	p := v.pods[a.Addr][0]
	return finding{
		Finding: model.Finding{
			Confidence:   model.Likely,
			Pods:         []netip.Addr{a.Addr},
			LastHopAlive: v.place(a.Link, model.Ingress),
			Title:        fmt.Sprintf("%s also answers for %s", a.MAC, a.Addr),
			Why: fmt.Sprintf("%s has the address %s, and somebody behind %s with the MAC %s answers ARP for it too.",
				words.PodName(p), a.Addr, a.Link, a.MAC),
			Evidence: []model.Evidence{
				seen(model.SourceTC, "%s ingress: %s that %s is at %s", a.Link, words.Plural(a.Packets, "ARP reply", "ARP replies"), a.Addr, a.MAC),
				seen(model.SourcePods, "%s behind %s has it, with MAC %s", words.PodName(p), p.Link, p.MAC),
			},
			Unseen:       []string{"the other machine: it is not on this node"},
			Alternatives: []string{"a machine that answers ARP for others (proxy_arp)"},
			Fix:          []string{"find the machine with the MAC " + a.MAC.String() + " behind " + words.Quote(a.Link)},
		},
		claims: confused(a.Addr),
		cause:  belief{a.Addr, a.MAC},
	}
}
