package diagnose

import (
	"strconv"

	"github.com/lasthop/lasthop/probe/model"
)

// maxBacklog is the setting that bounds each CPU's backlog. Only the machine's own namespace
// has it: in another one the CPUs' counts are of other namespaces too.
const maxBacklog = "net.core.netdev_max_backlog"

// usualBacklog is what the kernel sets maxBacklog to.
const usualBacklog = 1000

func findBacklogFull(v *view) {
	l := v.lostTo(func(d *model.Drop) bool { return d.Is(model.BacklogFull) })
	limit, own := v.limit(maxBacklog)
	dropped, processed, cpus := v.softnetOf()
	n := l.packets
	if own {
		n = max(n, dropped)
	} else {
		cpus = nil
	}
	if n < minDrops {
		return
	}
	f := finding{lost: l, facts: facts{
		"own": own, "limit": limit, "larger": strconv.FormatUint(max(4*limit, usualBacklog), 10), "setting": maxBacklog,
		"window": v.Window.Duration(), "cpus": cpus, "processed": processed, "others": n - l.packets,
	}}
	f.Packets, f.Cause = n, v.Node.Name
	if len(l.drops) > 0 {
		f.LastHopAlive = v.beforeBacklog(mostDropped(l.drops)[0])
	}
	f.infoUnless(v.starve(l) || own && notable(dropped, processed))
	v.report(f)
}

// softnet sums up what the CPUs dropped and processed, and has those that dropped.
func (v *index) softnetOf() (dropped, processed uint64, cpus []*model.Softnet) {
	for c := range model.Each(v.Softnet) {
		dropped, processed = dropped+c.DroppedDelta, processed+c.ProcessedDelta
		if c.DroppedDelta > 0 {
			cpus = append(cpus, c)
		}
	}
	return dropped, processed, cpus
}

// limit is a setting that is a number; ok is false where it was not read.
func (v *index) limit(name string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(v.Settings[name], 10, 32)
	return n, err == nil
}

// beforeBacklog is where a packet was last counted: the drop's link is the one that it was to come in by.
func (v *index) beforeBacklog(d *model.Drop) model.Place {
	if pod := v.inPod(d); pod.IsValid() {
		return v.place(v.Owners[pod][0].Link, model.Egress)
	}
	if l := v.byName[d.Link]; l != nil && l.Role == model.RolePodLink && len(v.Owners[d.Src]) > 0 {
		p := v.Owners[d.Src][0]
		return model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
	}
	return model.Place{Direction: model.Ingress}
}
