package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Matrix is who reaches whom: pods of the node by destinations, from what was counted in a window.
type Matrix struct {
	// Columns are the destinations that any pod had packets with or lost some to.
	Columns []Destination
	// Rows are the pods that run, the worst first.
	Rows []MatrixRow
}

// DestinationKind is a kind of column.
type DestinationKind string

// The kinds, in the order of the columns. An address is of the first that fits.
const (
	ToDNS      DestinationKind = "dns"
	ToServices DestinationKind = "services"
	ToPods     DestinationKind = "pods"
	ToNode     DestinationKind = "node"
	ToNetwork  DestinationKind = "network"
	ToInternet DestinationKind = "internet"
)

// Destination is a column. Name is that of the node whose pods it has, or their range; empty for other kinds.
type Destination struct {
	Kind DestinationKind
	Name string
}

// Reach is what became of the packets between ends.
type Reach string

// The kinds of reach, the best first.
const (
	// ReachNone: no packets.
	ReachNone Reach = ""
	// ReachWell: replies show that packets pass both ways.
	ReachWell Reach = "well"
	// ReachSilent: no reply, for a reason that a healthy network has too.
	ReachSilent Reach = "silent"
	// ReachUnclear: nothing tells whether packets arrive.
	ReachUnclear Reach = "unclear"
	// ReachLossy: some pass both ways, and a finding explains that others do not.
	ReachLossy Reach = "lossy"
	// ReachOneWay: packets pass in one direction, and a finding explains that none do in the other.
	ReachOneWay Reach = "oneWay"
	// ReachDead: a finding explains that none pass.
	ReachDead Reach = "dead"
)

// MatrixRow is a pod and its cells. Without Whole some of its packets were not counted: an empty cell is unknown then.
type MatrixRow struct {
	Pod   netip.Addr
	Reach Reach
	Whole bool
	// Cells are by column; nil where the row has none.
	Cells []*MatrixCell
}

// MatrixCell sums up the pairs of a pod with the addresses of a column.
type MatrixCell struct {
	Reach Reach
	// Sent and Received are packets as an uplink counts them; what leaves with the node's
	// address, or stays on the node, is not among them. Lost are those that were dropped here.
	Sent, Received, Lost uint64
	// Pairs are the worst first.
	Pairs []MatrixPair
}

// MatrixPair is a pod's traffic with one address.
type MatrixPair struct {
	Pod, Peer            netip.Addr
	Reach                Reach
	Sent, Received, Lost uint64
	// Code is a finding that explains the loss; empty where none does.
	Code Code
}

// reaches has the kinds of reach, the best first.
var reaches = [...]Reach{ReachNone, ReachWell, ReachSilent, ReachUnclear, ReachLossy, ReachOneWay, ReachDead}

// Way is the direction in which packets pass where they do in one, "out" of the pod or "in" to it, by what an uplink counted;
// empty where that does not tell.
func (r Reach) Way(sent, received uint64) string {
	switch {
	case r != ReachOneWay || (sent > 0) == (received > 0):
		return ""
	case sent > 0:
		return "out"
	}
	return "in"
}

// Rank orders kinds of reach: a worse one has a higher rank.
func (r Reach) Rank() int { return max(0, slices.Index(reaches[:], r)) }

// Dead reports whether packets do not pass, in one direction at least.
func (r Reach) Dead() bool { return r == ReachOneWay || r == ReachDead }

// Join is the reach of several together: lossy where some pass and others do not.
func (r Reach) Join(o Reach) Reach {
	lossy := r == ReachLossy || o == ReachLossy
	switch {
	case lossy && (r.passes() || o.passes()), r == ReachWell && o.Dead(), o == ReachWell && r.Dead():
		return ReachLossy
	case r == ReachWell && o != ReachNone, o == ReachWell && r != ReachNone:
		return ReachWell
	case o.Rank() > r.Rank():
		return o
	}
	return r
}

func (r Reach) passes() bool { return r == ReachWell || r == ReachLossy }

// Fold is the matrix with at most so many columns of other nodes. Of more, the best are one column, the last of these.
func (m Matrix) Fold(most int) Matrix {
	first := slices.IndexFunc(m.Columns, func(d Destination) bool { return d.Kind == ToNode })
	nodes := len(Filter(m.Columns, func(d Destination) bool { return d.Kind == ToNode }))
	if nodes <= most || most < 1 {
		return m
	}
	from, to := first+most-1, first+nodes
	out := Matrix{Columns: slices.Concat(m.Columns[:from], []Destination{{ToNode, fmt.Sprintf("%d more", to-from)}}, m.Columns[to:])}
	for _, r := range m.Rows {
		var rest *MatrixCell
		for _, c := range r.Cells[from:to] {
			if c == nil {
				continue
			}
			rest = cmp.Or(rest, new(MatrixCell))
			rest.Reach, rest.Pairs = rest.Reach.Join(c.Reach), append(rest.Pairs, c.Pairs...)
			rest.Sent, rest.Received, rest.Lost = rest.Sent+c.Sent, rest.Received+c.Received, rest.Lost+c.Lost
		}
		r.Cells = slices.Concat(r.Cells[:from], []*MatrixCell{rest}, r.Cells[to:])
		out.Rows = append(out.Rows, r)
	}
	return out
}

// Codes are the findings that explain the cell's losses, sorted.
func (c *MatrixCell) Codes() []Code {
	codes := Map(c.Pairs, func(p MatrixPair) Code { return p.Code })
	slices.Sort(codes)
	return slices.DeleteFunc(slices.Compact(codes), func(code Code) bool { return code == "" })
}
