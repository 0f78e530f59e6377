package report

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// What the table of who reaches whom shows of many pods and nodes.
const (
	mostRows  = 20
	mostNodes = 8
)

// reachWords say what became of packets.
var reachWords = map[model.Reach]string{
	model.ReachNone: "-", model.ReachWell: "well", model.ReachSilent: "silent", model.ReachUnclear: "unclear",
	model.ReachLossy: "LOSSY", model.ReachOneWay: "ONE WAY", model.ReachDead: "DEAD",
}

func columnName(d model.Destination) string {
	name := map[model.DestinationKind]string{
		model.ToPods: "this node's pods", model.ToServices: "services", model.ToDNS: "DNS",
		model.ToNetwork: "network", model.ToInternet: "internet",
	}[d.Kind]
	return model.Either(d.Kind == model.ToNode, d.Name, name)
}

func (r Report) matrix(p *printer, names map[netip.Addr]string) {
	rows, more := r.reach(names)
	if len(rows) == 0 {
		return
	}
	p.title("who reaches whom")
	p.table(rows[0], rows[1:])
	if more != "" {
		p.line("  " + more)
	}
}

// reach is the table of who reaches whom, below its columns, and what it leaves out. It is empty where no pod has packets.
func (r Report) reach(names map[netip.Addr]string) (rows [][]string, more string) {
	m := r.Matrix.Fold(mostNodes)
	m.Rows = model.Filter(m.Rows, func(x model.MatrixRow) bool { return r.inFocus(x.Pod) && x.Reach != model.ReachNone })
	if len(m.Rows) == 0 {
		return nil, ""
	}
	rows = model.Map(m.Rows[:min(len(m.Rows), mostRows)], func(x model.MatrixRow) []string {
		row := []string{Named(names, x.Pod), reachWords[x.Reach]}
		for _, c := range x.Cells {
			switch {
			case c != nil:
				row = append(row, reachWords[c.Reach])
			case x.Whole:
				row = append(row, "-")
			default:
				row = append(row, "unknown")
			}
		}
		return row
	})
	if left := len(m.Rows) - mostRows; left > 0 {
		more = fmt.Sprintf("%d more pods, at worst %s", left, reachWords[m.Rows[mostRows].Reach])
	}
	return append([][]string{append([]string{"POD", "ALL"}, model.Map(m.Columns, columnName)...)}, rows...), more
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

func (n called) matrix(m model.Matrix) matrixDoc {
	d := matrixDoc{Columns: model.Map(m.Columns, func(x model.Destination) destinationDoc { return destinationDoc(x) })}
	d.Rows = model.Map(m.Rows, func(x model.MatrixRow) matrixRowDoc {
		row := matrixRowDoc{localDoc: n.local(x.Pod), Whole: x.Whole, Reach: x.Reach, Cells: []matrixCellDoc{}}
		for i, c := range x.Cells {
			if c != nil {
				row.Cells = append(row.Cells, matrixCellDoc{i, c.Reach, c.Sent, c.Received, c.Lost, len(c.Pairs), c.Codes()})
			}
		}
		return row
	})
	return d
}
