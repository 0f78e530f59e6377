package ledger

import (
	"cmp"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// row is the account as the report has it. What a pod sends is told by where it
// went, what it is sent by where it came from.
func (b *books) row(a *account) model.LedgerRow {
	r := model.LedgerRow{Addrs: a.addrs, Link: a.pod.Link, Direction: a.direction, Edge: max(a.edgeIn, a.edgeOut), Least: uint64(a.least), Why: a.why}
	if a.most != unbounded {
		r.Most = model.Counted(uint64(a.most))
	}
	in, out := total(a.in), total(a.out)
	known := r.Unexplained().Known
	var parts []part
	if a.direction == model.FromPod {
		r.In = model.Counted(in)
		if known {
			r.Out = model.Counted(out + uint64(a.translated))
		}
		parts = a.out
	} else {
		r.Out = model.Counted(out)
		if known {
			r.In = model.Counted(in + uint64(a.translated))
		}
		parts = a.in
	}
	for _, p := range parts {
		if n := p.window(); n > 0 {
			r.Parts = append(r.Parts, model.LedgerPart{Place: p.place, Packets: n})
		}
	}
	if known && a.translated > 0 {
		r.Parts = append(r.Parts, model.LedgerPart{Place: model.PlaceTranslated, Packets: uint64(a.translated)})
	}
	for d, n := range a.drops {
		d.Packets = n
		r.Drops = append(r.Drops, d)
		r.Dropped += n
	}
	slices.SortFunc(r.Drops, func(x, y model.LedgerDrop) int {
		return cmp.Or(cmp.Compare(y.Packets, x.Packets), cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Location, y.Location), cmp.Compare(x.Code, y.Code))
	})
	return r
}

func total(parts []part) uint64 {
	var n uint64
	for _, p := range parts {
		n += p.window()
	}
	return n
}
