package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// label is the width of the labels of a page.
const label = 10

// page collects the lines of a page that is w columns wide.
type page struct {
	Theme
	w     int
	lines []string
}

func (p *page) add(s string) { p.lines = append(p.lines, p.cut(s, p.w)) }

// prose is wrapped text.
func (p *page) prose(s string) {
	for _, row := range wrap(s, p.w) {
		p.add(row)
	}
}

// counted is a figure and what it is of, wrapped.
func (p *page) counted(n uint64, what string) {
	figure := p.right(number(n), 6) + " "
	for _, row := range wrap(what, max(p.w-len(figure), 8)) {
		p.add(figure + row)
		figure = strings.Repeat(" ", len(figure))
	}
}

// field is a label and wrapped prose; several values stand under each other.
func (p *page) field(name string, values ...string) {
	for _, v := range values {
		for _, row := range wrap(clean(v), p.w-label) {
			p.lines = append(p.lines, p.cut(p.paint(Heading, p.fit(name, label))+row, p.w))
			name = ""
		}
	}
}

func (p *page) title(s string) {
	if len(p.lines) > 0 {
		p.lines = append(p.lines, "")
	}
	p.add(p.paint(Strong, s))
}

// FindingPage is all that a finding says.
func (d *Data) FindingPage(t Theme, f *model.Tracked, w int) []string {
	p := &page{Theme: t, w: w}
	head := p.paint(severityStyle(f.Severity), severityWord(f.Severity)) + " " + p.paint(Strong, clean(string(f.Code)))
	conf := "confidence: " + clean(string(f.Confidence))
	if f.Closed {
		conf = "closed " + clock(f.Last) + "  " + conf
	}
	p.lines = append(p.lines, p.fit(head, max(w-width(conf)-1, 0))+" "+p.cut(conf, w-1))
	name := "Cause"
	if f.Confidence != model.Proven {
		name = "Suspect"
	}
	p.field(name, f.Title)
	lost := "loss not counted"
	if f.Packets > 0 {
		lost = fmt.Sprintf("lost %s in %s", plural(f.Packets, "packet"), Span(d.Reading.Snapshot.Window.Duration()))
	}
	p.field("Last hop", fmt.Sprintf("%s; %s; first seen %s", where(f), lost, clock(f.First)))
	p.field("Why", f.Why)
	for i, e := range f.Evidence {
		name := ""
		if i == 0 {
			name = "Observed"
		}
		p.evidence(name, i+1, e)
	}
	p.field("Not seen", f.Unseen...)
	p.field("Else", strings.Join(f.Alternatives, " | "))
	p.field("Fix", f.Fix...)
	p.field("Verify", f.Verify)
	p.field("Pods", strings.Join(d.podNames(f.Pods), ", "))
	p.field("Peers", strings.Join(d.peerNames(f.Peers), ", "))
	return p.lines
}

// evidence is one observation, its source at the right edge.
func (p *page) evidence(name string, n int, e model.Evidence) {
	source := clean(e.Source)
	number := fmt.Sprintf("[%d] ", n)
	room := p.w - label - len(number) - width(source) - 2
	for i, row := range wrap(clean(e.Text), max(room, 8)) {
		if i > 0 {
			name, number, source = "", strings.Repeat(" ", len(number)), ""
		}
		line := p.paint(Heading, p.fit(name, label)) + number
		if source == "" {
			p.add(line + row)
			continue
		}
		p.add(line + p.fit(row, max(room, 8)) + "  " + p.paint(Dim, source))
	}
}

// shown bounds the lists of pods and peers on a page.
const shown = 12

func (d *Data) podNames(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, d.named(a))
	}
	return bounded(out)
}

func (d *Data) peerNames(prefixes []netip.Prefix) []string {
	var out []string
	for _, p := range prefixes {
		if p.IsSingleIP() {
			out = append(out, d.named(p.Addr()))
			continue
		}
		out = append(out, clean(p.String()))
	}
	return bounded(out)
}

func bounded(rows []string) []string {
	if len(rows) > shown {
		rows = append(rows[:shown:shown], fmt.Sprintf("and %d more", len(rows)-shown))
	}
	return rows
}

// RawPage is what was counted of the pods of a finding: the figures that the
// evidence was drawn from.
func (d *Data) RawPage(t Theme, f *model.Tracked, w int) []string {
	p := &page{Theme: t, w: w}
	s := d.Reading.Snapshot
	concerned := func(a netip.Addr) bool { return slices.Contains(f.Pods, a) }
	for _, a := range f.Pods[:min(len(f.Pods), 3)] {
		p.title("hops of " + d.named(a))
		d.hops(p, a)
	}
	p.title("drops")
	d.listDrops(p, concerned)
	p.title("MACs")
	n := 0
	for i := range s.Traffic.MACs {
		x := &s.Traffic.MACs[i]
		if n < shown && concerned(x.Addr) {
			n++
			p.counted(x.Packets, fmt.Sprintf("%s %s %s > %s", clean(x.Link), clean(string(x.Direction)), or(x.Src.String(), unknown), or(x.Dst.String(), unknown)))
		}
	}
	if n == 0 {
		p.add("none")
	}
	return p.lines
}

// listDrops sums the drops of the pods concerned by reason and place.
func (d *Data) listDrops(p *page, concerned func(netip.Addr) bool) {
	sums := make(map[string]uint64)
	var order []string
	drops := d.Reading.Snapshot.Traffic.Drops
	for i := range drops {
		x := &drops[i]
		if !concerned(x.Src) && !concerned(x.Dst) {
			continue
		}
		what := clean(or(string(x.Reason), "unknown")) + " at " + clean(or(x.Location, "unknown")) + onLink(x.Link)
		if !d.loss(x) {
			what += ", harmless"
		}
		if _, ok := sums[what]; !ok {
			order = append(order, what)
		}
		sums[what] += x.Packets
	}
	for _, what := range order[:min(len(order), shown)] {
		p.counted(sums[what], what)
	}
	switch {
	case len(order) > 0:
	case d.dropped.Known:
		p.add("none")
	default:
		p.add("not watched: " + d.why(model.SourceDrops))
	}
}

// hops lists what was counted of an address, hop by hop, with the recent rates.
func (d *Data) hops(p *page, a netip.Addr) {
	var hops []*model.HopCount
	for i := range d.Reading.Snapshot.Traffic.Hops {
		if h := &d.Reading.Snapshot.Traffic.Hops[i]; h.Addr == a {
			hops = append(hops, h)
		}
	}
	slices.SortStableFunc(hops, d.onTheWay)
	// A narrow pane tells the way once, above its hops.
	narrow, above := p.w < 48, ""
	for _, h := range hops {
		way, whole := "out", "from the pod"
		if h.Side == model.AsDestination {
			way, whole = "in", "to the pod"
		}
		if narrow && way != above {
			p.add(p.paint(Heading, whole))
		}
		above = way
		var rates []float64
		for _, s := range d.series[a] {
			if s.IfIndex == h.IfIndex && s.Side == h.Side && s.Direction == h.Direction && s.Link == h.Link {
				rates = s.Rates
			}
		}
		per := last(rates)
		if len(rates) == 0 {
			per = d.perSecond(h.Packets)
		}
		name := clean(h.Link) + " " + clean(string(h.Direction))
		figures := fmt.Sprintf("%s %s/s", p.right(number(h.Packets), 6), p.right(rate(per), 5))
		if narrow {
			p.add(p.fit(name, max(p.w-15, 8)) + " " + figures)
			continue
		}
		room := min(24, max(p.w-28, 8))
		p.add(fmt.Sprintf("%s %s %s %s", p.fit(way, 3), p.fit(name, room), figures, p.spark(rates, min(20, p.w-room-20))))
	}
	switch {
	case len(hops) > 0:
	case d.watched():
		p.add("no packet seen in this window")
	default:
		p.add("packets are not watched: " + d.why(model.SourceTC))
	}
}

// onTheWay orders hops as packets pass them: what the pod sends, outwards from
// its own link, then what it gets, inwards.
func (d *Data) onTheWay(a, b *model.HopCount) int {
	depth := func(h *model.HopCount) int {
		n := 2
		switch d.roles[h.IfIndex] {
		case model.RolePod:
			n = 0
		case model.RolePodLink:
			n = 1
		case model.RoleUplink:
			n = 3
		}
		if h.Side == model.AsDestination {
			return 10 - n
		}
		return n
	}
	return cmp.Or(cmp.Compare(depth(a), depth(b)), cmp.Compare(a.Link, b.Link), cmp.Compare(b.Direction, a.Direction))
}

// why is what a source says about itself.
func (d *Data) why(source string) string {
	for _, src := range d.Reading.Snapshot.Sources {
		if src.Name == source {
			return clean(or(src.Detail, string(src.Status)))
		}
	}
	return "it never reported"
}

// NodePage is what is known of the node itself.
func (d *Data) NodePage(t Theme, w int) []string {
	p := &page{Theme: t, w: w}
	s := d.Reading.Snapshot
	n := s.Node
	p.title("node")
	p.field("Name", or(n.Name, "unknown"))
	p.field("Kernel", or(n.Kernel, "unknown"))
	plugin := or(n.Plugin, "unknown")
	if len(n.PluginBy) > 0 {
		plugin += ", by " + strings.Join(n.PluginBy, ", ")
	}
	p.field("Plugin", plugin)
	if n.Policy != "" {
		p.field("Policy", n.Policy)
	}
	if n.Residue != "" {
		p.field("Residue", n.Residue)
	}
	p.field("Engine", engine(n))
	p.field("Uplinks", or(strings.Join(n.Uplinks, ", "), "none known"))
	p.field("Window", Span(s.Window.Duration()))
	d.cluster(p)
	d.conntrack(p)
	p.title("lost by lasthop")
	for _, row := range orNothing(lostText(s.Traffic.Lost)) {
		p.add(row)
	}
	d.links(p)
	p.title("settings")
	for _, c := range s.Sysctls {
		if key(c.Name) {
			p.add(clean(c.Name) + " = " + clean(c.Value))
		}
	}
	if len(s.Sysctls) == 0 {
		p.add("not read: " + d.why(model.SourceSysctl))
	}
	return p.lines
}

// key reports whether a setting is worth a line: those that decide over
// forwarding, for all links at once.
func key(name string) bool {
	for _, k := range []string{"ip_forward", ".all.", ".default.forwarding", "bridge-nf-call", "nf_conntrack_max", "gc_thresh"} {
		if strings.Contains(name, k) {
			return true
		}
	}
	return false
}

func engine(n model.Node) string {
	if n.Engine == "" {
		return "unknown"
	}
	if n.Attach == "" {
		return clean(n.Engine)
	}
	return clean(n.Engine) + "/" + clean(n.Attach)
}

func orNothing(rows []string) []string {
	if len(rows) == 0 {
		return []string{"nothing"}
	}
	return rows
}

func (d *Data) cluster(p *page) {
	c := d.Reading.Snapshot.Cluster
	var ranges []string
	for _, x := range c.PodCIDRs {
		ranges = append(ranges, x.String())
	}
	p.field("Pod range", or(strings.Join(ranges, ", "), "not known"))
	nodes := d.why(model.SourceNodes)
	if len(c.Nodes) > 0 {
		nodes = plural(len(c.Nodes), "node")
	}
	p.field("Cluster", nodes)
}

func (d *Data) conntrack(p *page) {
	s := d.Reading.Snapshot
	p.title("connection tracking")
	if s.Status(model.SourceConntrack) == model.Missing {
		p.add("not read: " + d.why(model.SourceConntrack))
		return
	}
	c := s.Conntrack
	p.field("Entries", number(c.Count)+" of "+number(c.Max))
	p.field("In window", fmt.Sprintf("%s not inserted, %s dropped, %s dropped early, %s invalid",
		number(c.InsertFailed), number(c.Drop), number(c.EarlyDrop), number(c.Invalid)))
}

func (d *Data) links(p *page) {
	s := d.Reading.Snapshot
	p.title(plural(len(s.Links), "link"))
	cols := []Column{{Title: "IFX", Width: 4, Right: true}, {Title: "LINK", Width: 15, Fit: true}, {Title: "ROLE", Width: 8, Fit: true},
		{Title: "STATE", Width: 10, Fit: true}, {Title: "MTU", Width: 5, Right: true}, {Title: "MAC", Width: 17}, {Title: "ADDRESS"}}
	l := List{By: -1, Cursor: -1}
	for i := range s.Links {
		x := &s.Links[i]
		state := "up"
		switch {
		case !x.Up:
			state = "DOWN"
		case !x.Carrier:
			state = "NO CARRIER"
		}
		var addrs []string
		for _, a := range x.Addresses {
			addrs = append(addrs, a.String())
		}
		l.Rows = append(l.Rows, &Row{Cells: []Cell{
			whole(max(x.Index, 0)), text(clean(x.Name)), text(clean(or(string(x.Role), unknown))), text(state), whole(max(x.MTU, 0)),
			text(or(x.MAC.String(), unknown)), text(clean(strings.Join(addrs, " ")))}})
	}
	widths := columnWidths(cols, l.Rows, p.w-1)
	p.add(p.paint(Heading, p.heading(cols, widths, l, "", p.w)))
	for _, r := range l.Rows {
		p.add(p.row(cols, widths, r, false, p.w))
	}
}

// CoveragePage says of each source whether it was read, and why not.
func (d *Data) CoveragePage(t Theme, w int) []string {
	p := &page{Theme: t, w: w}
	p.title("what lasthop could look at")
	for _, src := range d.Reading.Snapshot.Sources {
		style := Warning
		switch src.Status {
		case model.OK:
			style = Plain
		case model.Missing:
			style = Critical
		}
		head := p.paint(style, p.fit(clean(string(src.Status)), 8)) + p.fit(clean(src.Name), 11)
		for i, row := range wrap(clean(or(src.Detail, unknown)), max(w-19, 10)) {
			if i > 0 {
				head = strings.Repeat(" ", 19)
			}
			p.add(head + row)
		}
	}
	if len(d.Reading.Snapshot.Sources) == 0 {
		p.add("nothing has been read yet")
	}
	p.title("lost by lasthop itself")
	for _, row := range orNothing(lostText(d.Reading.Snapshot.Traffic.Lost)) {
		for _, r := range wrap(row, w) {
			p.add(r)
		}
	}
	return p.lines
}

// PageText is a page, or else the node, as plain text, for the clipboard.
func (d *Data) PageText(p PageID) string {
	t := NewTheme("mono", true)
	lines := d.NodePage(t, textWidth)
	if p == Coverage {
		lines = d.CoveragePage(t, textWidth)
	}
	for i := range lines {
		lines[i] = strings.TrimRight(ansi.Strip(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

// Hint is one key and what it does.
type Hint struct {
	Key, Does string
	// Section groups the keys in the help.
	Section string
	// Footer keys are named at the foot of the screen, as far as they fit;
	// Keep are those that must.
	Footer, Keep bool
}

// HelpPage lists all keys.
func HelpPage(t Theme, hints []Hint, w int) []string {
	p := &page{Theme: t, w: w}
	section := ""
	var rows []string
	for _, h := range hints {
		if h.Section == "" {
			continue
		}
		if h.Section != section {
			section = h.Section
			rows = append(rows, "", p.paint(Strong, section))
		}
		rows = append(rows, p.fit(" "+h.Key, 13)+h.Does)
	}
	// Two columns where there is room, so that all keys show at once.
	if w < 2*38 {
		for _, row := range rows[min(1, len(rows)):] {
			p.add(row)
		}
		return p.lines
	}
	half := len(rows)
	for i, row := range rows {
		if row == "" && 2*max(i, len(rows)-i) < 2*max(half, len(rows)-half) {
			half = i
		}
	}
	for i := 1; i < max(half, len(rows)-half); i++ {
		left, right := "", ""
		if i < half {
			left = rows[i]
		}
		if half+i < len(rows) {
			right = rows[half+i]
		}
		p.add(strings.TrimRight(p.fit(left, w/2)+right, " "))
	}
	return p.lines
}
