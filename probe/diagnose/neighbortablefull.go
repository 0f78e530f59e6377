package diagnose

import (
	"net/netip"
	"strconv"

	"github.com/lasthop/lasthop/probe/model"
)

// usualNeighbors is what the kernel sets gc_thresh3 to.
const usualNeighbors = 1024

func findNeighborTableFull(v *view) {
	for _, name := range []string{model.NeighborTable4, model.NeighborTable6} {
		// The machine's own namespace alone has the table's counts.
		t := model.NeighborTable{Name: name}
		if counted := model.First(v.NeighborTables,
			func(x *model.NeighborTable) bool { return x.Name == name }); counted != nil {
			t = *counted
		}
		l := v.lostTo(func(d *model.Drop) bool { return d.Is(model.TableFull) && d.Dst.Is6() == t.Is6() })
		if n := max(l.packets, t.FullsDelta); n >= minDrops {
			v.report(v.tableFull(&t, l))
		}
	}
}

// tableFull is the finding on a table that had no room for new neighbours, and on the packets
// that were dropped for that.
func (v *index) tableFull(t *model.NeighborTable, l *lost) finding {
	family := model.Either(t.Is6(), "ipv6", "ipv4")
	setting := func(n int) string { return "net." + family + ".neigh.default.gc_thresh" + strconv.Itoa(n) }
	limit, known := v.limit(setting(3))
	larger := max(4*max(limit, t.Entries), usualNeighbors)
	f := finding{lost: l, facts: facts{
		"table": t, "six": t.Is6(), "limit": limit, "known": known, "window": v.Window.Duration(), "soft": setting(2),
		"hard": setting(3), "softer": strconv.FormatUint(larger/2, 10), "larger": strconv.FormatUint(larger, 10),
	}}
	f.Packets, f.Cause = max(l.packets, t.FullsDelta), v.Node.Name
	if len(l.drops) > 0 {
		f.LastHopAlive = v.entering(map[netip.Addr]bool{v.sender(mostDropped(l.drops)[0]): true})
	}
	switch {
	case l.lasting():
	case t.FullsDelta >= manyRefused:
		f.Severity = model.Warning // what the node itself sends is counted for no pod
	default:
		f.Severity = model.Info
	}
	return f
}
