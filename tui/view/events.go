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

func latestFirst(rows []Row) []Row {
	slices.SortStableFunc(rows, func(a, b Row) int { return compare(b.Cells[0], a.Cells[0]) })
	return rows
}

func event(at time.Time, id, kind string, style Style, who, what string, addrs ...netip.Addr) Row {
	r := Row{
		ID: id, Style: style, Word: clock(at), Brief: clean(kind + " " + what),
		Cells: []Cell{figure(clock(at), float64(at.UnixMilli())), styled(style, text(kind)), text(who), text(what)},
	}
	r.found(kind, who, what)
	r.foundAt(addrs...)
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

func (d *Data) podEvents() []Row {
	var rows []Row
	s := d.Reading.Snapshot
	one := func(p *model.Pod, at time.Time, kind string) {
		if at.IsZero() || at.Before(s.Window.Start) {
			return
		}
		addrs := model.Map(p.Addresses, netip.Prefix.Addr)
		label := d.podLabel(p)
		id, what := fmt.Sprint(kind, p.Netns, p.Link, at.UnixNano()), "pod "+label+" behind "+cmp.Or(p.Link, unknown)
		r := event(at, id, kind, Info, label, what, addrs...)
		if kind == podCame && len(addrs) > 0 {
			r.From = addrs[0]
		}
		rows = append(rows, r)
	}
	for p := range model.Each(s.Pods) {
		one(p, p.Since, podCame)
	}
	for p := range model.Each(s.PastPods) {
		one(p, p.Until, "POD-")
	}
	return rows
}

// changeEvents are the latest changes of the node's state.
func (d *Data) changeEvents() []Row {
	list := d.Reading.Snapshot.Changes
	return model.Map(list[max(0, len(list)-maxEvents):], func(c model.Change) Row {
		id := fmt.Sprint("change", c.At.UnixNano(), c.Kind, c.Dst, c.Chain, c.Handle, c.Deleted)
		return event(c.At, id, "CHANGE", Info, "", c.Text(), c.Dst.Addr())
	})
}

const podCame, packet = "POD+", "PACKET"

func (d *Data) sampleEvents() []Row {
	samples := d.Reading.Snapshot.Traffic.Samples
	var rows []Row
	for i := max(0, len(samples)-maxEvents); i < len(samples); i++ {
		x := &samples[i]
		what := fmt.Sprintf("%s: %s, %s", report.ReasonText(x.Reason, x.Cilium.Reason), d.describe(x), report.DropPlace(x.Location, x.Link))
		id := fmt.Sprint("sample", x.Time.UnixNano(), x.Src, x.Dst, x.Count, i)
		// The pod comes first, whichever sent.
		pod, other, who := x.Src, x.Dst, ""
		if !d.isPod(pod) {
			pod, other = x.Dst, x.Src
		}
		if d.isPod(pod) {
			who = d.name(pod)
		}
		r := event(x.Time, id, packet, Warning, who, what, x.Src, x.Dst)
		if who != "" && other.IsValid() {
			r.From, r.To = pod, other
		}
		drop := x.Drop()
		r.Faint = !d.losing.Lost(&drop)
		rows = append(rows, r)
	}
	return rows
}
