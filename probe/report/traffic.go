package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// dropRow counts the drops of one local address with one peer at one place.
type dropRow struct {
	local, peer netip.Addr
	// node is true when local is an address of the node, not of a pod.
	node           bool
	side           model.Side
	reason         model.Reason
	cilium         model.CiliumDrop
	location, link string
	class          loss.Class
	// cause is the finding that claims the packets, or why none does.
	cause model.DropCause
	// far is set instead of peer for several peers in one range.
	far     netip.Prefix
	packets uint64
}

func (d *dropRow) peerText(names Names) string {
	switch {
	case !d.far.IsValid():
		return Named(names, d.peer)
	case d.far.Bits() == 0:
		return "others"
	}
	return d.far.String()
}

// dropRows orders the drops by address and sums those that differ only in what a report does not show. A packet
// between two local pods counts once, as the source's; one between a pod and the node as the pod's.
func (r Report) dropRows() []dropRow {
	s := r.Snapshot
	names := Local(s)
	// The address of the higher rank is the one that a drop is about.
	rank := func(a netip.Addr) int {
		name, local := names[a]
		switch {
		case !local:
			return 0
		case name.Own:
			return 1
		}
		return 2
	}
	count := make(map[dropRow]uint64)
	classes := loss.NewClassifier(s)
	for i, d := range s.Traffic.Drops {
		row := dropRow{local: d.Src, peer: d.Dst, side: model.AsSource, reason: d.Reason,
			cilium: d.Cilium, location: d.Location, link: d.Link, far: d.Range, class: classes.Class(&d)}
		if !d.Src.IsValid() || rank(d.Dst) > rank(d.Src) {
			row.local, row.peer, row.side = d.Dst, d.Src, model.AsDestination
		}
		row.node = rank(row.local) == 1
		if i < len(r.Causes) {
			row.cause = model.DropCause{Code: r.Causes[i].Code, Ordinary: r.Causes[i].Ordinary}
		}
		if row.cause.Code != "" {
			row.class = loss.Lost
		}
		count[row] += d.Packets
	}
	rows := make([]dropRow, 0, len(count))
	for row, n := range count {
		row.packets = n
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b dropRow) int {
		return cmp.Or(
			a.local.Compare(b.local), cmp.Compare(b.packets, a.packets), cmp.Compare(a.side, b.side), a.peer.Compare(b.peer), a.far.Compare(b.far),
			cmp.Compare(a.reason, b.reason), a.cilium.Compare(b.cilium), cmp.Compare(a.location, b.location), cmp.Compare(a.link, b.link), cmp.Compare(a.class, b.class), cmp.Compare(a.cause.Code, b.cause.Code), cmp.Compare(a.cause.Ordinary, b.cause.Ordinary),
		)
	})
	return rows
}

// Volume is how many packets an address or pods sent and received. A packet is counted at
// several hops, so the volume of an address is the most that any one hop saw.
type Volume struct{ Out, In uint64 }

// Volumes are those of all addresses of which any packet was counted.
func Volumes(s *model.Snapshot) map[netip.Addr]Volume {
	out := make(map[netip.Addr]Volume)
	for h := range model.Each(s.Traffic.Hops) {
		if !h.Addr.IsValid() || h.Packets == 0 {
			continue
		}
		v := out[h.Addr]
		if h.Side == model.AsDestination {
			v.In = max(v.In, h.Packets)
		} else {
			v.Out = max(v.Out, h.Packets)
		}
		out[h.Addr] = v
	}
	return out
}

// volume is that of the pods in focus, and how many they are.
func (r Report) volume() (pods int, sum Volume) {
	names, all := Local(r.Snapshot), Volumes(r.Snapshot)
	for a, v := range all {
		if names[a].Own || !r.inFocus(a) {
			delete(all, a)
			continue
		}
		sum.Out, sum.In = sum.Out+v.Out, sum.In+v.In
	}
	// A pod of two IP versions has two addresses, and is one.
	for p := range model.Each(r.Snapshot.Pods) {
		left := len(all)
		for _, a := range p.Addresses {
			delete(all, a.Addr())
		}
		if len(all) < left {
			pods++
		}
	}
	return pods + len(all), sum
}

func (r Report) traffic() string {
	pods, v := r.volume()
	return fmt.Sprintf("%s, %d packets out, %d in", model.Quantity(pods, "pod"), v.Out, v.In)
}

// dropped is how many packets of the pods in focus were lost because the kernel
// dropped them. A rule that drops by design loses none.
func (r Report) dropped() uint64 {
	names := Local(r.Snapshot)
	pod := func(a netip.Addr) bool {
		name, local := names[a]
		return local && !name.Own
	}
	classes := loss.NewClassifier(r.Snapshot)
	var n uint64
	for d := range model.Each(r.Snapshot.Traffic.Drops) {
		if classes.Class(d) == loss.Lost && (pod(d.Src) || pod(d.Dst)) && (r.inFocus(d.Src) || r.inFocus(d.Dst)) {
			n += d.Packets
		}
	}
	return n
}

// HopOrder orders hops as packets pass them: what a pod sends first, from its
// own link outwards, then what it receives, inwards.
func HopOrder(s *model.Snapshot) func(a, b model.HopCount) int {
	role, depths := linkRoles(s), map[model.Role]int{model.RolePod: -1, model.RolePodLink: 0, model.RoleUplink: 2}
	depth := func(h *model.HopCount) int {
		d, ok := depths[role(h)]
		if !ok {
			d = 1
		}
		return model.Either(h.Side == model.AsDestination, -d, d)
	}
	return func(a, b model.HopCount) int {
		return cmp.Or(
			// "source" sorts behind "destination".
			cmp.Compare(b.Side, a.Side), cmp.Compare(depth(&a), depth(&b)),
			cmp.Compare(a.Link, b.Link), cmp.Compare(b.Direction, a.Direction),
		)
	}
}
