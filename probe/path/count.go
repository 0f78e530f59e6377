package path

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
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

// pastQueue is where a packet that left a link's queue would be counted.
func (j *journey) pastQueue(l *model.Link) *point {
	p := j.at(l, model.Egress)
	p.queued = j.queue(l) != nil
	return p
}

// queue is that of a link, nil where it has none.
func (t *tracer) queue(l *model.Link) *model.Queue {
	return first(t.Queues, func(q *model.Queue) bool { return q.IfIndex == l.Index })
}

// seen is how many packets were counted at a point; unknown where they were not
// counted, or others with them.
func (t *tracer) seen(p *point) model.Count {
	if p == nil || t.Status(model.SourceTC) == model.Missing {
		return model.Count{}
	}
	var c model.Count
	switch {
	case p.src != t.ends.Pod && p.dst != t.ends.Pod:
		c = t.translated(p)
	case t.pair:
		c = model.Counted(t.ofPair(p))
	default:
		c = model.Counted(t.ofPod(p))
	}
	if c.N == 0 && (!t.Has(model.SourceTC) || t.lost(p) || t.bypassed(p)) {
		// Nothing was counted, and packets may have passed uncounted.
		return model.Count{}
	}
	if p.queued && c.Known {
		return t.behindQueue(p, c)
	}
	return c
}

// behindQueue is a count at a link's egress less what its queue dropped.
func (t *tracer) behindQueue(p *point, c model.Count) model.Count {
	if !t.Has(model.SourceDrops) {
		if q := t.queue(p.link); q.DropsDelta > 0 || !t.Has(model.SourceQueues) {
			return model.Count{}
		}
	}
	all := !t.pair && (p.src == t.ends.Pod || p.dst == t.ends.Pod)
	for d := range model.Each(t.Traffic.Drops) {
		if !d.Queued() || d.IfIndex != p.link.Index || t.Node.Netns != 0 && d.Netns != 0 && d.Netns != t.Node.Netns {
			continue
		}
		if d.Src == p.src && d.Dst == p.dst || all && (p.src == t.ends.Pod && d.Src == p.src || p.dst == t.ends.Pod && d.Dst == p.dst) {
			c.N -= min(c.N, d.Packets-min(d.Packets, t.earlier(d)))
		}
	}
	return c
}

// lost reports whether packets at the point may be among those that lasthop had no
// counter for.
func (t *tracer) lost(p *point) bool {
	l := &t.Traffic.Lost
	if t.pair {
		return l.Of(p.src).Pairs+l.Of(p.dst).Pairs > 0
	}
	return l.Of(t.ends.Pod).Hops > 0
}

func (t *tracer) ofPair(p *point) uint64 {
	var n uint64
	for _, c := range t.Traffic.Pairs {
		if c.Src == p.src && c.Dst == p.dst && c.IfIndex == p.link.Index && c.Direction == p.direction {
			n += c.Packets
		}
	}
	return n
}

// ofPod is all that the pod sends, or receives, at the point.
func (t *tracer) ofPod(p *point) uint64 {
	side := model.AsSource
	if p.dst == t.ends.Pod {
		side = model.AsDestination
	}
	for _, h := range t.Traffic.Hops {
		if h.Addr == t.ends.Pod && h.Side == side && h.IfIndex == p.link.Index && h.Direction == p.direction {
			return h.Packets
		}
	}
	return 0
}

// translated is the count of packets that have the node's address instead of
// the pod's.
func (t *tracer) translated(p *point) model.Count {
	local := p.src
	if p.direction == model.Ingress {
		local = p.dst
	}
	if !t.pair || !t.Has(model.SourceConntrack) || p.link.Role != model.RoleUplink || t.Own[local] == nil {
		return model.Count{}
	}
	return model.Counted(t.ofPair(p))
}

// bypassed reports whether packets may pass the point unseen: a program took
// them elsewhere before they came to its link or, by XDP, to its hook.
func (t *tracer) bypassed(p *point) bool {
	if p.direction == model.Ingress {
		return len(p.link.XDP) > 0
	}
	return t.MayRedirect()
}

// slack is by how much two counts of the same packets differ without a loss:
// they are not read at one instant.
func slack(n uint64) uint64 { return 2 + n/200 }

// hopOf is the hop of the journey that dropped packets, nil where none did.
func (j *journey) hopOf(d *model.Drop) *step {
	if !j.drops.Lost(d) {
		return nil
	}
	ofEnds := func(s *step) bool { return s.src == d.Src && s.dst == d.Dst }
	if !slices.ContainsFunc(j.steps, ofEnds) || j.ends.Proto != 0 && d.Proto != 0 && d.Proto != j.ends.Proto {
		return nil
	}
	find := func(ok func(*step) bool) *step {
		if i := slices.IndexFunc(j.steps, ok); i >= 0 {
			return j.steps[i]
		}
		return nil
	}
	if s := find(func(s *step) bool { return d.Netns != 0 && s.netns == d.Netns }); s != nil {
		return s
	}
	if d.Netns != 0 && j.Node.Netns != 0 && d.Netns != j.Node.Netns {
		if d.OtherHost() {
			return nil // a copy of a flooded frame
		}
		// In another pod: the bridge led it there.
		return find(func(s *step) bool { return s.Kind == model.HopBridge && ofEnds(s) })
	}
	if d.NoSocket() {
		return find(func(s *step) bool { return s.Kind == model.HopLocal && ofEnds(s) })
	}
	kind := d.Hop()
	if kind == model.HopPolicy {
		if s := find(func(s *step) bool { return s.ended && (s.Kind == model.HopPolicy || s.Kind == model.HopBridge) }); s != nil {
			return s
		}
	}
	if kind == model.HopNeighbor && d.Link != "" {
		// Another link's next hop is not on this path.
		return find(func(s *step) bool { return s.Kind == kind && s.Link == d.Link })
	}
	if d.Queued() {
		// Without a queue the link is down.
		if s := find(func(s *step) bool { return s.Kind == model.HopQueue && s.Link == d.Link }); s != nil {
			return s
		}
	}
	if kind != "" && kind != model.HopLink {
		if s := find(func(s *step) bool { return s.Kind == kind && ofEnds(s) }); s != nil {
			return s
		}
		if s := find(func(s *step) bool { return s.Kind == kind || s.Kind == instead[kind] }); s != nil {
			return s
		}
	}
	return find(func(s *step) bool { return (s.Kind == model.HopLink || s.Kind == model.HopBridge) && s.Link == d.Link })
}

// instead is the kind of hop that drops where a path has none of a kind: bridges have rules
// of their own, and pods neighbours.
var instead = map[model.HopKind]model.HopKind{model.HopPolicy: model.HopBridge, model.HopNeighbor: model.HopPod}

// earlier is how many packets of a drop were counted before pairs were, which
// begins at the window's edge.
func (t *tracer) earlier(d *model.Drop) uint64 {
	if len(t.Traffic.PairAddrs) == 0 {
		return 0
	}
	for _, e := range t.Edges.StartAgain.Drops {
		packets := e.Packets
		e.Packets, e.First, e.Last = d.Packets, d.First, d.Last
		if e == *d {
			return packets
		}
	}
	return 0
}

// mayLack reports whether drops of the journey's packets may be among those that are
// counted for several addresses, or not at all.
func (j *journey) mayLack() bool {
	if j.Traffic.Lost.Of(j.ends.Pod).Drops > 0 {
		return true
	}
	for d := range model.Each(j.Traffic.Drops) {
		if d.Range.IsValid() && slices.ContainsFunc(j.steps, func(s *step) bool { return d.Between(s.src, s.dst) }) {
			return true
		}
	}
	return false
}

// losses are the drops of the journey's packets by hop, those that count.
func (j *journey) losses(counts func(*step, *model.Drop) bool) map[*step]uint64 {
	out := map[*step]uint64{}
	for d := range model.Each(j.Traffic.Drops) {
		if s := j.hopOf(d); s != nil && counts(s, d) {
			out[s] += d.Packets - min(d.Packets, j.earlier(d))
		}
	}
	return out
}

// boundaries are the counts between hops: the i-th before hop i, one more
// behind the last.
func (j *journey) boundaries() []model.Count {
	out := make([]model.Count, len(j.steps)+1)
	for i, s := range j.steps {
		if c := j.seen(s.after); c.Known && !j.mixed(s.after) {
			out[i+1] = c
		}
		if c := j.seen(s.before); c.Known && !j.mixed(s.before) {
			out[i] = c
		}
	}
	return out
}

// mixed reports whether flows that are translated otherwise than the journey's have the
// same addresses at a point: what is counted there is not of the journey's packets alone.
// Where several translations of what the pod sends part, the hop is cut.
func (j *journey) mixed(p *point) bool {
	if !j.pair {
		return false
	}
	type way struct{ src, dst netip.Addr }
	begin, end := j.steps[0], j.steps[len(j.steps)-1]
	at, from, to := way{p.src, p.dst}, way{begin.src, begin.dst}, way{end.src, end.dst}
	parts := at == from && from != to && slices.ContainsFunc(j.steps, func(s *step) bool { return s.cut })
	other := func(in, out way) bool {
		return (in == at || out == at) && (in != from || out != to && !parts)
	}
	return slices.ContainsFunc(j.Flows, func(f model.Flow) bool {
		return other(way{f.Original.Src, f.Original.Dst}, way{f.Reply.Dst, f.Reply.Src}) ||
			other(way{f.Reply.Src, f.Reply.Dst}, way{f.Original.Dst, f.Original.Src})
	})
}

// count fills the counts in beside the predictions, and numbers the hops.
func (j *journey) count() []model.PathHop {
	c := counting{journey: j, at: j.boundaries(), lost: make([]model.Count, len(j.steps))}
	drops, whole := j.losses(func(s *step, d *model.Drop) bool { return s.Finding != "" || j.drops.Class(d) == loss.Lost }), !j.mayLack()
	for i, s := range j.steps {
		if n := drops[s]; n > 0 || whole && j.Has(model.SourceDrops, model.SourceTC) && s.Kind != model.HopBeyond && !s.src.IsLoopback() && !s.dst.IsLoopback() {
			c.lost[i] = model.Counted(n)
		}
	}
	if j.pair {
		c.spread()
	}
	out := make([]model.PathHop, len(j.steps))
	for i, s := range j.steps {
		s.Decision = s.decision()
		s.N, s.In, s.Out, s.Lost = i+1, c.at[i], c.at[i+1], c.lost[i]
		if s.Dead && s.Lost.Known && s.Lost.N == 0 {
			// Dead, and what it lost was not counted.
			s.Lost = model.Count{}
		}
		if noneLeft(s.In, s.Out) && s.Lost.Known && s.Lost.N+slack(s.In.N) >= s.In.N {
			s.Dead = true
		}
		out[i] = s.PathHop
	}
	return out
}

// minLost is how many packets must end at a hop, and none get by, before it is
// called dead by the counts alone.
const minLost = 3

// noneLeft reports whether packets came in, and none got by.
func noneLeft(in, out model.Count) bool {
	return in.Known && in.N >= minLost && out.Known && out.N == 0
}

// counting spreads what was counted at links over the hops between them.
type counting struct {
	*journey
	at   []model.Count
	lost []model.Count
}

// spread goes from one counted place to the next.
func (c *counting) spread() {
	from := -1
	for i := range c.at {
		if !c.at[i].Known {
			continue
		}
		if from >= 0 {
			c.between(from, i)
		}
		from = i
	}
	if from >= 0 {
		c.behind(from)
	}
}

// next is the first place behind one where packets are counted, 0 where none is.
func (c *counting) next(from int) int {
	for i := from + 1; i <= len(c.steps); i++ {
		if c.steps[i-1].after != nil || i < len(c.steps) && c.steps[i].before != nil {
			return i
		}
	}
	return 0
}

// mayMiss reports whether packets may pass the i-th place unseen.
func (c *counting) mayMiss(i int) bool {
	p := c.steps[i-1].after
	return p != nil && c.bypassed(p) || i < len(c.steps) && c.steps[i].before != nil && c.bypassed(c.steps[i].before)
}

// between fills the hops from one counted place to the next: what came in, less
// what each dropped. Where that does not come to what was counted at the end,
// the rest was lost at the hop that is dead or, where there is one hop only,
// there; else it is not known where.
func (c *counting) between(from, to int) {
	a, b := c.at[from].N, c.at[to].N
	var dropped uint64
	var dead []int
	for i := from; i < to; i++ {
		s := c.steps[i]
		if s.cut {
			return
		}
		if s.Dead {
			dead = append(dead, i)
		}
		dropped += c.lost[i].N
	}
	short := int64(a) - int64(b) - int64(dropped)
	if to == from+1 && len(dead) == 0 {
		dead = []int{from}
	}
	switch {
	case uint64(max(short, -short)) <= slack(a):
	case short > 0 && len(dead) == 1 && !c.mayMiss(to):
		c.lost[dead[0]] = model.Counted(c.lost[dead[0]].N + uint64(short))
	default:
		for i := from; i < to; i++ {
			if c.lost[i].N == 0 {
				c.lost[i] = model.Count{}
			}
		}
		return
	}
	for i := from + 1; i < to; i++ {
		a -= min(a, c.lost[i-1].N)
		c.at[i] = model.Counted(a)
	}
}

// behind fills the hops after the last counted place, as far as drops are known.
func (c *counting) behind(from int) {
	if next := c.next(from); next > 0 && c.mayMiss(next) {
		return
	}
	n := c.at[from].N
	for i := from; i < len(c.steps); i++ {
		s := c.steps[i]
		if s.Kind == model.HopBeyond || s.Dead || s.cut || !c.lost[i].Known || i == len(c.steps)-1 ||
			s.after != nil || c.steps[i+1].before != nil {
			// Where packets should have been counted, nothing is inferred.
			return
		}
		n -= min(n, c.lost[i].N)
		c.at[i+1] = model.Counted(n)
	}
}
