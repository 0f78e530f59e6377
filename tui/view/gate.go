package view

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

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
