package neighbor

import (
	"net/netip"
	"strconv"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// usualNeighbors is what the kernel sets gc_thresh3 to.
const usualNeighbors = 1024

// TableFull reports that the neighbor table is full, so that no address can be resolved.
var TableFull = fault.Kind{Code: "NeighborTableFull", Severity: model.Critical, Find: findTableFull,
	Ends: fault.Hops{model.HopNeighbor, model.HopPod, model.HopLink}, Objects: fault.Objects{"six"}}

func findTableFull(v *fault.Input) {
	for _, name := range []string{model.NeighborTable4, model.NeighborTable6} {
		// The machine's own namespace alone has the table's counts.
		t := model.NeighborTable{Name: name}
		if counted := model.First(v.NeighborTables,
			func(x *model.NeighborTable) bool { return x.Name == name }); counted != nil {
			t = *counted
		}
		l := v.LostTo(func(d *model.Drop) bool { return d.Is(model.TableFull) && d.Dst.Is6() == t.Is6() })
		if n := max(l.Packets, t.FullsDelta); n >= node.MinDrops {
			v.Report(tableFull(v.Index, &t, l))
		}
	}
}

// tableFull is the finding on a table that had no room for new neighbours, and on the packets
// that were dropped for that.
func tableFull(v *node.Index, t *model.NeighborTable, l *node.Lost) fault.Fault {
	family := model.Either(t.Is6(), "ipv6", "ipv4")
	setting := func(n int) string { return "net." + family + ".neigh.default.gc_thresh" + strconv.Itoa(n) }
	limit, known := v.Limit(setting(3))
	larger := max(4*max(limit, t.Entries), usualNeighbors)
	f := fault.Fault{Lost: l, Facts: words.Facts{
		"table": t, "six": t.Is6(), "limit": limit, "known": known, "window": v.Window.Duration(), "soft": setting(2),
		"hard": setting(3), "softer": strconv.FormatUint(larger/2, 10), "larger": strconv.FormatUint(larger, 10),
	}}
	f.Packets, f.Cause = max(l.Packets, t.FullsDelta), v.Node.Name
	if len(l.Drops) > 0 {
		f.LastHopAlive = v.Entering(map[netip.Addr]bool{v.Sender(node.MostDropped(l.Drops)[0]): true})
	}
	switch {
	case l.Lasting():
	case t.FullsDelta >= node.ManyRefused:
		f.Severity = model.Warning // what the node itself sends is counted for no pod
	default:
		f.Severity = model.Info
	}
	return f
}
