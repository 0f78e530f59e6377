package bridge

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// HairpinDrop reports pods that a service leads to themselves, where the bridge does not send a frame back by its port.
var HairpinDrop = fault.Kind{Code: "HairpinDrop", Severity: model.Warning, Find: hairpinDrop,
	Else: fault.Else{"!services !rules"}}

func hairpinDrop(v *fault.Input) {
	answered := hairpinsAnswered(v.Index)
	fault.ReportBy(v, func(d *model.Drop) (all struct{}, pod netip.Addr) {
		if hairpin(v.Index, d) && !answered[d.Src] && v.Classifier.Lost(d) {
			pod = d.Src
		}
		return all, pod
	}, func(_ struct{}, l *node.Lost) fault.Fault { return hairpinDropped(v.Index, l) })
}

func hairpinDropped(v *node.Index, l *node.Lost) fault.Fault {
	pods := node.Sorted(l.Pods)
	l.Peers = nil // The pods' own addresses are no others.
	// The services whose translation leads the pods back to themselves are those that flows asked, and those of
	// rules: a packet that is dropped before it is delivered leaves no flow; the rule has counted it.
	asked := node.Destinations(model.Chosen(v.Flows, func(f *model.Flow) bool {
		a := f.Original.Src
		return l.Pods[a] && f.Reply.Src == a && f.Original.Dst != a
	}))
	rules := model.Chosen(v.PacketRules, func(r *model.PacketRule) bool {
		return r.Target == "DNAT" && l.Pods[r.To.Addr()] && r.Counter.Delta > 0
	})
	f := fault.Fault{Lost: l, Claims: func(d *model.Drop) bool { return hairpin(v, d) && l.Pods[d.Src] }}
	f.Peers, f.LastHopAlive = model.Hosts(model.Unique(append(asked, node.Translated(rules)...))), v.Entering(l.Pods)
	if slices.ContainsFunc(l.Drops, func(d *model.Drop) bool { return d.Src == pods[0] && d.Is(model.OwnSource) }) {
		f.LastHopAlive.Direction = model.Egress
	}
	mends := make([]hairpinMend, len(pods))
	for i, a := range pods {
		mends[i].Pod = a
		if port := v.ByIndex[v.Owners[a][0].LinkIndex]; port != nil && port.Master != 0 && !port.Hairpin {
			mends[i].Port = port
		}
	}
	f.Facts = words.Facts{"services": model.Hosts(asked), "rules": rules, "mends": mends}
	return f
}

// hairpinMend is a pod, and its bridge's port where that does not send back what came by it.
type hairpinMend struct {
	Pod  netip.Addr
	Port *model.Link
}

// hairpinsAnswered are the pods that hear all that they ask of themselves, since its source is translated as well: what
// is dropped is the second copy, which a promiscuous bridge hands to the node and which kubenet's chain holds back.
func hairpinsAnswered(v *node.Index) map[netip.Addr]bool {
	out, silent := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for f := range model.Each(v.Flows) {
		a := f.Original.Src
		if f.Reply.Src != a || f.Original.Dst == a {
			continue
		}
		out[a] = out[a] || f.Replied && f.Reply.Dst != a
		// One whose source was translated too has passed; its reply is on its way.
		silent[a] = silent[a] || !f.Replied && f.Reply.Dst == a && !f.Start.IsZero()
	}
	maps.DeleteFunc(out, func(a netip.Addr, answered bool) bool { return !answered || silent[a] })
	return out
}

// hairpin reports whether a dropped packet is from a running pod to itself and had left the pod: the node
// dropped it, or the pod when it came back. Packets over the pod's own loopback never left it.
func hairpin(v *node.Index, d *model.Drop) bool {
	onNode := (d.Netns == 0 || d.Netns == v.Node.Netns) && d.IfIndex != loopback &&
		!d.Is(model.NoSocket|model.Delivered|model.NoRoom)
	return d.Src == d.Dst && len(v.Owners[d.Src]) > 0 && (d.Is(model.OwnSource) || onNode)
}

// loopback is the index of every namespace's loopback link.
const loopback = 1
