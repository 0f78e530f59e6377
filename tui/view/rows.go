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
	// Width is in columns; 0 takes what the others leave. With Fit it is the
	// most, and less where no row needs as much.
	Width int
	Fit   bool
	Right bool
	// Ends are kept where there is no room for all: what tells names apart is
	// often their end.
	Ends bool
	// From is the least width of the list that has room for it.
	From int
}

// The columns of the lists. "LOST" gets the window's name.
var (
	findingColumns = []Column{
		{Title: "SEV", Width: 4},
		{Title: "LAST HOP ALIVE", Width: 21, Fit: true},
		{Title: "WHAT"},
		{Title: "WORKLOAD", Width: 16, From: 110, Ends: true},
		{Title: "PODS", Width: 4, Right: true},
		{Title: "LOST", Width: 8, Right: true},
		{Title: "CONF", Width: 8},
		{Title: "SEEN", Width: 11, From: 96},
		{Title: "AGE", Width: 4, Right: true},
		{Title: "TREND", Width: 8, From: 110},
	}
	podColumns = []Column{
		{Title: "POD", Ends: true},
		{Title: "IP", Width: 20, Fit: true, Ends: true},
		{Title: "LINK", Width: 15, Fit: true},
		{Title: "OUT/S", Width: 6, Right: true},
		{Title: "IN/S", Width: 6, Right: true},
		{Title: "DROPS", Width: 6, Right: true},
		{Title: "WORST", Width: 5},
		{Title: "IFX", Width: 4, Right: true, From: 96},
		{Title: "MAC", Width: 17, From: 124},
		{Title: "OUT TREND", Width: 12, From: 100},
	}
	eventColumns = []Column{
		{Title: "TIME", Width: 8},
		{Title: "KIND", Width: 6},
		{Title: "POD", Width: 24, From: 100, Ends: true},
		{Title: "WHAT"},
	}
)

// Columns are the columns of a list's tab.
func Columns(t TabID) []Column {
	switch t {
	case Findings:
		return findingColumns
	case Pods:
		return podColumns
	case Events:
		return eventColumns
	}
	return nil
}

// findingRows are the findings, then the checks that could not be made: a
// source that was not read is a row, never silence.
func (d *Data) findingRows() []Row {
	var rows []Row
	if len(d.open) == 0 && !d.Reading.At.IsZero() {
		rows = append(rows, skipped("none", "NONE", "", d.silence()))
	}
	for i := range d.Reading.Findings {
		rows = append(rows, d.findingRow(&d.Reading.Findings[i]))
	}
	s := d.Reading.Snapshot
	for _, src := range s.Sources {
		if src.Status != model.OK {
			rows = append(rows, skipRow(src))
		}
	}
	if lost(s.Traffic.Lost) {
		rows = append(rows, skipped("lost", "LOST", "lasthop itself", strings.Join(lostText(s.Traffic.Lost), "; ")))
	}
	return rows
}

// silence is what it is worth that nothing was found. It calls no node healthy.
func (d *Data) silence() string {
	s := d.Reading.Snapshot
	window := Span(s.Window.Duration())
	verdict := "no loss seen in " + window
	switch {
	case !d.watched():
		return "no fault found in the node's state, but no packet was watched: losses cannot be told"
	case s.Window.Duration() <= 0:
		return "nothing was counted yet"
	case !slices.ContainsFunc(s.Traffic.Hops, func(h model.HopCount) bool { return h.Packets > 0 && h.Addr.IsValid() }):
		verdict += ", but no pod packet passed either: only the node's state was judged"
	case len(report.Gaps(s)) > 0 || lost(s.Traffic.Lost):
		verdict += ", but not everything could be looked at"
	}
	if d.dropped.N > 0 {
		verdict += "; drops gave no finding"
	}
	return verdict
}

// lost reports whether lasthop itself could not count something.
func lost(l model.Lost) bool { return l.Events+l.Counters+l.MACs+l.Unparsed > 0 }

func skipRow(src model.Source) Row {
	word := "SKIP"
	if src.Status == model.Partial {
		word = "PART"
	}
	return skipped("source "+src.Name, word, clean(src.Name), clean(or(src.Detail, string(src.Status))))
}

// skipped is a row for what could not be judged; its figures are unknown.
func skipped(id, word, where, why string) Row {
	cells := []Cell{styled(Info, figure(word, -10)), text(where), text(why)}
	for len(cells) < len(findingColumns) {
		cells = append(cells, nothing())
	}
	brief := why
	if where != "" {
		brief = where + ": " + why
	}
	return Row{ID: id, Cells: cells, Word: word, Brief: brief, Style: Info, Span: true, hay: lower(word, where, why)}
}

func (d *Data) findingRow(f *model.Tracked) Row {
	now := d.Reading.At
	rank := float64(f.Severity.Rank())
	lost := nothing()
	if f.Packets > 0 {
		lost = whole(f.Packets)
	}
	word := severityWord(f.Severity)
	title, where := clean(f.Title), where(f)
	workload, pods := nothing(), nothing()
	if len(f.Pods) > 0 {
		workload, pods = text(d.name(f.Pods[0])), whole(len(f.Pods))
	}
	ageOf, until := figure(age(now.Sub(f.First)), now.Sub(f.First).Seconds()), "now"
	if f.First.IsZero() {
		ageOf = nothing()
	}
	if f.Closed {
		rank -= 5
		ageOf.Text = "over"
		until = f.Last.Format("15:04")
	}
	r := Row{
		ID: "finding " + FindingID(f), Finding: f, Style: severityStyle(f.Severity), Faint: f.Closed,
		Word: word + " " + clean(string(f.Confidence)), Brief: where + ": " + title,
		Cells: []Cell{
			styled(severityStyle(f.Severity), figure(word, rank)), text(where), text(title), workload,
			pods, lost, text(clean(or(string(f.Confidence), unknown))),
			figure(f.First.Format("15:04")+"-"+until, ageOf.Order), ageOf, trend(d.findingRates(f)),
		},
	}
	hay := []string{string(f.Code), string(f.Severity), title, where, string(f.Confidence)}
	for _, a := range f.Pods {
		hay = append(hay, d.names[a], a.String())
		r.addrs = append(r.addrs, host(a))
	}
	for _, p := range f.Peers {
		hay = append(hay, p.String(), d.names[p.Addr()])
		r.addrs = append(r.addrs, p)
	}
	r.hay = lower(hay...)
	return r
}

// FindingID tells a finding from others of its code, whatever its counts and
// however many pods it has come to concern.
func FindingID(f *model.Tracked) string {
	var first netip.Addr
	if len(f.Pods) > 0 {
		first = f.Pods[0]
	}
	return fmt.Sprint(f.Code, first, f.Peers, f.LastHopAlive, f.First.UnixNano())
}

// Line is the row as plain text, for the clipboard.
func (r *Row) Line() string {
	var parts []string
	for _, c := range r.Cells {
		if c.Text != "" && c.Text != unknown {
			parts = append(parts, c.Text)
		}
	}
	return strings.Join(parts, "  ")
}

// findingRates sums the rates of the finding's pods, at its last hop alive
// where that one has a series.
func (d *Data) findingRates(f *model.Tracked) []float64 {
	var sum []float64
	for _, a := range f.Pods {
		rates := d.rates(a, model.AsSource, f.LastHopAlive.Link)
		if rates == nil {
			rates = d.rates(a, model.AsSource, "")
		}
		sum = addRates(sum, rates)
	}
	return sum
}

// addRates adds rates to others. Series end at the same time, so the shorter
// begin later.
func addRates(sum, rates []float64) []float64 {
	if over := len(rates) - len(sum); over > 0 {
		sum = append(make([]float64, over), sum...)
	}
	for i, r := range rates {
		sum[len(sum)-len(rates)+i] += r
	}
	return sum
}

// podRows are the pods that live, then those that are gone.
func (d *Data) podRows(drops map[netip.Addr]uint64) []Row {
	worst := make(map[netip.Addr]model.Severity)
	for _, f := range d.open {
		for _, a := range f.Pods {
			if f.Severity.Rank() > worst[a].Rank() {
				worst[a] = f.Severity
			}
		}
	}
	out, in := d.packets()
	s := d.Reading.Snapshot
	rows := make([]Row, 0, len(s.Pods)+len(s.PastPods))
	for i := range s.Pods {
		rows = append(rows, d.podRow(&s.Pods[i], drops, worst, out, in, false))
	}
	for i := range s.PastPods {
		rows = append(rows, d.podRow(&s.PastPods[i], drops, worst, out, in, true))
	}
	return rows
}

// packets are the most packets of each address that any hop saw, as the source
// and as the destination.
func (d *Data) packets() (out, in map[netip.Addr]uint64) {
	out, in = make(map[netip.Addr]uint64), make(map[netip.Addr]uint64)
	for i := range d.Reading.Snapshot.Traffic.Hops {
		h := &d.Reading.Snapshot.Traffic.Hops[i]
		to := out
		if h.Side == model.AsDestination {
			to = in
		}
		if h.Addr.IsValid() && h.Packets > to[h.Addr] {
			to[h.Addr] = h.Packets
		}
	}
	return out, in
}

func (d *Data) podRow(p *model.Pod, drops map[netip.Addr]uint64, worst map[netip.Addr]model.Severity, out, in map[netip.Addr]uint64, gone bool) Row {
	var dropped uint64
	var severity model.Severity
	r := Row{Pod: p, Faint: gone, Style: Plain}
	hay := []string{p.Namespace, p.Name, p.NetnsName, p.Link}
	first := netip.Addr{}
	for _, a := range p.Addresses {
		if !first.IsValid() {
			first = a.Addr()
		}
		dropped += drops[a.Addr()]
		if s := worst[a.Addr()]; s.Rank() > severity.Rank() {
			severity = s
		}
		hay = append(hay, a.Addr().String())
		r.addrs = append(r.addrs, host(a.Addr()))
	}
	r.ID = fmt.Sprint("pod ", p.Netns, p.Interface, p.Link, first, gone)
	name := d.podLabel(p)
	dropCell := nothing()
	if drops != nil {
		dropCell = whole(dropped)
	}
	word := styled(severityStyle(severity), figure(severityWord(severity), float64(severity.Rank())))
	switch {
	case gone:
		word = figure("gone", -2)
	case severity == "":
		word = nothing()
	}
	ip := nothing()
	if first.IsValid() {
		ip = text(clean(first.String()))
	}
	r.Cells = []Cell{
		text(name), ip, text(clean(or(p.Link, unknown))),
		d.rateCell(p, model.AsSource, out), d.rateCell(p, model.AsDestination, in), dropCell, word,
		whole(p.LinkIndex), text(or(p.MAC.String(), unknown)), trend(d.podRates(p, model.AsSource)),
	}
	r.Style = word.Style
	if word.Text != unknown {
		r.Word = word.Text
	}
	r.Brief = name + " " + ip.Text
	r.hay = lower(append(hay, name)...)
	return r
}

// podLabel is what a pod goes by: its name, or else its address or link.
func (d *Data) podLabel(p *model.Pod) string {
	for _, a := range p.Addresses {
		return d.name(a.Addr())
	}
	return clean(or(p.NetnsName, or(p.Link, unknown)))
}

// podRates are those of all of a pod's addresses; nil where no series tells.
func (d *Data) podRates(p *model.Pod, side model.Side) []float64 {
	var sum []float64
	for _, a := range p.Addresses {
		rates := d.rates(a.Addr(), side, "")
		if len(p.Addresses) == 1 {
			return rates
		}
		sum = addRates(sum, rates)
	}
	return sum
}

// rateCell is a pod's packets a second: the latest, or, where no series tells,
// those of the window.
func (d *Data) rateCell(p *model.Pod, side model.Side, packets map[netip.Addr]uint64) Cell {
	f := math.NaN()
	switch rates := d.podRates(p, side); {
	case len(rates) > 0:
		f = last(rates)
	case d.watched() && len(p.Addresses) > 0:
		var sum uint64
		for _, a := range p.Addresses {
			sum += packets[a.Addr()]
		}
		f = d.perSecond(sum)
	}
	return figure(rate(f), f)
}

// maxEvents bounds the rows of each kind of event; the latest are kept.
const maxEvents = 200

// eventRows are what happened, the latest first.
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
		ID: id, Style: style, Word: clock(at), Brief: kind + " " + what,
		Cells: []Cell{figure(clock(at), float64(at.UnixMilli())), styled(style, text(kind)), text(or(who, unknown)), text(what)},
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
	for i := range d.Reading.Findings {
		f := &d.Reading.Findings[i]
		who := ""
		if len(f.Pods) > 0 {
			who = d.name(f.Pods[0])
		}
		what := severityWord(f.Severity) + " " + clean(string(f.Code)) + " " + clean(f.Title) + " (" + clean(string(f.Confidence)) + ")"
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

// podEvents are pods that came or went within the window. Those from before
// were there, as far as anybody knows.
func (d *Data) podEvents() []Row {
	var rows []Row
	s := d.Reading.Snapshot
	one := func(p *model.Pod, at time.Time, kind string) {
		if at.IsZero() || at.Before(s.Window.Start) {
			return
		}
		r := event(at, fmt.Sprint(kind, p.Netns, p.Link, at.UnixNano()), kind, Info, d.podLabel(p), "pod "+d.podLabel(p)+" behind "+clean(or(p.Link, unknown)))
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

// podCame is the word for a pod that is new, freed that for what the kernel frees
// without a loss.
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
		what := fmt.Sprintf("%sx %s: %s > %s %s, at %s%s", number(x.Packets), clean(or(string(x.Reason), "unknown reason")),
			d.name(x.Src), d.name(x.Dst), model.ProtoName(x.Proto), clean(or(x.Location, "unknown place")), onLink(x.Link))
		who := d.names[x.Src]
		if who == "" {
			who = d.names[x.Dst]
		}
		at := x.Last
		if at.IsZero() {
			at = d.Reading.At
		}
		kind, style := d.dropKind(x)
		r := event(at, fmt.Sprint("drop", x.Src, x.Dst, x.Proto, x.Reason, x.Location, x.IfIndex, x.Netns), kind, style, who, what, x.Src, x.Dst)
		r.Faint = kind == freed
		rows = append(rows, d.between(r, x.Src, x.Dst))
	}
	return rows
}

func (d *Data) sampleEvents() []Row {
	samples := d.Reading.Snapshot.Traffic.Samples
	var rows []Row
	for i := max(0, len(samples)-maxEvents); i < len(samples); i++ {
		x := &samples[i]
		what := fmt.Sprintf("%s: %s, at %s%s", clean(or(string(x.Reason), "unknown reason")), d.describe(x), clean(or(x.Location, "unknown place")), onLink(x.Link))
		who := d.names[x.Src]
		if who == "" {
			who = d.names[x.Dst]
		}
		r := event(x.Time, fmt.Sprint("sample", x.Time.UnixNano(), x.Src, x.Dst, x.Count, i), "PACKET", Warning, who, what, x.Src, x.Dst)
		drop := x.Drop()
		r.Faint = !d.loss(&drop)
		rows = append(rows, d.between(r, x.Src, x.Dst))
	}
	return rows
}

func onLink(link string) string {
	if link == "" {
		return ""
	}
	return " on " + clean(link)
}

func lower(parts ...string) string { return strings.ToLower(strings.Join(parts, "\x00")) }

// lostText says in words what lasthop itself could not count.
func lostText(l model.Lost) []string {
	var out []string
	add := func(n uint64, what string) {
		if n > 0 {
			out = append(out, number(n)+" "+what)
		}
	}
	add(l.Events, "drop samples lost")
	add(l.Counters, "packets uncounted")
	add(l.MACs, "packets without MACs")
	add(l.Unparsed, "packets unreadable")
	for _, d := range l.Detail {
		out = append(out, clean(d))
	}
	return out
}
