package view

import (
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

	// Mode is LIVE, FROZEN, REPLAY or ENDED, with what belongs to it.
	Mode string
	// Window is the time that was asked for; 0 is all since the start.
	Window time.Duration

	Tab    TabID
	List   List // of the tab, where it is one
	Path   PathView
	Page   PageID
	Scroll int // of the page, or of a tab that is no list

	// Finding is the one that FindingDetail shows, or that is previewed.
	Finding *model.Tracked
	// Preview is the path of what is chosen in a list.
	Preview *model.Path

	// Filter is the text of the filter, Editing whether it is being typed,
	// at Caret; FilterError is why it cannot be used.
	Filter      string
	Editing     bool
	Caret       int
	FilterError string

	// Status is a message that takes the place of the keys at the foot.
	Status string
	Hints  []Hint
}

// wideWidth and tallHeight are from where the room is used for more: a pane
// beside the list, and a tail of events below it.
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
	head := []string{t.paint(Strong, f.header()), f.tabs()}
	foot := f.footer()
	body := f.Height - len(head) - 1
	var lines []string
	if body < 1 {
		lines = append([]string{}, head...)
	} else {
		lines = append(append(append(lines, head...), f.body(body)...), foot)
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

// MaxScroll is how far the page, or the tab that is no list, can be scrolled.
func MaxScroll(f Frame) int {
	if f.Width <= 0 || f.Data == nil {
		return 0
	}
	return max(0, len(f.page())-(f.Height-3))
}

// page is all of what is scrolled.
func (f Frame) page() []string {
	switch f.Page {
	case Help:
		return HelpPage(f.Theme, f.Hints, f.Width)
	case Coverage:
		return f.Data.CoveragePage(f.Theme, f.Width)
	case HopDetail:
		return f.Data.HopPage(f.Theme, f.Path, f.Width)
	case FindingDetail:
		if f.Finding == nil {
			return []string{"this finding is not in this window any more"}
		}
		return f.Data.FindingPage(f.Theme, f.Finding, f.pageWidth())
	}
	return f.Data.NodePage(f.Theme, f.Width)
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
		raw := f.Data.RawPage(f.Theme, f.Finding, f.Width-left-2)
		return f.Theme.beside(f.scrolled(f.page(), left, h), pad(raw, h), left+1)
	case f.Page != NoPage || f.Tab == Node:
		return f.scrolled(f.page(), f.Width, h)
	case f.Tab == Path:
		return f.path(h)
	}
	return f.listTab(h)
}

// scrolled shows h lines of a page from where it is scrolled to, and how much
// is below.
func (f Frame) scrolled(lines []string, w, h int) []string {
	from := max(0, min(f.Scroll, len(lines)-h))
	lines = lines[from:]
	if below := len(lines) - h; below > 0 && h > 1 {
		lines = append(lines[:h-1:h-1], f.Theme.separator(plural(below+1, "more line")+" below", w))
	}
	return pad(lines, h)
}

// header is where, how and over what time the node is watched. What does not
// fit is left out, the least important first.
func (f Frame) header() string {
	s := f.Data.Reading.Snapshot
	narrow := f.Width < oneColumn
	parts := []struct {
		text string
		rank int // the higher, the sooner it is left out
	}{
		{"lasthop", 5}, {clean(or(s.Node.Name, "this node")), 4}, {clean(or(s.Node.Plugin, "unknown plugin")), 6}, {f.Mode, 0},
		{"win " + f.window(), 1}, {engine(s.Node) + " " + f.sources(), 2}, {"drops " + f.drops(), 3}, {f.Theme.spark(f.Data.Reading.Drops, 12), 7},
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

// window is the time that the figures are of and, as long as that is another,
// the time that was asked for.
func (f Frame) window() string {
	have := f.Data.Reading.Snapshot.Window.Duration()
	switch {
	case f.Window <= 0:
		return "all " + age(have)
	case f.settled(have):
		return Span(f.Window)
	}
	return Span(have) + "/" + Span(f.Window)
}

// settled reports whether the figures are of the time that was asked for, or
// near it, as windows end where the node's state was read.
func (f Frame) settled(have time.Duration) bool {
	return f.Data.Reading.At.IsZero() || have > f.Window*9/10 && have < f.Window*11/10+2*time.Second
}

// windowName is the window in the heading of a column; empty where the figures
// are not of the one that was asked for.
func (f Frame) windowName() string {
	have := f.Data.Reading.Snapshot.Window.Duration()
	switch {
	case f.Window <= 0:
		return "all"
	case f.settled(have):
		return Span(f.Window)
	}
	return ""
}

// sources is how many of the sources are whole, and a mark where one on the
// node itself is not.
func (f Frame) sources() string {
	ok := 0
	all := f.Data.Reading.Snapshot.Sources
	for _, src := range all {
		if src.Status == model.OK {
			ok++
		}
	}
	if len(all) == 0 {
		return "-(!)"
	}
	if s := f.Data.Reading.Snapshot; len(report.Gaps(s)) > 0 || lost(s.Traffic.Lost) {
		return fmt.Sprintf("%d/%d(!)", ok, len(all))
	}
	return fmt.Sprintf("%d/%d", ok, len(all))
}
func (f Frame) drops() string {
	if !f.Data.dropped.Known {
		return unknown
	}
	per := rate(f.Data.perSecond(f.Data.dropped.N))
	if per == unknown {
		return unknown
	}
	return per + "/s"
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
		s := strconv.Itoa(int(i)+1) + " " + names[i]
		if i == f.Tab {
			s = "[" + strconv.Itoa(int(i)+1) + "]" + names[i]
		}
		switch {
		case narrow:
		case i == Findings:
			s += " " + strconv.Itoa(len(f.Data.open))
		case i == Pods:
			s += " " + strconv.Itoa(len(f.Data.Reading.Snapshot.Pods))
		}
		if i == f.Tab {
			s = t.paint(Tab, s)
		}
		parts = append(parts, s)
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

// filtered reports whether what is shown is what a filter lets pass.
func (f Frame) filtered() bool { return f.Page == NoPage && Columns(f.Tab) != nil }

// filter is what the list is filtered by; what cannot be used is marked, with
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

// keys names as many keys as fit, and in any case those that must be known.
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

// ListWidth is how much of a screen's width its list has.
func ListWidth(w int) int {
	if w < wideWidth {
		return w
	}
	return w - max(38, w/4-2) - 1
}

// listTab is a list with a preview of what is chosen: below it, or beside it
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
		upper := t.beside(t.list(Columns(f.Tab), f.List, f.windowName(), left, h-tail, empty), t.limit(f.preview(side-1), side-1, h-tail), left)
		if tail == 0 {
			return upper
		}
		return append(append(upper, t.separator("events", f.Width)), f.tail(tail-1)...)
	}
	below := h * 2 / 5
	if f.Width < oneColumn || below < 4 {
		below = min(h/3, 4)
	}
	// What a short list leaves is the preview's.
	below = max(below, h-max(len(f.List.Rows), 1)-2)
	lines := t.list(Columns(f.Tab), f.List, f.windowName(), f.Width, h-below, empty)
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

// tail is the latest events in a few lines.
func (f Frame) tail(h int) []string {
	var lines []string
	for _, r := range f.Data.Events() {
		if len(lines) == h {
			break
		}
		if r.Faint {
			continue
		}
		lines = append(lines, " "+r.Cells[0].Text+" "+f.Theme.paint(r.Style, f.Theme.fit(r.Cells[1].Text, 6))+" "+f.Theme.cut(r.Cells[3].Text, f.Width-17))
	}
	if len(lines) == 0 {
		lines = append(lines, " none yet")
	}
	return pad(lines, h)
}

// preview is what is known of the chosen row, in a pane w columns wide.
func (f Frame) preview(w int) []string {
	r := f.List.Selected()
	p := &page{Theme: f.Theme, w: w}
	switch {
	case r == nil:
	case r.Pod != nil:
		f.podPreview(p, r.Pod)
	case r.Finding != nil:
		f.findingPreview(p, r.Finding)
	default:
		for _, c := range r.Cells {
			if c.ByText && len(c.Text) > 0 {
				p.prose(c.Text)
			}
		}
		if f.Tab == Events && r.Faint {
			p.prose("No loss: a socket or a transport frees such packets as it goes, or it is a copy that a bridge flooded.")
		}
	}
	return p.lines
}

func (f Frame) findingPreview(p *page, x *model.Tracked) {
	lost := "loss not counted"
	if x.Packets > 0 {
		lost = "lost " + plural(x.Packets, "packet") + " in " + Span(f.Data.Reading.Snapshot.Window.Duration())
	}
	for _, row := range wrap(severityWord(x.Severity)+" "+clean(string(x.Code))+": "+clean(x.Title), p.w) {
		p.add(p.paint(severityStyle(x.Severity), row))
	}
	p.prose(clean(string(x.Confidence)) + ", " + lost)
	p.chain(f.Data.Chain(f.Preview))
	p.prose(clean(x.Why))
	if len(x.Fix) > 0 {
		p.prose("Fix " + clean(x.Fix[0]))
	}
}

func (f Frame) podPreview(p *page, pod *model.Pod) {
	p.add(p.paint(Strong, p.ends(f.Data.podLabel(pod), p.w)))
	var addrs []string
	for _, a := range pod.Addresses {
		addrs = append(addrs, clean(a.String()))
	}
	p.prose(strings.Join(addrs, " ") + " " + clean(pod.Interface) + " " + or(pod.MAC.String(), "MAC unknown") + " behind " + clean(or(pod.Link, unknown)))
	for _, a := range pod.Addresses {
		if len(pod.Addresses) > 1 {
			p.add(p.paint(Strong, clean(a.Addr().String())))
		}
		f.Data.hops(p, a.Addr())
	}
}

// path is the way of a packet, hop by hop, with what decides at the chosen
// hop below; where there is room the way back is beside or below it.
func (f Frame) path(h int) []string {
	t, d, v := f.Theme, f.Data, f.Path
	if v.Path == nil {
		return pad(wrap(or(clean(v.Why), "no path"), f.Width), h)
	}
	lines := []string{t.paint(Strong, d.PathTitle(t, v, f.Width))}
	there, hops, way, other := v.ways()
	room := h - 1
	switch {
	case f.Width/2 >= oneColumn:
		listed := min(max(len(hops), len(other))+2, max(room*2/3, 2))
		left := f.Width / 2
		lines = append(lines, t.beside(d.hopTable(t, there, hops, v.Cursor, left, listed), d.hopTable(t, way, other, -1, f.Width-left-1, listed), left)...)
	case f.Width >= wideWidth && len(hops)+len(other)+4 <= room*2/3:
		lines = append(lines, d.hopTable(t, there, hops, v.Cursor, f.Width, len(hops)+2)...)
		lines = append(lines, d.hopTable(t, way, other, -1, f.Width, len(other)+2)...)
	default:
		back := []string{d.summary(other, way)}
		if width(back[0]) > f.Width {
			back = wrap(back[0], f.Width)
		}
		listed := min(len(hops)+1, max(room-2-len(back), 1))
		if f.Width < oneColumn {
			listed = min(len(hops), max(room-len(back), 1))
		}
		lines = append(lines, d.hopList(t, hopColumns, hops, v.Cursor, f.Width, listed)...)
		lines = append(lines, back...)
	}
	if left := h - len(lines); left > 1 {
		detail := d.HopPage(t, v, f.Width)
		lines = append(lines, t.separator("hop; counts are "+scope(v.Path), f.Width))
		lines = append(lines, t.limit(detail, f.Width, min(len(detail), left-1))...)
	}
	if left := h - len(lines); left > 4 && f.Width >= wideWidth {
		half := f.Width / 2
		lines = append(lines, t.separator("what decides", f.Width))
		lines = append(lines, t.beside(t.limit(d.rules(t, there, hops, half-1), half-1, left-1), t.limit(d.rules(t, way, other, f.Width-half-2), f.Width-half-2, left-1), half)...)
	}
	return pad(lines, h)
}

// Gate is what is printed before the screen is entered: plain text, since it
// may be all that a log or a late reader sees. intro is what is known before
// the first reading.
func Gate(t Theme, d *Data, intro string, w int) string {
	if w <= 0 {
		w = 80
	}
	w = min(w, 80)
	var parts []string
	if d == nil || d.Reading.At.IsZero() {
		parts = append(parts, clean(or(intro, "lasthop: waiting for the first reading.")))
	} else {
		parts = append(parts, d.gate()...)
	}
	out := strings.Join(wrap(strings.Join(parts, " "), w), "\n") + "\nEnter to start, q to quit."
	if t.ASCII {
		out = plainASCII(out)
	}
	return out
}

func (d *Data) gate() []string {
	s := d.Reading.Snapshot
	n := s.Node
	plugin := clean(or(n.Plugin, "plugin unknown"))
	if n.Residue != "" {
		plugin += ", left over: " + clean(n.Residue)
	}
	parts := []string{
		fmt.Sprintf("lasthop on %s (%s): %s, %s, packets watched by %s, uplinks %s.", clean(or(n.Name, "this node")), plugin,
			plural(len(s.Pods), "pod"), plural(len(s.Links), "link"), engine(n), clean(or(strings.Join(n.Uplinks, ", "), "unknown"))),
	}
	ok := 0
	var gaps []string
	for _, src := range s.Sources {
		if src.Status == model.OK {
			ok++
			continue
		}
		gaps = append(gaps, fmt.Sprintf("%s %s: %s", clean(src.Name), clean(string(src.Status)), clean(or(src.Detail, "no reason given"))))
	}
	parts = append(parts, fmt.Sprintf("%d of %d sources complete.", ok, len(s.Sources)))
	if len(gaps) > 0 {
		parts = append(parts, "Not whole: "+strings.Join(gaps, "; ")+".")
	}
	return append(parts, "It observes and changes nothing.")
}
