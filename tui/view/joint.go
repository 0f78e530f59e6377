package view

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// newJoint prepares a reading of several nodes: the lists of each, one behind the other, and the findings about all.
func newJoint(r model.Reading, decode func(model.Sample) string) *Data {
	d := &Data{
		Reading: r, decode: decode, names: report.Names{}, called: report.Names{},
		open: openOf(r.Findings), dropped: model.Counted(0),
	}
	for x := range model.Each(r.Nodes) {
		if x.Snapshot == nil {
			continue
		}
		s := *x.Snapshot
		s.Node.Name = x.Name
		elsewhere := func(f model.Tracked) bool { return !slices.Contains(f.Nodes, x.Name) }
		findings := slices.DeleteFunc(slices.Clone(r.Findings), elsewhere)
		d.take(NewData(model.Reading{At: s.Window.End, Snapshot: &s, Replay: r.Replay, Findings: findings}, 0, decode))
	}
	for _, n := range d.nodes {
		n.called = d.calledOn(n)
	}
	d.Reading.Snapshot = together(d.nodes)
	d.Findings = scale(d.findingRows())
	d.peers = sync.OnceValue(d.findPeers)
	d.Events = sync.OnceValue(d.jointEvents)
	return d
}

// take adds a node. What it knows of its own addresses counts for more than what another calls them.
func (d *Data) take(n *Data) {
	d.nodes = append(d.nodes, n)
	for a, name := range n.called {
		_, own := n.names[a]
		if own {
			d.names[a] = name
		}
		if d.called[a] == (report.Name{}) || own {
			d.called[a] = name.From(n.nodeName())
		}
	}
	d.dropped = model.Count{N: d.dropped.N + n.dropped.N, Known: d.dropped.Known && n.dropped.Known}
	for _, r := range n.Pods {
		r.ID += " on " + n.nodeName()
		r.Cells = append(r.Cells, text(n.nodeName()))
		r.found(n.nodeName())
		d.Pods = append(d.Pods, r)
	}
}

// calledOn are the names of all nodes' addresses where a node's own count for more.
func (d *Data) calledOn(n *Data) report.Names {
	called := maps.Clone(d.called)
	for a := range n.names {
		if name := n.called[a]; !name.Own {
			called[a] = name
		}
	}
	return called
}

// together is what several nodes have in common, and lists of what all have. Drops are
// left out: whether one is a loss depends on its node.
func together(nodes []*Data) *model.Snapshot {
	out := &model.Snapshot{Node: model.Node{Name: model.Quantity(len(nodes), "node")}}
	out.Node.Plugin = joined(nodes, "+", func(n *Data) string { return n.Reading.Snapshot.Node.Plugin })
	for _, n := range nodes {
		s := n.Reading.Snapshot
		if s.Window.Duration() > out.Window.Duration() {
			out.Window = s.Window
		}
		out.Pods, out.PastPods = append(out.Pods, s.Pods...), append(out.PastPods, s.PastPods...)
		out.Flows = append(out.Flows, s.Flows...)
		out.Traffic.Hops = append(out.Traffic.Hops, s.Traffic.Hops...)
		out.Traffic.Peers = append(out.Traffic.Peers, s.Traffic.Peers...)
		out.Traffic.MACs = append(out.Traffic.MACs, s.Traffic.MACs...)
	}
	return out
}

func (d *Data) nodeName() string { return d.Reading.Snapshot.Node.Name }

func (d *Data) each() []*Data { return model.Either(len(d.nodes) == 0, []*Data{d}, d.nodes) }

// node is the node of that name, home that of a pod; all where there is none.
func (d *Data) node(name string) *Data {
	return d.where(func(n *Data) bool { return n.nodeName() == name })
}

func (d *Data) home(a netip.Addr) *Data { return d.where(func(n *Data) bool { return n.isPod(a) }) }

func (d *Data) where(is func(*Data) bool) *Data { return cmp.Or(model.Find(d.nodes, is), d) }

func (d *Data) on(n *Data) string { return model.Either(n == d, "", " on "+n.nodeName()) }

// joined are what differs among several nodes.
func joined(nodes []*Data, by string, of func(*Data) string) string {
	return strings.Join(model.With(nil, model.Map(nodes, of)...), by)
}

func (d *Data) silence() string {
	if len(d.nodes) == 0 {
		return report.Report{Snapshot: d.Reading.Snapshot}.Silence(d.dropped.N)
	}
	seen := model.Map(d.Reading.Nodes, func(n model.NodeReading) model.NodeSeen { return n.NodeSeen })
	return report.Joint{Nodes: seen}.Silence()
}

// compared reports whether something is concluded from the silence of all nodes.
func (d *Data) compared() bool {
	return !slices.ContainsFunc(d.Reading.Nodes, func(n model.NodeReading) bool { return n.Reason != "" })
}

// jointEvents are the events of several nodes, the latest first, by the clock of each.
func (d *Data) jointEvents() []Row {
	var rows []Row
	for _, n := range d.nodes {
		for _, r := range n.Events() {
			r.ID += " on " + n.nodeName()
			r.Cells = slices.Clone(r.Cells)
			r.Cells[len(r.Cells)-1].Text = clean(n.nodeName()+": ") + r.Cells[len(r.Cells)-1].Text
			r.found(n.nodeName())
			rows = append(rows, r)
		}
	}
	return latestFirst(rows)
}

// Columns are the columns of a tab's list. Those of several nodes name the node, and leave out
// what a recording has no time of.
func (d *Data) Columns(t TabID) []Column {
	if t == Map {
		return d.mapColumns()
	}
	cols := t.tab().columns
	from := map[TabID]map[string]int{
		// Below the list of a narrow screen the preview names the nodes.
		Findings: {"NODE": 96, "AGE": never, "TREND": never},
		Pods:     {"LINK": 110, "OUT TREND": never, "IN TREND": never, "LOST TREND": never},
	}[t]
	if len(d.nodes) == 0 || from == nil {
		return cols
	}
	cols = append(slices.Clone(cols), Column{Title: "NODE", Width: 20, Fit: true, Ends: true})
	for i := range cols {
		cols[i].From = max(cols[i].From, from[cols[i].Title])
	}
	return cols
}

// scope says which packets the counts at a hop are of or, without one, those of a path.
func (d *Data) scope(p *model.Path, h *model.PathHop) string {
	whose, s := *p, d.home(p.Pod).Reading.Snapshot
	crosses := slices.ContainsFunc(p.Forward, func(h model.PathHop) bool { return h.Kind == model.HopBetween })
	switch {
	case !crosses || h == nil:
	case h.Kind == model.HopBetween:
		whose.Pair = true
	default:
		s = d.node(h.Node).Reading.Snapshot
		whose.Pair = slices.Contains(s.Traffic.PairAddrs, p.Pod) || slices.Contains(s.Traffic.PairAddrs, p.To)
	}
	return report.PathScope(s, &whose, crosses && h == nil)
}

// begins reports whether a node's part of a path begins with a hop.
func (x direction) begins(i int) bool {
	return x.hops[i].Node != "" && (i == 0 || x.hops[i-1].Node != x.hops[i].Node)
}

// lines is how many rows the hops have, with the names of nodes.
func (x direction) lines() int {
	n := len(x.hops)
	for i := range x.hops {
		if x.begins(i) {
			n++
		}
	}
	return n
}

// nodeRow stands above a node's part of a path.
func (t Theme) nodeRow(name string) *Row {
	cells := make([]Cell, len(hopColumns))
	cells[hopColumn] = Cell{Text: t.ends(clean(name), hopColumns[hopColumn].Width), Style: Heading}
	return &Row{Cells: cells, Brief: fmt.Sprintf("on %s", clean(name))}
}
