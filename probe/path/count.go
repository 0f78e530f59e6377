package path

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// point is where packets of two ends are counted.
type point struct {
	link      *model.Link
	direction model.Direction
	src, dst  netip.Addr
	// queued: behind the link's queue.
	queued bool
}

// at is where the packet is counted as it passes a link.
func (j *journey) at(l *model.Link, d model.Direction) *point {
	return &point{link: l, direction: d, src: j.src, dst: j.dst}
}

func (t *tracer) queue(l *model.Link) *model.Queue {
	return model.First(t.Queues, func(q *model.Queue) bool { return q.IfIndex == l.Index })
}

// seen is how many packets were counted at a point; unknown where they were not counted, or others with them.
func (j *journey) seen(p *point) model.Count {
	if j.Status(model.SourceTC) == model.Missing || p.src != j.ends.Pod && p.dst != j.ends.Pod && !j.hasNodeAddr(p) {
		return model.Count{}
	}
	n := j.counted(p)
	if n == 0 && (!j.Has(model.SourceTC) || j.lost(p) || j.bypassed(p)) || j.mixed(p) {
		// Nothing was counted, and packets may have passed uncounted; or others were too.
		return model.Count{}
	}
	if p.queued {
		return j.behindQueue(p, n)
	}
	return model.Counted(n)
}

// behindQueue is a count at a link's egress less what its queue dropped.
func (t *tracer) behindQueue(p *point, n uint64) model.Count {
	if !t.Has(model.SourceDrops) {
		if q := t.queue(p.link); q.DropsDelta > 0 || !t.Has(model.SourceQueues) {
			return model.Count{}
		}
	}
	for d := range model.Each(t.Traffic.Drops) {
		if !d.Is(model.Queued) || d.IfIndex != p.link.Index || t.elsewhere(d) {
			continue
		}
		sent, received := d.Src == p.src && p.src == t.ends.Pod, d.Dst == p.dst && p.dst == t.ends.Pod
		if d.Src == p.src && d.Dst == p.dst || !t.pair && (sent || received) {
			n -= min(n, t.dropped(d))
		}
	}
	return model.Counted(n)
}

// lost reports whether packets at the point may be among those that lasthop had no counter for.
func (t *tracer) lost(p *point) bool {
	l := &t.Traffic.Lost
	return model.Either(t.pair, l.Of(p.src).Pairs+l.Of(p.dst).Pairs > 0, l.Of(t.ends.Pod).Hops > 0)
}

// counted is the number of packets at the point: of the pair or, where pairs were not counted,
// of all that the pod sends or receives.
func (t *tracer) counted(p *point) (n uint64) {
	if t.pair {
		for _, c := range t.Traffic.Pairs {
			if c.Src == p.src && c.Dst == p.dst && c.IfIndex == p.link.Index && c.Direction == p.direction {
				n += c.Packets
			}
		}
		return n
	}
	side := model.Either(p.dst == t.ends.Pod, model.AsDestination, model.AsSource)
	return model.Find(t.Traffic.Hops, func(h model.HopCount) bool {
		return h.Addr == t.ends.Pod && h.Side == side && h.IfIndex == p.link.Index && h.Direction == p.direction
	}).Packets
}

// hasNodeAddr reports whether the packets at a point have an address of the node's instead of
// the pod's, and are told from its own.
func (t *tracer) hasNodeAddr(p *point) bool {
	local := model.Either(p.direction == model.Ingress, p.dst, p.src)
	return t.pair && t.Has(model.SourceConntrack) && p.link.Role == model.RoleUplink && t.Own[local] != nil
}

// bypassed reports whether packets may pass the point unseen: a program took
// them elsewhere before they came to its link or, by XDP, to its hook.
func (t *tracer) bypassed(p *point) bool {
	return model.Either(p.direction == model.Ingress, len(p.link.XDP) > 0, t.MayRedirect())
}

// slack is by how much two counts of the same packets differ without a loss: they are not read at one instant.
func slack(n uint64) uint64 { return 2 + n/200 }

// elsewhere reports whether packets were dropped outside of the node's own network namespace.
func (t *tracer) elsewhere(d *model.Drop) bool {
	return d.Netns != 0 && t.Node.Netns != 0 && d.Netns != t.Node.Netns
}

// hopOf is the hop of the journey that dropped packets, nil where none did.
func (j *journey) hopOf(d *model.Drop) *step {
	ofEnds := func(s *step) bool { return s.src == d.Src && s.dst == d.Dst }
	if !j.drops.Lost(d) || !slices.ContainsFunc(j.steps, ofEnds) ||
		j.ends.Proto != 0 && d.Proto != 0 && d.Proto != j.ends.Proto {
		return nil
	}
	// one is the first hop that satisfies the first condition that any does.
	one := func(conditions ...func(*step) bool) *step {
		for _, ok := range conditions {
			if s := model.Find(j.steps, ok); s != nil {
				return s
			}
		}
		return nil
	}
	kind := d.Hop()
	inNetns := func(s *step) bool { return d.Netns != 0 && s.netns == d.Netns }
	on := func(kinds ...model.HopKind) func(*step) bool {
		return func(s *step) bool { return s.Link == d.Link && slices.Contains(kinds, s.Kind) }
	}
	of := func(k model.HopKind) func(*step) bool { return func(s *step) bool { return s.Kind == k && ofEnds(s) } }
	switch {
	case j.elsewhere(d) && d.Is(model.OtherHost):
		return one(inNetns) // else a copy of a flooded frame
	case j.elsewhere(d):
		return one(inNetns, of(model.HopBridge)) // in another pod: the bridge led it there
	case d.Is(model.NoSocket):
		return one(inNetns, of(model.HopLocal))
	case kind == model.HopNeighbor && d.Link != "":
		return one(inNetns, on(kind)) // another link's next hop is not on this path
	case kind == "" || kind == model.HopLink:
		// Without a queue the link is down.
		return one(inNetns, func(s *step) bool { return d.Is(model.Queued) && on(model.HopQueue)(s) },
			on(model.HopLink, model.HopBridge))
	}
	return one(inNetns,
		func(s *step) bool {
			return kind == model.HopPolicy && s.ended && (s.Kind == model.HopPolicy || s.Kind == model.HopBridge)
		},
		of(kind), func(s *step) bool { return s.Kind == kind || s.Kind == instead[kind] }, on(model.HopLink, model.HopBridge))
}

// instead is the kind of hop that drops where a path has none of a kind: bridges have rules
// of their own, and pods neighbours.
var instead = map[model.HopKind]model.HopKind{model.HopPolicy: model.HopBridge, model.HopNeighbor: model.HopPod}

// dropped is how many packets of a drop were counted while pairs were, which begins at the window's edge.
func (t *tracer) dropped(d *model.Drop) uint64 {
	if len(t.Traffic.PairAddrs) > 0 {
		for e := range model.Each(t.Edges.StartAgain.Drops) {
			if e.Key() == d.Key() {
				return d.Packets - min(d.Packets, e.Packets)
			}
		}
	}
	return d.Packets
}

// mayLack reports whether drops of the journey's packets may be among those that are
// counted for several addresses, or not at all.
func (j *journey) mayLack() bool {
	return j.Traffic.Lost.Of(j.ends.Pod).Drops > 0 || nil != model.First(j.Traffic.Drops, func(d *model.Drop) bool {
		return d.Range.IsValid() && slices.ContainsFunc(j.steps, func(s *step) bool { return d.Between(s.src, s.dst) })
	})
}

// points are where packets are counted between two hops: at the i-th place before hop i, at the
// last one behind the last hop.
func (j *journey) points(i int) []*point {
	var out []*point
	if i > 0 && j.steps[i-1].after != nil {
		out = append(out, j.steps[i-1].after)
	}
	if i < len(j.steps) && j.steps[i].before != nil {
		out = append(out, j.steps[i].before)
	}
	return out
}

// measure fills in what was counted between hops, and dropped at each.
func (j *journey) measure() {
	j.counts = make([]model.Count, len(j.steps)+1)
	for i := range j.counts {
		for _, p := range j.points(i) {
			if c := j.seen(p); c.Known {
				j.counts[i] = c
			}
		}
	}
	for d := range model.Each(j.Traffic.Drops) {
		if s := j.hopOf(d); s != nil {
			s.dropped += j.dropped(d)
			if j.drops.Class(d) == loss.ByDesign {
				s.byDesign += j.dropped(d)
			}
		}
	}
}

// mixed reports whether flows that are translated otherwise than the journey's have the
// same addresses at a point: what is counted there is not of the journey's packets alone.
// Where several translations of what the pod sends part, the hop is cut.
func (j *journey) mixed(p *point) bool {
	if !j.pair {
		return false
	}
	type ends struct{ src, dst netip.Addr }
	begin, end := j.steps[0], j.steps[len(j.steps)-1]
	at, from, to := ends{p.src, p.dst}, ends{begin.src, begin.dst}, ends{end.src, end.dst}
	parts := at == from && from != to && slices.ContainsFunc(j.steps, func(s *step) bool { return s.cut })
	other := func(in, out ends) bool { return (in == at || out == at) && (in != from || out != to && !parts) }
	return slices.ContainsFunc(j.Flows, func(f model.Flow) bool {
		return other(ends{f.Original.Src, f.Original.Dst}, ends{f.Reply.Dst, f.Reply.Src}) ||
			other(ends{f.Reply.Src, f.Reply.Dst}, ends{f.Original.Dst, f.Original.Src})
	})
}

// passing are the names of decisions that let packets on, or leave that open.
var passing = []string{
	"accept", "bridged", "comes-in", "delivered", "goes-out", "no-translation", "port-of", "to-node",
	"bridge-unknown", "rules-may-decide", "rules-too-many", "rules-unread",
}

// count fills the counts in beside the predictions, and numbers the hops.
func (j *journey) count() []model.PathHop {
	whole := j.Has(model.SourceDrops, model.SourceTC) && !j.mayLack()
	for _, s := range j.steps {
		n := s.dropped
		if s.Finding == "" {
			n -= s.byDesign
		}
		if n > 0 || whole && s.Kind != model.HopBeyond && !s.src.IsLoopback() && !s.dst.IsLoopback() {
			s.Lost = model.Counted(n)
		}
	}
	if j.pair {
		j.spread()
	}
	out := make([]model.PathHop, len(j.steps))
	for i, s := range j.steps {
		s.Decision = s.decision()
		s.Passes = len(s.says) > 0 && slices.Contains(passing, s.says[0].name)
		for _, x := range s.shows {
			s.Rules = append(s.Rules, words.Text("shown/"+x.name, x.facts))
		}
		s.N, s.In, s.Out = i+1, j.counts[i], j.counts[i+1]
		if s.Dead && s.Lost.N == 0 {
			// Dead, and what it lost was not counted.
			s.Lost = model.Count{}
		}
		if noneLeft(s.In, s.Out) && s.Lost.Known && s.Lost.N+slack(s.In.N) >= s.In.N ||
			s.Finding != "" && s.In.Known && s.In.N >= minLost && s.dropped >= s.In.N {
			s.Dead = true
		}
		out[i] = s.PathHop
	}
	return out
}

// minLost is how many packets must end at a hop, and none get by, before it is called dead by the counts alone.
const minLost = 3

func noneLeft(in, out model.Count) bool {
	return in.Known && in.N >= minLost && out.Known && out.N == 0
}

// spread goes from one counted place to the next.
func (j *journey) spread() {
	from := -1
	for i := range j.counts {
		if !j.counts[i].Known {
			continue
		}
		if from >= 0 {
			j.fillBetween(from, i)
		}
		from = i
	}
	if from >= 0 {
		j.fillBehind(from)
	}
}

// fillBetween fills the hops from one counted place to the next: what came in, less what each dropped. Where
// that does not come to what was counted at the end, the rest was lost at the hop that is dead or, where there
// is one hop only, there; else it is not known where.
func (j *journey) fillBetween(from, to int) {
	a, b := j.counts[from].N, j.counts[to].N
	var dropped uint64
	var dead []*step
	hops := j.steps[from:to]
	for _, s := range hops {
		if s.cut {
			return
		}
		if s.Dead || len(hops) == 1 {
			dead = append(dead, s)
		}
		dropped += s.Lost.N
	}
	short := int64(a) - int64(b) - int64(dropped)
	switch {
	case uint64(max(short, -short)) <= slack(a):
	case short > 0 && len(dead) == 1 && !slices.ContainsFunc(j.points(to), j.bypassed):
		dead[0].Lost = model.Counted(dead[0].Lost.N + uint64(short))
	default:
		for _, s := range hops {
			if s.Lost.N == 0 {
				s.Lost = model.Count{}
			}
		}
		return
	}
	for i, s := range hops[:len(hops)-1] {
		a -= min(a, s.Lost.N)
		j.counts[from+i+1] = model.Counted(a)
	}
}

// fillBehind fills the hops after the last counted place, as far as drops are known. Where packets
// should have been counted, nothing is inferred.
func (j *journey) fillBehind(from int) {
	next := from + 1
	for next < len(j.counts) && len(j.points(next)) == 0 {
		next++
	}
	if next < len(j.counts) && slices.ContainsFunc(j.points(next), j.bypassed) {
		return
	}
	n := j.counts[from].N
	for i := from + 1; i < min(next, len(j.steps)); i++ {
		s := j.steps[i-1]
		if s.Kind == model.HopBeyond || s.Dead || s.cut || !s.Lost.Known {
			return
		}
		n -= min(n, s.Lost.N)
		j.counts[i] = model.Counted(n)
	}
}
