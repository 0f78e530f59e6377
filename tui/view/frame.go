package view

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TabID is one of the tabs.
type TabID int

// The tabs, in their order on the screen.
const (
	Findings TabID = iota
	Pods
	Path
	Events
	Node
	Tabs // how many there are
)

var tabNames = [Tabs]string{"Findings", "Pods", "Path", "Events", "Node"}
var tabShort = [Tabs]string{"Fnd", "Pod", "Pth", "Evt", "Nod"}

// PageID is what covers a tab.
type PageID int

// The pages.
const (
	NoPage PageID = iota
	FindingDetail
	HopDetail
	Help
	Coverage
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

	// Finding is the one that FindingDetail shows.
	Finding *model.Tracked
	// Preview is the path of the finding that is selected in a list.
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

// A screen of wideWidth has a pane beside the list, one of tallHeight the latest
// events below it.
const (
	wideWidth  = 120
	tallHeight = 40
)

// Draw draws the frame: at most Height lines of at most Width columns.
func Draw(f Frame) string {
	if f.Width <= 0 || f.Height <= 0 || f.Data == nil {
		return ""
	}
	t := f.Theme
	lines := []string{t.paint(Strong, f.header()), f.tabs()}
	if body := f.Height - 3; body > 0 {
		lines = append(append(lines, f.body(body)...), f.footer())
	}
	lines = lines[:min(len(lines), f.Height)]
	for i, line := range lines {
		lines[i] = t.cut(line, f.Width)
	}
	out := strings.Join(lines, "\n")
	if t.ASCII {
		out = plainASCII(out)
	}
	return out
}

// PageHeight is how many lines of a page or list a screen of that height has.
func PageHeight(height int) int { return max(height-4, 1) }

// MaxScroll is how far the page, or a tab without a list, can be scrolled.
func MaxScroll(f Frame) int {
	if f.Width <= 0 || f.Data == nil {
		return 0
	}
	return max(0, len(f.page())-(f.Height-3))
}

// page is all lines of what is scrolled.
func (f Frame) page() []string {
	p := &page{Theme: f.Theme, w: f.Width}
	switch {
	case f.Page == Help:
		p.help(f.Hints)
	case f.Page == Coverage:
		f.Data.coveragePage(p)
	case f.Page == HopDetail:
		f.Data.hopPage(p, f.Path)
	case f.Page == FindingDetail && f.Finding == nil:
		p.add("this finding is not in this window any more")
	case f.Page == FindingDetail:
		p.w = f.pageWidth()
		f.Data.findingPage(p, f.Finding)
	default:
		f.Data.nodePage(p)
	}
	return p.lines
}

// pageWidth leaves room for the raw figures beside a finding.
func (f Frame) pageWidth() int {
	if f.Width < wideWidth {
		return f.Width
	}
	return f.Width*3/5 - 1
}

func (f Frame) body(h int) []string {
	switch {
	case f.Page == FindingDetail && f.Finding != nil && f.Width >= wideWidth:
		left := f.pageWidth()
		raw := &page{Theme: f.Theme, w: f.Width - left - 2}
		f.Data.rawPage(raw, f.Finding)
		return f.Theme.beside(f.scrolled(f.page(), left, h), pad(raw.lines, h), left+1)
	case f.Page != NoPage || f.Tab == Node:
		return f.scrolled(f.page(), f.Width, h)
	case f.Tab == Path:
		return f.path(h)
	}
	return f.listTab(h)
}

// scrolled shows h lines of a page from where it is scrolled to, and how many are
// below.
func (f Frame) scrolled(lines []string, w, h int) []string {
	from := max(0, min(f.Scroll, len(lines)-h))
	lines = lines[from:]
	if below := len(lines) - h; below > 0 && h > 1 {
		lines = append(lines[:h-1:h-1], f.Theme.separator(model.Plural(below+1, "more line")+" below", w))
	}
	return pad(lines, h)
}

// header says where, how and for how long packets are watched. What does not fit
// is left out, the least important first.
func (f Frame) header() string {
	s := f.Data.Reading.Snapshot
	narrow := f.Width < oneColumn
	parts := []struct {
		text string
		rank int // the highest is left out first
	}{
		{"lasthop", 5}, {clean(cmp.Or(s.Node.Name, report.ThisNode)), 4}, {clean(cmp.Or(s.Node.Plugin, "unknown plugin")), 6}, {f.Mode, 0},
		{"win " + f.window(), 1}, {clean(f.Data.engine()) + " " + f.sources(), 2}, {"drops " + f.drops(), 3}, {f.Theme.spark(f.Data.Reading.Drops, 12), 7},
	}
	if narrow {
		parts[5].text = f.sources()
	}
	for out := 8; ; out-- {
		var keep []string
		for _, p := range parts {
			if p.rank < out && p.text != "" {
				keep = append(keep, p.text)
			}
		}
		line := strings.Join(keep, "  ")
		if out <= 1 || width(line) <= f.Width {
			return f.Theme.cut(line, f.Width)
		}
	}
}

// window is the time that the figures are of and, while that differs, the
// requested window.
func (f Frame) window() string {
	have := f.Data.Reading.Snapshot.Window.Duration()
	if f.Window <= 0 {
		return "all " + age(have)
	}
	return cmp.Or(f.windowName(), report.Duration(have)+"/"+report.Duration(f.Window))
}

// windowName is the window in the heading of a column; empty while the figures
// are not of the requested one, or nearly so: windows begin where the node's state was read.
func (f Frame) windowName() string {
	have := f.Data.Reading.Snapshot.Window.Duration()
	switch {
	case f.Window <= 0:
		return "all"
	case f.Data.Reading.At.IsZero(), have > f.Window*9/10 && have < f.Window*11/10+2*time.Second:
		return report.Duration(f.Window)
	}
	return ""
}

// sources is how many sources were read whole, with a mark where lasthop missed
// something on the node itself.
func (f Frame) sources() string {
	all, read, whole := 0, 0, true
	for _, n := range f.Data.each() {
		s := n.Reading.Snapshot
		all, read, whole = all+len(s.Sources), read+len(s.Sources)-len(report.Unread(s)), whole && report.Whole(s)
	}
	if all == 0 {
		return "-(!)"
	}
	text := fmt.Sprintf("%d/%d", read, all)
	if !whole || !f.Data.compared() {
		text += "(!)"
	}
	return text
}

func (f Frame) drops() string {
	if per := rate(f.Data.perSecond(f.Data.dropped.N)); f.Data.dropped.Known && per != unknown {
		return per + "/s"
	}
	return unknown
}

func (f Frame) tabs() string {
	t := f.Theme
	names := tabNames
	narrow := f.Width < oneColumn
	if narrow {
		names = tabShort
	}
	var parts []string
	for i := range Tabs {
		count := ""
		switch {
		case narrow:
		case i == Findings:
			count = " " + strconv.Itoa(len(f.Data.open))
		case i == Pods:
			count = " " + strconv.Itoa(len(f.Data.Reading.Snapshot.Pods))
		}
		part := fmt.Sprintf("%d %s%s", i+1, names[i], count)
		if i == f.Tab {
			part = t.paint(Tab, fmt.Sprintf("[%d]%s%s", i+1, names[i], count))
		}
		parts = append(parts, part)
	}
	left := strings.Join(parts, map[bool]string{true: " ", false: "  "}[narrow])
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

func (f Frame) filtered() bool { return f.Page == NoPage && Columns(f.Tab) != nil }

// filter is the filter as it is drawn. One that cannot be used is marked, with
// the reason at the foot.
func (f Frame) filter() string {
	s := clean(f.Filter)
	if f.Editing {
		runes := []rune(f.Filter)
		at := max(0, min(f.Caret, len(runes)))
		s = clean(string(runes[:at])) + "_" + clean(string(runes[at:]))
	}
	if s == "" {
		s = "-"
	}
	s = map[bool]string{true: "/", false: "/filter: "}[f.Width < oneColumn] + s
	if f.FilterError != "" {
		return f.Theme.paint(Warning, s+" (!)")
	}
	return s
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
	var parts []string
	for _, h := range f.Hints {
		part := h.Key + " " + h.Does
		switch {
		case !h.Footer:
			continue
		case h.Keep:
		case width(part) > room:
			room = 0
			continue
		default:
			room -= width(part) + 2
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "  ")
}

// ListWidth is the width of the list on a screen.
func ListWidth(w int) int {
	if w < wideWidth {
		return w
	}
	return w - max(38, w/4-2) - 1
}

// listTab is a list with a preview of the selected row: below it, or beside it
// where there is room, with the latest events below both.
func (f Frame) listTab(h int) []string {
	t := f.Theme
	empty := f.empty()
	if f.Width >= wideWidth {
		tail := 0
		if f.Height >= tallHeight && f.Tab != Events {
			tail = h / 4
		}
		left := ListWidth(f.Width)
		side := f.Width - left - 1
		upper := t.beside(t.list(f.Data.Columns(f.Tab), f.List, f.windowName(), left, h-tail, empty), t.limit(f.preview(side-1), side-1, h-tail), left)
		if tail == 0 {
			return upper
		}
		return append(append(upper, t.separator("events", f.Width)), f.tail(tail-1)...)
	}
	below := h * 2 / 5
	if f.Width < oneColumn || below < 4 {
		below = min(h/3, 4)
	}
	// The preview gets what a short list leaves.
	below = max(below, h-max(len(f.List.Rows), 1)-2)
	lines := t.list(f.Data.Columns(f.Tab), f.List, f.windowName(), f.Width, h-below, empty)
	if below > 1 {
		lines = append(lines, t.separator("preview", f.Width))
		lines = append(lines, t.limit(f.preview(f.Width), f.Width, below-1)...)
	}
	return pad(lines, h)
}

// empty is what an empty list says. It calls no node healthy.
func (f Frame) empty() string {
	s := f.Data.Reading.Snapshot
	switch {
	case f.Filter != "" && f.FilterError == "":
		return "nothing passes the filter"
	case f.Data.Reading.At.IsZero():
		return "waiting for the first reading"
	case f.Tab == Pods && s.Status(model.SourcePods) != model.OK:
		return "no pod is known: " + f.Data.why(model.SourcePods)
	case f.Tab == Pods:
		return "no pod on this node"
	case f.Tab == Events:
		return "nothing is known to have happened in this window"
	}
	return ""
}

// path is the path of a packet, hop by hop, with what decides at the selected hop
// below it. Where there is room, the other direction is beside it or below.
func (f Frame) path(h int) []string {
	t, d, v := f.Theme, f.Data, f.Path
	if v.Path == nil {
		return pad(wrap(cmp.Or(clean(v.Why), "no path"), f.Width), h)
	}
	lines := []string{t.paint(Strong, d.PathTitle(t, v, f.Width))}
	shown, other := v.directions()
	room := h - 1
	switch {
	case f.Width/2 >= oneColumn:
		listed := min(max(shown.lines(), other.lines())+2, max(room*2/3, 2))
		left := f.Width / 2
		right := d.hopTable(t, other, f.Width-left-1, listed)
		lines = append(lines, t.beside(d.hopTable(t, shown, left, listed), right, left)...)
	case f.Width >= wideWidth && shown.lines()+other.lines()+4 <= room*2/3:
		lines = append(lines, d.hopTable(t, shown, f.Width, shown.lines()+2)...)
		lines = append(lines, d.hopTable(t, other, f.Width, other.lines()+2)...)
	default:
		back := []string{d.summary(other)}
		if width(back[0]) > f.Width {
			back = wrap(back[0], f.Width)
		}
		listed := min(shown.lines()+1, max(room-2-len(back), 1))
		if f.Width < oneColumn {
			listed = min(shown.lines(), max(room-len(back), 1))
		}
		lines = append(lines, d.hopList(t, hopColumns, shown, f.Width, listed)...)
		lines = append(lines, back...)
	}
	if left := h - len(lines); left > 1 {
		detail := &page{Theme: t, w: f.Width}
		d.hopPage(detail, v)
		lines = append(lines, t.separator("hop; counts are "+d.scope(v.Path, v.Hop()), f.Width))
		lines = append(lines, t.limit(detail.lines, f.Width, min(len(detail.lines), left-1))...)
	}
	if left := h - len(lines); left > 4 && f.Width >= wideWidth {
		half := f.Width / 2
		rules := func(x direction, w int) []string { return t.limit(d.rules(t, x, w), w, left-1) }
		lines = append(lines, t.separator("what decides", f.Width))
		lines = append(lines, t.beside(rules(shown, half-1), rules(other, f.Width-half-2), half)...)
	}
	return pad(lines, h)
}
