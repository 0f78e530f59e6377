package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// HairpinDrop is the code of this finding.
const HairpinDrop model.Code = "HairpinDrop"

var hairpinDrop = kind{
	code:     HairpinDrop,
	severity: model.Warning,
	find:     findHairpinDrop,
}

func findHairpinDrop(v *view) []finding {
	var l lost
	inPod := map[netip.Addr]bool{}
	answered := v.hairpinsAnswered()
	for d := range model.Each(v.Traffic.Drops) {
		if v.hairpin(d) && !answered[d.Src] && !v.explained(d) && v.drops.Lost(d) {
			l.addFor(d.Src, d)
			inPod[d.Src] = inPod[d.Src] || d.OwnSource()
		}
	}
	if l.packets < minDrops {
		return nil
	}
	f := l.finding()
	f.Title = "hairpin service traffic to " + words.Addrs(f.Pods) + " is dropped"
	f.Why = fmt.Sprintf("What %s ask of a service comes back to who asked, with the pod's own address as source, and is dropped.", words.Addrs(f.Pods))
	f.LastHopAlive = v.place(v.pods[f.Pods[0]][0].Link, model.Ingress)
	if inPod[f.Pods[0]] {
		f.LastHopAlive.Direction = model.Egress
	}
	var shown []model.Evidence
	f.Peers, shown = v.hairpinServices(l.pods)
	f.Evidence = append(l.evidence(), shown...)
	if len(shown) == 0 {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "a flow that a service address led back")
		f.Alternatives = append(f.Alternatives, "somebody else sends with the pod's address")
	}
	for _, a := range f.Pods {
		if l := v.links[v.pods[a][0].LinkIndex]; l != nil && l.Master != 0 && !l.Hairpin {
			f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceLinks, Text: l.Name + ", a port of a bridge: hairpin off"})
			f.Fix = append(f.Fix, fmt.Sprintf("bridge link set dev %s hairpin on", words.Quote(l.Name)))
		}
		f.Fix = append(f.Fix, fmt.Sprintf("%s -t nat -I POSTROUTING -s %s -d %s -j MASQUERADE", words.IPTables(a), a, a))
	}
	return []finding{{Finding: f, claims: func(d *model.Drop) bool { return v.hairpin(d) && l.pods[d.Src] }}}
}

// hairpinsAnswered are the pods that hear all that they ask of themselves, since its
// source is translated as well: what is dropped is the second copy, which a
// promiscuous bridge hands to the node and which kubenet's chain holds back.
func (v *view) hairpinsAnswered() map[netip.Addr]bool {
	out, silent := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for f := range model.Each(v.Flows) {
		a := f.Original.Src
		if f.Reply.Src != a || f.Original.Dst == a {
			continue
		}
		out[a] = out[a] || f.Replied && f.Reply.Dst != a
		// One whose source was translated too has passed; its reply is on its way.
		silent[a] = silent[a] || !f.Replied && f.Reply.Dst == a && !f.Start.IsZero()
	}
	maps.DeleteFunc(out, func(a netip.Addr, answered bool) bool { return !answered || silent[a] })
	return out
}

// hairpinServices finds the services whose translation leads the pods back to
// themselves, and what shows it. A packet that is dropped before it is delivered
// leaves no flow; the rule has counted it.
func (v *view) hairpinServices(pods map[netip.Addr]bool) ([]netip.Prefix, []model.Evidence) {
	services := map[netip.Prefix]bool{}
	var shown []model.Evidence
	for f := range model.Each(v.Flows) {
		if a := f.Original.Src; pods[a] && f.Reply.Src == a && f.Original.Dst != a {
			services[host(f.Original.Dst)] = true
		}
	}
	if len(services) > 0 {
		shown = append(shown, model.Evidence{Source: model.SourceConntrack, Text: fmt.Sprintf(
			"flows to %s lead back to the pod that began them", words.Addrs(slices.SortedFunc(maps.Keys(services), comparePrefix)))})
	}
	for r := range model.Each(v.PacketRules) {
		if r.Target != "DNAT" || !pods[r.To.Addr()] || r.Counter.Delta == 0 {
			continue
		}
		if !r.Dst.IsZero() && !r.Dst.Not && r.Dst.Prefix.IsSingleIP() {
			services[r.Dst.Prefix] = true
		}
		shown = append(shown, packetRuleEvidence("this rule leads to the pod, whoever asks", r))
	}
	return slices.SortedFunc(maps.Keys(services), comparePrefix), shown
}

// hairpin reports whether a dropped packet is from a running pod to itself and had
// left the pod: the node dropped it, or the pod when it came back. Packets over the
// pod's own loopback never left it.
func (v *view) hairpin(d *model.Drop) bool {
	if d.Src != d.Dst || len(v.pods[d.Src]) == 0 {
		return false
	}
	if d.OwnSource() {
		return true
	}
	return (d.Netns == 0 || d.Netns == v.Node.Netns) && d.IfIndex != loopback && !d.NoSocket() && !d.Delivered() && whatWasFull(d) == ""
}

// loopback is the index of every namespace's loopback link.
const loopback = 1
