package scenario

import (
	"slices"
	"time"
)

// Watched is one of the nodes that are watched at the same time.
type Watched struct {
	Node string
	// Clock is how far the node's clock is ahead of the others'.
	Clock time.Duration
	// Cut: the recording of the node is cut off in its middle.
	Cut bool
}

// Together reports whether several nodes are watched at the same time.
func (s *Scenario) Together() bool { return len(s.Watch) > 1 }

// watch finds the nodes that are watched; without any it is the observed one.
func (r *resolver) watch(raw value[[]rawWatched]) {
	s := &r.s
	if !raw.set() {
		s.Watch = []Watched{{Node: s.Observe}}
		return
	}
	for _, w := range raw.v {
		switch {
		case !w.Node.set():
			r.errorf(w.at, "watch wants the names of nodes")
		case s.Topology.Node(w.Node.v) == nil:
			r.errorf(w.Node.at, "watch: no node %q", short(w.Node.v))
		case slices.ContainsFunc(s.Watch, func(o Watched) bool { return o.Node == w.Node.v }):
			r.errorf(w.Node.at, "watch: node %q is named twice", short(w.Node.v))
		}
		s.Watch = append(s.Watch, Watched{Node: w.Node.v, Clock: w.Clock.v, Cut: w.Cut.v})
	}
	if len(s.Watch) < 2 {
		r.errorf(raw.at, "watch wants two nodes or more; observe is for one")
	}
	if !slices.ContainsFunc(s.Watch, func(w Watched) bool { return w.Node == s.Observe }) {
		r.errorf(raw.at, "watch: the observed node %q is not among them", s.Observe)
	}
}

// churn finds the pods that are made anew.
func (r *resolver) churn(refs []value[string]) {
	var node *Node
	for _, ref := range refs {
		n, p := r.s.Topology.Pod(ref.v)
		switch {
		case p == nil || p.Gone:
			r.errorf(ref.at, "churn: no pod %q, want node/pod", short(ref.v))
			return
		case node != nil && n != node:
			r.errorf(ref.at, "churn: pod %q is not of node %q", short(ref.v), node.Name)
		case slices.Contains(r.s.Churn, ref.v):
			r.errorf(ref.at, "churn: pod %q is named twice", ref.v)
		case slices.ContainsFunc(r.s.Traffic, func(f Flow) bool { return f.From.Place == ref.v || f.To.Place == ref.v }):
			r.errorf(ref.at, "churn: pod %q has traffic", ref.v)
		}
		node = n
		r.s.Churn = append(r.s.Churn, ref.v)
	}
}

// expectAlone is what the observed node alone must be told. Without a word of it
// that is what all are told, less what takes several nodes.
func (r *resolver) expectAlone(raw value[rawVerdict]) {
	s := &r.s
	switch {
	case raw.set() && !s.Together():
		r.errorf(raw.at, "alone wants several nodes to watch")
	case raw.set():
		s.Alone = r.verdict(raw.v)
	default:
		s.Alone = s.Expect
		s.Alone.Findings = slices.Clone(s.Expect.Findings)
		for i := range s.Alone.Findings {
			s.Alone.Findings[i].Nodes = nil
		}
	}
}
