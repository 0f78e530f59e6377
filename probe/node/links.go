package node

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Place is a link with its role.
func (v *Index) Place(link string, d model.Direction) model.Place {
	p := model.Place{Link: link, Direction: d}
	if l := v.LinkByName[link]; l != nil {
		p.Role = l.Role
	}
	return p
}

// LinkName is the name of a link, or its number where it is unknown.
func (v *Index) LinkName(ifindex int) string {
	if l := v.ByIndex[ifindex]; l != nil {
		return l.Name
	}
	return v.Uplink()
}

// Uplink is the name that stands for the uplinks in a sentence.
func (v *Index) Uplink() string {
	return model.Either(len(v.Node.Uplinks) == 0, "the uplink", strings.Join(v.Node.Uplinks, ", "))
}

// IsUplink reports whether packets leave the node through the link.
func (v *Index) IsUplink(ifindex int) bool {
	l := v.ByIndex[ifindex]
	return l != nil && l.Role == model.RoleUplink
}

// AnUplink is the first of the uplinks, 0 where none is known.
func (v *Index) AnUplink() int {
	if len(v.UplinkList) == 0 {
		return 0
	}
	return v.UplinkList[0].Index
}

// BridgeOf is the bridge that a pod's link is a port of; nil when the pod is routed, or its link's master is no bridge.
func (v *Index) BridgeOf(p *model.Pod) *model.Link { return v.Bridge(v.ByIndex[p.LinkIndex]) }

// Domain is where an address may be one's alone: what the node itself routes to is zero, and others are a bridge, a VLAN
// of one, or a VRF, which the node's own address, route and neighbors do not reach.
type Domain struct{ link, vlan int }

// DomainOf is that of a pod's address.
func (v *Index) DomainOf(p *model.Pod, a netip.Addr) (d Domain) {
	l := v.ByIndex[p.LinkIndex]
	for l != nil && v.ByIndex[l.Master] != nil {
		m := v.ByIndex[l.Master]
		if own := m.VLANs; l.VLANs != nil && (own == nil || l.VLANs.PVID != own.PVID) {
			d = Domain{m.Index, l.VLANs.PVID}
		}
		covers := func(x netip.Prefix) bool { return x.Contains(a) }
		if l = m; l.Kind == "vrf" || l.Kind == "bridge" && !slices.ContainsFunc(l.Addresses, covers) {
			d.link = l.Index
		}
	}
	return d
}

// Routed reports whether the node reaches the pod by a link of its own.
func (v *Index) Routed(p *model.Pod) bool {
	l := v.ByIndex[p.LinkIndex]
	return l != nil && l.Master == 0
}

// Router is the node's link by which the packets of a pod arrive that has the
// node for its gateway; nil for one that has not.
func (v *Index) Router(p *model.Pod) *model.Link {
	l := v.ByIndex[p.LinkIndex]
	if l == nil || len(p.Gateways) == 0 {
		return nil
	}
	if l.Master == 0 {
		return l
	}
	if slices.ContainsFunc(p.Gateways, func(n model.Neighbor) bool { return v.Own[n.Addr] != nil }) {
		return v.ByIndex[l.Master]
	}
	return nil
}

// NatLink is the link that the IP layer names for packets that pass a link: the bridge that it is a port of, or
// itself; empty where the link is not known.
func (v *Index) NatLink(ifindex int) string {
	l := v.ByIndex[ifindex]
	if l == nil {
		return ""
	}
	return cmp.Or(v.ByIndex[l.Master], l).Name
}

// OutLink is the link that POSTROUTING names for a pod's packets to an address: that of the pod who has it, of the node's
// route, or an uplink where no route is known.
func (v *Index) OutLink(src, dst netip.Addr) string {
	if pods := v.Owners[dst]; len(pods) > 0 {
		return v.NatLink(pods[0].LinkIndex)
	}
	if r := v.Routing().Lookup(v.SentBy(src, dst)).Route; r != nil && r.Type == "unicast" && v.ByIndex[r.IfIndex] != nil {
		return v.NatLink(r.IfIndex)
	}
	return v.NatLink(v.AnUplink())
}

// Unconnected reports whether a link that may lead off the node is up and has no carrier, as a tunnel has none that no program
// serves: what is routed to it goes nowhere.
func (v *Index) Unconnected(ifindex int) bool {
	l := v.ByIndex[ifindex]
	return l != nil && l.Up && !l.Carrier && l.Role != model.RolePodLink && l.Kind != "bridge"
}

// Holds reports whether a link has an address.
func (v *Index) Holds(link string, a netip.Addr) bool {
	l := v.LinkByName[link]
	return l != nil && l.Has(a)
}

// Hop is the count of an address at a link, nil where there is none.
func (v *Index) Hop(a netip.Addr, ifindex int, dir model.Direction, side model.Side) *model.HopCount {
	return model.Find(v.HopsOf[a], func(h *model.HopCount) bool {
		return h.IfIndex == ifindex && h.Direction == dir && h.Side == side
	})
}

// PodAddrs are the addresses of a pod.
func PodAddrs(p *model.Pod) []netip.Addr { return model.Map(p.Addresses, netip.Prefix.Addr) }

// SameFamily are those of a list that are of the family of an address.
func SameFamily(list []netip.Addr, like netip.Addr) []netip.Addr {
	return model.Filter(list, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
}

// PresentWholeWindow reports whether the pod was there from the window's beginning. What is
// wrong of a younger one may be on its way to be right.
func (v *Index) PresentWholeWindow(p *model.Pod) bool { return !p.Since.After(v.Window.Start) }

// Vacant reports whether an address belongs to this node's pods and no pod has it, nor had it during the window.
func (v *Index) Vacant(a netip.Addr) bool {
	return model.InAny(v.Ranges.Own, a) && len(v.Owners[a]) == 0 && !v.Classifier.Past[a] && v.Own[a] == nil
}

// OwnRange reports whether the address is in a range that is known to be this node's, and not only supposed.
func (v *Index) OwnRange(a netip.Addr) bool {
	holds := func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a) }
	return slices.ContainsFunc(v.Links, func(l model.Link) bool {
		return l.Role == model.RoleBridge && slices.ContainsFunc(l.Addresses, holds)
	}) || slices.ContainsFunc(v.Cluster.Nodes,
		func(n model.ClusterNode) bool { return isSelf(v, &n) && model.InAny(n.PodCIDRs, a) })
}

// IsGatewayMAC reports whether a default gateway has this address, or the fabric to which all that pods send is
// sent. The node's entry for a gateway does not count where the gateway does not answer.
func (v *Index) IsGatewayMAC(m model.MAC) bool {
	return v.Tunnel[m] || !v.isWrongHopMAC(m) && v.IsFabric(m)
}

// Owner says in words whose an Ethernet address is.
func (v *Index) Owner(m model.MAC) string {
	if s, ok := v.MACNames[m]; ok && !v.isWrongHopMAC(m) {
		return s
	}
	return "nobody on this node"
}

// FramesBetween is how many frames of an address for a MAC passed a link; side says which end of
// the packets in them the address is.
func (v *Index) FramesBetween(a netip.Addr, ifindex int, d model.Direction, side model.Side, to model.MAC) uint64 {
	var n uint64
	for _, m := range v.MACPairs[a] {
		if m.IfIndex == ifindex && m.Direction == d && m.Side == side && m.Dst == to {
			n += m.Packets
		}
	}
	return n
}

// Takers are what may take packets away at uplinks where no count shows it: before a packet that arrives is counted, or
// after one that leaves was. Programs of a network plugin that lasthop knows belong there.
func (v *Index) Takers() []*model.Program {
	return model.Chosen(v.Programs, func(p *model.Program) bool {
		return p.Netns == v.Node.Netns && v.IsUplink(p.IfIndex) && !p.Classic && p.Owner() == "" &&
			(p.Kind == model.ProgramXDP || p.Kind != model.ProgramCgroup && p.Direction == model.Egress)
	})
}

// CiliumDelivers reports whether Cilium's programs have the address as a local pod's.
func (v *Index) CiliumDelivers(a netip.Addr) bool {
	return slices.ContainsFunc(v.Cilium.Local, func(x model.CiliumAddress) bool { return x.Prefix.Addr() == a })
}

// SentToWrongMAC accounts for drops of frames for the address that carry the wrong MAC.
func SentToWrongMAC(wrong Binding) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.Dst == wrong.Addr && d.DstMAC == wrong.MAC }
}

// SilentBy are the peers that do not reply to these pods alone, whose packets leave the node in
// frames for a wrong MAC, also with the node's address.
func (v *Index) SilentBy(wrong model.MAC, pods []netip.Addr) []netip.Addr {
	these, others := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for p := range model.Each(v.Peers) {
		if !v.Unanswered(p) {
			continue
		}
		set, behind := others, Sorted(v.Senders(p))
		other := func(a netip.Addr) bool { return !slices.Contains(pods, a) }
		if len(behind) > 0 && !slices.ContainsFunc(behind, other) && v.LeftWith(p, wrong) {
			set = these
		}
		set[p.Remote] = true
	}
	return slices.DeleteFunc(Sorted(these), func(a netip.Addr) bool { return others[a] })
}
