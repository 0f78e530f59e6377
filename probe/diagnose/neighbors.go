package diagnose

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// isGatewayMAC reports whether a default gateway has this address, or the
// fabric to which all that pods send is sent. What the node's entry for a gateway
// holds is not believed where nobody there answers.
func (v *view) isGatewayMAC(m model.MAC) bool {
	return v.Tunnel[m] || !v.isWrongHopMAC(m) && v.IsFabric(m)
}

// owner says in words whose an Ethernet address is.
func (v *view) owner(m model.MAC) string {
	if s, ok := v.macs[m]; ok && !v.isWrongHopMAC(m) {
		return s
	}
	return "nobody on this node"
}

// frames is how many frames of an address for a MAC passed a link; side says which end of
// the packets in them the address is.
func (v *view) frames(a netip.Addr, ifindex int, d model.Direction, side model.Side, to model.MAC) uint64 {
	var n uint64
	for _, m := range v.macPairs[a] {
		if m.IfIndex == ifindex && m.Direction == d && m.Side == side && m.Dst == to {
			n += m.Packets
		}
	}
	return n
}

// podMACs are the addresses of the living interfaces that hold an address.
func (v *view) podMACs(a netip.Addr) []model.MAC {
	var out []model.MAC
	for _, p := range v.pods[a] {
		if !p.MAC.IsZero() {
			out = append(out, p.MAC)
		}
	}
	return out
}
