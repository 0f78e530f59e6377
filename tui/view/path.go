package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// PathView is a pod's path and how it is shown.
type PathView struct {
	// Path is nil where there is none; Why then says why.
	Path *model.Path
	Why  string
	// Reverse shows the return path instead of the forward path.
	Reverse bool
	// Cursor is the selected hop.
	Cursor int
	// Peer is the index of the other end among Peers.
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

// direction is the forward or the return path. cursor is the selected hop, -1 for none.
type direction struct {
	name   string
	hops   []model.PathHop
	cursor int
}

func (v PathView) directions() (shown, other direction) {
	shown, other = direction{"forward", v.Path.Forward, -1}, direction{"return", v.Path.Return, -1}
	if v.Reverse {
		shown, other = other, shown
	}
	shown.cursor = v.Cursor
	return shown, other
}

func isDead(h model.PathHop) bool { return h.Dead }

// Turned shows the other direction where packets end there and not in this one.
func (v PathView) Turned() PathView {
	back := v
	back.Reverse = !v.Reverse
	return model.Either(!slices.ContainsFunc(v.Hops(), isDead) && slices.ContainsFunc(back.Hops(), isDead), back, v)
}

// Dead is the index of the first hop at which packets end, 0 where none does.
func (v PathView) Dead() int { return max(0, slices.IndexFunc(v.Hops(), isDead)) }

// Hop is the selected hop, nil where there is none.
func (v PathView) Hop() *model.PathHop {
	hops := v.Hops()
	if v.Cursor < 0 || v.Cursor >= len(hops) {
		return nil
	}
	return &hops[v.Cursor]
}

var hopColumns = []Column{
	{Title: "", Width: 1},
	{Title: "#", Width: 2, Right: true},
	{Title: "HOP", Width: 22, Fit: true},
	{Title: "IFINDEX", Width: 7, Right: true, From: 96},
	{Title: "IN", Width: 6, Right: true},
	{Title: "OUT", Width: 6, Right: true},
	{Title: "LOST", Width: 6, Right: true},
	{Title: "RATE/S", Width: 6, Right: true, From: 96},
	{Title: "STATE / DECISION"},
}

const hopColumn = 2

// never is wider than any screen.
const never = 1 << 20

func hopName(h *model.PathHop) string { return clean(h.Name()) }

func (d *Data) headlines(code model.Code) []string {
	var out []string
	for _, f := range d.open {
		if f.Code == code {
			severity, rest := report.Headline(d.called, &f)
			out = append(out, severity+" "+rest)
		}
	}
	return model.Either(len(out) == 0, []string{string(code)}, out)
}

func (d *Data) hopRow(h *model.PathHop) *Row {
	decision := clean(report.HopDecision(d.called, h))
	style := Plain
	switch {
	case h.Finding != "":
		style = severityStyle(report.Worst(d.open, h.Finding))
	case h.Dead:
		style = Critical
	}
	lost := Cell{Text: count(h.Lost)}
	if h.Lost.Known && h.Lost.N > 0 {
		lost.Style = Critical
	}
	index := unknown
	named := func(l *model.Link) bool { return h.Kind != model.HopPod && h.Link != "" && l.Name == h.Link }
	if l := model.First(d.node(h.Node).Reading.Snapshot.Links, named); l != nil {
		index = number(uint64(max(l.Index, 0)))
	}
	per := unknown
	if c := h.Counted(); c.Known {
		per = rate(d.perSecond(c.N))
	}
	return &Row{Style: style, Cells: []Cell{
		{Text: report.HopMark(h), Style: style}, {Text: number(uint64(max(h.N, 0)))}, {Text: hopName(h)}, {Text: index},
		{Text: count(h.In)}, {Text: count(h.Out)}, lost, {Text: per}, {Text: decision, Style: style},
	}}
}

// hopList draws one direction in exactly h lines.
func (d *Data) hopList(t Theme, x direction, w, h int) []string {
	l := List{Cursor: x.cursor, By: -1}
	for i := range x.hops {
		if x.begins(i) {
			l.Rows = append(l.Rows, t.nodeRow(x.hops[i].Node))
		}
		if i == x.cursor {
			l.Cursor = len(l.Rows)
		}
		r := d.hopRow(&x.hops[i])
		name := r.Cells[1].Text + " " + r.Cells[2].Text
		r.Brief = t.fit(cmp.Or(r.Cells[0].Text, " "), 1) + t.fit(name, 16) + " " + t.right(counts(&x.hops[i]), 8) + " " + r.Cells[8].Text
		l.Rows = append(l.Rows, r)
	}
	return t.list(hopColumns, l, w, h, "no hop is known")
}

// counts is what was counted at a hop, in one figure or, where they differ, two.
func counts(h *model.PathHop) string {
	if h.In.Known && h.Out.Known && h.In.N != h.Out.N {
		return count(h.In) + ">" + count(h.Out)
	}
	return count(h.Counted())
}

// hopTable is a direction under its name, in exactly h lines.
func (d *Data) hopTable(t Theme, x direction, w, h int) []string {
	return append([]string{t.separator(x.name, w)}, d.hopList(t, x, w, h-1)...)
}

// PathTitle names both ends in at most w columns: where they are too long, the middle of each is left out.
func (d *Data) PathTitle(t Theme, v PathView, w int) string {
	name := "Path"
	from, to := report.PathEnds(d.called, v.Path)
	from, to = clean(from), clean(to)
	if v.Reverse {
		name, from, to = "Return", to, from
	}
	peers := model.Either(v.Peers > 1 && w >= oneColumn, fmt.Sprintf("  (peer %d of %d)", v.Peer+1, v.Peers), "")
	room := w - width(name+"  > "+peers)
	if width(from)+width(to) > room {
		half := max(room/2, room-width(to))
		from = t.ends(from, half)
		to = t.ends(to, room-width(from))
	}
	return t.cut(name+" "+from+" > "+to+peers, w)
}

func (d *Data) hopPage(p *page, v PathView) {
	h := v.Hop()
	if h == nil {
		return
	}
	p.add(p.paint(Strong, fmt.Sprintf("hop %d  %s", h.N, hopName(h))))
	p.field("Decision", cmp.Or(h.Decision, "unknown"))
	p.field("Counted", fmt.Sprintf("in %s, out %s, lost %s, %s", count(h.In), count(h.Out), count(h.Lost), d.scope(v.Path, h)))
	p.field("Node", h.Node)
	if h.Finding != "" {
		p.field("Finding", d.headlines(h.Finding)...)
	}
	if len(h.Rules) == 0 {
		p.field("Rules", "none known")
	}
	p.field("Rules", h.Rules...)
}

// PathText is the path as `lasthop explain` prints it, for the clipboard.
func (d *Data) PathText(v PathView) string {
	if v.Path == nil {
		return ""
	}
	var b strings.Builder
	r := report.Path{Snapshot: d.home(v.Path.Pod).Reading.Snapshot, Path: *v.Path}
	if far := d.home(v.Path.To); len(d.nodes) > 0 && far.nodeName() != r.Snapshot.Node.Name {
		r.Far = far.Reading.Snapshot
	}
	report.Write(&b, r, report.Text, report.Style{}) //nolint:errcheck // nothing fails in memory
	return b.String()
}
