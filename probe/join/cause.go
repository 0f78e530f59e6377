package join

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	nodeindex "github.com/lasthop/lasthop/probe/node"
)

// cause explains why some ends wait for replies. It is one of: what a node found itself, what is wrong between
// the nodes, or a far end that got packets and did not reply.
type cause struct {
	// node is where it is, found what that node says of it.
	node  *node
	found *model.Finding
	// guess is what is wrong between the nodes.
	guess *guess
	// silent is a far end that did not reply.
	silent *silentReceiver
	// losses are what tunnels lose between two nodes each.
	losses []*tunnelLoss
	// rows are the ranges that the network has no way to, or a wrong one; twins have one of these for their pods.
	rows  []netip.Prefix
	twins []*node
	// down: the node's tunnels are.
	down          bool
	lost          []*leg
	conversations []*conversation
	// asked is what nodes sent for pods of one that was not recorded, which the cause loses.
	asked map[*node]uint64
	// severed are addresses whose packets, or those for them, are lost between all nodes.
	severed map[netip.Addr]bool
}

// cause is the one that a key says what it is; made where it is not there yet.
func (j *joint) cause(key any, c cause) *cause {
	if j.keyed[key] == nil {
		j.keyed[key] = &c
		j.causes = append(j.causes, &c)
	}
	return j.keyed[key]
}

// adopt is the cause that a node itself has found.
func (j *joint) adopt(n *node, f *model.Finding) *cause {
	return j.cause(f, cause{node: n, found: f, rows: model.Either(f.Is(model.Unheard|model.Astray), f.Peers, nil)})
}

func (j *joint) explain() {
	j.gets = model.Filter(j.own(0), func(c cause) bool {
		return c.found.Is(model.Foreign) || len(c.node.waits) > 0 && !c.found.Is(model.Unheard)
	})
	passed := j.passes()
	j.oneRange()
	open := model.Filter(model.Filter(j.legs, (*leg).isLost), func(w *leg) bool {
		c := cmp.Or(j.keyed[w.toRange()], j.explainedBy(w, passed))
		if c != nil {
			c.lost = append(c.lost, w)
		} else if 2*w.died() >= w.sent() {
			w.state = unsure
		}
		return c == nil && w.isLost()
	})
	j.adoptRows()
	j.between(j.misrouted(j.tunnelsDown(open)), passed)
	j.tunnels()
	of := map[*leg]*cause{}
	for _, c := range j.causes {
		for _, w := range c.lost {
			of[w] = c
		}
	}
	beyond, scans := slices.Clone(j.causes), j.scans()
	var onward []*conversation
	for _, t := range j.conversations {
		if t.forward == nil {
			// Nobody has the address, to which no leg leads either.
			if c := model.Find(beyond, func(c *cause) bool { return c.accounts(t.asker, t.pair) }); c != nil {
				c.conversations = append(c.conversations, t)
				continue
			}
		}
		var c *cause
		m, isSilent := t.ending()
		switch f := t.farFinding(); {
		case t.forward.isLost():
			c = of[t.forward]
		case t.forward.hasArrived() && t.reverse.isLost():
			c = of[t.reverse]
		case t.forward != nil && !t.forward.hasArrived() && (t.far.blind == "" || f == nil || f.Confidence != model.Proven):
			// What a node that saw no packets is sure of, it knows from its state.
		case f != nil:
			c = j.adopt(t.far, f)
		case len(t.onward()) > 0:
			onward = append(onward, t)
		case t.reverse == nil && isSilent:
			if scan := (silentReceiver{m.far, m.how, t.a}); scans[scan] > maxVacant {
				m = scan
			}
			c = j.cause(m, cause{node: t.far, silent: &m})
		}
		if c != nil {
			c.conversations = append(c.conversations, t)
		}
	}
	for _, t := range onward {
		next := func(u *conversation) bool { return u.asker == t.far && slices.Contains(t.onward(), u.b) }
		if c := model.Find(j.causes, func(c *cause) bool { return slices.ContainsFunc(c.conversations, next) }); c != nil {
			c.conversations = append(c.conversations, t)
		}
	}
	j.inPart()
}

// adoptRows makes causes of the nodes' own findings that they get what is for others' pods, where another one asks these.
func (j *joint) adoptRows() {
	for _, c := range model.Filter(j.gets, func(c cause) bool { return c.found.Is(model.Foreign) }) {
		asked := j.askedInVain(func(o *node, p *model.EndPair) bool {
			_, recorded := j.at[p.Remote]
			return o != c.node && !recorded && p.Routed && model.InAny(c.found.Peers, p.Remote)
		})
		if len(asked) > 0 {
			j.adopt(c.node, c.found).asked = asked
		}
	}
}

// askedInVain is how many packets each node sent on some of its pairs without a reply.
func (j *joint) askedInVain(some func(*node, *model.EndPair) bool) map[*node]uint64 {
	asked := map[*node]uint64{}
	for _, n := range j.in {
		for _, p := range n.silentPairs() {
			if some(n, p) {
				asked[n] += p.Out.Packets
			}
		}
	}
	return asked
}

// onward are the addresses that the far node translates what is asked of it to.
func (t *conversation) onward() []netip.Addr { return t.far.Pair(t.b, t.a).Onward }

// leadsOn reports whether the far node sends what is asked of it on to the node where the cause is.
func (t *conversation) leadsOn(to *node) bool { return t.far != to && len(t.onward()) > 0 }

// explainedBy is the cause that a node itself has found why packets are lost on a leg; nil where none has.
func (j *joint) explainedBy(w *leg, passed passes) *cause {
	for _, n := range []*node{w.from, w.to} {
		for f := range model.Each(n.findings) {
			if w.diesAtUplink(n, f) || w.goesAstray(n, f, passed) {
				return j.adopt(n, f)
			}
		}
	}
	for _, c := range j.gets {
		waits := c.node.waits[nodeindex.Pair{Local: w.src(), Remote: w.dst()}] && names(c.found, w.src())
		if c.node != w.from && c.node != w.to && (waits || c.found.Is(model.Foreign)) && model.InAny(c.found.Peers, w.dst()) {
			return j.adopt(c.node, c.found)
		}
	}
	return nil
}

// goesAstray reports whether a finding of a node says that packets of the leg do not get where they should. That a route
// beyond the node is missing counts only if files prove it, and that the node lacks one only where the network is not
// seen to carry pods' packets itself.
func (w *leg) goesAstray(n *node, f *model.Finding, passed passes) bool {
	local, remote := w.src(), w.dst()
	if n == w.to {
		local, remote = remote, local
	}
	switch {
	case !f.Is(model.Astray), f.Is(model.OnlySent) && n == w.to,
		f.Confidence != model.Proven && (n == w.to || f.Is(model.Unheard|model.ByRoute)),
		f.Is(model.OnlySent|model.ByRoute) && w.pair.Routed && passed.carried(w.from):
		return false
	}
	return model.InAny(f.Peers, remote) && (len(f.Pods) == 0 || slices.Contains(f.Pods, local) || n.Node[local]) ||
		f.Is(model.Unheard) && model.InAny(f.Peers, local)
}

// diesAtUplink reports whether a finding of a node says that packets of the leg are dropped at its uplink, where they
// leave or before they are counted as they arrive: then they are not lost between the nodes.
func (w *leg) diesAtUplink(n *node, f *model.Finding) bool {
	at := n.Uplink
	at.Direction = model.Either(n == w.from, model.Egress, model.Ingress)
	return f.LastHopAlive == at && f.Confidence == model.Proven && f.Traits&(model.Unheard|model.Astray) == 0 && !f.Passes &&
		(2*w.died() >= w.sent() || 2*f.Packets >= w.sent() && names(f, w.src()) && names(f, w.dst()))
}

// farFinding is the far node's own finding on what was asked of it; nil where it has none.
func (t *conversation) farFinding() *model.Finding {
	rank := func(f *model.Finding) int {
		return model.Either(f.Is(model.Unknown), 2, model.Either(names(f, t.a), 0, 1))
	}
	// The worst and surest come first.
	list := model.Chosen(t.far.findings, func(f *model.Finding) bool { return !f.Is(model.Unheard) && !f.Passes && t.concerns(f) })
	if len(list) == 0 {
		return nil
	}
	return slices.MinFunc(list, func(a, b *model.Finding) int { return rank(a) - rank(b) })
}

// concerns reports whether a finding of the far node is about what was asked of it: about
// both ends, about its own end alone, or about next hops of what it sends.
func (t *conversation) concerns(f *model.Finding) bool {
	if f.Is(model.ByNextHop) && len(f.Peers) > 0 &&
		!slices.ContainsFunc(f.Peers, func(p netip.Prefix) bool { return !p.IsSingleIP() || !t.far.Gateways[p.Addr()] }) {
		return slices.Contains(f.Pods, t.b) || t.far.Node[t.b] && t.far.Pair(t.b, t.a).Routed
	}
	if !names(f, t.b) && !slices.ContainsFunc(slices.Concat(t.far.Given[t.b], t.onward()),
		func(a netip.Addr) bool { return names(f, a) }) {
		return false
	}
	return names(f, t.a) || !f.Is(model.Unknown) && (len(f.Peers) == 0 || onlyEnds(f, t.b))
}

func names(f *model.Finding, a netip.Addr) bool {
	return slices.Contains(f.Pods, a) || model.InAny(f.Peers, a)
}

// onlyEnds reports whether the finding is about one end alone, as one on who has an address is.
func onlyEnds(f *model.Finding, b netip.Addr) bool {
	return model.InAny(f.Peers, b) && !slices.ContainsFunc(f.Peers,
		func(p netip.Prefix) bool { return !p.Contains(b) && !p.IsSingleIP() })
}
