package view

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// preview is what is known of the selected row, in at most h lines of w columns, below a rule.
func (f Frame) preview(w, h int) []string {
	r := f.List.Selected()
	p := &page{Theme: f.Theme, w: w}
	switch {
	case r == nil || h < 2 || r.Span && width(r.Word+r.Brief)+12 < w:
		return nil
	case f.Tab == Map:
		f.pairsPreview(p, r, h)
	case r.Pod != nil:
		p.lines = append(p.lines, p.separator(f.Data.podLabel(r.Pod), w))
		p.lines = append(p.lines, f.drawing(f.Preview, w, max(h/2, 3), false, -1)...)
		f.podPreview(p, r.Pod)
	case r.Finding != nil:
		f.findingPreview(p, r.Finding, h)
	default:
		p.lines = append(p.lines, p.separator("", w))
		p.lines = append(p.lines, f.drawing(f.Preview, w, max(h/2, 3), false, -1)...)
		for _, c := range r.Cells {
			if c.ByText && len(c.Text) > 0 {
				p.prose(c.Text)
			}
		}
	}
	return p.lines
}

// findingPreview is where packets end, why, and what to do, in h lines. What to do and where come before what shows it.
func (f Frame) findingPreview(p *page, x *model.Tracked, h int) {
	style := severityStyle(x.Severity)
	of := clean(fmt.Sprintf(" %s, %s", x.Code, x.Confidence))
	title, room := p.Sign(style)+" "+clean(report.Prose(f.Data.called, x.Title)), max(p.w-1-width(of), p.w/2)
	if rows := wrap(title, p.w); width(title) > room && h > 10 {
		// It is the answer: nothing of it is left out where there is room.
		p.lines, title = append(p.lines, p.paint(style, rows[0])), "  "+strings.Join(rows[1:], " ")
	}
	title = p.cut(title, room)
	p.lines = append(p.lines, p.paint(style, title)+" "+p.paint(Dim, strings.Repeat(rule, max(p.w-1-width(title)-width(of), 0))+of))
	var sections [][]string
	for _, s := range report.Short(f.Data.Reading.Snapshot, f.Data.called, &x.Finding) {
		if s.Name == "docs" {
			continue // the page of the finding has it
		}
		q := &page{Theme: p.Theme, w: p.w}
		if name := strings.ToUpper(s.Name); s.Verbatim {
			q.commands(name, s.Values)
		} else {
			q.field(name, s.Values...)
		}
		sections = append(sections, q.lines)
	}
	// Each gets what the more important ones leave: what to do, where, why, what shows it.
	left := h - len(p.lines)
	take := func(lines []string, most int) []string {
		all := len(lines)
		lines = p.limit(lines, p.w, max(0, min(all, most, left)))
		if n := len(lines); 0 < n && n <= 2 && n < all {
			// Too few for a line that counts the rest.
			whole := lines[n-1] + " " + more
			lines[n-1] = model.Either(width(whole) > p.w, p.cut(lines[n-1], p.w-2), whole)
		}
		left -= len(lines)
		return lines
	}
	var rest []string
	for i, lines := range sections {
		rest = append(rest, take(lines, model.Either(i == 0, max((h-1)*5/12, 3), h))...)
		if i == 0 {
			drawn := f.drawing(f.Preview, p.w, max(left-2, 6), false, -1)
			drawn = drawn[:min(len(drawn), left)]
			left -= len(drawn)
			p.lines = append(p.lines, drawn...)
		}
	}
	p.lines = append(p.lines, rest...)
}

// commands are to be pasted: nothing but the width breaks them, and each row of a comment is one.
func (p *page) commands(name string, values []string) {
	for _, v := range values {
		const sign = "# "
		room, comment := p.w-label, false
		if strings.Contains(v, sign) {
			room -= len(sign)
		}
		for _, row := range wrap(clean(v), max(room, 8)) {
			if comment {
				row = sign + row
			}
			comment = comment || strings.Contains(row, sign)
			p.add(p.paint(Healthy, p.fit(name, label)) + p.paint(Command, row))
			name = ""
		}
	}
}

// drawn is how the pieces of a drawing look.
var drawn = [...]Style{
	report.Around: Dim, report.Alive: Healthy, report.Lossy: Warning, report.Ends: Critical, report.Unseen: Unknown, report.Ended: Dim, report.Both: Strong,
}

// drawing is a path in boxes, in at most h lines.
func (f Frame) drawing(path *model.Path, w, h int, back bool, hop int) []string {
	if path == nil || h < 1 {
		return nil
	}
	d := report.Drawing{
		Path: path, Names: f.Data.called, Findings: f.Data.open, Window: f.Data.home(path.Pod).Reading.Snapshot.Window.Duration(), Width: w, Rows: h, Return: back, Hop: hop,
		Scope: "counts " + f.Data.scope(path, nil),
	}
	ends := Critical
	if dead := path.Dead(); dead != nil && dead.Finding != "" {
		ends = severityStyle(report.Worst(f.Data.open, dead.Finding))
	}
	var lines []string
	for _, pieces := range d.Lines() {
		var b strings.Builder
		for _, x := range pieces {
			b.WriteString(f.Theme.paint(model.Either(x.Is == report.Ends, ends, drawn[x.Is]), x.Text))
		}
		lines = append(lines, b.String())
	}
	return lines
}

func (f Frame) podPreview(p *page, pod *model.Pod) {
	p.prose(fmt.Sprintf("%s %s %s behind %s", texts(pod.Addresses), pod.Interface, cmp.Or(pod.MAC.String(), "MAC unknown"), cmp.Or(pod.Link, unknown)))
	for _, a := range pod.Addresses {
		if len(pod.Addresses) > 1 {
			p.add(p.paint(Strong, clean(a.Addr().String())))
		}
		f.Data.hops(p, a.Addr())
	}
}
