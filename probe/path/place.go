package path

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// place marks the hops at which findings have their place: the worst finding of each hop.
func (t *tracer) place(findings []model.Finding, journeys ...*journey) {
	for f := range model.Each(findings) {
		if s := suspect(f, journeys); s != nil && s.Finding == "" && t.concerned(f, journeys) {
			s.Finding = f.Code
			// Packets pass a finding for information, unless the counts show that none does.
			s.Dead = s.Dead || !f.Passes && f.Severity != model.Info
		}
	}
}

// suspect is the hop at which a finding's packets end, nil where none of the journeys has it:
// the hop where the tables or the counts end them, if such a cause can, else one that
// dropped some, else the next hop of the kind behind the last one alive.
func suspect(f *model.Finding, journeys []*journey) *step {
	for _, j := range journeys {
		if s := j.ending(f); s != nil {
			return s
		}
	}
	behind := false
	for _, j := range journeys {
		at := j.alive(f)
		if at < 0 && !behind {
			continue
		}
		if s, met := j.guess(f, at); met {
			return s
		}
		// All of the return path is behind the last hop alive of the forward path.
		behind = true
	}
	return nil
}

// concerned reports whether a finding is about these ends: one of them is of its pods, and another of its peers.
func (t *tracer) concerned(f *model.Finding, journeys []*journey) bool {
	met := []netip.Addr{t.ends.Pod, t.ends.To}
	for _, j := range journeys {
		for _, s := range j.steps {
			met = append(met, s.src, s.dst)
			if s.next.IsValid() {
				met = append(met, s.next)
			}
		}
	}
	ofPod := func(a netip.Addr) bool {
		return slices.Contains(f.Pods, a) && (a == t.ends.Pod || a == t.ends.To || t.Own[a] == nil)
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
// where the journey does not pass it. Of several pods a finding names one's link.
func (j *journey) alive(f *model.Finding) int {
	p := f.LastHopAlive
	return slices.IndexFunc(j.steps, func(s *step) bool {
		if s.Link == "" || s.direction != p.Direction {
			return false
		}
		switch {
		case p.Role == model.RolePod:
			return s.Link == p.Link && s.Kind == model.HopPod && s.isOf(f)
		case p.Role == model.RolePodLink && s.Role == p.Role && s.Kind == model.HopLink && s.Link != p.Link:
			return slices.Contains(f.Pods, s.end())
		}
		return s.Link == p.Link && (s.Kind == model.HopLink || s.Kind == model.HopBridge)
	})
}

// end is the pod's address at a pod's link, as the packets pass it.
func (s *step) end() netip.Addr {
	return model.Either(s.direction == model.Egress == (s.Kind == model.HopPod), s.src, s.dst)
}

// isOf reports whether the hop, where it is a pod, is one that the finding is about, or asks for such a one.
func (s *step) isOf(f *model.Finding) bool {
	return s.Kind != model.HopPod || len(f.Pods) == 0 || slices.Contains(f.Pods, s.end()) ||
		slices.Contains(f.Pods, s.next)
}

// earliest is the first hop at which a finding's packets may end, given its last one alive.
// Who asks on a link for a neighbour asks before it sends.
func (j *journey) earliest(f *model.Finding, alive int) int {
	asks := func(s *step) bool {
		return s.next.IsValid() && slices.Contains(f.Peers, netip.PrefixFrom(s.next, s.next.BitLen()))
	}
	if i := slices.IndexFunc(j.steps, asks); i >= 0 && i < alive {
		return i
	}
	if alive > 0 && (alive == 1 && j.steps[0].Kind == model.HopPod || j.steps[alive-1].Kind == model.HopNeighbor) {
		return alive - 1
	}
	return max(alive, 0)
}

// ending is the hop at which the tables or the counts end a finding's packets, if such a
// cause can, else one that dropped some.
func (j *journey) ending(f *model.Finding) *step {
	from := j.earliest(f, j.alive(f))
	for _, ends := range []func(int, *step) bool{
		func(i int, s *step) bool { return s.ended || j.pair && noneLeft(j.counts[i], j.counts[i+1]) },
		func(_ int, s *step) bool { return s.dropped > 0 },
	} {
		for i, s := range j.steps {
			if i >= from && s.isOf(f) && (f.EndsAt == nil || slices.Contains(f.EndsAt, s.Kind)) && ends(i, s) {
				return s
			}
		}
	}
	return nil
}

// guess is the first hop of the finding's kinds behind its last one alive that the counts do
// not show to let packets pass. met: there is one of its kinds.
func (j *journey) guess(f *model.Finding, alive int) (s *step, met bool) {
	if f.EndsAt == nil {
		if met = alive+1 < len(j.steps); met && !j.passed(alive+1) {
			s = j.steps[alive+1]
		}
		return s, met
	}
	from := j.earliest(f, alive)
	for _, k := range f.EndsAt {
		for i, s := range j.steps[from:] {
			if s.Kind != k || !s.isOf(f) {
				continue
			}
			if met = true; !j.passed(from + i) {
				return s, met
			}
		}
	}
	return nil, met
}

// passed reports whether the counts show that what came to a hop got by it.
func (j *journey) passed(i int) bool {
	var before model.Count
	for _, c := range j.counts[:i+1] {
		if c.Known {
			before = c
		}
	}
	return j.pair && slices.ContainsFunc(j.counts[i+1:], func(c model.Count) bool {
		return c.Known && c.N > 0 && (!before.Known || c.N+slack(before.N) >= before.N)
	})
}
