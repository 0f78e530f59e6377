package report

import (
	"bufio"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

const (
	// columns is the width that prose is wrapped to where no terminal has another, widest the most that people read.
	columns, widest = 100, 120
	// indent is the column at which the values stand behind their labels; in a short finding it is narrow.
	indent, narrow = 18, 8
)

// The ANSI colours. Colour-blind people can tell them apart.
const (
	bold    = "1"
	magenta = "1;35"
	yellow  = "1;33"
	cyan    = "1;36"
)

// printer lays out text. The writer under it keeps the first error, so the printer's methods return none.
type printer struct {
	w     *bufio.Writer
	style Style
	wide  bool
	// indent is that of the values where it is not the usual one.
	indent int
}

func (p *printer) paint(code, s string) string {
	return model.Either(!p.style.Color || code == "", s, "\x1b["+code+"m"+s+"\x1b[0m")
}

func (p *printer) line(s string) {
	p.w.WriteString(strings.TrimRight(s, " "))
	p.w.WriteByte('\n')
}

// prose prints wrapped text; each row after the first begins with hang.
func (p *printer) prose(color, hang, text string) {
	for i, row := range Wrap(Clean(text), p.columns()-len(hang)) {
		if i > 0 {
			row = hang + row
		}
		p.line(p.paint(color, row))
	}
}

func (p *printer) columns() int { return max(60, min(cmp.Or(p.style.Columns, columns), widest)) }

// field prints a label and wrapped prose behind it, one value below another.
func (p *printer) field(label string, values ...string) {
	for _, v := range values {
		for _, row := range Wrap(Clean(v), p.columns()-max(cmp.Or(p.indent, indent), len(label)+3)) {
			p.row(label, row)
			label = ""
		}
	}
}

func (p *printer) row(label, text string) {
	p.line(fmt.Sprintf("  %-*s ", cmp.Or(p.indent, indent)-3, label) + text)
}

// text prints the verdict, then each finding, then what was looked at.
func (r Report) text(p *printer, wide bool) {
	o := r.outline()
	p.findings(o)
	r.summary(p, o.names)
	if wide {
		r.wide(p, o.names)
	}
}

// findings prints the findings, below all headlines if there are several, or the verdict without any.
func (p *printer) findings(o outline) {
	if len(o.findings) == 0 {
		p.prose(bold, "", o.verdict)
		p.line("")
	}
	if len(o.findings) > 1 {
		for f := range model.Each(o.findings) {
			p.headline(o.names, f)
		}
		p.line("")
	}
	for i := range o.findings {
		p.finding(o, &o.findings[i], o.drawing(i))
	}
	if o.shell != "" {
		p.line(o.shell)
		p.line("")
	}
}

// verdict is what a report without findings says first.
func (r Report) verdict() string {
	verdict := r.Silence(r.dropped())
	if r.Audit != nil {
		verdict = r.audited()
	}
	if len(r.Focus) > 0 {
		verdict = "for the selected pods: " + verdict
	}
	incomplete := model.Map(Gaps(r.Snapshot), func(g model.Source) string { return fmt.Sprintf("%s (%s)", g.Name, g.Status) })
	if Lost(r.Snapshot.Traffic.Lost) {
		incomplete = append(incomplete, "lasthop's own counts (see below)")
	}
	if len(incomplete) > 0 {
		verdict += "; incomplete: " + strings.Join(incomplete, ", ")
	}
	return strings.Join(append([]string{verdict}, r.Limits...), "; ")
}

func (p *printer) headline(names Names, f *model.Finding) {
	severity, rest := Headline(names, f)
	color := map[model.Severity]string{model.Critical: magenta, model.Warning: yellow}[f.Severity]
	for i, row := range Wrap(Clean(rest), p.columns()-len(severity)-1) {
		before := model.Either(i == 0, p.paint(cmp.Or(color, cyan), severity), " ")
		p.line(before + " " + p.paint(bold, row))
	}
}

// finding prints a finding in the order in which a person needs it: where packets end, what to do, why, what shows it.
// Unless wide, it is short. at is the path that shows it, if any.
func (p *printer) finding(o outline, f *model.Finding, at *Drawing) {
	p.headline(o.names, f)
	defer func() { p.indent = 0 }()
	p.indent = model.Either(p.wide, indent, narrow)
	p.field("path", p.ends(o, f, at))
	for _, x := range model.Either(p.wide, Sections, Short)(o.of(f), o.names, f) {
		if !x.Verbatim {
			p.field(x.Name, x.Values...)
			continue
		}
		for i, v := range x.Values {
			p.row(model.Either(i > 0, "", x.Name), Clean(v))
		}
	}
	p.line("")
}

// ends is where a finding's packets end, in one line, with how many they are.
func (p *printer) ends(o outline, f *model.Finding, at *Drawing) string {
	s, last := o.of(f), f.LastHopAlive
	called := func(a netip.Addr) Name { return cmp.Or(o.names[a], Name{Other: addrText(a)}) }
	from := several(model.Map(f.Pods, called))
	to := several(model.Map(f.Peers, func(x netip.Prefix) Name {
		return model.Either(x.IsSingleIP(), called(x.Addr()), Name{Other: prefixText(x)})
	}))
	inside := last.Role == model.RolePodLink || last.Role == model.RoleBridge
	toPods := last.Direction != "" && inside == (last.Direction == model.Egress)
	if sent, came := between(s, f); f.Packets > 0 && sent+came > 0 && (inside || last.Direction != model.Egress) {
		toPods = came > sent
	}
	if toPods && from != "" {
		from, to = cmp.Or(to, "packets"), from
	}
	lost, dead := lostText(s, f), ""
	if at == nil {
		at = &Drawing{}
	}
	if h := at.Path.Dead(); h != nil && h.Finding == f.Code {
		named := last.Link != "" && h.Link == last.Link && hopNames[h.Kind] == "" // as the last hop alive
		dead = model.Either(h.Kind == model.HopPod || named, "", hopTitle(h))
		lost += model.Either(h.Kind == model.HopBeyond && f.Packets > 0, ", no reply", "")
	}
	line, arrow := cmp.Or(from, ThisNode), " "+strokes.live+strokes.live+strokes.right+" "
	if last.Link != "" {
		line += arrow + last.Link
	}
	switch {
	case f.Passes:
		line += model.Either(to == "", "", arrow+to)
	case dead == "" || to == "":
		line += " " + strings.TrimSpace(strokes.end+" "+dead+to)
	default:
		line += " " + strokes.end + " " + dead + " " + strokes.ended + strokes.ended + " " + to
	}
	return line + ": " + strings.Join(slices.DeleteFunc([]string{lost, seenAt(f)}, func(x string) bool { return x == "" }), "; ")
}

// between counts the dropped packets that a finding's pods sent to its peers, and those that came from there.
func between(s *model.Snapshot, f *model.Finding) (sent, came uint64) {
	pods := model.SetOf(f.Pods)
	for d := range model.Each(s.Traffic.Drops) {
		switch {
		case pods[d.Src] && model.InAny(f.Peers, d.Dst):
			sent += d.Packets
		case pods[d.Dst] && model.InAny(f.Peers, d.Src):
			came += d.Packets
		}
	}
	return sent, came
}

// several are the first of some names, and how many more there are. A namespace stands once.
func several(names []Name) string {
	const shown = 2
	more, before := len(names)-shown, ""
	var texts []string
	for _, n := range names[:min(len(names), shown)] {
		texts, before = append(texts, model.Either(n.Namespace != "" && n.Namespace == before, n.Pod, n.display())), n.Namespace
	}
	return strings.Join(texts, ", ") + model.Either(more > 0, fmt.Sprintf(" +%d", more), "")
}

// summary says what the verdict rests on, and what no finding explains; wide has all drops.
func (r Report) summary(p *printer, names Names) {
	if r.Audit != nil {
		p.prose("", "  ", fmt.Sprintf("%s; %s", aNode(r.Snapshot.Node), SourcesText(r.Snapshot)))
		p.audit(r, names)
		p.field("filters", r.Limits...)
		p.field("not read", model.Map(Gaps(r.Snapshot), SourceText)...)
		return
	}
	p.watched(r.Snapshot, names, "on "+UplinksText(r.Snapshot.Node)+"; "+r.traffic(), r.Limits)
	p.field("drops", r.dropSummary(func(d *dropRow) bool { return d.class == loss.Lost && (p.wide || d.cause.Code == "") })...)
	p.field("not lost", r.dropSummary(func(d *dropRow) bool { return d.class != loss.Lost && p.wide })...)
	p.field("unexplained", r.unexplained(names)...)
}

// aNode is NodeText at the beginning of a line, which is never a name's own.
func aNode(n model.Node) string { return model.Either(n.Name == "", "", "node ") + NodeText(n) }

// watched says in a line what was looked at, and below it what was not read.
func (p *printer) watched(s *model.Snapshot, names Names, which string, limits []string) {
	p.prose("", "  ", fmt.Sprintf("%s: %s by %s %s; %s; lasthop missed %s", aNode(s.Node), Duration(s.Window.Duration()),
		EngineText(s.Node), which, SourcesText(s), strings.Join(LostText(s.Traffic.Lost), ", ")))
	p.field("filters", limits...)
	p.field("not read", model.Map(Gaps(s), SourceText)...)
	p.field("probes", probeRows(s, names)...)
}

// dropSummary sums the drops of all pods that are chosen, by reason and location.
func (r Report) dropSummary(chosen func(*dropRow) bool) []string {
	var order []string
	packets := map[string]uint64{}
	for _, d := range r.dropRows() {
		if !d.node && chosen(&d) {
			what := DropText(d.reason, d.cilium.Reason, d.location, d.link)
			if _, known := packets[what]; !known {
				order = append(order, what)
			}
			packets[what] += d.packets
		}
	}
	return bounded(model.Map(order, func(what string) string { return fmt.Sprintf("%d %s", packets[what], what) }))
}
