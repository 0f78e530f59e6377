package diagnose

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// single is the snapshot with the counts of single addresses only. Those of ranges
// come from the busiest pods, beyond the many of their far ends that were counted
// one by one: findings are about these. What they explain of one far end they
// explain of a range too, and a reply that a range sent may be of any address in it.
func single(s *model.Snapshot) *model.Snapshot {
	out := *s
	out.Traffic.Peers = slices.DeleteFunc(slices.Clone(s.Traffic.Peers), func(p model.Peer) bool { return p.Range.IsValid() })
	out.Traffic.Drops = slices.DeleteFunc(slices.Clone(s.Traffic.Drops), func(d model.Drop) bool { return d.Range.IsValid() })
	return &out
}

// foldedReply reports whether packets from a peer may be among those that came from
// the far ends that were not counted one by one.
func (v *view) foldedReply(p *model.Peer) bool {
	return slices.ContainsFunc(v.folded, func(q *model.Peer) bool { return q.Local == p.Local && q.Range.Contains(p.Remote) })
}

// dropsLike are the drops of the same pod, for the same reason at the same place, whose
// far ends were counted one by one.
func (v *view) dropsLike(d *model.Drop) []*model.Drop {
	return chosen(v.Traffic.Drops, func(e *model.Drop) bool {
		return (d.Src.IsValid() && e.Src == d.Src || d.Dst.IsValid() && e.Dst == d.Dst) && e.Reason == d.Reason && e.Location == d.Location &&
			e.Netns == d.Netns && e.IfIndex == d.IfIndex
	})
}

// foldedCause is the cause of the drops of a range: that of those like them.
func (v *view) foldedCause(d *model.Drop) model.DropCause {
	if !v.drops.Lost(d) {
		return model.DropCause{Expected: true}
	}
	for _, e := range v.dropsLike(d) {
		if c := v.causeOf(e); c.Code != "" {
			return c
		}
	}
	return model.DropCause{}
}

// foldedDrops are the lost ones of ranges that nothing explains.
func (v *view) foldedDrops() []*model.Drop {
	return chosen(v.whole.Traffic.Drops, func(d *model.Drop) bool {
		return d.Range.IsValid() && v.ofPod(d) && v.foldedCause(d) == (model.DropCause{})
	})
}
