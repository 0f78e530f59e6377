package lab

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// overlayPort and overlayID are those of flannel, calicoPort and calicoID Calico's.
const (
	overlayPort, overlayID = 8472, 1
	calicoPort, calicoID   = 4789, 4096
)

// overlay makes the node's VXLAN link, and by it the routes to other nodes' pods, as
// flannel does: a next hop for each, whose MAC and node are pinned.
func (b *builder) overlay(n *scenario.Node, sp *space) error {
	name := b.topology.Overlay
	if err := sp.vxlan(name, overlayMAC(n), n); err != nil {
		return err
	}
	if err := sp.up(name); err != nil {
		return err
	}
	if err := sp.addr(name, host(n.PodCIDR.Addr()), netlink.SCOPE_UNIVERSE); err != nil {
		return err
	}
	for i := range b.topology.Nodes {
		other := &b.topology.Nodes[i]
		if other.Name == n.Name {
			continue
		}
		hop := other.PodCIDR.Addr()
		if err := sp.neigh(name, hop, overlayMAC(other)); err != nil {
			return err
		}
		if err := sp.tunnelEnd(name, other, other.IP); err != nil {
			return err
		}
		for _, p := range rangesOf(other) {
			if err := sp.route(route{dst: p, via: hop, link: name, onlink: true}); err != nil {
				return err
			}
		}
	}
	return nil
}

// overlayMAC is that of a node's VXLAN link.
func overlayMAC(n *scenario.Node) model.MAC {
	mac := n.MAC
	mac[0] = 0x0e
	return mac
}

// vxlan adds a VXLAN link on a node's network card.
func (sp *space) vxlan(name string, mac model.MAC, n *scenario.Node) error {
	return sp.withLink(n.NIC, "add VXLAN on", func(card netlink.Link) error {
		const header = 50
		id, port := overlayID, overlayPort
		if n.Plugin == scenario.Calico {
			id, port = calicoID, calicoPort
		}
		return sp.nl.LinkAdd(&netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: hardware(mac), MTU: fullMTU - header},
			VxlanId:   id, VtepDevIndex: card.Attrs().Index, SrcAddr: n.IP.AsSlice(), Port: port, Learning: false,
		})
	})
}

// tunnelEnd has the overlay send what is for another node to an address.
func (sp *space) tunnelEnd(name string, other *scenario.Node, to netip.Addr) error {
	return sp.withLink(name, "set tunnel end on", func(l netlink.Link) error {
		return sp.nl.NeighSet(overlayEnd(l, other, to))
	})
}

// overlayEnd is the forwarding entry by which an overlay sends what is for another node.
func overlayEnd(l netlink.Link, other *scenario.Node, to netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
		IP: to.AsSlice(), HardwareAddr: hardware(overlayMAC(other)),
	}
}
