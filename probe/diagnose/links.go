package diagnose

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// place is a link with its role.
func (v *index) place(link string, d model.Direction) model.Place {
	p := model.Place{Link: link, Direction: d}
	if l := v.byName[link]; l != nil {
		p.Role = l.Role
	}
	return p
}

func (v *index) linkName(ifindex int) string {
	if l := v.ByIndex[ifindex]; l != nil {
		return l.Name
	}
	return v.uplink()
}

// uplink is the name that stands for the uplinks in a sentence.
func (v *index) uplink() string {
	return model.Either(len(v.Node.Uplinks) == 0, "the uplink", strings.Join(v.Node.Uplinks, ", "))
}

// isUplink reports whether packets leave the node through the link.
func (v *index) isUplink(ifindex int) bool {
	l := v.ByIndex[ifindex]
	return l != nil && l.Role == model.RoleUplink
}

// anUplink is the first of the uplinks, 0 where none is known.
func (v *index) anUplink() int {
	if len(v.uplinks) == 0 {
		return 0
	}
	return v.uplinks[0].Index
}

// bridgeOf is the bridge that a pod's link is a port of; nil when the pod is routed, or its link's master is no bridge.
func (v *index) bridgeOf(p *model.Pod) *model.Link { return v.Bridge(v.ByIndex[p.LinkIndex]) }

// routed reports whether the node reaches the pod by a link of its own.
func (v *index) routed(p *model.Pod) bool {
	l := v.ByIndex[p.LinkIndex]
	return l != nil && l.Master == 0
}

// router is the node's link by which the packets of a pod arrive that has the
// node for its gateway; nil for one that has not.
func (v *index) router(p *model.Pod) *model.Link {
	l := v.ByIndex[p.LinkIndex]
	if l == nil || len(p.Gateways) == 0 {
		return nil
	}
	if l.Master == 0 {
		return l
	}
	if slices.ContainsFunc(p.Gateways, func(n model.Neighbor) bool { return v.nodeAddrs[n.Addr] }) {
		return v.ByIndex[l.Master]
	}
	return nil
}

// natLink is the link that the IP layer names for packets that pass a link: the bridge that it is a port of, or
// itself; empty where the link is not known.
func (v *index) natLink(ifindex int) string {
	l := v.ByIndex[ifindex]
	if l == nil {
		return ""
	}
	return cmp.Or(v.ByIndex[l.Master], l).Name
}

// outLink is the link that POSTROUTING names for packets to an address.
func (v *index) outLink(dst netip.Addr) string {
	if pods := v.Owners[dst]; len(pods) > 0 {
		return v.natLink(pods[0].LinkIndex)
	}
	return v.natLink(v.anUplink())
}

// addrOn is the link's own address that goes with a neighbour on it. A next hop
// of IPv6 mostly has a link-local address, which nobody answers to from afar.
func (v *index) addrOn(l *model.Link, neighbor netip.Addr) netip.Addr {
	return cmp.Or(model.Find(l.Addresses, func(a netip.Prefix) bool {
		return a.Contains(neighbor) && (a.Addr().Is4() || !a.Addr().IsLinkLocalUnicast())
	}), model.Find(l.Addresses, func(a netip.Prefix) bool {
		return a.Addr().Is4() == neighbor.Is4() && a.Addr().IsGlobalUnicast()
	})).Addr()
}

func (v *index) holds(link string, a netip.Addr) bool {
	l := v.byName[link]
	return l != nil && l.Has(a)
}

// hop is the count of an address at a link, nil where there is none.
func (v *index) hop(a netip.Addr, ifindex int, dir model.Direction, side model.Side) *model.HopCount {
	return model.Find(v.hops[a], func(h *model.HopCount) bool {
		return h.IfIndex == ifindex && h.Direction == dir && h.Side == side
	})
}

func podAddrs(p *model.Pod) []netip.Addr { return model.Map(p.Addresses, netip.Prefix.Addr) }

func sameFamily(list []netip.Addr, like netip.Addr) []netip.Addr {
	return model.Filter(list, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
}

// presentWholeWindow reports whether the pod was there from the window's beginning. What is
// wrong of a younger one may be on its way to be right.
func (v *index) presentWholeWindow(p *model.Pod) bool { return !p.Since.After(v.Window.Start) }

func (v *index) podsIn(ranges []netip.Prefix) []netip.Addr {
	return model.Filter(sorted(v.Owners), func(a netip.Addr) bool { return model.InAny(ranges, a) })
}

// vacant reports whether an address belongs to this node's pods and no pod has it, nor had it during the window.
func (v *index) vacant(a netip.Addr) bool {
	return model.InAny(v.ranges.local, a) && len(v.Owners[a]) == 0 && !v.past[a] && !v.nodeAddrs[a]
}

// ownRange reports whether the address is in a range that is known to be this node's, and not only supposed.
func (v *index) ownRange(a netip.Addr) bool {
	holds := func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a) }
	return slices.ContainsFunc(v.Links, func(l model.Link) bool {
		return l.Role == model.RoleBridge && slices.ContainsFunc(l.Addresses, holds)
	}) || slices.ContainsFunc(v.Cluster.Nodes,
		func(n model.ClusterNode) bool { return isSelf(v, &n) && model.InAny(n.PodCIDRs, a) })
}

func (f *finding) infoUnless(fault bool) {
	if !fault {
		f.Severity = model.Info
	}
}

// stateAlone weakens a finding for which nothing but state speaks; its page has the reason.
func (f *finding) stateAlone() {
	f.Confidence, f.Severity, f.facts["idle"] = model.Possible, model.Warning, true
}

// isGatewayMAC reports whether a default gateway has this address, or the fabric to which all that pods send is
// sent. What the node's entry for a gateway holds is not believed where nobody there answers.
func (v *index) isGatewayMAC(m model.MAC) bool {
	return v.Tunnel[m] || !v.isWrongHopMAC(m) && v.IsFabric(m)
}

// owner says in words whose an Ethernet address is.
func (v *index) owner(m model.MAC) string {
	if s, ok := v.macs[m]; ok && !v.isWrongHopMAC(m) {
		return s
	}
	return "nobody on this node"
}

// frames is how many frames of an address for a MAC passed a link; side says which end of
// the packets in them the address is.
func (v *index) framesBetween(a netip.Addr, ifindex int, d model.Direction, side model.Side, to model.MAC) uint64 {
	var n uint64
	for _, m := range v.macPairs[a] {
		if m.IfIndex == ifindex && m.Direction == d && m.Side == side && m.Dst == to {
			n += m.Packets
		}
	}
	return n
}

// wrongEntry is the finding on a neighbour entry with a wrong MAC by which frames were sent.
func (v *view) faultOfEntry(n *model.Neighbor, sent uint64, claims func(*model.Drop) bool) finding {
	drops := v.dropped(func(d *model.Drop) bool { return claims(d) && d.Is(model.OtherHost) })
	f := finding{cause: binding{n.Addr, n.MAC}, claims: claims, facts: facts{
		"entry": n, "holder": v.owner(n.MAC), "sent": sent, "drops": drops,
	}}
	f.Packets = cmp.Or(sent, drops) // A flood is freed by every pod that it reaches.
	if f.Packets == 0 && n.State != "PERMANENT" {
		// One that nobody pinned the kernel asks for again before it uses it for long.
		f.stateAlone()
	}
	return f
}

func (v *index) bridgePods(b *model.Link) []*model.Pod {
	return model.Chosen(v.Pods, func(p *model.Pod) bool { return v.bridgeOf(p) == b })
}

// podOnly reports whether every port of the bridge is a running pod's link, so that nobody else can be behind it.
func (v *index) podOnly(b *model.Link) bool {
	ofPods := model.Table(v.Pods, func(p *model.Pod) (int, bool) { return p.LinkIndex, true })
	return !slices.ContainsFunc(v.Links, func(l model.Link) bool { return l.Master == b.Index && !ofPods[l.Index] })
}

// receivesTraffic reports whether packets for the pod still left by its link at the end of
// the window, on whatever path they came.
func (v *index) receivesTraffic(p *model.Pod) bool {
	return slices.ContainsFunc(p.Addresses, func(a netip.Prefix) bool {
		h := v.hop(a.Addr(), p.LinkIndex, model.Egress, model.AsDestination)
		return h != nil && h.Packets > 0 && v.lately(h.Last)
	})
}

// addIsolation adds what was seen of a pod that exchanges no packet with its bridge: its requests for MACs without a
// reply, and packets that waited for its MAC or for that of its next hop. It reports whether there was any.
func (v *view) addIsolation(f *finding, p *model.Pod) bool {
	t := v.resolutions(model.Ingress)[question{ifindex: p.LinkIndex}]
	f.Packets = v.dropped(unresolvedFor(podAddrs(p)))
	asked, waited := t.inVain(), f.Packets >= minDrops
	f.facts["asked"], f.facts["requests"], f.facts["waited"] = asked, t.requests, waited
	return asked || waited
}

// unresolvedFor accounts for packets from or to the addresses that waited for a MAC in vain.
func unresolvedFor(pods []netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.Is(model.NeighborFailed) && d.FromOrTo(pods) }
}
