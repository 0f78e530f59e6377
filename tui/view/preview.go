package view

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

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

// preview is what is known of the selected row, in a pane w columns wide.
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
			p.prose("No loss: a socket or a transport protocol frees such packets in passing, or it is a copy that a bridge flooded.")
		}
	}
	return p.lines
}

func (f Frame) findingPreview(p *page, x *model.Tracked) {
	p.headline(f.Data.called, &x.Finding)
	for _, s := range report.Sections(f.Data.Reading.Snapshot, f.Data.called, &x.Finding) {
		switch s.Name {
		case "nodes":
			p.prose("nodes: " + strings.Join(s.Values, ", "))
		case "lost":
			p.prose("lost: " + s.Values[0])
			p.chain(f.Data.Chain(f.Preview))
		case "why":
			p.prose(s.Values[0])
		case "fix":
			p.prose("fix: " + s.Values[0])
		}
	}
}

func (f Frame) podPreview(p *page, pod *model.Pod) {
	p.add(p.paint(Strong, p.ends(f.Data.podLabel(pod), p.w)))
	p.prose(fmt.Sprintf("%s %s %s behind %s", texts(pod.Addresses), pod.Interface, cmp.Or(pod.MAC.String(), "MAC unknown"), cmp.Or(pod.Link, unknown)))
	for _, a := range pod.Addresses {
		if len(pod.Addresses) > 1 {
			p.add(p.paint(Strong, clean(a.Addr().String())))
		}
		f.Data.hops(p, a.Addr())
	}
}
