package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/lasthop/lasthop/probe/model"
)

// mostNodes bounds the columns of other nodes. Lists leave out those that have no room.
const mostNodes = 8

// reached are how the kinds of reach look.
var reached = map[model.Reach]struct {
	word  string
	style Style
}{
	model.ReachWell: {"well", Healthy}, model.ReachSilent: {"silent", Dim}, model.ReachUnclear: {"unsure", Unknown},
	model.ReachLossy: {"lossy", Warning}, model.ReachOneWay: {"1 way", Critical}, model.ReachDead: {"dead", Critical},
}

// Reach has the map of who reaches whom made when it is first asked for.
func (d *Data) Reach(of func() model.Matrix) {
	d.matrix = sync.OnceValue(func() model.Matrix { return of().Fold(mostNodes) })
	d.reachable = sync.OnceValue(d.mapRows)
}

func (d *Data) mapColumns() []Column {
	cols := []Column{{Title: "POD", Ends: true}, {Title: "ALL", Width: 8, Sign: true, From: 100}}
	longest, nodes := 0, 0
	for _, c := range d.matrix().Columns {
		if c.Kind == model.ToNode {
			longest, nodes = max(longest, width(clean(c.Name))), nodes+1
		}
	}
	room := 10
	if nodes <= 3 {
		room = max(room, min(longest, 18))
	}
	nodes = 0
	for _, c := range d.matrix().Columns {
		title := map[model.DestinationKind]string{
			model.ToPods: "HERE", model.ToServices: "SERVICE", model.ToDNS: "DNS", model.ToNetwork: "NETWORK", model.ToInternet: "INTERNET",
		}[c.Kind]
		col := Column{Title: cmp.Or(title, clean(c.Name)), Width: 8, Sign: true}
		if c.Kind == model.ToNode {
			// The worst of them come first.
			col.Width, col.Ends, col.From = room, true, 80
			if nodes > 0 {
				// As many as leave room for the pod's name.
				col.From = 90 + (room+1)*nodes
			}
			nodes++
		}
		cols = append(cols, col)
	}
	return cols
}

func (d *Data) mapRows() []Row {
	var rows []Row
	for _, r := range d.matrix().Rows {
		x := reached[r.Reach]
		row := Row{
			ID: "reach " + r.Pod.String(), From: r.Pod, Style: x.style, Faint: r.Reach == model.ReachNone,
			Cells: []Cell{text(d.name(r.Pod)), styled(x.style, figure(cmp.Or(x.word, unknown), float64(r.Reach.Rank())))},
			Word:  cmp.Or(x.word, unknown), Brief: d.name(r.Pod),
		}
		for _, c := range r.Cells {
			row.Cells = append(row.Cells, reachCell(c, r.Whole))
		}
		row.foundAt(r.Pod)
		row.found(d.named(r.Pod), x.word)
		rows = append(rows, row)
	}
	return rows
}

// reachCell is a cell of the map. An empty one says nothing where packets were not counted.
func reachCell(c *model.MatrixCell, whole bool) Cell {
	switch {
	case c != nil:
		return styled(reached[c.Reach].style, figure(reachWord(c.Reach, c.Sent, c.Received), float64(c.Reach.Rank())))
	case whole:
		return figure(unknown, -1)
	}
	return styled(Unknown, figure("", -1))
}

// reachWord is a kind of reach and, where packets pass in one direction, which.
func reachWord(r model.Reach, sent, received uint64) string {
	if way := r.Way(sent, received); way != "" {
		return way + " only"
	}
	return reached[r].word
}

// pairs are those of a pod with others, the worst first.
func (d *Data) pairs(pod netip.Addr) []model.MatrixPair {
	r := model.First(d.matrix().Rows, func(r *model.MatrixRow) bool { return r.Pod == pod })
	if r == nil {
		return nil
	}
	var out []model.MatrixPair
	for _, c := range r.Cells {
		if c != nil {
			out = append(out, c.Pairs...)
		}
	}
	slices.SortStableFunc(out, func(a, b model.MatrixPair) int { return cmp.Compare(b.Reach.Rank(), a.Reach.Rank()) })
	return out
}

// WorstEnds are the ends of the worst pair of a pod.
func (d *Data) WorstEnds(pod netip.Addr) (from, to netip.Addr) {
	if list := d.pairs(pod); len(list) > 0 {
		return pod, list[0].Peer
	}
	return pod, netip.Addr{}
}

// pairsPreview is the path of a pod's worst pair, and its pairs.
func (f Frame) pairsPreview(p *page, r *Row, h int) {
	p.lines = append(p.lines, p.separator(f.Data.name(r.From), p.w))
	p.lines = append(p.lines, f.drawing(f.Preview, p.w, max(h/2, 3), false, -1)...)
	list := f.Data.pairs(r.From)
	if len(list) == 0 {
		p.prose("no packets")
	}
	for _, x := range list {
		look := reached[x.Reach]
		line := fmt.Sprintf("%s %s  sent %s  received %s", p.fit(p.Sign(look.style)+" "+reachWord(x.Reach, x.Sent, x.Received), 10), p.fit(f.Data.named(x.Peer), 34), p.right(number(x.Sent), 6), p.right(number(x.Received), 6))
		if x.Lost > 0 {
			line += "  dropped here " + number(x.Lost)
		}
		p.add(p.paint(look.style, line) + "  " + string(x.Code))
	}
}
