package view

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// Column is one column of a list.
type Column struct {
	Title string
	// Width is in columns; 0 takes what the others leave. With Fit it is an
	// upper bound, and the column no wider than its rows need.
	Width      int
	Fit, Right bool
	// Ends cuts the middle of what is too wide: names often differ only at their end.
	Ends bool
	// Sign has the sign of each cell's style before it.
	Sign bool
	// From is the width of the list from which the column is shown.
	From int
}

// trendWidth is how many rates a trend has.
const trendWidth = 10

// The columns of the lists.
var (
	findingColumns = []Column{
		{Title: "FINDING", Width: 22, Fit: true, Sign: true},
		{Title: "WHAT"},
		{Title: "PODS", Width: 18, Fit: true, Ends: true},
		{Title: "LOST/S", Width: 7, Right: true},
		{Title: "CONF", Width: 8, From: 96},
		{Title: "LAST HOP ALIVE", Width: 21, Fit: true, From: 150},
		{Title: "AGE", Width: 4, Right: true},
		{Title: "TREND", Width: trendWidth, From: 110},
	}
	podColumns = []Column{
		{Title: "POD", Ends: true},
		{Title: "IP", Width: 20, Fit: true, Ends: true},
		{Title: "LINK", Width: 15, Fit: true},
		{Title: "OUT/S", Width: 6, Right: true},
		{Title: "IN/S", Width: 6, Right: true},
		{Title: "DROPS", Width: 6, Right: true},
		{Title: "WORST", Width: 6, Sign: true},
		{Title: "IFINDEX", Width: 7, Right: true, From: 96},
		{Title: "MAC", Width: 17, From: 150},
		{Title: "LOST TREND", Width: trendWidth, From: 100},
	}
	eventColumns = []Column{
		{Title: "TIME", Width: 8},
		{Title: "KIND", Width: 6},
		{Title: "POD", Width: 24, From: 100, Ends: true},
		{Title: "WHAT"},
	}
)

// findingRows are the open findings, then the nodes that were not compared, then what is over. The header counts the
// sources that were not read.
func (d *Data) findingRows() []Row {
	var rows []Row
	// What closed in several nodes' window was seen in it.
	told := len(d.Reading.Nodes) > 0 && len(d.Reading.Findings) > 0
	switch left := d.left(); {
	case d.Reading.At.IsZero():
		return []Row{skipped("none", "WAIT", "reading the node's state", Unknown)}
	case len(d.open) > 0 || told:
	case left > 0 && d.dropped.Known:
		text := fmt.Sprintf("%s to go; %s drops/s so far", report.Duration(max(left, time.Second).Round(time.Second)), rate(d.perSecond(d.dropped.N)))
		rows = append(rows, skipped("none", "judging", text, Unknown))
	default:
		rows = append(rows, skipped("none", "NONE", d.silence(), model.Either(d.calm(), Healthy, Unknown)))
	}
	var over []Row
	for i := range d.Reading.Findings {
		if f := &d.Reading.Findings[i]; f.Closed {
			over = append(over, d.findingRow(f))
		} else {
			rows = append(rows, d.findingRow(f))
		}
	}
	if len(d.open) == 0 {
		rows, over = append(rows, over...), nil
	}
	for _, n := range d.Reading.Nodes {
		if n.Reason != "" {
			rows = append(rows, skipped("node "+n.Name+n.Recording, "SKIP", n.Name+" is not compared: "+n.Reason, Unknown))
		}
	}
	return append(rows, over...)
}

// calm reports whether traffic was seen, all that could lose it was looked at, and nothing was lost.
func (d *Data) calm() bool {
	for _, n := range d.each() {
		s := n.Reading.Snapshot
		if !report.Whole(s) || s.Window.Duration() <= 0 || len(s.Traffic.Hops) == 0 || n.dropped != model.Counted(0) {
			return false
		}
	}
	return d.compared()
}

// skipped is a row for what could not be judged; its figures are unknown.
func skipped(id, word, why string, style Style) Row {
	why = clean(why)
	cells := []Cell{styled(style, figure(word, -10)), text(why)}
	for len(cells) < len(findingColumns) {
		cells = append(cells, nothing())
	}
	r := Row{ID: id, Cells: cells, Word: word, Brief: why, Style: style, Span: true}
	r.found(word, why)
	return r
}

func (d *Data) findingRow(f *model.Tracked) Row {
	now := d.Reading.At
	rank := float64(f.Severity.Rank())
	per := float64(f.Packets) / judgedIn(&d.Reading)
	lost := model.Either(per > 0 && per < math.Inf(1) && !f.Closed, figure(rate(per), per), nothing())
	word := severityWord(f.Severity)
	title, where := clean(report.Brief(d.called, f.Title)), clean(report.LastHopAlive(&f.Finding))
	pods := Cell{Text: report.ThisNode, Order: math.NaN()}
	if n := len(f.Pods); n > 0 {
		pods = figure(d.name(f.Pods[0])+model.Either(n > 1, fmt.Sprintf(" +%d", n-1), ""), float64(n))
	}
	ageOf := model.Either(f.First.IsZero(), nothing(), figure(age(now.Sub(f.First)), now.Sub(f.First).Seconds()))
	if f.Closed {
		rank -= 5
		ageOf.Text = "over"
	}
	r := Row{
		ID: "finding " + FindingID(f), Finding: f, Style: severityStyle(f.Severity), Faint: f.Closed,
		Word: word + " " + clean(string(f.Confidence)), Brief: where + ": " + title,
		Cells: []Cell{
			styled(severityStyle(f.Severity), figure(clean(string(f.Code)), rank)), text(title), pods, lost, text(string(f.Confidence)),
			text(where), ageOf, styled(severityStyle(f.Severity), trend(model.Either(f.Closed, nil, d.lostRates(f.Pods)))),
		},
	}
	r.found(string(f.Code), string(f.Severity), title, where, string(f.Confidence))
	r.foundAt(f.Pods...)
	for _, a := range f.Pods {
		r.found(d.names[a].String())
	}
	for _, p := range f.Peers {
		r.found(p.String(), d.called[p.Addr()].String())
	}
	r.addrs = append(r.addrs, f.Peers...)
	if len(d.nodes) > 0 {
		on := strings.Join(f.Nodes, ", ")
		r.Cells, r.Brief = append(r.Cells, text(on)), title
		r.found(on)
	}
	return r
}

// FindingID identifies a finding, whatever it counts and however many pods it concerns by now.
func FindingID(f *model.Tracked) string {
	id := fmt.Sprint(f.Key(), f.Nodes, f.Pods[:min(len(f.Pods), 1)], f.First.UnixNano())
	return model.Either(f.Cause != "", id, fmt.Sprint(id, f.Peers))
}

// Line is the row as plain text, for the clipboard.
func (r *Row) Line() string {
	known := model.Filter(r.Cells, func(c Cell) bool { return c.Text != "" && c.Text != unknown })
	return strings.Join(model.Map(known, func(c Cell) string { return c.Text }), "  ")
}

// scale has the trends of a column share one scale: what looks higher is more.
func scale(rows []Row) []Row {
	top := make(map[int]float64)
	for _, r := range rows {
		for i, c := range r.Cells {
			top[i] = max(top[i], highest(c.Rates))
		}
	}
	for _, r := range rows {
		for i := range r.Cells {
			r.Cells[i].Top = top[i]
		}
	}
	return rows
}

// lostRates are packets per second of some addresses that were dropped; nil where none was. All end at the same time, so
// shorter ones begin later.
func (d *Data) lostRates(addrs []netip.Addr) (sum []float64) {
	for _, a := range addrs {
		rates := d.Reading.Lost[a]
		if over := len(rates) - len(sum); over > 0 {
			sum = append(make([]float64, over), sum...)
		}
		for i, r := range rates {
			sum[len(sum)-len(rates)+i] += r
		}
	}
	return sum
}

func (d *Data) podRows() []Row {
	all, s := d.figures(), d.Reading.Snapshot
	var rows []Row
	for p := range model.Each(s.Pods) {
		rows = append(rows, d.podRow(p, all, false))
	}
	for p := range model.Each(s.PastPods) {
		rows = append(rows, d.podRow(p, all, true))
	}
	return rows
}

// figures are those of a pod or of one address.
type figures struct {
	report.Volume
	// drops were lost because the kernel dropped them.
	drops uint64
	// worst is the worst severity among the open findings.
	worst model.Severity
}

func (f *figures) add(x figures) {
	f.Out, f.In, f.drops = f.Out+x.Out, f.In+x.In, f.drops+x.drops
	if x.worst.Rank() > f.worst.Rank() {
		f.worst = x.worst
	}
}

// figures are those of each address; it fills in the sum of all pods' drops.
func (d *Data) figures() map[netip.Addr]figures {
	s := d.Reading.Snapshot
	all := make(map[netip.Addr]figures)
	add := func(a netip.Addr, x figures) {
		f := all[a]
		f.add(x)
		all[a] = f
	}
	for a, v := range report.Volumes(s) {
		add(a, figures{Volume: v})
	}
	for _, f := range d.open {
		for _, a := range f.Pods {
			add(a, figures{worst: f.Severity})
		}
	}
	if s.Status(model.SourceDrops) == model.Missing {
		return all
	}
	d.dropped.Known = true
	for x := range model.Each(s.Traffic.Drops) {
		ends := slices.Compact([]netip.Addr{x.Src, x.Dst})
		pods := slices.DeleteFunc(ends, func(a netip.Addr) bool { return !d.isPod(a) })
		if len(pods) == 0 || !d.losing.Lost(x) {
			continue
		}
		for _, a := range pods {
			add(a, figures{drops: x.Packets})
		}
		d.dropped.N += x.Packets
	}
	return all
}

func (d *Data) podRow(p *model.Pod, all map[netip.Addr]figures, gone bool) Row {
	var sum figures
	r := Row{Pod: p, Faint: gone, Style: Plain}
	ip := nothing()
	for i, a := range p.Addresses {
		if i == 0 {
			r.From, ip = a.Addr(), text(a.Addr().String())
		}
		sum.add(all[a.Addr()])
		r.foundAt(a.Addr())
	}
	r.ID = fmt.Sprint("pod ", p.Netns, p.Interface, p.Link, r.From, gone)
	name := d.podLabel(p)
	drops := model.Either(d.dropped.Known, whole(sum.drops), nothing())
	word := styled(severityStyle(sum.worst), figure(severityWord(sum.worst), float64(sum.worst.Rank())))
	switch {
	case gone:
		word = figure("gone", -2)
	case sum.worst == "":
		word = nothing()
	}
	r.Cells = []Cell{
		text(name), ip, text(p.Link),
		d.rateCell(p, sum.Out), d.rateCell(p, sum.In), drops, word,
		whole(p.LinkIndex), text(p.MAC.String()), styled(Critical, trend(d.lostRates(model.Map(p.Addresses, netip.Prefix.Addr)))),
	}
	r.Style, r.Word, r.Brief = word.Style, model.Either(word.Text == unknown, "", word.Text), name+" "+ip.Text
	r.found(p.Namespace, p.Name, p.NetnsName, p.Link, name)
	return r
}

func (d *Data) podLabel(p *model.Pod) string {
	if len(p.Addresses) > 0 {
		return d.name(p.Addresses[0].Addr())
	}
	return clean(cmp.Or(p.NetnsName, p.Link, unknown))
}

// rateCell is a pod's packets per second in the window.
func (d *Data) rateCell(p *model.Pod, packets uint64) Cell {
	f := model.Either(d.watched() && len(p.Addresses) > 0, d.perSecond(packets), math.NaN())
	return figure(rate(f), f)
}
