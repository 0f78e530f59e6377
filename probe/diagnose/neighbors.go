package diagnose

import (
	"cmp"
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

// wrongEntry is the finding on a neighbour entry with a wrong MAC by which frames were sent.
func (v *view) wrongEntry(n *model.Neighbor, sent uint64, claims func(*model.Drop) bool) finding {
	drops := v.dropped(func(d *model.Drop) bool { return claims(d) && d.OtherHost() })
	f := finding{cause: belief{n.Addr, n.MAC}, claims: claims, facts: facts{
		"entry": n, "holder": v.owner(n.MAC), "sent": sent, "drops": drops,
	}}
	f.Packets = cmp.Or(sent, drops) // A flood is freed by every pod that it reaches.
	if f.Packets == 0 && n.State != "PERMANENT" {
		// One that nobody pinned the kernel asks for again before it uses it for long.
		f.stateAlone()
	}
	return f
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
