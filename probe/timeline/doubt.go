package timeline

import (
	"net/netip"
	"time"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

const (
	// minDoubt is how many packets must be lost or unanswered before that is judged.
	minDoubt = 3
	// mostJudged is how often one doubt is judged for itself, each time after twice as long. Later it is judged with
	// what else makes a judgement due.
	mostJudged = 4
	// mostPatience is how long the doubts of an address wait at most, whose doubts were judged in vain.
	mostPatience = time.Minute
)

// doubts are what counts alone show of losses: packets of a pair or a pod that no reply follows, and drops. They
// are nil unless somebody asks for them.
type doubts struct {
	// at is when counts were seen last.
	at   time.Time
	open map[uint64]*doubt
	// vain are the addresses whose doubts were judged without a finding.
	vain map[netip.Addr]patience
}

type doubt struct {
	of netip.Addr
	// since is the last point before the first of these packets, first that which counted it, last that of the latest.
	since, first, last time.Time
	packets            uint64
	judged             int
	drop               bool
}

type patience struct {
	times int
	until time.Time
}

// see learns what was counted between two points, of which s is the later.
func (d *doubts) see(s *model.Snapshot, before, now *counts) {
	end := s.Window.End
	if d.open == nil {
		return // nobody asks for them
	}
	if d.at.IsZero() {
		d.at = s.Window.Start
	}
	for p := range model.Each(s.Traffic.Peers) {
		if !p.Range.IsValid() && (p.LastOut.After(d.at) || p.LastIn.After(d.at)) {
			id := peerID(p)
			then := before.peers.of(id)
			replied := minus(p.In.Replies, then.in.Replies)
			d.note(id, p.Local, end, minus(p.Out.Packets, then.out.Packets), replied+minus(others(p.In), others(then.in)))
			d.note(id+1, p.Local, end, minus(p.Out.Requests, then.out.Requests), replied)
			d.note(id+2, p.Local, end, minus(p.In.Requests, then.in.Requests),
				minus(p.Out.Replies, then.out.Replies)+minus(others(p.Out), others(then.out)))
		}
	}
	for p := range model.Each(s.Pods) {
		for _, a := range p.Addresses {
			sent, got := hopKey{addr: a.Addr(), ifindex: p.LinkIndex, dir: model.Ingress, side: model.AsSource},
				hopKey{addr: a.Addr(), ifindex: p.LinkIndex, dir: model.Egress, side: model.AsDestination}
			id, back := hashOf(sent), hashOf(got)
			out, outThen, in, inThen := now.hops.of(id), before.hops.of(id), now.hops.of(back), before.hops.of(back)
			d.note(id, a.Addr(), end, minus(out.packets, outThen.packets), minus(in.packets, inThen.packets))
			d.note(id+1, a.Addr(), end, minus(out.syn, outThen.syn), minus(in.synack, inThen.synack))
			d.note(back, a.Addr(), end, minus(in.packets, inThen.packets), minus(out.packets, outThen.packets))
			d.note(back+1, a.Addr(), end, minus(in.syn, inThen.syn), minus(out.synack, outThen.synack))
		}
	}
	d.dropped(s, before)
	d.at = end
	for id, x := range d.open {
		if end.Sub(x.last) > model.Either(x.drop, Short, Long) {
			delete(d.open, id)
		}
	}
}

// others counts the packets besides that may be replies.
func others(c model.PeerCount) uint64 { return c.Other - min(c.Other, c.ICMPErrors) }

// dropped learns of the drops of pods' packets that are losses.
func (d *doubts) dropped(s *model.Snapshot, before *counts) {
	var classes *loss.Classifier
	var pods map[netip.Addr]bool
	for x := range model.Each(s.Traffic.Drops) {
		id := dropID(x)
		n := minus(x.Packets, before.drops.of(id))
		if n == 0 {
			continue
		}
		if classes == nil {
			classes, pods = loss.NewClassifier(s), s.PodAddrs()
		}
		if of := model.Either(pods[x.Src], x.Src, x.Dst); pods[of] && classes.Lost(x) {
			d.note(id, of, s.Window.End, n, 0)
			d.open[id].drop = true
		}
	}
}

// note adds packets, and ends the doubt if any reply came.
func (d *doubts) note(id uint64, of netip.Addr, end time.Time, packets, replies uint64) {
	x := d.open[id]
	switch {
	case replies > 0:
		delete(d.open, id)
		return
	case packets == 0:
		return
	case x == nil:
		x = &doubt{of: of, since: d.at, first: end}
		d.open[id] = x
	}
	x.packets, x.last = x.packets+packets, end
}

// ripe reports whether a doubt is to be judged: at once, then after one, three and seven seconds.
func (x *doubt) ripe(now time.Time) bool {
	return x.packets >= minDoubt && x.judged < mostJudged && now.Sub(x.first) >= (1<<x.judged-1)*Every-slack
}

// due reports whether there is what is to be judged, fresh whether some of it was not judged yet.
func (d *doubts) due() (due, fresh bool) {
	for _, x := range d.open {
		if x.packets >= minDoubt && !d.at.Before(d.vain[x.of].until) {
			due, fresh = due || x.ripe(d.at), fresh || x.judged == 0
		}
	}
	return due, fresh
}

// judge takes what is doubted for judged. Where that shows nothing, the doubts of the same addresses wait, longer each
// time.
func (d *doubts) judge(shown bool) {
	waits := map[netip.Addr]bool{}
	for _, x := range d.open {
		if x.ripe(d.at) {
			x.judged++
			waits[x.of] = waits[x.of] || !shown && x.judged > 2
		}
	}
	for a, wait := range waits {
		if p := d.vain[a]; wait {
			p.times = min(p.times+1, 5)
			p.until = d.at.Add(min(grounds<<p.times, mostPatience))
			d.vain[a] = p
		}
	}
	for a, p := range d.vain {
		if d.at.Sub(p.until) > mostPatience {
			delete(d.vain, a)
		}
	}
}

// lately is when what came up last began that has lasted for long enough to be judged, zero if nothing did.
func (d *doubts) lately() (at time.Time) {
	for _, x := range d.open {
		if x.packets >= minDoubt && x.since.After(at) && d.at.Sub(x.since) >= grounds-slack {
			at = x.since
		}
	}
	return at
}
