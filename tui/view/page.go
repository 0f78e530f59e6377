package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

const label = 10

// page collects the lines of a page that is w columns wide.
type page struct {
	Theme
	w     int
	lines []string
}

func (p *page) add(s string) { p.lines = append(p.lines, p.cut(s, p.w)) }

func (p *page) prose(s string) { p.styled(Plain, s) }

func (p *page) styled(style Style, s string) {
	for _, row := range wrap(clean(s), p.w) {
		p.add(p.paint(style, row))
	}
}

// hang is wrapped text behind something that is drawn already and w columns wide.
func (p *page) hang(first string, w int, s string) {
	for _, row := range wrap(clean(s), max(p.w-w, 8)) {
		p.add(first + row)
		first = strings.Repeat(" ", w)
	}
}

// field is a label and wrapped prose, one value below another; nothing where they are empty.
func (p *page) field(name string, values ...string) { p.labelled(label, name, values...) }

func (p *page) labelled(w int, name string, values ...string) {
	for _, v := range values {
		p.hang(p.paint(Heading, p.fit(name, w)), w, v)
		name = ""
	}
}

func (p *page) title(s string) {
	if len(p.lines) > 0 {
		p.lines = append(p.lines, "")
	}
	p.add(p.paint(Strong, clean(s)))
}

func (d *Data) findingPage(p *page, f *model.Tracked) {
	// The longest label is "last hop alive".
	const wide = 15
	severity, rest := report.Headline(d.called, &f.Finding)
	p.styled(severityStyle(f.Severity), severity+" "+rest)
	seen := model.Either(f.Closed, fmt.Sprintf("from %s to %s, closed", clock(f.First), clock(f.Last)), "since "+clock(f.First))
	if f.Times > 1 {
		seen = fmt.Sprintf("%d times, ", f.Times) + seen
	}
	if !f.First.IsZero() {
		p.labelled(wide, "seen", seen)
	}
	for _, x := range report.Sections(d.Reading.Snapshot, d.called, &f.Finding) {
		switch {
		case x.Names:
			p.labelled(wide, x.Name, strings.Join(x.Values, ", "))
		case x.Name != "seen" || f.First.IsZero(): // above it is in the clock's time
			p.labelled(wide, x.Name, x.Values...)
		}
	}
	if len(f.Fix) > 0 {
		p.prose(report.NodeShell(d.Reading.Snapshot.Node))
	}
}

// hops lists what was counted of an address, hop by hop.
func (d *Data) hops(p *page, a netip.Addr) {
	d = d.home(a)
	hops := model.Filter(d.Reading.Snapshot.Traffic.Hops, func(h model.HopCount) bool { return h.Addr == a })
	slices.SortStableFunc(hops, report.HopOrder(d.Reading.Snapshot))
	for _, h := range hops {
		direction := model.Either(h.Side == model.AsDestination, "in", "out")
		name := clean(h.Link) + " " + clean(string(h.Direction))
		figures := fmt.Sprintf("%s %s/s", p.right(number(h.Packets), 6), p.right(rate(d.perSecond(h.Packets)), 5))
		p.add(fmt.Sprintf("%s %s %s", p.fit(direction, 3), p.fit(name, min(24, max(p.w-20, 8))), figures))
	}
	switch {
	case len(hops) > 0:
	case d.watched():
		p.add("no packets seen in this window")
	default:
		p.prose("packets are not watched: " + d.why(model.SourceTC))
	}
}

// why is what a source says about itself.
func (d *Data) why(source string) string {
	src := model.Find(d.Reading.Snapshot.Sources, func(x model.Source) bool { return x.Name == source })
	return cmp.Or(src.Detail, string(src.Status), "no data yet")
}

// nodePage is what is known of the node itself, or of each of several.
func (d *Data) nodePage(p *page) {
	for _, n := range d.each() {
		n.sources(p, d.on(n))
	}
	for _, n := range d.each() {
		n.describeNode(p)
	}
	if len(d.nodes) > 0 {
		p.add("")
	}
}

func (d *Data) describeNode(p *page) {
	s := d.Reading.Snapshot
	n := s.Node
	p.title(cmp.Or(n.Name, "node"))
	p.field("Kernel", cmp.Or(n.Kernel, "unknown"))
	plugin := cmp.Or(n.Plugin, "unknown")
	if len(n.PluginBy) > 0 {
		plugin += ": " + strings.Join(n.PluginBy, ", ")
	}
	p.field("Plugin", plugin)
	p.field("Policy", n.Policy)
	p.field("Left over", n.Residue)
	p.field("Engine", report.EngineText(n))
	p.field("Uplinks", report.UplinksText(n))
	p.field("Window", report.Duration(s.Window.Duration()))
	d.cluster(p)
	d.conntrack(p)
}

func (d *Data) cluster(p *page) {
	c := d.Reading.Snapshot.Cluster
	ranges := texts(c.PodCIDRs)
	for n := range model.Each(c.Nodes) {
		if n.Name == d.Reading.Snapshot.Node.Name && len(n.PodCIDRs) > 0 {
			ranges = strings.TrimPrefix(ranges+"; this node's "+texts(n.PodCIDRs), "; ")
		}
	}
	p.field("Pod range", cmp.Or(ranges, "unknown"))
	p.field("Cluster", model.Either(len(c.Nodes) > 0, model.Quantity(len(c.Nodes), "node"), d.why(model.SourceNodes)))
}

func (d *Data) conntrack(p *page) {
	s := d.Reading.Snapshot
	p.title("connection tracking")
	if s.Status(model.SourceConntrack) == model.Missing {
		p.prose("not read: " + d.why(model.SourceConntrack))
		return
	}
	c := s.Conntrack
	p.field("Entries", number(c.Count)+" of "+number(c.Max))
	p.field("In window", fmt.Sprintf("%s not inserted, %s dropped, %s dropped early, %s invalid",
		number(c.InsertFailed), number(c.Drop), number(c.EarlyDrop), number(c.Invalid)))
}

func texts(prefixes []netip.Prefix) string { return strings.Trim(fmt.Sprint(prefixes), "[]") }

// sources says of each whether it was read, or why not; these come first. on names the node where there are several.
func (d *Data) sources(p *page, on string) {
	p.title("what lasthop could read" + on)
	whole := func(src model.Source) bool { return src.Status == model.OK }
	for _, src := range append(report.Unread(d.Reading.Snapshot), model.Filter(d.Reading.Snapshot.Sources, whole)...) {
		style := map[model.Status]Style{model.Partial: Warning, model.Missing: Critical}[src.Status]
		p.hang(p.paint(style, p.fit(clean(string(src.Status)), 8))+p.fit(clean(src.Name), 11), 19, cmp.Or(src.Detail, unknown))
	}
	if len(d.Reading.Snapshot.Sources) == 0 {
		p.add("no reading yet")
	}
	p.field("Missed", report.LostText(d.Reading.Snapshot.Traffic.Lost)...)
}

// Hint is one key and what it does.
type Hint struct {
	Key, Does string
	// Section groups the keys in the help.
	Section string
	// Footer keys are named at the foot of the screen as far as they fit; Keep keys always.
	Footer, Keep bool
}

// help lists all keys.
func (p *page) help(hints []Hint) {
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
	half := len(rows)
	for i, row := range rows {
		if p.w >= 2*38 && row == "" && max(i, len(rows)-i) < max(half, len(rows)-half) {
			half = i
		}
	}
	column, h := model.Either(half < len(rows), p.w/2, p.w), max(half, len(rows)-half)
	left, right := pad(rows[:half:half], h), pad(rows[half:], h)
	for i := 1; i < h; i++ {
		p.add(strings.TrimRight(p.fit(left[i], column)+right[i], " "))
	}
	p.prose(fmt.Sprintf("%s packets end  %s some end  %s well  %s unknown  %s inferred, route changed  + pod came, went  %s note  faint: over, no loss",
		p.Sign(Critical), p.Sign(Warning), p.Sign(Healthy), p.Sign(Unknown), p.Sign(Likely), p.Sign(Info)))
}
