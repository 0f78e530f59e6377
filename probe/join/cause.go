package join

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// cause explains why some ends wait for replies. It is one of: what a node found
// itself, what is wrong between the nodes, or a far end that got packets and did not
// reply.
type cause struct {
	// node is where it is, found what that node says of it.
	node  *node
	found *model.Finding
	// guess is what is wrong between the nodes.
	guess *guess
	// mute is a far end that did not reply.
	mute *muteEnd
	// tunnels are what these lose between the nodes, of all causes; nil where they do not lose it.
	tunnels map[flow]*tunnelLoss
	// down: the node's tunnels are.
	down  bool
	lost  []*way
	talks []*talk
	// asked is what nodes sent for pods of one that was not recorded, which the cause loses.
	asked map[*node]uint64
	// severed are addresses whose packets, or those for them, are lost between all nodes.
	severed map[netip.Addr]bool
	// flows are the connections to one port that are lost, by the node that began them.
	flows map[*node]int
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
	return j.cause(f, cause{node: n, found: f})
}

// explain finds the causes of all talks.
func (j *joint) explain() {
	j.gets = j.own(diagnose.WrongUDR)
	passed := j.passes()
	open := chosen(chosen(j.ways, (*way).isLost), func(w *way) bool {
		n, f := j.misled(w, passed)
		if f != nil {
			c := j.adopt(n, f)
			c.lost = append(c.lost, w)
		}
		return f == nil
	})
	j.adoptRows()
	j.between(j.misrouted(j.tunnelsDown(open)), passed)
	j.tunnels()
	of := map[*way]*cause{}
	for _, c := range j.causes {
		for _, w := range c.lost {
			of[w] = c
		}
	}
	beyond, scans := slices.Clone(j.causes), j.scans()
	var onward []*talk
	for _, t := range j.talks {
		if t.there == nil {
			// Nobody has the address, to which no way leads either.
			if i := slices.IndexFunc(beyond, func(c *cause) bool { return c.accounts(t.asker, t.pair) }); i >= 0 {
				beyond[i].talks = append(beyond[i].talks, t)
				continue
			}
		}
		var c *cause
		m, isMute := t.ending()
		switch f := t.diedOf(); {
		case t.there.isLost():
			c = of[t.there]
		case t.there.hasArrived() && t.back.isLost():
			c = of[t.back]
		case t.there != nil && !t.there.hasArrived():
		case f != nil:
			c = j.adopt(t.far, f)
		case len(t.onward()) > 0:
			onward = append(onward, t)
		case t.back == nil && isMute:
			if scan := (muteEnd{m.far, m.how, t.a}); scans[scan] {
				m = scan
			}
			c = j.cause(m, cause{node: t.far, mute: &m})
		}
		if c != nil {
			c.talks = append(c.talks, t)
		}
	}
	for _, t := range onward {
		next := func(u *talk) bool { return u.asker == t.far && slices.Contains(t.onward(), u.b) }
		if i := slices.IndexFunc(j.causes, func(c *cause) bool { return slices.ContainsFunc(c.talks, next) }); i >= 0 {
			j.causes[i].talks = append(j.causes[i].talks, t)
		}
	}
	j.lostPorts()
	j.lostLarge()
}

// adoptRows makes causes of the nodes' own findings that they get what is for others' pods,
// where another recorded node asks these, and the node that has them was not recorded.
func (j *joint) adoptRows() {
	for _, f := range j.gets {
		asked := map[*node]uint64{}
		for _, o := range j.in {
			for p := range o.silentPairs() {
				if _, recorded := j.at[p.Remote]; o != f.node && !recorded && p.Routed && inAny(f.Peers, p.Remote) {
					asked[o] += p.Out.Packets
				}
			}
		}
		if len(asked) > 0 {
			j.adopt(f.node, f.Finding).asked = asked
		}
	}
}

// onward are the addresses that the far node translates what is asked of it to.
func (t *talk) onward() []netip.Addr { return t.far.Pair(t.b, t.a).Onward }

// leadsOn reports whether the far node sends what is asked of it on to the node where the
// cause is.
func (t *talk) leadsOn(to *node) bool { return t.far != to && len(t.onward()) > 0 }

// misleads are the findings whose packets leave the node, and do not get where they
// should. Those of the first three are what the node sends, not what comes to it.
var misleads = []model.Code{
	diagnose.MissingNodeRoute, diagnose.WrongNodeRoute, diagnose.WrongNextHopMAC, diagnose.WrongUDR, diagnose.NICForwarding, diagnose.RoutingLoop,
	diagnose.MissingDefaultRoute, diagnose.MissingUDR,
}

// misled is the finding of a node that says why packets are lost on a way; nil where
// none does. That a route beyond the node is missing counts only if files prove it, and
// that the node lacks one only where the network is not seen to carry pods' packets itself.
func (j *joint) misled(w *way, passed passes) (*node, *model.Finding) {
	for _, n := range []*node{w.from, w.to} {
		for f := range model.Each(n.findings) {
			if !slices.Contains(misleads, f.Code) || f.Code == diagnose.MissingUDR && f.Confidence != model.Proven {
				continue
			}
			if f.Code == diagnose.MissingNodeRoute && w.pair.Routed && passed.carried(w.from) {
				continue
			}
			local, remote := w.src(), w.dst()
			if n == w.to {
				if f.Confidence != model.Proven || slices.Contains(misleads[:3], f.Code) {
					continue
				}
				local, remote = w.dst(), w.src()
			}
			if inAny(f.Peers, remote) && (len(f.Pods) == 0 || slices.Contains(f.Pods, local) || n.Node[local]) || f.Code == diagnose.NICForwarding && inAny(f.Peers, local) {
				return n, f
			}
		}
	}
	for _, f := range j.gets {
		if f.node != w.from && f.node != w.to && inAny(f.Peers, w.dst()) {
			return f.node, f.Finding
		}
	}
	return nil, nil
}

// silences are the findings that say no more than that nothing comes back.
var silences = []model.Code{diagnose.NoReply, diagnose.MissingUDR, diagnose.NICForwarding, diagnose.WrongUDR}

// diedOf is the far node's own finding on what was asked of it; nil where it has none.
func (t *talk) diedOf() *model.Finding {
	var best *model.Finding
	rank := func(f *model.Finding) int {
		r := 4*f.Severity.Rank() + f.Confidence.Rank()
		if names(f, t.a) {
			r += 16
		}
		if f.Code == diagnose.UnexplainedDrop {
			r -= 64
		}
		return r
	}
	for f := range model.Each(t.far.findings) {
		if !slices.Contains(silences, f.Code) && !f.Passes && t.concerns(f) && (best == nil || rank(f) > rank(best)) {
			best = f
		}
	}
	return best
}

// nextHops are the findings about next hops, which lose all that goes by them.
var nextHops = []model.Code{
	diagnose.DuplicateMAC, diagnose.StaleARPReply, diagnose.StaleNeighbor, diagnose.UnansweredARP, diagnose.WrongGatewayMAC, diagnose.WrongNextHopMAC,
}

// concerns reports whether a finding of the far node is about what was asked of it: about
// both ends, about its own end alone, or about next hops of what it sends.
func (t *talk) concerns(f *model.Finding) bool {
	if slices.Contains(nextHops, f.Code) && len(f.Peers) > 0 && !slices.ContainsFunc(f.Peers, func(p netip.Prefix) bool { return !p.IsSingleIP() || !t.far.Gateways[p.Addr()] }) {
		return slices.Contains(f.Pods, t.b) || t.far.Node[t.b] && t.far.Pair(t.b, t.a).Routed
	}
	if !names(f, t.b) && !slices.ContainsFunc(slices.Concat(t.far.Given[t.b], t.onward()), func(a netip.Addr) bool { return names(f, a) }) {
		return false
	}
	return names(f, t.a) || f.Code != diagnose.UnexplainedDrop && (len(f.Peers) == 0 || onlyEnds(f, t.b))
}

// names reports whether a finding is about an address.
func names(f *model.Finding, a netip.Addr) bool {
	return slices.Contains(f.Pods, a) || inAny(f.Peers, a)
}

// onlyEnds reports whether the finding is about one end alone, as one on who has
// an address is.
func onlyEnds(f *model.Finding, b netip.Addr) bool {
	return inAny(f.Peers, b) && !slices.ContainsFunc(f.Peers, func(p netip.Prefix) bool { return !p.Contains(b) && !p.IsSingleIP() })
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
