package report

import (
	"bufio"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/model"
)

const (
	// columns is the width that prose is wrapped to: the narrowest terminal
	// that is worth serving.
	columns = 80
	// indent is where the values stand behind their labels.
	indent = 18
	// shown bounds the lists of pods and peers in text.
	shown = 8
)

// ANSI-16 colours that stay apart for colour-blind eyes.
const (
	bold    = "1"
	magenta = "1;35"
	yellow  = "1;33"
	cyan    = "1;36"
)

// printer lays out text. The writer under it keeps the first error, so nobody
// has to ask for it on the way.
type printer struct {
	w     *bufio.Writer
	style Style
}

func (p *printer) paint(code, s string) string {
	if !p.style.Color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *printer) line(s string) {
	p.w.WriteString(strings.TrimRight(s, " "))
	p.w.WriteByte('\n')
}

// field prints a label and wrapped prose behind it; several values stand
// under each other.
func (p *printer) field(label string, values ...string) {
	for _, v := range values {
		for _, row := range Wrap(Clean(v), columns-indent) {
			p.row(label, row)
			label = ""
		}
	}
}

// verbatim is field for what will be pasted: never wrapped.
func (p *printer) verbatim(label string, values ...string) {
	for _, v := range values {
		p.row(label, Clean(v))
		label = ""
	}
}

func (p *printer) row(label, text string) {
	p.line(fmt.Sprintf("  %-*s", indent-2, label) + text)
}

func (p *printer) severity(s model.Severity, word string) string {
	switch s {
	case model.Critical:
		return p.paint(magenta, word)
	case model.Warning:
		return p.paint(yellow, word)
	}
	return p.paint(cyan, word)
}

// text prints the verdict, then each finding, then what was looked at.
func (r Report) text(p *printer) {
	names := locals(r.Snapshot)
	switch len(r.Findings) {
	case 0:
		for _, row := range Wrap(Clean(r.silence()), columns) {
			p.line(p.paint(bold, row))
		}
		p.line("")
	case 1:
		p.finding(r, r.Findings[0], names)
	default:
		for _, f := range r.Findings {
			p.headline(f)
		}
		p.line("")
		for _, f := range r.Findings {
			p.finding(r, f, names)
		}
	}
	r.summary(p)
}

func (p *printer) headline(f model.Finding) {
	severity, rest := headline(f)
	rows := Wrap(Clean(rest), columns-len(severity)-1)
	p.line(p.severity(f.Severity, severity) + " " + p.paint(bold, rows[0]))
	for _, row := range rows[1:] {
		p.line("  " + p.paint(bold, row))
	}
}

func (p *printer) finding(r Report, f model.Finding, names map[netip.Addr]string) {
	p.headline(f)
	p.field("last hop alive", placeText(f.LastHopAlive))
	if f.Packets > 0 {
		p.field("lost", fmt.Sprintf("%s in %s", plural(f.Packets, "packet"), seconds(r.Snapshot.Window.Duration())))
	}
	p.field("pods", podList(f.Pods, names)...)
	p.field("peers", peerList(f.Peers)...)
	p.field("why", f.Why)
	var evidence []string
	for _, e := range f.Evidence {
		evidence = append(evidence, e.Source+": "+e.Text)
	}
	p.field("evidence", evidence...)
	p.field("not seen", f.Unseen...)
	p.field("could also be", f.Alternatives...)
	p.verbatim("fix", f.Fix...)
	if f.Verify != "" {
		p.verbatim("verify", f.Verify)
	}
	p.line("")
}

// summary tells what the verdict rests on: where and how it was looked, what
// could not be read, what was dropped, what the probe itself lost.
func (r Report) summary(p *printer) {
	s := r.Snapshot
	node := []string{orUnknown(s.Node.Plugin)}
	if s.Node.Policy != "" {
		node = append(node, "policy "+s.Node.Policy)
	}
	if s.Node.Residue != "" {
		node = append(node, "left over: "+s.Node.Residue)
	}
	if s.Node.Kernel != "" {
		node = append(node, "Linux "+s.Node.Kernel)
	}
	p.field("node", fmt.Sprintf("%s (%s)", orUnknown(s.Node.Name), strings.Join(node, ", ")))
	engine := orUnknown(s.Node.Engine)
	if s.Node.Attach != "" {
		engine += " (" + s.Node.Attach + ")"
	}
	p.field("watched", fmt.Sprintf("%s by %s; uplinks: %s", seconds(s.Window.Duration()), engine, orNone(strings.Join(s.Node.Uplinks, ", "))))
	p.field("traffic", fmt.Sprintf("%s here; with traffic: %s", plural(len(s.Pods), "pod"), r.volume()))
	open := partial(s)
	p.field("left out", r.Limits...)
	p.field("sources", fmt.Sprintf("%d of %d complete", len(s.Sources)-len(open), len(s.Sources)))
	for _, src := range open {
		p.field("", fmt.Sprintf("%s %s: %s", src.Name, src.Status, orUnknown(src.Detail)))
	}
	p.field("probes", probeRows(s)...)
	drops, harmless := dropSummary(s)
	p.field("drops", drops...)
	p.field("harmless frees", harmless...)
	p.field("unexplained", r.unexplained()...)
	p.field("lost by lasthop", lostText(s.Traffic.Lost)...)
}

// dropSummary sums the drops by reason and place over all pods, and apart from
// them what the kernel freed without a loss.
func dropSummary(s *model.Snapshot) (drops, harmless []string) {
	type kind struct {
		harmless bool
		reason   model.Reason
		location string
		link     string
	}
	count := make(map[kind]uint64)
	var order []kind
	for _, d := range dropRows(s) {
		if d.node {
			continue
		}
		k := kind{d.class != model.DropLost, d.reason, d.location, d.link}
		if count[k] == 0 {
			order = append(order, k)
		}
		count[k] += d.packets
	}
	for _, k := range order {
		row := fmt.Sprintf("%d %s at %s, %s", count[k], orUnknown(string(k.reason)), orUnknown(k.location), onLink(k.link))
		if k.harmless {
			harmless = append(harmless, row)
		} else {
			drops = append(drops, row)
		}
	}
	switch {
	case len(drops) > 0:
	case s.Status(model.SourceDrops) == model.Missing:
		drops = []string{"not watched"}
	default:
		drops = []string{"none of pod packets"}
	}
	return bounded(drops), bounded(harmless)
}

func onLink(link string) string {
	if link == "" {
		return "no link"
	}
	return "on " + link
}

func lostText(l model.Lost) []string {
	if !lost(l) {
		return append([]string{"nothing"}, l.Detail...)
	}
	text := fmt.Sprintf("%d drop samples, %d packets uncounted, %d without MACs, %d unreadable", l.Events, l.Counters, l.MACs, l.Unparsed)
	return append([]string{text}, l.Detail...)
}

func lost(l model.Lost) bool { return l.Events+l.Counters+l.MACs+l.Unparsed > 0 }

func placeText(p model.Place) string {
	switch {
	case p.Link == "" && p.Role == "":
		return "not known"
	case p.Link == "":
		return strings.TrimSpace("a " + string(p.Role) + " " + string(p.Direction))
	case p.Role == "":
		return strings.TrimSpace(p.Link + " " + string(p.Direction))
	}
	return strings.TrimSpace(p.Link+" "+string(p.Direction)) + " (" + string(p.Role) + ")"
}

func podList(pods []netip.Addr, names map[netip.Addr]string) []string {
	var rows []string
	for _, a := range pods {
		row := addrText(a)
		if name := names[a]; name != "" {
			row += " " + name
		}
		rows = append(rows, row)
	}
	return bounded(rows)
}

func peerList(peers []netip.Prefix) []string {
	var rows []string
	for _, p := range peers {
		if p.IsSingleIP() {
			rows = append(rows, addrText(p.Addr()))
			continue
		}
		rows = append(rows, prefixText(p))
	}
	return bounded(rows)
}

func bounded(rows []string) []string {
	if len(rows) <= shown {
		return rows
	}
	return append(rows[:shown:shown], fmt.Sprintf("and %d more", len(rows)-shown))
}

// seconds is a length of time, as precise as anybody wants to read it.
func seconds(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Wrap breaks s at spaces so that no row is wider than width, unless one word
// is. It always returns at least one row.
func Wrap(s string, width int) []string {
	var rows []string
	row, used := "", 0
	for _, word := range strings.Fields(s) {
		n := utf8.RuneCountInString(word)
		if used > 0 && used+1+n > width {
			rows = append(rows, row)
			row, used = "", 0
		}
		if used > 0 {
			row += " "
			used++
		}
		row += word
		used += n
	}
	return append(rows, row)
}
