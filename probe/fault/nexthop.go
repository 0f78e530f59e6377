package fault

import (
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// SilentNextHops finds the next hops of the node that nothing answers for: the packets that waited for their
// MAC are freed, and never reach the uplink's hook.
func (v *Input) SilentNextHops() map[node.Question]*node.SilentHop {
	found := map[node.Question]*node.SilentHop{}
	if !v.Has(model.SourceTC, model.SourceDrops) {
		return found
	}
	for d := range model.Each(v.Traffic.Drops) {
		l := v.ByIndex[d.IfIndex]
		if !d.Is(model.NeighborFailed) || l == nil || l.Role == model.RolePodLink || v.InPod(d).IsValid() || v.Explained(d) {
			continue
		}
		hop, ok := node.AwaitedHop(v.Index, d)
		if !ok || hop == d.Dst && model.InAny(v.Ranges.Local, hop) {
			continue
		}
		m := model.GetOrInsert(found, node.Question{Ifindex: d.IfIndex, Addr: hop})
		m.Gateway = m.Gateway || hop != d.Dst
		m.Packets += d.Packets
		if len(v.Owners[d.Src]) > 0 {
			m.Pods.Add(d.Src)
		} else {
			m.Pods.Add(v.TranslatedPods()[node.Pair{Local: d.Src, Remote: d.Dst}]...)
		}
	}
	v.AwaitTranslated(found)
	for k, m := range found {
		m.Resolution = node.AskedBeyond(v.Index, k)
		if m.Packets+m.Flows < node.MinDrops || m.Requests < node.MinDrops || m.Replies > 0 || len(m.Pods) == 0 {
			delete(found, k)
		}
	}
	return found
}
