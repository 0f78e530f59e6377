// Package neighbor finds faults of neighbor entries and of the MACs that frames are sent to.
package neighbor

import (
	"cmp"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// wrongEntry is the finding on a neighbour entry with a wrong MAC by which frames were sent.
func faultOfEntry(v *fault.Input, n *model.Neighbor, sent uint64, claims func(*model.Drop) bool) fault.Fault {
	drops := v.Dropped(func(d *model.Drop) bool { return claims(d) && d.Is(model.OtherHost) })
	f := fault.Fault{About: node.Binding{Addr: n.Addr, MAC: n.MAC}, Claims: claims, Facts: words.Facts{
		"entry": n, "holder": v.Owner(n.MAC), "sent": sent, "drops": drops,
	}}
	if by := announced(v.Index, n); by != nil {
		// All who heard it hold the same.
		f.Facts["announced"], f.Effects = by, []any{f.About}
	}
	f.Packets = cmp.Or(sent, drops) // A flood is freed by every pod that it reaches.
	if f.Packets == 0 && n.State != "PERMANENT" {
		// One that nobody pinned the kernel asks for again before it uses it for long.
		f.StateAlone()
	}
	return f
}

// announced is what says that the address of an entry has its MAC, at the link by which that came in; nil for nothing. What
// an entry is given is overwritten, unless it is permanent.
func announced(v *node.Index, n *model.Neighbor) (by *model.ARPCount) {
	for a := range model.Each(v.Traffic.ARP) {
		if a.Addr != n.Addr || a.MAC != n.MAC || !a.Reply {
			continue
		}
		// A bridge gets by a port what comes in by itself.
		if l := v.ByIndex[a.IfIndex]; by == nil || a.Direction == model.Ingress && l != nil && l.Kind != "bridge" {
			by = a
		}
	}
	return by
}
