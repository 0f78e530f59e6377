package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// PodAddress is the code of this finding.
const PodAddress model.Code = "PodAddress"

var podAddress = kind{
	code:     PodAddress,
	severity: model.Critical,
	find:     findPodAddress,
	ends:     []model.HopKind{model.HopPod, model.HopNeighbor},
}

func findPodAddress(v *view) []finding {
	var out []finding
	for p := range model.Each(v.Pods) {
		for _, a := range p.Duplicates {
			out = append(out, v.duplicateDetected(p, a))
		}
	}
	for p := range v.enterablePods() {
		for _, isIPv6 := range []bool{false, true} {
			if f, ok := withoutAddress(v, p, isIPv6); ok {
				out = append(out, f)
				if len(f.Pods) == 0 {
					break
				}
			}
		}
	}
	return out
}

// duplicateDetected is the finding on an address that a pod's interface has and that the
// kernel does not use, since it was another machine's when it was added.
func (v *view) duplicateDetected(p *model.Pod, a netip.Addr) finding {
	u := v.unclaimed(p, []netip.Addr{a})
	f := model.Finding{
		Confidence: model.Proven, Pods: []netip.Addr{a}, LastHopAlive: v.place(p.Link, model.Egress), Packets: u.packets(),
		Title: fmt.Sprintf("%s of %s failed duplicate address detection", a, words.PodName(p)),
		Why: fmt.Sprintf("When %s was added to %s of %s, another machine answered for it. The kernel does not use such an address: the pod sends no "+
			"packet with it and answers no neighbour solicitation for it.", a, p.Interface, words.PodName(p)),
		Evidence: append([]model.Evidence{seen(model.SourcePods, "in the pod: inet6 %s dev %s dadfailed tentative", a, p.Interface)}, u.evidence...),
		Unseen:   []string{"who has the address as well, and whether it still does"},
	}
	for _, o := range v.pods[a] {
		if o.Netns != p.Netns {
			f.Unseen = nil
			observe(&f, model.SourcePods, "%s has it as well", words.PodName(o))
		}
	}
	prefix := netip.PrefixFrom(a, a.BitLen())
	if i := slices.IndexFunc(p.Addresses, func(x netip.Prefix) bool { return x.Addr() == a }); i >= 0 {
		prefix = p.Addresses[i]
	}
	f.Fix = []string{
		fmt.Sprintf("%sip addr del %s dev %s # once nobody else has it; the next line detects duplicates again", words.Inside(p), prefix, words.Quote(p.Interface)),
		fmt.Sprintf("%sip addr add %s dev %s", words.Inside(p), prefix, words.Quote(p.Interface)),
	}
	if !prefix.IsSingleIP() && !prefixRoute(p, prefix) {
		f.Fix[1] += " noprefixroute"
	}
	return finding{Finding: f, cutOff: f.Pods, claims: func(d *model.Drop) bool {
		return d.Dst == a || d.Src == a || d.Netns == p.Netns && solicited.Contains(d.Dst)
	}}
}

// solicited are the groups that neighbour solicitations go to. A pod has joined those of
// its own addresses alone.
var solicited = netip.MustParsePrefix("ff02::1:ff00:0/104")

func withoutAddress(v *view, p *model.Pod, isIPv6 bool) (finding, bool) {
	if len(ownIn(p, isIPv6)) > 0 {
		return finding{}, false
	}
	var with []*model.Pod
	for _, o := range v.alike(p) {
		if len(ownIn(o, isIPv6)) > 0 {
			with = append(with, o)
		}
	}
	given := slices.DeleteFunc(slices.Clone(p.Given), func(a netip.Addr) bool {
		return a.Is6() != isIPv6 || len(v.pods[a]) > 0 || v.nodeAddrs[a]
	})
	known := len(given) > 0
	if !known {
		given = v.soughtAfter(p, with, isIPv6)
	}
	// An interface without an address of this family is as it should be where the
	// pod has others, unless one is looked for.
	others := slices.ContainsFunc(v.Pods, func(o model.Pod) bool { return o.Netns == p.Netns && len(o.Addresses) > 0 })
	u := v.unclaimed(p, given)
	if u.answers || (others || !known && len(with) == 0) && u.packets() == 0 {
		return finding{}, false
	}
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         given,
		LastHopAlive: v.place(p.Link, model.Egress),
		Title:        words.PodName(p) + " has no address",
		Why: fmt.Sprintf("The pod's interface %s has no address, so that the pod neither sends nor takes a packet.",
			p.Interface),
		Evidence: []model.Evidence{seen(model.SourcePods, "in the pod: %s has no %s address", p.Interface, words.Family(isIPv6))},
		Packets:  u.packets(),
	}
	if len(given) > 0 {
		f.Title = fmt.Sprintf("%s lost %s", words.PodName(p), words.Addrs(given))
		f.Why = fmt.Sprintf("%s is the address of %s, and its interface %s does not have it: the pod neither sends nor takes a packet.",
			words.Addrs(given), words.PodName(p), p.Interface)
	}
	if len(with) > 0 {
		observe(&f, model.SourcePods, "%s: %s", like(with), ownIn(with[0], isIPv6)[0])
	}
	f.Evidence = append(f.Evidence, u.evidence...)
	switch {
	case u.packets() == 0:
		stateAlone(&f, "a packet for the pod: nobody asked for it in the window",
			"the pod is to have no address of its own")
	case !known:
		f.Confidence = model.Likely
		f.Unseen = []string{"that the address is this pod's: no pod has it, and this is the only pod without one"}
		f.Alternatives = []string{"the pod that had the address was deleted"}
	}
	f.Fix = addressFix(p, with, given, isIPv6)
	return finding{Finding: f, cutOff: given, claims: func(d *model.Drop) bool {
		return slices.Contains(given, d.Dst) || slices.Contains(given, d.Src)
	}}, true
}

// addressFix gives the pod its address with the prefix length of the others, and
// their routes.
func addressFix(p *model.Pod, with []*model.Pod, given []netip.Addr, isIPv6 bool) []string {
	from := pattern(with, isIPv6)
	if len(given) == 0 || from == nil {
		return []string{
			"find the pod's address: kubectl get pods -A -o wide",
			fmt.Sprintf("%sip addr add ADDRESS/BITS dev %s, and the routes that other pods have; or delete the pod, which is made anew", words.Inside(p), words.Quote(p.Interface)),
		}
	}
	usual := ownIn(from, isIPv6)[0]
	var out []string
	var held []netip.Prefix
	for _, a := range given {
		prefix := netip.PrefixFrom(a, usual.Bits())
		command := fmt.Sprintf("%sip addr add %s dev %s", words.Inside(p), prefix, words.Quote(p.Interface))
		if prefixRoute(from, usual) {
			held = append(held, prefix.Masked())
		} else if !usual.IsSingleIP() {
			command += " noprefixroute"
		}
		out = append(out, command)
	}
	return append(out, copyRoutes(p, from, isIPv6, held...)...)
}

// prefixRoute reports whether a pod's address came with a route to its network on
// the link.
func prefixRoute(p *model.Pod, a netip.Prefix) bool {
	return slices.ContainsFunc(p.Routes, func(r model.Route) bool { return r.Dst == a.Masked() && !r.Gateway.IsValid() })
}

// soughtAfter is the address that this pod must be missing, where nothing names it:
// the only one that the node or the pods look for in the other pods' network and
// that no pod has. Of several the pod's MAC may be made, and must be where other
// pods have no address either.
func (v *view) soughtAfter(p *model.Pod, with []*model.Pod, isIPv6 bool) []netip.Addr {
	l := v.links[p.LinkIndex]
	if len(with) == 0 {
		return nil
	}
	bare := slices.ContainsFunc(v.Pods, func(o model.Pod) bool {
		x := v.links[o.LinkIndex]
		return x != nil && x.Master == l.Master && o.Netns != p.Netns && len(o.Addresses) == 0
	})
	asked := map[netip.Addr]talk{}
	for a := range model.Each(v.Traffic.ARP) {
		t := asked[a.Addr]
		if a.Reply {
			t.replies += a.Packets
		} else if a.Direction == model.Egress && a.IfIndex == p.LinkIndex {
			t.requests += a.Packets
		}
		asked[a.Addr] = t
	}
	var found []netip.Addr
	for a, t := range asked {
		near := slices.ContainsFunc(with, func(o *model.Pod) bool {
			return slices.ContainsFunc(ownIn(o, isIPv6), func(x netip.Prefix) bool { return x.Contains(a) })
		})
		if a.Is6() == isIPv6 && near && t.requests >= minDrops && t.replies == 0 && len(v.pods[a]) == 0 && !v.nodeAddrs[a] && !v.past[a] && !v.gatewayAddrs[a] {
			found = append(found, a)
		}
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(found, func(a netip.Addr) bool { return !named(p.MAC, a) })
	}
	if len(found) != 1 || bare && !named(p.MAC, found[0]) {
		return nil
	}
	return found
}

// named reports whether a MAC is made of an address, as bridge plugins make it.
func named(m model.MAC, a netip.Addr) bool { return a.Is4() && slices.Equal(m[2:], a.AsSlice()) }

// unclaimed is what came for addresses that a pod was given and does not have.
type unclaimed struct {
	requests, frames, drops uint64
	// answers: something behind the link has the address after all.
	answers  bool
	evidence []model.Evidence
}

func (u *unclaimed) packets() uint64 {
	if u.requests < minDrops && u.frames < minDrops && u.drops < minDrops {
		return 0
	}
	return cmp.Or(u.drops, u.frames, u.requests)
}

func (v *view) unclaimed(p *model.Pod, given []netip.Addr) unclaimed {
	var u unclaimed
	for _, a := range given {
		if h := v.hop(a, p.LinkIndex, model.Ingress, model.AsSource); h != nil && h.Packets > 0 && v.lately(h.Last) {
			u.answers = true
		}
		if h := v.hop(a, p.LinkIndex, model.Egress, model.AsDestination); h != nil {
			u.frames += h.Packets
		}
		var replies, requests uint64
		for x := range model.Each(v.Traffic.ARP) {
			switch {
			case x.Addr != a || x.IfIndex != p.LinkIndex:
			case x.Reply && x.Direction == model.Ingress:
				replies += x.Packets
			case !x.Reply && x.Direction == model.Egress:
				requests += x.Packets
			}
		}
		if replies > 0 && replies*2 >= requests {
			u.answers = true
		}
		u.requests += requests
		drops := v.dropped(func(d *model.Drop) bool { return d.Dst == a && (d.Netns == p.Netns || d.NeighborFailed()) })
		u.drops += drops
		if r := v.lookup(a); r != nil && r.IfIndex == p.LinkIndex && r.Dst.IsSingleIP() {
			u.evidence = append(u.evidence, seen(model.SourceRoutes, "%s", v.routeText(r)))
		}
		if requests > 0 {
			u.evidence = append(u.evidence, seen(model.SourceTC, "%s egress: %s for %s; ingress: %s", p.Link, words.Count(requests, words.Request(a)), a, words.Plural(replies, "reply", "replies")))
		}
		if drops > 0 {
			u.evidence = append(u.evidence, seen(model.SourceDrops, "%s for %s freed", words.Count(drops, "packet"), a))
		}
	}
	if u.frames > 0 {
		u.evidence = append(u.evidence, seen(model.SourceTC, "%s egress: %s for the pod", p.Link, words.Count(u.frames, "packet")))
	}
	return u
}
