package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// PageID is what covers a tab.
type PageID int

// The pages.
const (
	NoPage PageID = iota
	FindingDetail
	HopDetail
	Help
)

// Frame is all that a screen shows.
type Frame struct {
	Width, Height int
	Theme         Theme
	Data          *Data

	// Mode is LIVE, FROZEN, REPLAY or ENDED, with its time or speed.
	Mode string
	// Window is the requested window; 0 is all since the start.
	Window time.Duration

	Tab    TabID
	List   List // the tab's, if it has one
	Path   PathView
	Page   PageID
	Scroll int // of the page, or of a tab without a list

	// Track is the time axis; nil where time does not pass.
	Track *Track

	// Finding is the one that FindingDetail shows.
	Finding *model.Tracked
	// Preview is the path of what is selected in a list.
	Preview *model.Path

	// Filter is the text of the filter. Editing says that it is being typed, at
	// Caret; FilterError is why it cannot be used.
	Filter      string
	Editing     bool
	Caret       int
	FilterError string

	// Status is a message that replaces the keys at the foot.
	Status string
	Hints  []Hint
}

// Draw draws the frame: at most Height lines of at most Width columns.
func Draw(f Frame) string {
	if f.Width <= 0 || f.Height <= 0 || f.Data == nil {
		return ""
	}
	t := f.Theme
	lines := []string{f.header(), f.tabs()}
	if body := f.bodyHeight(); body > 0 {
		lines = append(lines, f.body(body)...)
		if f.stripHeight() > 0 {
			lines = append(lines, f.strip()...)
		}
		lines = append(lines, f.footer())
	}
	lines = lines[:min(len(lines), f.Height)]
	for i, line := range lines {
		lines[i] = t.cut(line, f.Width)
	}
	return t.plain(strings.Join(lines, "\n"))
}

// bodyHeight is what the header, the tabs, the strip and the keys leave.
func (f Frame) bodyHeight() int { return f.Height - 3 - f.stripHeight() }

// MaxScroll is how far the page, or a tab without a list, can be scrolled.
func MaxScroll(f Frame) int {
	if f.Width <= 0 || f.Data == nil {
		return 0
	}
	return max(0, len(f.page())-f.bodyHeight())
}

// page is all lines of what is scrolled.
func (f Frame) page() []string {
	p := &page{Theme: f.Theme, w: f.Width}
	switch {
	case f.Page == Help:
		p.help(f.Hints)
	case f.Page == HopDetail:
		f.Data.hopPage(p, f.Path)
	case f.Page == FindingDetail && f.Finding == nil:
		p.add("this finding is no longer in this window")
	case f.Page == FindingDetail:
		f.Data.findingPage(p, f.Finding)
	case f.Tab.tab().page != nil:
		f.Tab.tab().page(f.Data, p)
	}
	return p.lines
}

func (f Frame) body(h int) []string {
	if f.Page != NoPage || f.Tab.tab().page != nil {
		return f.scrolled(f.page(), f.Width, h)
	}
	return f.Tab.tab().draw(f, h)
}

// scrolled shows h lines of a page from where it is scrolled to, and how many are below.
func (f Frame) scrolled(lines []string, w, h int) []string {
	lines = lines[max(0, min(f.Scroll, len(lines)-h)):]
	if below := len(lines) - h; below > 0 && h > 1 {
		lines = append(lines[:h-1:h-1], f.Theme.separator(model.Quantity(below+1, "more line")+" below", w))
	}
	return pad(lines, h)
}

// header says where, how and for how long packets are watched. What does not fit
// is left out, the least important first.
func (f Frame) header() string {
	s, lost := f.Data.Reading.Snapshot, rate(f.Data.lossRate())
	parts := []struct {
		text  string
		style Style
		rank  int // the highest is left out first
	}{
		{"lasthop", Dim, 6}, {clean(cmp.Or(s.Node.Name, report.ThisNode)), Strong, 0}, {clean(cmp.Or(s.Node.Plugin, "unknown plugin")), Plain, 7}, {f.Mode, model.Either(f.Mode == "LIVE", Strong, Tab), 0},
		{f.verdict(model.Critical), Critical, 0}, {f.verdict(model.Warning), Warning, 0},
		{"lost " + model.Either(lost == unknown, lost, lost+"/s"), Plain, 1}, {f.affected(), Plain, 4}, {"win " + f.window(), Plain, 2}, {"sources " + f.sources(), Plain, 3},
	}
	for out := 8; ; out-- {
		var keep []string
		for _, p := range parts {
			if p.rank < out && p.text != "" {
				keep = append(keep, f.Theme.paint(p.style, p.text))
			}
		}
		if line := strings.Join(keep, "  "); out <= 1 || width(line) <= f.Width {
			return f.Theme.cut(line, f.Width)
		}
	}
}

// verdict counts the open findings of a severity, if there are any.
func (f Frame) verdict(s model.Severity) string {
	n := len(model.Filter(f.Data.open, func(x model.Finding) bool { return x.Severity == s }))
	return model.Either(n == 0, "", fmt.Sprintf("%s %d %s", f.Theme.Sign(severityStyle(s)), n, severityWord(s)))
}

// window is the time that the figures are of and, while that differs, the requested window. Windows begin where the node's
// state was read.
func (f Frame) window() string {
	have := f.Data.Reading.Snapshot.Window.Duration()
	switch {
	case f.Window <= 0:
		return "all " + age(have)
	case f.Data.Reading.At.IsZero(), have > f.Window*9/10 && have < f.Window*11/10+2*time.Second:
		return report.Duration(f.Window)
	}
	return report.Duration(have) + "/" + report.Duration(f.Window)
}

// sources is how many were read whole, with a mark where lasthop missed something on the node itself.
func (f Frame) sources() string {
	all, read, whole := 0, 0, true
	for _, n := range f.Data.each() {
		s := n.Reading.Snapshot
		all, read, whole = all+len(s.Sources), read+len(s.Sources)-len(report.Unread(s)), whole && report.Whole(s)
	}
	if all == 0 {
		return "-(!)"
	}
	return fmt.Sprintf("%d/%d%s", read, all, model.Either(whole && f.Data.compared(), "", "(!)"))
}

// affected says how many of the pods an open finding concerns, if any.
func (f Frame) affected() string {
	pods := slices.Concat(model.Map(f.Data.open, func(x model.Finding) []netip.Addr { return x.Pods })...)
	n := len(slices.DeleteFunc(model.Unique(pods), func(a netip.Addr) bool { return !f.Data.isPod(a) }))
	return model.Either(n == 0, "", fmt.Sprintf("%d of %s affected", n, model.Quantity(len(f.Data.Reading.Snapshot.Pods), "pod")))
}

func (f Frame) tabs() string {
	t := f.Theme
	var parts []string
	for i := range Tabs {
		x, count := i.tab(), ""
		name := model.Either(f.Width < oneColumn, x.short, x.name)
		if x.count != nil && f.Width >= oneColumn {
			count = " " + strconv.Itoa(x.count(f.Data))
		}
		digit := strconv.Itoa(int(i))
		parts = append(parts, t.paint(model.Either(i == f.Tab, Tab, Plain), model.Either(i == f.Tab, "["+digit+"]", digit+" ")+name+count))
	}
	left := strings.Join(parts, model.Either(f.Width < oneColumn, " ", "  "))
	if !f.filtered() {
		return t.cut(left, f.Width)
	}
	filter := f.filter()
	room := f.Width - width(left) - 2
	if room < 4 {
		return t.cut(left, f.Width)
	}
	return t.fit(left, f.Width-min(width(filter), room)) + t.cut(filter, room)
}

func (f Frame) filtered() bool { return f.Page == NoPage && f.Tab.HasList() }

// filter is the filter as it is drawn. One that cannot be used is marked, with the reason at the foot.
func (f Frame) filter() string {
	s := clean(f.Filter)
	if f.Editing {
		runes := []rune(f.Filter)
		at := max(0, min(f.Caret, len(runes)))
		s = clean(string(runes[:at])) + "_" + clean(string(runes[at:]))
	}
	s = model.Either(f.Width < oneColumn, "/", "/filter: ") + cmp.Or(s, "-")
	return model.Either(f.FilterError != "", f.Theme.paint(Warning, s+" (!)"), s)
}

func (f Frame) footer() string {
	t := f.Theme
	switch {
	case f.FilterError != "" && f.filtered():
		return t.paint(Warning, "filter not used: "+clean(f.FilterError))
	case f.Status != "":
		return t.paint(Info, clean(f.Status))
	case f.Editing:
		return t.paint(Dim, t.cut("word  10.244.0.0/16  ~regexp  !not   enter keep  esc clear", f.Width))
	}
	return t.paint(Dim, f.keys())
}

// keys names as many keys as fit, and the most important ones always.
func (f Frame) keys() string {
	room := f.Width
	for _, h := range f.Hints {
		if h.Keep {
			room -= width(h.Key+" "+h.Does) + 2
		}
	}
	var parts, kept []string
	for _, h := range f.Hints {
		switch part := h.Key + " " + h.Does; {
		case !h.Footer:
		case h.Keep:
			kept = append(kept, part)
		case width(part) > room:
			room = 0
		default:
			room -= width(part) + 2
			parts = append(parts, part)
		}
	}
	return strings.Join(append(parts, kept...), "  ")
}

// listTab is a list with what is known of the selected row. Of open findings that comes first, since it is the answer; below
// the list are who reaches whom and the latest changes, where there is room left.
func (f Frame) listTab(h int) []string {
	t := f.Theme
	listed, answer, detail := f.listed(h)
	list := t.list(f.Data.Columns(f.Tab), f.List, f.Width, listed, f.empty())
	detail = t.limit(detail, f.Width, min(len(detail), h-listed))
	lines := append(list, detail...)
	if f.Tab != Findings || f.Width < oneColumn {
		return pad(lines, h)
	}
	if answer > 0 {
		lines = append(pad(detail, answer), list...)
	}
	if left := h - len(lines); f.Filter == "" && left > 6 && len(f.Data.Pods) > 0 {
		l := List{Rows: slices.Collect(model.Each(f.Data.reachable())), Cursor: -1, By: -1}
		lines = append(append(lines, t.separator("who reaches whom", f.Width)), t.list(f.Data.mapColumns(), l, f.Width, min(len(l.Rows)+1, left-5), "")...)
	}
	if left := h - len(lines); f.Filter == "" && left > 3 {
		changes := List{Rows: model.Chosen(f.Data.Events(), func(r *Row) bool { return r.Cells[1].Text != packet }), Cursor: -1, By: -1}
		lines = append(append(lines, t.separator("events", f.Width)), t.list(eventColumns, changes, f.Width, left, " none yet")[1:]...)
	}
	return pad(lines, h)
}

// listed is how many of h lines the list gets, how many stand before it, and what is known of the selected row.
func (f Frame) listed(h int) (listed, before int, detail []string) {
	listed = max(len(f.List.Rows), len(wrap(f.empty(), f.Width-1)), 1)
	most := h * 2 / 3
	if f.Width >= oneColumn {
		listed++
		// The list of a tab that is a table of what there is gets the larger part.
		most = model.Either(f.Tab != Findings, h/2, max(h/4, 6))
	}
	room := h - min(listed, most)
	if f.Tab == Findings && f.Width >= oneColumn && len(f.Data.open) > 0 {
		// The same for all findings, so that the list stays where it is. What a large screen has more is for the map.
		before = min(room, max(answerHeight, min(room*3/4, answerHeight+3)))
		return min(listed, h-before), before, f.preview(f.Width, before)
	}
	detail = f.preview(f.Width, room)
	return min(listed, max(most, h-len(detail))), 0, detail
}

// answerHeight is enough for what is known of most findings.
const answerHeight = 19

// empty is what an empty list says. It calls no node healthy.
func (f Frame) empty() string {
	s := f.Data.Reading.Snapshot
	switch {
	case f.Filter != "" && f.FilterError == "":
		return "nothing matches the filter"
	case f.Data.Reading.At.IsZero():
		return "waiting for the first reading"
	case f.Tab == Pods && s.Status(model.SourcePods) != model.OK:
		return "no known pods: " + f.Data.why(model.SourcePods)
	case f.Tab == Pods:
		return "no pod on this node"
	case f.Tab == Map:
		return "no pods to map"
	case f.Tab == Events:
		return "no events in this window"
	}
	return ""
}

// path is the path of a packet: drawn, then hop by hop, with what decides at the selected hop
// below it. Where there is room, the other direction is beside it or below.
func (f Frame) path(h int) []string {
	t, d, v := f.Theme, f.Data, f.Path
	if v.Path == nil {
		return pad(wrap(cmp.Or(clean(v.Why), "no path"), f.Width), h)
	}
	lines := []string{t.paint(Strong, d.PathTitle(t, v, f.Width))}
	shown, other := v.directions()
	if rows := (h - 1) / 2; rows >= 5 {
		if drawn := f.drawing(v.Path, f.Width, max(rows, 7), v.Reverse, v.Cursor); len(drawn) > 0 {
			// The title has the ends.
			lines = append(lines, drawn[1:]...)
		}
	}
	switch room := h - len(lines); {
	case f.Width/2 >= oneColumn:
		listed := min(max(shown.lines(), other.lines())+2, max(room*2/3, 2))
		left := f.Width / 2
		right := d.hopTable(t, other, f.Width-left-1, listed)
		lines = append(lines, t.beside(d.hopTable(t, shown, left, listed), right, left)...)
	case f.Width < oneColumn:
		lines = append(lines, d.hopList(t, shown, f.Width, min(shown.lines(), room))...)
	default:
		lines = append(lines, d.hopList(t, shown, f.Width, min(shown.lines()+1, max(room-3, 2)))...)
	}
	if left := h - len(lines); left > 1 {
		detail := &page{Theme: t, w: f.Width}
		d.hopPage(detail, v)
		lines = append(lines, t.separator("hop; counts are "+d.scope(v.Path, v.Hop()), f.Width))
		lines = append(lines, t.limit(detail.lines, f.Width, min(len(detail.lines), left-1))...)
	}
	return pad(lines, h)
}

// Gate is what is printed before the screen is entered. It is plain text, since a log or someone who attaches
// late may see nothing else. intro is what is known before the first reading.
func Gate(t Theme, d *Data, intro string, w int) string {
	if w <= 0 {
		w = 80
	}
	text := cmp.Or(intro, "lasthop: waiting for the first reading.")
	if d != nil && !d.Reading.At.IsZero() {
		s := d.Reading.Snapshot
		begin, end := "lasthop on ", " It only observes."
		if d.Reading.Replay {
			begin, end = "a recording of ", ""
		}
		text = fmt.Sprintf("%s%s: %s, %s, packets watched by %s, uplinks: %s; %s.%s",
			begin, report.NodeText(s.Node), model.Quantity(len(s.Pods), "pod"), model.Quantity(len(s.Links), "link"),
			report.EngineText(s.Node), report.UplinksText(s.Node), report.SourcesText(s), end)
		if len(d.nodes) > 0 {
			text = fmt.Sprintf("lasthop on %s, recorded at the same time: %s. %s.",
				s.Node.Name, joined(d.nodes, ", ", (*Data).nodeName), model.Quantity(len(s.Pods), "pod"))
		}
	}
	return t.plain(strings.Join(wrap(clean(text), min(w, 80)), "\n") + "\nEnter to start, q to quit.")
}
