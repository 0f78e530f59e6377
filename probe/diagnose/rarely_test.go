package diagnose

import (
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// stoodIdle is how long an agent has watched when something goes wrong, some seconds after it read the state.
const stoodIdle = 2*time.Minute + 3*time.Second

// atOnce is when the state must have been read after something went wrong: two seconds, and what the readings before took.
const atOnce = 2*time.Second + 200*time.Millisecond

// followed has an agent watch a node that stands idle, has what a fixture counted for a while, and recovers: what
// a look at the state each second shows, the agent must open too, and close. The counts must make it look at once.
func followed(t *testing.T, n *testNode) {
	t.Helper()
	lasting := []time.Duration{6 * time.Second, 20 * time.Second, time.Minute}
	if testing.Short() {
		lasting = lasting[:1]
	}
	for _, fault := range lasting {
		eager, rarely := watched(n, fault, false), watched(n, fault, true)
		idle := eager.idle
		for _, code := range eager.during {
			// Counts do not tell which of the datagrams that go both ways are replies: that takes a state.
			unclear := fault < timeline.Short && slices.ContainsFunc(n.Traffic.Peers, func(p model.Peer) bool { return p.Out.Other > 0 && p.In.Other > 0 })
			if !unclear && !slices.Contains(idle, code) && !slices.Contains(rarely.ever, code) {
				t.Errorf("%v: %s was not seen by who reads the state rarely, who saw %v", fault, code, rarely.ever)
			}
		}
		// What connection tracking alone shows takes a state.
		counted := len(n.Traffic.Hops)+len(n.Traffic.Drops) > 0 || slices.ContainsFunc(n.Traffic.Peers, func(p model.Peer) bool {
			return p.Out.Requests > p.In.Replies || p.In.Requests > p.Out.Replies
		})
		if counted && len(rarely.ever) > len(idle) && rarely.judged > atOnce {
			t.Errorf("%v: %v judged after %v", fault, rarely.ever, rarely.judged)
		}
		for _, code := range rarely.ever {
			if !slices.Contains(eager.ever, code) {
				t.Errorf("%v: only who reads the state rarely saw %s", fault, code)
			}
			if !slices.Contains(idle, code) && slices.Contains(rarely.open, code) {
				t.Errorf("%v: %s stays open", fault, code)
			}
		}
	}
}

// seen are the findings of warning or worse that were ever open, those that were before anything went wrong and until that
// ended, and those that are long after. judged is how long it took until the state was read.
type seen struct {
	ever, idle, during, open []model.Code
	judged                   time.Duration
}

func watched(n *testNode, fault time.Duration, rarely bool) (out seen) {
	line := timeline.New(Judge, timeline.Short)
	if rarely {
		line.Doubting(true)
	}
	pace := timeline.Pace{Rarely: rarely}
	began := start.Add(stoodIdle)
	var x exchange
	first, after := start, time.Minute+20*time.Second
	if !rarely {
		first, after = began.Add(-15*time.Second), 15*time.Second
	}
	for now := first; now.Before(began.Add(fault + after)); now = now.Add(timeline.Every) {
		x.count(now, !now.Before(began) && now.Before(began.Add(fault)))
		state, counters := pace.Due(now, line.Unsettled() || line.Doubtful())
		if !rarely {
			state = true
		}
		var r model.Reading
		doubt := false
		if counters && !state {
			r = line.Note(model.Point{Snapshot: x.snapshot(n, now)})
			doubt = line.Doubt()
			now = now.Add(time.Millisecond)
		}
		if state || doubt && pace.May(now) {
			r = line.Add(model.Point{Snapshot: x.snapshot(n, now), Whole: true, Ready: now})
			if out.judged == 0 && now.After(began) {
				out.judged = now.Sub(began)
			}
			pace.Spent(30 * time.Millisecond)
			pace.Read(now, line.Unsettled())
		}
		if r.Point.Snapshot == nil {
			continue
		}
		out.open = nil
		for _, f := range r.Findings {
			if f.Severity.Rank() < model.Warning.Rank() {
				continue
			}
			if out.ever = model.With(out.ever, f.Code); !f.Closed {
				out.open = append(out.open, f.Code)
			}
		}
		if now.Before(began) {
			out.idle = slices.Clone(out.ever)
		}
		if now.Before(began.Add(fault)) {
			out.during = slices.Clone(out.ever)
		}
	}
	return out
}

// exchange is what was counted so far: by traffic that is well, and by that of the fixture.
type exchange struct {
	well, wrong uint64
	last        map[bool]time.Time
}

func (x *exchange) count(now time.Time, wrong bool) {
	if x.last == nil {
		x.last = map[bool]time.Time{}
	}
	if x.last[wrong] = now; wrong {
		x.wrong++
	} else {
		x.well++
	}
}

// of is how much of what a fixture counted in its window was counted in so many seconds.
func of(n, seconds uint64) uint64 { return n * seconds / 2 }

// snapshot is the node with all that was counted so far.
func (x *exchange) snapshot(n *testNode, now time.Time) *model.Snapshot {
	s := n.Snapshot
	s.Window = model.Window{Start: start, End: now}
	s.Traffic.Peers = slices.Clone(s.Traffic.Peers)
	for i := range s.Traffic.Peers {
		p := &s.Traffic.Peers[i]
		out, in := p.Out, p.In
		add := func(c model.PeerCount) model.PeerCount {
			return model.NewPeerCount(of(c.Packets, x.wrong), of(c.Requests, x.wrong), of(c.Replies, x.wrong), of(c.ICMPErrors, x.wrong))
		}
		p.Out, p.In = add(out), add(in)
		p.FirstOut, p.LastOut, p.LastIn = start.Add(time.Second), x.last[true], x.last[true]
		if in.Packets == 0 {
			p.LastIn = time.Time{}
		}
		// While all is well each request has a reply.
		p.Out.Packets, p.In.Packets = p.Out.Packets+x.well, p.In.Packets+x.well
		p.Out.Requests, p.In.Replies = p.Out.Requests+x.well, p.In.Replies+x.well
		if at := x.last[false]; at.After(p.LastOut) {
			p.LastOut = at
		}
		if at := x.last[false]; at.After(p.LastIn) {
			p.LastIn = at
		}
	}
	s.Traffic.Hops = slices.Clone(s.Traffic.Hops)
	for i := range s.Traffic.Hops {
		h := &s.Traffic.Hops[i]
		h.Packets, h.Bytes, h.SYN, h.SYNACK = of(h.Packets, x.wrong), of(h.Bytes, x.wrong), of(h.SYN, x.wrong), of(h.SYNACK, x.wrong)
		h.RST, h.ICMPErrors = of(h.RST, x.wrong), of(h.ICMPErrors, x.wrong)
		h.FromInside, h.FromUplink = of(h.FromInside, x.wrong), of(h.FromUplink, x.wrong)
		h.First, h.Last = x.last[true], x.last[true]
	}
	s.Traffic.Drops = slices.Clone(s.Traffic.Drops)
	for i := range s.Traffic.Drops {
		d := &s.Traffic.Drops[i]
		d.Packets, d.First, d.Last = of(d.Packets, x.wrong), start.Add(stoodIdle), x.last[true]
	}
	s.Traffic.MACs = slices.Clone(s.Traffic.MACs)
	for i := range s.Traffic.MACs {
		s.Traffic.MACs[i].Packets = of(s.Traffic.MACs[i].Packets, x.wrong)
	}
	s.Traffic.ARP = slices.Clone(s.Traffic.ARP)
	for i := range s.Traffic.ARP {
		s.Traffic.ARP[i].Packets = of(s.Traffic.ARP[i].Packets, x.wrong)
	}
	s.Traffic.Samples = nil
	x.state(&s)
	return &s
}

// state is what was read of the node's own counters and flows.
func (x *exchange) state(s *model.Snapshot) {
	counted := func(c *model.Counter) { c.Packets, c.Delta = c.Packets+of(c.Delta, x.wrong), 0 }
	s.FrameRules, s.PacketRules, s.Chains = slices.Clone(s.FrameRules), slices.Clone(s.PacketRules), slices.Clone(s.Chains)
	for i := range s.FrameRules {
		counted(&s.FrameRules[i].Counter)
	}
	for i := range s.PacketRules {
		counted(&s.PacketRules[i].Counter)
	}
	for i := range s.Chains {
		counted(&s.Chains[i].Counter)
	}
	for _, c := range []*uint64{&s.Conntrack.InsertFailed, &s.Conntrack.Drop, &s.Conntrack.EarlyDrop, &s.Conntrack.Invalid} {
		*c = of(*c, x.wrong)
	}
	s.Pods = slices.Clone(s.Pods)
	for i := range s.Pods {
		if b := s.Pods[i].Backlog; b != nil {
			c := *b
			c.Overflows = of(c.Delta, x.wrong)
			s.Pods[i].Backlog = &c
		}
	}
	var flows []model.Flow
	for _, f := range s.Flows {
		if !f.Start.IsZero() {
			if x.wrong == 0 || s.Window.End.Sub(x.last[true]) > 4*timeline.Short {
				continue // it has expired
			}
			f.Start = x.last[true].Add(-timeline.Every) // some begin each second
		}
		flows = append(flows, f)
	}
	s.Flows = flows
}
