package report

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// dropRow counts the drops of one local address with one peer at one place.
type dropRow struct {
	local, peer netip.Addr
	// node is true when local is an address of the node, not of a pod.
	node     bool
	side     model.Side
	reason   model.Reason
	location string
	link     string
	class    model.DropClass
	packets  uint64
}

// dropRows orders the drops by address and sums those that differ only in what
// a report does not show. A packet between two local pods is told once, as its
// source's; one between a pod and the node as the pod's.
func dropRows(s *model.Snapshot) []dropRow {
	names := locals(s)
	// rank tells how much an address is the one that a drop is about.
	rank := func(a netip.Addr) int {
		name, local := names[a]
		switch {
		case !local:
			return 0
		case name == thisNode:
			return 1
		}
		return 2
	}
	count := make(map[dropRow]uint64)
	classes := model.NewDropClassifier(s)
	for _, d := range s.Traffic.Drops {
		row := dropRow{local: d.Src, peer: d.Dst, side: model.AsSource, reason: d.Reason, location: d.Location, link: d.Link, class: classes.Class(&d)}
		if !d.Src.IsValid() || rank(d.Dst) > rank(d.Src) {
			row.local, row.peer, row.side = d.Dst, d.Src, model.AsDestination
		}
		row.node = rank(row.local) == 1
		count[row] += d.Packets
	}
	rows := make([]dropRow, 0, len(count))
	for row, n := range count {
		row.packets = n
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b dropRow) int {
		return cmp.Or(
			a.local.Compare(b.local), cmp.Compare(b.packets, a.packets), cmp.Compare(a.side, b.side), a.peer.Compare(b.peer),
			strings.Compare(string(a.reason), string(b.reason)), strings.Compare(a.location, b.location), strings.Compare(a.link, b.link),
			cmp.Compare(a.class, b.class),
		)
	})
	return rows
}

// volume is how many packets pods sent and received. A packet is counted at
// several hops, so each pod's is the most that any one hop saw.
type volume struct {
	pods    int
	out, in uint64
}

func (r Report) volume() volume {
	names := locals(r.Snapshot)
	most := make(map[netip.Addr]map[model.Side]uint64)
	for _, h := range r.Snapshot.Traffic.Hops {
		if !h.Addr.IsValid() || h.Packets == 0 || names[h.Addr] == thisNode || !r.inFocus(h.Addr) {
			continue
		}
		if most[h.Addr] == nil {
			most[h.Addr] = make(map[model.Side]uint64)
		}
		most[h.Addr][h.Side] = max(most[h.Addr][h.Side], h.Packets)
	}
	var v volume
	for _, sides := range most {
		v.out += sides[model.AsSource]
		v.in += sides[model.AsDestination]
	}
	// A pod of two IP versions has two addresses, and is one.
	for i := range r.Snapshot.Pods {
		left := len(most)
		for _, p := range r.Snapshot.Pods[i].Addresses {
			delete(most, p.Addr())
		}
		if len(most) < left {
			v.pods++
		}
	}
	v.pods += len(most)
	return v
}

// dropped is how many packets of the pods in focus were lost as the kernel dropped
// them.
func (r Report) dropped() uint64 {
	var n uint64
	for _, d := range dropRows(r.Snapshot) {
		if !d.node && d.class == model.DropLost && (r.inFocus(d.local) || r.inFocus(d.peer)) {
			n += d.packets
		}
	}
	return n
}

// onTheWay orders hops as packets pass them: what a pod sends first, from its
// own link outwards, then what it receives, inwards.
func onTheWay(s *model.Snapshot) func(a, b model.HopCount) int {
	depth := func(h model.HopCount) int {
		d := 1
		switch role(s, h.IfIndex, h.Link) {
		case model.RolePod:
			d = -1
		case model.RolePodLink:
			d = 0
		case model.RoleUplink:
			d = 2
		}
		if h.Side == model.AsDestination {
			return -d
		}
		return d
	}
	return func(a, b model.HopCount) int {
		return cmp.Or(
			// "source" sorts behind "destination".
			strings.Compare(string(b.Side), string(a.Side)), cmp.Compare(depth(a), depth(b)),
			strings.Compare(a.Link, b.Link), strings.Compare(string(b.Direction), string(a.Direction)),
		)
	}
}
