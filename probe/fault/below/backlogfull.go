package below

import (
	"strconv"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// usualBacklog is what the kernel sets MaxBacklog to.
const usualBacklog = 1000

// BacklogFull reports that a CPU gets packets faster than it takes them from its queue (netdev_max_backlog).
var BacklogFull = fault.Kind{Code: "BacklogFull", Severity: model.Warning, Find: backlogFull,
	Ends: fault.Hops{model.HopLink, model.HopPod}}

func backlogFull(v *fault.Input) {
	l := v.LostTo(func(d *model.Drop) bool { return d.Is(model.BacklogFull) })
	limit, own := v.Limit(node.MaxBacklog)
	dropped, processed, cpus := v.SoftnetOf()
	n := l.Packets
	if own {
		n = max(n, dropped)
	} else {
		cpus = nil
	}
	if n < node.MinDrops {
		return
	}
	f := fault.Fault{Lost: l, Facts: words.Facts{
		"own": own, "limit": limit, "larger": strconv.FormatUint(max(4*limit, usualBacklog), 10), "setting": node.MaxBacklog,
		"window": v.Window.Duration(), "cpus": cpus, "others": n - l.Packets,
	}}
	f.Packets, f.Cause = n, v.Node.Name
	if len(l.Drops) > 0 {
		f.LastHopAlive = beforeBacklog(v.Index, node.MostDropped(l.Drops)[0])
	}
	f.InfoUnless(starve(v.Index, l) || own && node.Notable(dropped, processed))
	v.Report(f)
}

// beforeBacklog is where a packet was last counted: the drop's link is the one that it was to come in by.
func beforeBacklog(v *node.Index, d *model.Drop) model.Place {
	if pod := v.InPod(d); pod.IsValid() {
		return v.Place(v.Owners[pod][0].Link, model.Egress)
	}
	if l := v.LinkByName[d.Link]; l != nil && l.Role == model.RolePodLink && len(v.Owners[d.Src]) > 0 {
		return model.Place{Link: v.Owners[d.Src][0].Interface, Role: model.RolePod, Direction: model.Egress}
	}
	return model.Place{Direction: model.Ingress}
}
