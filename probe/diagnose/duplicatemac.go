package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// DuplicateMAC is the code of this finding.
const DuplicateMAC model.Code = "DuplicateMAC"

var duplicateMAC = kind{
	code:     DuplicateMAC,
	severity: model.Critical,
	find:     findDuplicateMAC,
	ends:     []model.HopKind{model.HopBridge, model.HopPod, model.HopNeighbor}, // the node may still hold the MAC that one had
}

func findDuplicateMAC(v *view) []finding {
	if !v.Has(model.SourceLinks) || v.Status(model.SourcePods) == model.Missing {
		return nil
	}
	type segment struct {
		bridge int
		mac    model.MAC
	}
	groups := map[segment][]*model.Pod{}
	var order []segment
	for p := range model.Each(v.Pods) {
		b := v.bridgeOf(p)
		if b == nil || p.MAC.IsZero() || !v.enterable(p) {
			continue
		}
		k := segment{b.Index, p.MAC}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], p)
	}
	var out []finding
	for _, k := range order {
		if list := groups[k]; len(list) > 1 && !v.apart(k.bridge, list) {
			out = append(out, sharedMAC(v, list))
		}
	}
	return out
}

// apart reports whether the bridge keeps the pods in VLANs of their own, where each
// MAC is looked up by itself.
func (v *view) apart(bridge int, list []*model.Pod) bool {
	at := map[int]int{}
	for e := range model.Each(v.FDB) {
		if e.Bridge == bridge && e.MAC == list[0].MAC && e.VLAN != 0 {
			at[e.VLAN] = e.IfIndex
		}
	}
	heard := map[int]bool{}
	for _, port := range at {
		heard[port] = true
	}
	return !slices.ContainsFunc(list, func(p *model.Pod) bool { return !heard[p.LinkIndex] })
}

func sharedMAC(v *view, list []*model.Pod) finding {
	bridge := v.bridgeOf(list[0])
	var names []string
	f := model.Finding{
		Confidence:   model.Likely,
		LastHopAlive: v.place(bridge.Name, model.Egress),
		Title:        fmt.Sprintf("%s pods have the MAC %s", countWord(len(list)), list[0].MAC),
		Unseen:       []string{"a packet at the wrong pod"},
		Alternatives: []string{"the bridge's VLANs keep the pods apart"},
	}
	for _, p := range list {
		names = append(names, words.PodName(p))
		f.Pods = append(f.Pods, podAddrs(p)...)
		observe(&f, model.SourcePods, "%s: %s has %s, behind %s", words.PodName(p), p.Interface, p.MAC, p.Link)
	}
	for e := range model.Each(v.FDB) {
		if e.Bridge == bridge.Index && e.MAC == list[0].MAC && !e.Local {
			observe(&f, model.SourceBridge, "%s sends frames for it by %s at present", bridge.Name, v.linkName(e.IfIndex))
			break
		}
	}
	f.Why = fmt.Sprintf("%s have one MAC behind the bridge %s, which sends frames for either to the port where it heard that MAC last.",
		strings.Join(names, " and "), bridge.Name)
	misled := v.strayFrames(list)
	if len(misled) > 0 {
		f.Confidence, f.Unseen, f.Alternatives = model.Proven, nil, nil
		f.Evidence = append(f.Evidence, misled...)
	}
	lost := func(d *model.Drop) bool {
		return (slices.Contains(f.Pods, d.Dst) || slices.Contains(f.Pods, d.Src)) && v.atWrongPod(d, list)
	}
	f.Packets = v.dropped(lost)
	observeSome(&f, f.Packets, model.SourceDrops, "%s for one pod freed in another", words.Count(f.Packets, "packet"))
	f.Fix = v.anotherMAC(list)
	return finding{Finding: f, cutOff: f.Pods, claims: lost}
}

func countWord(n int) string {
	if n == 2 {
		return "two"
	}
	return fmt.Sprint(n)
}

// atWrongPod reports whether a packet was freed in a pod of the list that does not
// have its address, or waited in vain for a reply that went there.
func (v *view) atWrongPod(d *model.Drop, list []*model.Pod) bool {
	return d.NeighborFailed() || slices.ContainsFunc(list, func(p *model.Pod) bool { return d.Netns == p.Netns && !p.Has(d.Dst) })
}

// strayFrames are the packets for one pod that left by another's port.
func (v *view) strayFrames(list []*model.Pod) []model.Evidence {
	var out []model.Evidence
	for _, p := range list {
		for _, a := range podAddrs(p) {
			for _, o := range list {
				if n := v.frames(a, o.LinkIndex, model.Egress, model.AsDestination, p.MAC); o != p && n >= minDrops {
					out = append(out, seen(model.SourceTC, "%s egress: %s for %s, which is behind %s", o.Link, words.Count(n, "packet"), a, p.Link))
				}
			}
		}
	}
	return out
}

// anotherMAC gives all but one of the pods another MAC: the one that the node's
// entries or rules hold for it, else one that nobody on the node has. The pod that
// keeps the shared one is the first that nothing gives another.
func (v *view) anotherMAC(list []*model.Pod) []string {
	given := func(p *model.Pod) model.MAC { return v.givenMAC(p) }
	keeper := slices.IndexFunc(list, func(p *model.Pod) bool { return given(p).IsZero() })
	if i := slices.IndexFunc(list, v.namesake); i >= 0 && given(list[i]).IsZero() {
		keeper = i
	}
	if keeper < 0 {
		keeper = 0
	}
	var out []string
	taken := map[model.MAC]bool{}
	for m := range v.macs {
		taken[m] = true
	}
	for i, p := range list {
		if i == keeper {
			continue
		}
		m := given(p)
		if m.IsZero() {
			m = free(p.MAC, taken)
		}
		taken[m] = true
		out = append(out, announce(p)...)
		out = append(out, fmt.Sprintf("%sip link set dev %s address %s", words.Inside(p), words.Quote(p.Interface), m))
	}
	return out
}

// announce has the pod tell its peers when its MAC changes, which hold the former
// one for a while.
func announce(p *model.Pod) []string {
	link := strings.ReplaceAll(p.Interface, ".", "/")
	var out []string
	if len(ownIn(p, false)) > 0 {
		out = append(out, words.Inside(p)+words.SetSysctl("net.ipv4.conf."+link+".arp_notify", "1"))
	}
	if len(ownIn(p, true)) > 0 {
		out = append(out, words.Inside(p)+words.SetSysctl("net.ipv6.conf."+link+".ndisc_notify", "1"))
	}
	return out
}

// namesake reports whether a pod's MAC is made of its own address.
func (v *view) namesake(p *model.Pod) bool {
	return slices.ContainsFunc(podAddrs(p), func(a netip.Addr) bool { return named(p.MAC, a) })
}

// givenMAC is the MAC that a pinned neighbour entry or a bridge rule of the node
// holds for a pod's address, where it is another than the pod has and nobody has
// it; zero for none.
func (v *view) givenMAC(p *model.Pod) model.MAC {
	fits := func(m model.MAC) bool {
		_, used := v.macs[m]
		return !used && !m.IsZero() && !m.IsMulticast() && m != p.MAC
	}
	for n := range model.Each(v.Neighbors) {
		if n.State == "PERMANENT" && p.Has(n.Addr) && fits(n.MAC) {
			return n.MAC
		}
	}
	for r := range model.Each(v.FrameRules) {
		for _, m := range []model.AddrMatch{r.ARPDst, r.IPDst} {
			if !m.IsZero() && !m.Not && m.Prefix.IsSingleIP() && p.Has(m.Prefix.Addr()) && fits(r.MAC) {
				return r.MAC
			}
		}
	}
	return model.MAC{}
}

// free is a locally administered MAC close to m that is not taken.
func free(m model.MAC, taken map[model.MAC]bool) model.MAC {
	m[0] = m[0]&^1 | 2
	for taken[m] {
		m[5]++
		if m[5] == 0 {
			m[4]++
		}
	}
	return m
}
