package view

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// PathView is a pod's path as it is shown.
type PathView struct {
	// Path is nil where there is none; Why then says why.
	Path *model.Path
	Why  string
	// Reverse shows the way back in the place of the way out.
	Reverse bool
	// Cursor is the hop that is looked at.
	Cursor int
	// Peer is the number of the other end among Peers, from 0.
	Peer, Peers int
}

// Hops are those of the direction that is shown.
func (v PathView) Hops() []model.PathHop {
	switch {
	case v.Path == nil:
		return nil
	case v.Reverse:
		return v.Path.Return
	}
	return v.Path.Forward
}

// ways are the direction that is shown, and the other.
func (v PathView) ways() (there string, hops []model.PathHop, way string, other []model.PathHop) {
	if v.Reverse {
		return "return", v.Path.Return, "forward", v.Path.Forward
	}
	return "forward", v.Path.Forward, "return", v.Path.Return
}

// Turned shows the other direction where packets end there and not in this one.
func (v PathView) Turned() PathView {
	ends := func(h model.PathHop) bool { return h.Dead }
	if v.Path == nil || slices.ContainsFunc(v.Hops(), ends) {
		return v
	}
	back := v
	back.Reverse = !v.Reverse
	if slices.ContainsFunc(back.Hops(), ends) {
		return back
	}
	return v
}

// Hop is the one that is looked at, nil where there is none.
func (v PathView) Hop() *model.PathHop {
	hops := v.Hops()
	if v.Cursor < 0 || v.Cursor >= len(hops) {
		return nil
	}
	return &hops[v.Cursor]
}

// hopColumns are those of a narrow screen; wideHopColumns put the link's index
// and the rate beside them. A row has cells for the wide ones.
var (
	wideHopColumns = []Column{
		{Title: "", Width: 1},
		{Title: "#", Width: 2, Right: true},
		{Title: "HOP", Width: 22, Fit: true},
		{Title: "IFX", Width: 4, Right: true},
		{Title: "IN", Width: 6, Right: true},
		{Title: "OUT", Width: 6, Right: true},
		{Title: "LOST", Width: 6, Right: true},
		{Title: "RATE/S", Width: 6, Right: true},
		{Title: "STATE / DECISION"},
	}
	hopColumns = func() []Column {
		cols := slices.Clone(wideHopColumns)
		cols[3].From, cols[7].From = never, never
		return cols
	}()
)

// never is wider than any screen.
const never = 1 << 20

// hopName is what a hop is called.
func hopName(h *model.PathHop) string { return clean(h.Name()) }

// hopMark says at a glance where packets end and where nobody can look.
func hopMark(h *model.PathHop) string {
	switch {
	case h.Dead:
		return "X"
	case h.Kind == model.HopBeyond:
		return "?"
	}
	return ""
}

// severityOf is the worst severity among the open findings of that code.
func (d *Data) severityOf(code model.Code) model.Severity {
	var worst model.Severity
	for _, f := range d.open {
		if f.Code == code && f.Severity.Rank() > worst.Rank() {
			worst = f.Severity
		}
	}
	return worst
}

// claims are the open findings of that code in a line each.
func (d *Data) claims(code model.Code) []string {
	var out []string
	for _, f := range d.open {
		if f.Code == code {
			out = append(out, fmt.Sprintf("%s %s: %s (%s)", severityWord(f.Severity), f.Code, f.Title, f.Confidence))
		}
	}
	if len(out) == 0 {
		return []string{string(code)}
	}
	return bounded(out)
}

func (d *Data) hopRow(h *model.PathHop) *Row {
	decision := clean(h.Decision)
	style := Plain
	if h.Dead {
		style = Critical
	}
	if h.Finding != "" {
		s := d.severityOf(h.Finding)
		style = severityStyle(s)
		decision = "[" + severityWord(s) + "] " + decision
	}
	lost := Cell{Text: count(h.Lost)}
	if h.Lost.Known && h.Lost.N > 0 {
		lost.Style = Critical
	}
	index := unknown
	for i := range d.Reading.Snapshot.Links {
		if l := &d.Reading.Snapshot.Links[i]; h.Kind != model.HopPod && h.Link != "" && l.Name == h.Link {
			index = number(uint64(max(l.Index, 0)))
		}
	}
	per := unknown
	if c := firstKnown(h.In, h.Out); c.Known {
		per = rate(d.perSecond(c.N))
	}
	return &Row{Style: style, Cells: []Cell{
		{Text: hopMark(h), Style: style}, {Text: number(uint64(max(h.N, 0)))}, {Text: hopName(h)}, {Text: index},
		{Text: count(h.In)}, {Text: count(h.Out)}, lost, {Text: per}, {Text: decision, Style: style},
	}, Brief: fmt.Sprintf("%d %s %s", h.N, hopName(h), decision)}
}

// Dead is the first hop at which packets end, the first hop where none does.
func (v PathView) Dead() int {
	return max(0, slices.IndexFunc(v.Hops(), func(h model.PathHop) bool { return h.Dead }))
}

// rules lists the hops with all that decides at each.
func (d *Data) rules(t Theme, title string, hops []model.PathHop, w int) []string {
	p := &page{Theme: t, w: w}
	p.title(title)
	for i := range hops {
		h := &hops[i]
		name := fmt.Sprintf("%d %s", h.N, hopName(h))
		decision := clean(h.Decision)
		first := t.paint(Heading, name) + "  "
		for _, row := range wrap(decision, max(w-width(name)-2, 8)) {
			p.add(first + row)
			first = strings.Repeat(" ", width(name)+2)
		}
		for _, rule := range h.Rules {
			if clean(rule) == decision {
				continue
			}
			for _, row := range wrap(clean(rule), w-4) {
				p.add("    " + row)
			}
		}
	}
	return p.lines
}

func firstKnown(counts ...model.Count) model.Count {
	for _, c := range counts {
		if c.Known {
			return c
		}
	}
	return model.Count{}
}

// hopList draws one direction in exactly h lines.
func (d *Data) hopList(t Theme, cols []Column, hops []model.PathHop, cursor, w, h int) []string {
	l := List{Cursor: cursor, By: -1}
	for i := range hops {
		l.Rows = append(l.Rows, d.hopRow(&hops[i]))
	}
	if w < oneColumn {
		for i, r := range l.Rows {
			name := r.Cells[1].Text + " " + r.Cells[2].Text
			r.Brief = t.fit(or(r.Cells[0].Text, " "), 1) + t.fit(name, 16) + " " + t.right(counts(&hops[i]), 8) + " " + r.Cells[8].Text
		}
		lines := t.brief(l, w, h, "no hop is known")
		return lines
	}
	if cursor < 0 {
		return t.still(cols, l, w, h)
	}
	return t.list(cols, l, "", w, h, "no hop is known")
}

// counts is what was counted at a hop in one figure; two where they differ.
func counts(h *model.PathHop) string {
	if h.In.Known && h.Out.Known && h.In.N != h.Out.N {
		return count(h.In) + ">" + count(h.Out)
	}
	return count(firstKnown(h.In, h.Out))
}

// hopTable is a direction under its name, in exactly h lines.
func (d *Data) hopTable(t Theme, name string, hops []model.PathHop, cursor, w, h int) []string {
	return append([]string{t.separator(name, w)}, d.hopList(t, wideHopColumns, hops, cursor, w, h-1)...)
}

// still draws a list without a cursor.
func (t Theme) still(cols []Column, l List, w, h int) []string {
	widths := columnWidths(cols, l.Rows, w-1)
	lines := []string{t.paint(Heading, t.heading(cols, widths, l, "", w))}
	for _, r := range l.Rows {
		lines = append(lines, t.row(cols, widths, r, false, w))
	}
	if len(l.Rows) == 0 {
		lines = append(lines, " no hop is known")
	}
	return pad(lines, h)
}

// PathTitle names both ends in at most w columns: where they are too long, the
// middle of each is left out.
func (d *Data) PathTitle(t Theme, v PathView, w int) string {
	if v.Path == nil {
		return "Path"
	}
	to := d.named(v.Path.To)
	if v.Path.Port > 0 {
		to += ":" + number(uint64(v.Path.Port))
	}
	if v.Path.Proto != 0 {
		to += "/" + model.ProtoName(v.Path.Proto)
	}
	name, from := "Path", d.name(v.Path.Pod)
	if v.Reverse {
		name, from, to = "Return", to, from
	}
	peers := ""
	if v.Peers > 1 && w >= oneColumn {
		peers = fmt.Sprintf("  (peer %d of %d)", v.Peer+1, v.Peers)
	}
	room := w - width(name+"  > "+peers)
	if width(from)+width(to) > room {
		half := max(room/2, room-width(to))
		from = t.ends(from, half)
		to = t.ends(to, room-width(from))
	}
	return t.cut(name+" "+from+" > "+to+peers, w)
}

// summary is one direction in a line: what came in, and where it ends.
func (d *Data) summary(hops []model.PathHop, way string) string {
	if len(hops) == 0 {
		return way + "  not known"
	}
	window := Span(d.Reading.Snapshot.Window.Duration())
	s := way + "  not counted"
	for i := range hops {
		c := firstKnown(hops[i].In, hops[i].Out)
		if !c.Known {
			continue
		}
		s = fmt.Sprintf("%s  %s in %s at hop %d, %s", way, plural(c.N, "packet"), window, hops[i].N, hopName(&hops[i]))
		if c.N == 0 {
			s = fmt.Sprintf("%s  0 packets in %s (expected at hop %d, %s)", way, window, hops[i].N, hopName(&hops[i]))
		}
		break
	}
	for i := range hops {
		if hops[i].Dead {
			return s + fmt.Sprintf("; ends at hop %d, %s", hops[i].N, hopName(&hops[i]))
		}
	}
	return s
}

// Chain is a path in short: its ends, and its hops, the dead one as X. It is the
// way out, or the way back where packets end there.
func (d *Data) Chain(p *model.Path) (ends string, hops []string) {
	if p == nil {
		return "", nil
	}
	from, to := d.name(p.Pod), d.name(p.To)
	if p.Port > 0 {
		to += ":" + number(uint64(p.Port))
	}
	v := PathView{Path: p}.Turned()
	if v.Reverse {
		from, to = to, from
	}
	for _, h := range v.Hops() {
		if h.Kind != model.HopBeyond {
			hops = append(hops, shortHop(&h))
		} else if !h.Dead {
			hops = append(hops, "?")
		}
		if h.Dead {
			hops = append(hops, "X")
			break
		}
	}
	return from + " > " + to, hops
}

// chain is a path in short, broken between its hops alone.
func (p *page) chain(ends string, hops []string) {
	row := ends + "   " + strings.Join(hops, "=")
	if width(row) <= p.w {
		p.prose(row)
		return
	}
	p.prose(ends)
	row = ""
	for i, h := range hops {
		if i < len(hops)-1 {
			h += "="
		}
		if row != "" && width(row+h) > p.w {
			p.add(row)
			row = ""
		}
		row += h
	}
	p.add(row)
}

func shortHop(h *model.PathHop) string {
	short := map[model.HopKind]string{
		model.HopPod: "pod", model.HopBridge: "bridge", model.HopConntrack: "nat", model.HopPolicy: "fwd",
		model.HopRoute: "route", model.HopNeighbor: "neigh", model.HopLocal: "node",
	}
	if s, ok := short[h.Kind]; ok {
		return s
	}
	return clean(or(h.Link, "link"))
}

// scope says whose packets a path's counts are.
func scope(p *model.Path) string {
	if p.Pair {
		return "of this pair alone"
	}
	return "of all that the pod sends and gets"
}

// hopLink is the node's link at which a hop's packets are counted, empty where
// there is none: a pod's own are at its host link, whose name is another.
func (d *Data) hopLink(pod netip.Addr, h *model.PathHop) string {
	if h.Kind != model.HopPod {
		return h.Link
	}
	pods := d.Reading.Snapshot.Pods
	for i := range pods {
		if pods[i].Has(pod) {
			return pods[i].Link
		}
	}
	return ""
}

// HopPage is all that decides at one hop.
func (d *Data) HopPage(t Theme, v PathView, w int) []string {
	p := &page{Theme: t, w: w}
	h := v.Hop()
	if h == nil {
		return nil
	}
	p.add(p.paint(Strong, fmt.Sprintf("hop %d  %s", h.N, hopName(h))))
	p.field("Decision", or(h.Decision, "not known"))
	p.field("Counted", fmt.Sprintf("in %s, out %s, lost %s, %s", count(h.In), count(h.Out), count(h.Lost), scope(v.Path)))
	side, whose := model.AsSource, "/s sent by the pod "
	if v.Reverse {
		side, whose = model.AsDestination, "/s for the pod "
	}
	link := d.hopLink(v.Path.Pod, h)
	if rates := d.rates(v.Path.Pod, side, link); link != "" && len(rates) > 0 {
		text := rate(last(rates)) + whose
		p.add(t.paint(Heading, t.fit("Rate", label)) + text + t.spark(rates, min(60, w-label-width(text))))
	}
	if h.Finding != "" {
		p.field("Finding", d.claims(h.Finding)...)
	}
	if len(h.Rules) == 0 {
		p.field("Rules", "none known")
	}
	for i, r := range h.Rules {
		name := ""
		if i == 0 {
			name = "Rules"
		}
		p.field(name, r)
	}
	return p.lines
}

// textWidth is that of what goes to the clipboard: wide enough not to cut.
const textWidth = 400

// PathText is the path as plain text, for the clipboard.
func (d *Data) PathText(v PathView) string {
	if v.Path == nil {
		return ""
	}
	var b strings.Builder
	t := NewTheme("mono", true)
	b.WriteString(d.PathTitle(t, PathView{Path: v.Path}, never) + "; counts are " + scope(v.Path) + "\n")
	for _, hops := range [][]model.PathHop{v.Path.Forward, v.Path.Return} {
		l := List{By: -1, Cursor: -1}
		for i := range hops {
			l.Rows = append(l.Rows, d.hopRow(&hops[i]))
		}
		for _, line := range t.still(wideHopColumns, l, textWidth, len(hops)+1) {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	return ansi.Strip(b.String())
}
