package fault

import (
	"cmp"
	"iter"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// CauseOf is the finding that claims a drop, or why a healthy node drops such packets too.
func (v *Input) CauseOf(d *model.Drop) model.DropCause {
	if by := v.ByDrop[d]; by.Code != "" && v.Classifier.Lost(d) {
		return model.DropCause{Code: by.Code, Object: by.Cause}
	}
	return model.DropCause{Ordinary: cmp.Or(v.Classifier.Class(d), inconclusive(v.Index, d), model.ExcusedFew)}
}

// inconclusive is why nothing can be concluded from a packet that was lost, however many were; empty where it can.
func inconclusive(v *node.Index, d *model.Drop) model.Excuse {
	switch {
	case d.Reason == "" && d.Is(model.NoSocket):
		// NoListener reports requests.
		return model.ExcusedNoReason
	case !v.OfPod(d):
		return model.ExcusedNoPod
	case d.Is(model.OtherHost) && !v.Has(model.SourceLinks, model.SourcePods) && len(v.Owners[d.Dst]) == 0,
		d.Is(model.Netfilter) && !v.Has(model.SourceEbtables):
		return model.ExcusedUnread
	}
	return ""
}

// Dropped sums the drops that match and that no finding explains yet.
func (v *Input) Dropped(match func(*model.Drop) bool) uint64 {
	return v.LostPackets(func(d *model.Drop) bool { return match(d) && !v.Explained(d) })
}

// LostBy sums up the drops that nothing explains by what they have in common, where enough
// were lost. of tells that of a drop, and the pod that it concerns: none where it is no such drop.
func LostBy[K comparable](v *Input, of func(*model.Drop) (K, netip.Addr)) iter.Seq2[K, *node.Lost] {
	var all node.Groups[K, node.Lost]
	for d := range model.Each(v.Traffic.Drops) {
		if k, pod := of(d); pod.IsValid() && !v.Explained(d) {
			all.Of(k).AddFor(pod, d)
		}
	}
	return func(yield func(K, *node.Lost) bool) {
		for k, l := range all.All() {
			if l.Packets >= node.MinDrops && !yield(k, l) {
				return
			}
		}
	}
}

// LostTo sums up the drops of pods' packets that match and that nothing explains.
func (v *Input) LostTo(match func(*model.Drop) bool) *node.Lost {
	l := &node.Lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if v.OfPod(d) && !v.Explained(d) && match(d) {
			l.Add(v.Index, d)
		}
	}
	return l
}

// ReportBy reports a finding on each of these.
func ReportBy[K comparable](v *Input, of func(*model.Drop) (K, netip.Addr), find func(K, *node.Lost) Fault) {
	for k, l := range LostBy(v, of) {
		v.Report(find(k, l))
	}
}

// FoldedCause is the cause of the drops of a range: that of those of the same pod, for the same
// reason at the same place, whose far ends were counted one by one.
func (v *Input) FoldedCause(d *model.Drop) model.DropCause {
	own := v.CauseOf(d)
	if own.Code != "" || !v.Classifier.Lost(d) {
		return own
	}
	for e := range model.Each(v.Traffic.Drops) {
		like := (d.Src.IsValid() && e.Src == d.Src || d.Dst.IsValid() && e.Dst == d.Dst) && e.Reason == d.Reason &&
			e.Location == d.Location && e.Netns == d.Netns && e.IfIndex == d.IfIndex
		if c := v.CauseOf(e); like && c.Code != "" {
			return c
		}
	}
	return own
}
