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
	f.Packets = cmp.Or(sent, drops) // A flood is freed by every pod that it reaches.
	if f.Packets == 0 && n.State != "PERMANENT" {
		// One that nobody pinned the kernel asks for again before it uses it for long.
		f.StateAlone()
	}
	return f
}
