package report

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Joint is several nodes' observations of one time, judged together.
type Joint struct {
	Nodes    []model.NodeSeen
	Findings []model.Finding
	// Names are those of Called, of all nodes.
	Names Names
	// Focus are the addresses that were asked about; empty means all.
	Focus []netip.Addr
	// Limits say what was not judged, by request.
	Limits []string
	// Paths are as those of Report.
	Paths []*model.Path
}

// Incomplete is the first node that was not seen whole; nil if all were.
func (r Joint) Incomplete() *model.NodeSeen {
	return model.First(r.Nodes, func(n *model.NodeSeen) bool {
		return n.Reason != "" || len(Gaps(&model.Snapshot{Sources: n.Sources})) > 0
	})
}

type (
	jointDoc struct {
		APIVersion string       `json:"apiVersion"`
		Kind       string       `json:"kind"`
		Nodes      []seenDoc    `json:"nodes"`
		Findings   []findingDoc `json:"findings"`
	}
	seenDoc struct {
		// Name is how findings name the node.
		Name      string `json:"name"`
		Recording string `json:"recording"`
		// Reason is why nothing was concluded from the node's silence.
		Reason string `json:"reason,omitempty"`
		// The rest is absent where the recording could not be read.
		*watchedDoc
		Pods *int     `json:"pods,omitempty"`
		Lost *lostDoc `json:"lost,omitempty"`
	}
)

func (r Joint) doc() any {
	return jointDoc{
		APIVersion: APIVersion, Kind: "JointReport",
		Nodes: model.Map(r.Nodes, seenDocument), Findings: r.findings(),
	}
}

func (r Joint) findings() []findingDoc {
	return model.Map(r.Findings, func(f model.Finding) findingDoc { return r.Names.finding(r.windowOf(&f), f) })
}

func seenDocument(n model.NodeSeen) seenDoc {
	d := seenDoc{Name: n.Name, Recording: n.Recording, Reason: n.Reason}
	if n.Failed {
		return d
	}
	w, lost := watched(n.Node, n.Window, n.Sources), lostDocument(n.Lost)
	d.watchedDoc, d.Lost, d.Pods = &w, &lost, &n.Pods
	return d
}

func (r Joint) ndjson(w io.Writer) error {
	l := &lines{w: w}
	addAll(l, "Finding", r.findings())
	addAll(l, "Node", model.Map(r.Nodes, seenDocument))
	return l.err
}

func (r Joint) text(p *printer, wide bool) {
	p.findings(r.outline())
	rows := r.nodeRows(wide)
	if !wide {
		rows = bounded(rows)
	}
	p.field("nodes", rows...)
	p.field("not compared", r.notCompared()...)
	p.field("filters", r.Limits...)
}

func (r Joint) markdown(w *bufio.Writer) {
	r.outline().markdown(w, model.Quantity(len(r.Nodes), "node"))
	fmt.Fprint(w, "| node | recording | watched | not compared |\n|---|---|---|---|\n")
	for _, n := range r.Nodes {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", md(n.Name), md(n.Recording), Duration(n.Window.Duration()), md(n.Reason))
	}
}

// windowOf is a snapshot with the window and the sources of the finding's first node.
func (r Joint) windowOf(f *model.Finding) *model.Snapshot {
	n := model.Find(r.Nodes, func(n model.NodeSeen) bool { return len(f.Nodes) == 0 || n.Name == f.Nodes[0] })
	return &model.Snapshot{Window: n.Window, Sources: n.Sources, Node: n.Node}
}

// Silence is what a report without findings says first. It calls no node healthy.
func (r Joint) Silence() string {
	whole := len(r.Nodes) - len(r.notCompared())
	verdict := "no loss seen on " + model.Quantity(whole, "node")
	switch whole {
	case 0:
		verdict = "no finding, but none of these nodes was watched completely (see below)"
	case 1:
	default:
		verdict += " or between them"
	}
	if len(r.Focus) > 0 {
		verdict = "for the selected pods: " + verdict
	}
	if n := len(r.Nodes) - whole; n > 0 && whole > 0 {
		verdict += fmt.Sprintf("; %s not compared (see below)", model.Quantity(n, "other node"))
	}
	return strings.Join(append([]string{verdict}, r.Limits...), "; ")
}

func (r Joint) nodeRows(wide bool) []string {
	var rows []string
	for _, n := range r.Nodes {
		if n.Failed {
			continue
		}
		row := fmt.Sprintf("%s, %s by %s; %s",
			NodeText(n.Node), Duration(n.Window.Duration()), EngineText(n.Node), model.Quantity(n.Pods, "pod"))
		if gaps := Gaps(&model.Snapshot{Sources: n.Sources}); len(gaps) > 0 {
			row += "; incomplete: " + strings.Join(model.Map(gaps, func(g model.Source) string { return g.Name }), ", ")
		}
		if Lost(n.Lost) {
			row += "; lasthop missed: " + strings.Join(LostText(n.Lost), ", ")
		}
		if wide {
			row += "; from " + n.Recording
		}
		rows = append(rows, row)
	}
	return rows
}

// notCompared names the nodes from whose silence nothing is concluded.
func (r Joint) notCompared() []string {
	nodes := model.Filter(r.Nodes, func(n model.NodeSeen) bool { return n.Reason != "" })
	return model.Map(nodes, func(n model.NodeSeen) string { return n.Name + ": " + n.Reason })
}
