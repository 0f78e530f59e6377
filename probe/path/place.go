package path

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// place marks the hops at which findings have their place: the worst finding of
// each hop.
func (t *tracer) place(findings []model.Finding, ways ...*journey) {
	lost := make([]map[*step]uint64, len(ways))
	counts := make([][]model.Count, len(ways))
	for i, j := range ways {
		lost[i], counts[i] = j.losses(), j.boundaries()
	}
	for f := range model.Each(findings) {
		if !t.concerned(f, ways) {
			continue
		}
		for k, j := range ways {
			at := j.alive(f)
			if s := j.suspect(f, at, lost[k], counts[k]); s != nil {
				if s.Finding == "" {
					s.Finding = f.Code
					s.Dead = s.Dead || !f.Passes && !(f.Severity == model.Info && j.delivered(s))
				}
				break
			}
		}
	}
}

// concerned reports whether a finding is about these ends: one of them is of its pods,
// and another of its peers.
func (t *tracer) concerned(f *model.Finding, ways []*journey) bool {
	met := []netip.Addr{t.ends.Pod, t.ends.To}
	for _, j := range ways {
		for _, s := range j.steps {
			met = append(met, s.src, s.dst)
			if s.next.IsValid() {
				met = append(met, s.next)
			}
		}
	}
	ofPod := func(a netip.Addr) bool {
		return slices.Contains(f.Pods, a) && (a == t.ends.Pod || a == t.ends.To || t.node[a] == nil)
	}
	ofPeer := func(a netip.Addr) bool {
		return slices.ContainsFunc(f.Peers, func(p netip.Prefix) bool {
			return p.Contains(a) && (p.IsSingleIP() || a != t.ends.Pod)
		})
	}
	switch {
	case len(f.Pods) == 0:
		return len(f.Peers) == 0 || slices.ContainsFunc(met, ofPeer)
	case len(f.Peers) == 0:
		return slices.ContainsFunc(met, ofPod)
	}
	return slices.ContainsFunc(met, func(pod netip.Addr) bool {
		return ofPod(pod) && slices.ContainsFunc(met, func(peer netip.Addr) bool { return peer != pod && ofPeer(peer) })
	})
}

// alive is the place of the link where a finding's packets were last right, -1
// where this way does not pass it.
func (j *journey) alive(f *model.Finding) int {
	p := f.LastHopAlive
	return slices.IndexFunc(j.steps, func(s *step) bool {
		if s.Link == "" || s.Link != p.Link || s.direction != p.Direction {
			return false
		}
		if p.Role == model.RolePod {
			return s.Kind == model.HopPod && s.isOf(f)
		}
		return s.Kind == model.HopLink || s.Kind == model.HopBridge
	})
}

// delivered reports whether all that was dropped at the end of the way is what
// a transport or a socket frees as it goes: a ping with a raw socket has its
// answer, and the kernel frees a copy for which no other socket asked.
func (j *journey) delivered(s *step) bool {
	some := false
	for d := range model.Each(j.Traffic.Drops) {
		if d.Src != s.src || d.Dst != s.dst || d.Netns != 0 && s.netns != 0 && d.Netns != s.netns ||
			j.ends.Proto != 0 && d.Proto != 0 && d.Proto != j.ends.Proto {
			continue
		}
		if !d.Delivered() {
			return false
		}
		some = true
	}
	return some
}

// isOf reports whether the hop, where it is a pod, is one that the finding is
// about.
func (s *step) isOf(f *model.Finding) bool {
	a := s.dst
	if s.direction == model.Egress {
		a = s.src
	}
	return s.Kind != model.HopPod || len(f.Pods) == 0 || slices.Contains(f.Pods, a)
}

// suspect is the hop at which a finding's packets end, nil where it is not on
// this way: the hop where the tables end it, if such a cause can, else the next
// hop of the kind.
func (j *journey) suspect(f *model.Finding, at int, lost map[*step]uint64, counts []model.Count) *step {
	fits := func(s *step) bool { return s.isOf(f) && (f.EndsAt == nil || slices.Contains(f.EndsAt, s.Kind)) }
	next := at + 1
	if at > 0 && (at == 1 && j.steps[0].Kind == model.HopPod || j.steps[at-1].Kind == model.HopNeighbor) {
		// Who asks on a link for a neighbour asks before it sends.
		at--
	}
	for i, s := range j.steps {
		if i >= at && s.ended && fits(s) {
			return s
		}
	}
	for i, s := range j.steps {
		if i >= at && lost[s] > 0 && fits(s) {
			return s
		}
	}
	if at < 0 {
		return nil
	}
	for _, k := range f.EndsAt {
		for i, s := range j.steps[at:] {
			if s.Kind == k && s.isOf(f) && !j.passed(at+i, counts) {
				return s
			}
		}
	}
	if f.EndsAt == nil && next < len(j.steps) && !j.passed(next, counts) {
		return j.steps[next]
	}
	return nil
}

// passed reports whether the counts show that what came to a hop got by it.
func (j *journey) passed(i int, counts []model.Count) bool {
	if !j.pair {
		return false
	}
	var before model.Count
	for _, c := range counts[:i+1] {
		if c.Known {
			before = c
		}
	}
	return slices.ContainsFunc(counts[i+1:], func(c model.Count) bool {
		return c.Known && c.N > 0 && (!before.Known || c.N+slack(before.N) >= before.N)
	})
}
