package report

import (
	"bufio"
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

const (
	// columns is the width that prose is wrapped to, the narrowest terminal that people still use.
	columns = 80
	// indent is the column at which the values stand behind their labels.
	indent = 18
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
	for i, row := range Wrap(Clean(text), columns) {
		if i > 0 {
			row = hang + row
		}
		p.line(p.paint(color, row))
	}
}

// field prints a label and wrapped prose behind it, one value below another.
func (p *printer) field(label string, values ...string) {
	for _, v := range values {
		for _, row := range Wrap(Clean(v), columns-indent) {
			p.row(label, row)
			label = ""
		}
	}
}

func (p *printer) row(label, text string) { p.line(fmt.Sprintf("  %-*s", indent-2, label) + text) }

// text prints the verdict, then each finding, then what was looked at.
func (r Report) text(p *printer, wide bool) {
	names := Called(r.Snapshot)
	p.findings(r.outline())
	r.summary(p, names)
	if wide {
		r.wide(p, names)
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
	for f := range model.Each(o.findings) {
		p.finding(o.of(f), o.names, f)
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

func (p *printer) headline(names map[netip.Addr]string, f *model.Finding) {
	severity, rest := Headline(names, f)
	color := map[model.Severity]string{model.Critical: magenta, model.Warning: yellow}[f.Severity]
	for i, row := range Wrap(Clean(rest), columns-len(severity)-1) {
		before := model.Either(i == 0, p.paint(cmp.Or(color, cyan), severity), " ")
		p.line(before + " " + p.paint(bold, row))
	}
}

func (p *printer) finding(s *model.Snapshot, names map[netip.Addr]string, f *model.Finding) {
	p.headline(names, f)
	for _, x := range Sections(s, names, f) {
		if x.Name == Surer && !p.wide {
			continue
		}
		if !x.Verbatim {
			p.field(x.Name, x.Values...)
			continue
		}
		for i, v := range x.Values {
			label := model.Either(i > 0, "", x.Name)
			p.row(label, Clean(v))
		}
	}
	p.line("")
}

// summary says what the verdict rests on: where and how packets were watched,
// what could not be read, what was dropped, what lasthop itself lost.
func (r Report) summary(p *printer, names map[netip.Addr]string) {
	s := r.Snapshot
	p.field("node", NodeText(s.Node))
	if r.Audit != nil {
		p.audit(r, names)
		p.field("filters", r.Limits...)
		p.field("sources", SourcesText(s)...)
		return
	}
	p.field("watched", fmt.Sprintf("%s by %s; uplinks: %s", Duration(s.Window.Duration()), EngineText(s.Node), UplinksText(s.Node)))
	p.field("traffic", fmt.Sprintf("%s here; with traffic: %s", model.Quantity(len(s.Pods), "pod"), r.traffic()))
	p.field("filters", r.Limits...)
	p.field("sources", SourcesText(s)...)
	p.field("probes", probeRows(s, names)...)
	drops, harmless := r.dropSummary()
	p.field("drops", drops...)
	p.field("not lost", harmless...)
	p.field("unexplained", r.unexplained(names)...)
	p.field("lasthop missed", LostText(s.Traffic.Lost)...)
}

// dropSummary sums the drops of all pods by reason and location, apart from the frees that are no loss.
func (r Report) dropSummary() (drops, harmless []string) {
	var lost, freed Tally
	for _, d := range r.dropRows() {
		switch {
		case d.node:
		case d.class == loss.Lost:
			lost.Add(DropText(d.reason, d.cilium.Reason, d.location, d.link), d.packets)
		default:
			freed.Add(DropText(d.reason, d.cilium.Reason, d.location, d.link), d.packets)
		}
	}
	drops = lost.rows()
	if len(drops) == 0 {
		none := map[model.Status]string{model.Missing: "not watched", model.Partial: "none seen"}
		drops = []string{cmp.Or(none[r.Snapshot.Status(model.SourceDrops)], "no pod packets")}
	}
	return drops, freed.rows()
}

// Tally sums packets by what they have in common.
type Tally struct {
	// Order has each once, as it first came.
	Order   []string
	Packets map[string]uint64
}

// Add adds packets.
func (t *Tally) Add(what string, packets uint64) {
	if t.Packets == nil {
		t.Packets = make(map[string]uint64)
	}
	if _, ok := t.Packets[what]; !ok {
		t.Order = append(t.Order, what)
	}
	t.Packets[what] += packets
}

func (t *Tally) rows() []string {
	return bounded(model.Map(t.Order, func(what string) string { return fmt.Sprintf("%d %s", t.Packets[what], what) }))
}
