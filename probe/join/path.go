package join

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// End is the node at one end of a path, by the name that the findings have.
type End struct {
	Name     string
	Snapshot *model.Snapshot
}

// Trace follows the packets from a pod of the near node to one of the far node and
// back: through both, and the gap between. findings are those of both together.
func Trace(near, far End, findings []model.Finding, e path.Ends) model.Path {
	forward := path.Trace(near.Snapshot, placed(findings, near.Name), e)
	reverse := path.Trace(far.Snapshot, placed(findings, far.Name), path.Ends{Pod: e.To, To: e.Pod})
	p := forward
	p.Pair = forward.Pair && reverse.Pair
	p.Forward = joinHops(near.Name, forward.Forward, between(near, far, e.Pod, e.To, findings), far.Name, reverse.Return)
	p.Return = joinHops(far.Name, reverse.Forward, between(far, near, e.To, e.Pod, findings), near.Name, forward.Return)
	return p
}

// Follow is Trace between the nodes that have the two pods. Where one node alone is known,
// or has both, it is the path that this node shows.
func Follow(nodes []End, findings []model.Finding, e path.Ends) model.Path {
	near := model.First(nodes, func(n *End) bool { return n.Has(e.Pod) })
	far := model.First(nodes, func(n *End) bool { return n.Has(e.To) })
	switch {
	case near == nil:
		return model.Path{Pod: e.Pod, To: e.To, Port: e.Port, Proto: e.Proto}
	case far == nil || far == near:
		return path.Trace(near.Snapshot, slices.DeleteFunc(diagnose.Relate(findings), func(f model.Finding) bool {
			return !slices.Contains(f.Nodes, near.Name)
		}), e)
	}
	return Trace(*near, *far, findings, e)
}

// Has reports whether the node has, or had, the pod with an address.
func (e *End) Has(a netip.Addr) bool {
	return e.Snapshot != nil && slices.ContainsFunc(slices.Concat(e.Snapshot.Pods, e.Snapshot.PastPods),
		func(p model.Pod) bool { return slices.Contains(p.Known(), a) })
}

// placed are the findings whose packets end at a node itself.
func placed(findings []model.Finding, node string) []model.Finding {
	return slices.DeleteFunc(diagnose.Relate(findings), func(f model.Finding) bool {
		return len(f.Nodes) == 0 || f.Nodes[0] != node || isBetween(&f)
	})
}

// isBetween reports whether a finding's packets end between nodes.
func isBetween(f *model.Finding) bool {
	return len(f.Nodes) > 1 && (len(f.EndsAt) == 1 && f.EndsAt[0] == model.HopBeyond || f.Is(model.Foreign) ||
		f.LastHopAlive.Role == model.RoleUplink && f.LastHopAlive.Direction == model.Egress)
}

// joinHops numbers the hops of a direction anew. What each node cannot see beyond it is what was counted between them.
func joinHops(first string, sent []model.PathHop, gap model.PathHop, second string,
	got []model.PathHop) []model.PathHop {
	var out []model.PathHop
	add := func(node string, list ...model.PathHop) {
		for _, h := range list {
			if h.Kind == model.HopBeyond {
				continue
			}
			h.Node, h.N = node, len(out)+1
			out = append(out, h)
		}
	}
	add(first, sent...)
	add("", gap)
	add(second, got...)
	return out
}

// between is the gap that packets cross from one node to the other, with the counts of the pair at both uplinks.
func between(from, to End, src, dst netip.Addr, findings []model.Finding) model.PathHop {
	h := model.PathHop{Kind: model.HopBetween}
	sender, _ := diagnose.Observe(from.Snapshot)
	receiver, _ := diagnose.Observe(to.Snapshot)
	if sender.Unwatched == "" {
		h.In = model.Counted(sender.Pair(src, dst).Out.Packets)
	}
	if receiver.Sees(dst, src) {
		h.Out = model.Counted(receiver.Pair(dst, src).In.Packets)
	}
	h.Decision = words.Text("hop/pair", words.Facts{"from": from.Name, "to": to.Name, "unknown": !h.Out.Known})
	at := slices.IndexFunc(findings, func(f model.Finding) bool {
		return isBetween(&f) && names(&f, dst) && (names(&f, src) || sender.Node[src])
	})
	if h.Out.Known && h.Out.N == 0 && h.In.N >= minLost && at >= 0 {
		h.Dead, h.Finding, h.Lost = true, findings[at].Code, h.In
	}
	return h
}
