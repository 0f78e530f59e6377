package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// maxEvents bounds the rows of each kind of event to the latest.
const maxEvents = 200

// eventRows are all events, the latest first.
func (d *Data) eventRows() []Row {
	var rows []Row
	rows = append(rows, d.findingEvents()...)
	rows = append(rows, d.podEvents()...)
	rows = append(rows, d.dropEvents()...)
	rows = append(rows, d.sampleEvents()...)
	slices.SortStableFunc(rows, func(a, b Row) int { return compare(b.Cells[0], a.Cells[0]) })
	return rows
}

func event(at time.Time, id, kind string, style Style, who, what string, addrs ...netip.Addr) Row {
	r := Row{
		ID: id, Style: style, Word: clock(at), Brief: clean(kind + " " + what),
		Cells: []Cell{figure(clock(at), float64(at.UnixMilli())), styled(style, text(kind)), text(who), text(what)},
		hay:   lower(kind, who, what),
	}
	for _, a := range addrs {
		if a.IsValid() {
			r.addrs = append(r.addrs, host(a))
			r.hay += "\x00" + a.String()
		}
	}
	return r
}

func (d *Data) findingEvents() []Row {
	var rows []Row
	for f := range model.Each(d.Reading.Findings) {
		who := ""
		if len(f.Pods) > 0 {
			who = d.name(f.Pods[0])
		}
		severity, rest := report.Headline(d.called, &f.Finding)
		what := severity + " " + rest
		add := func(at time.Time, kind string, style Style) {
			if at.IsZero() {
				return
			}
			r := event(at, kind+FindingID(f), kind, style, who, what, f.Pods...)
			r.Finding = f
			rows = append(rows, r)
		}
		add(f.First, "OPEN", severityStyle(f.Severity))
		if f.Closed {
			add(f.Last, "CLOSE", Info)
		}
	}
	return rows
}

// podEvents are pods that came or went within the window.
func (d *Data) podEvents() []Row {
	var rows []Row
	s := d.Reading.Snapshot
	one := func(p *model.Pod, at time.Time, kind string) {
		if at.IsZero() || at.Before(s.Window.Start) {
			return
		}
		r := event(at, fmt.Sprint(kind, p.Netns, p.Link, at.UnixNano()), kind, Info, d.podLabel(p), "pod "+d.podLabel(p)+" behind "+cmp.Or(p.Link, unknown))
		for _, a := range p.Addresses {
			r.addrs = append(r.addrs, host(a.Addr()))
			r.hay += "\x00" + a.Addr().String()
			if kind == podCame && !r.From.IsValid() {
				r.From = a.Addr()
			}
		}
		rows = append(rows, r)
	}
	for i := range s.Pods {
		one(&s.Pods[i], s.Pods[i].Since, podCame)
	}
	for i := range s.PastPods {
		one(&s.PastPods[i], s.PastPods[i].Until, "POD-")
	}
	return rows
}

// podCame marks a new pod, freed what the kernel frees without a loss.
const (
	podCame = "POD+"
	freed   = "FREED"
)

// dropKind is the word for a drop.
func (d *Data) dropKind(x *model.Drop) (string, Style) {
	if d.loss(x) {
		return "DROP", Warning
	}
	return freed, Info
}

func (d *Data) dropEvents() []Row {
	var rows []Row
	drops := d.Reading.Snapshot.Traffic.Drops
	latest := make([]*model.Drop, len(drops))
	for i := range drops {
		latest[i] = &drops[i]
	}
	// Most were read at one time: among these the losses come first.
	slices.SortStableFunc(latest, func(a, b *model.Drop) int {
		return cmp.Or(b.Last.Compare(a.Last), compareBool(!d.loss(a), !d.loss(b)))
	})
	for _, x := range latest[:min(len(latest), maxEvents)] {
		what := fmt.Sprintf("%sx %s: %s > %s %s, %s", number(x.Packets), report.ReasonText(x.Reason), d.dropEnd(x, x.Src), d.dropEnd(x, x.Dst),
			model.ProtoName(x.Proto), report.DropPlace(x.Location, x.Link))
		at := x.Last
		if at.IsZero() {
			at = d.Reading.At
		}
		kind, style := d.dropKind(x)
		r := event(at, fmt.Sprint("drop", x.Src, x.Dst, x.Range, x.Proto, x.Reason, x.Location, x.IfIndex, x.Netns), kind, style, d.eitherPod(x.Src, x.Dst), what, x.Src, x.Dst)
		r.Faint = kind == freed
		rows = append(rows, d.between(r, x.Src, x.Dst))
	}
	return rows
}

// dropEnd names an end of a drop, or the range that it is in.
func (d *Data) dropEnd(x *model.Drop, end netip.Addr) string {
	if far := x.Far(end); far.IsValid() && !far.IsSingleIP() {
		return far.String()
	}
	return d.name(end)
}

func (d *Data) sampleEvents() []Row {
	samples := d.Reading.Snapshot.Traffic.Samples
	var rows []Row
	for i := max(0, len(samples)-maxEvents); i < len(samples); i++ {
		x := &samples[i]
		what := fmt.Sprintf("%s: %s, %s", report.ReasonText(x.Reason), d.describe(x), report.DropPlace(x.Location, x.Link))
		r := event(x.Time, fmt.Sprint("sample", x.Time.UnixNano(), x.Src, x.Dst, x.Count, i), "PACKET", Warning, d.eitherPod(x.Src, x.Dst), what, x.Src, x.Dst)
		drop := x.Drop()
		r.Faint = !d.loss(&drop)
		rows = append(rows, d.between(r, x.Src, x.Dst))
	}
	return rows
}
