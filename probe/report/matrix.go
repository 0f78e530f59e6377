package report

import (
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// What the table of who reaches whom shows of many pods and nodes.
const (
	mostRows  = 20
	mostNodes = 8
)

// reachCells say what became of packets.
var reachCells = map[model.Reach]cell{
	model.ReachNone: {Text: "-"}, model.ReachWell: {"well", "well"}, model.ReachSilent: {Text: "silent"},
	model.ReachUnclear: {Text: "unclear"}, model.ReachLossy: {"LOSSY", "lossy"}, model.ReachOneWay: {"ONE WAY", "oneway"}, model.ReachDead: {"DEAD", "dead"},
}

func columnName(d model.Destination) string {
	name := map[model.DestinationKind]string{
		model.ToPods: "this node's pods", model.ToServices: "services", model.ToDNS: "DNS",
		model.ToNetwork: "network", model.ToInternet: "internet",
	}[d.Kind]
	return model.Either(d.Kind == model.ToNode, d.Name, name)
}

func (r Report) matrix(p *printer, names Names) {
	rows, more := r.reach(names)
	if len(rows) == 0 {
		return
	}
	texts := model.Map(rows, func(row []cell) []string { return model.Map(row, func(c cell) string { return c.Text }) })
	p.title("who reaches whom")
	p.table(texts[0], texts[1:])
	if more != "" {
		p.line("  " + more)
	}
}

// reach is the table of who reaches whom, below its columns, and what it leaves out. It is empty where no pod has packets.
func (r Report) reach(names Names) (rows [][]cell, more string) {
	m := r.Matrix.Fold(mostNodes)
	m.Rows = model.Filter(m.Rows, func(x model.MatrixRow) bool { return r.inFocus(x.Pod) && x.Reach != model.ReachNone })
	if len(m.Rows) == 0 {
		return nil, ""
	}
	word := func(text string) cell { return cell{Text: text} }
	rows = model.Map(m.Rows[:min(len(m.Rows), mostRows)], func(x model.MatrixRow) []cell {
		row := []cell{word(Named(names, x.Pod)), reachCells[x.Reach]}
		for _, c := range x.Cells {
			switch {
			case c != nil:
				at := reachCells[c.Reach]
				if way := c.Reach.Way(c.Sent, c.Received); way != "" {
					at.Text = strings.ToUpper(way) + " ONLY"
				}
				row = append(row, at)
			case x.Whole:
				row = append(row, word("-"))
			default:
				row = append(row, word("unknown"))
			}
		}
		return row
	})
	if left := len(m.Rows) - mostRows; left > 0 {
		more = fmt.Sprintf("%d more pods, at worst %s", left, reachCells[m.Rows[mostRows].Reach].Text)
	}
	columns := func(d model.Destination) cell { return word(columnName(d)) }
	return append([][]cell{append([]cell{word("POD"), word("ALL")}, model.Map(m.Columns, columns)...)}, rows...), more
}

type (
	matrixDoc struct {
		Columns []destinationDoc `json:"columns"`
		Rows    []matrixRowDoc   `json:"rows"`
	}
	destinationDoc struct {
		Kind model.DestinationKind `json:"kind"`
		Name string                `json:"name,omitempty"`
	}
	matrixRowDoc struct {
		localDoc
		// Whole is false where some of the pod's packets were not counted.
		Whole bool            `json:"whole"`
		Reach model.Reach     `json:"reach,omitempty"`
		Cells []matrixCellDoc `json:"cells"`
	}
	// matrixCellDoc is a cell that has packets. Column is its index in columns.
	matrixCellDoc struct {
		Column   int          `json:"column"`
		Reach    model.Reach  `json:"reach"`
		Sent     uint64       `json:"sent"`
		Received uint64       `json:"received"`
		Lost     uint64       `json:"lost"`
		Pairs    int          `json:"pairs"`
		Findings []model.Code `json:"findings,omitempty"`
	}
)

func (names Names) matrix(m model.Matrix) matrixDoc {
	d := matrixDoc{Columns: model.Map(m.Columns, func(x model.Destination) destinationDoc { return destinationDoc(x) })}
	d.Rows = model.Map(m.Rows, func(x model.MatrixRow) matrixRowDoc {
		row := matrixRowDoc{localDoc: names.local(x.Pod), Whole: x.Whole, Reach: x.Reach, Cells: []matrixCellDoc{}}
		for i, c := range x.Cells {
			if c != nil {
				row.Cells = append(row.Cells, matrixCellDoc{i, c.Reach, c.Sent, c.Received, c.Lost, len(c.Pairs), c.Codes()})
			}
		}
		return row
	})
	return d
}
