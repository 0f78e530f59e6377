package join

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	faults "github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	nodeindex "github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// tunnelLoss is what a node gives to its tunnel and does not come out of another's.
type tunnelLoss struct {
	from, to *node
	// into and outOf are the links, which each node may have several of.
	into, outOf   model.TunnelLink
	sent          uint64
	lost          []*leg
	conversations []*conversation
}

// tunnels finds the causes of connections by tunnels that get no reply. What a tunnel
// carries is counted by range and by pod at its own links, not by pair.
func (j *joint) tunnels() {
	by := j.tunnelLosses()
	var first []*leg
	inside := map[*leg]bool{}
	for _, k := range slices.SortedFunc(maps.Keys(by), compareFlows) {
		l := by[k]
		seen := map[netip.Prefix]bool{}
		for _, w := range l.lost {
			if r, sent := narrowest(l.from.Tunnel.Into, w.dst()); !seen[r] {
				seen[r], l.sent = true, l.sent+sent
			}
		}
		if len(l.to.Tunnel.OutOf) == 0 {
			// No replies come out either, from whoever was asked.
			for p := range model.Each(l.to.Tunnel.Silent) {
				l.to.settled[nodeindex.Pair{Local: p.Local, Remote: p.Remote}] = true
			}
		}
		first, inside[l.lost[0]] = append(first, l.lost[0]), l.arrives()
	}
	for _, set := range united(first, func(a, b *leg) bool { return a.touches(b) && inside[a] == inside[b] }) {
		c := &cause{node: set[0].from}
		for _, w := range set {
			l := by[w.flow()]
			c.losses, c.lost, c.conversations = append(c.losses, l), append(c.lost, l.lost...), append(c.conversations, l.conversations...)
		}
		j.causes = append(j.causes, c)
	}
}

// tunnelLosses are those between two nodes, with the connections that get no reply because of them.
func (j *joint) tunnelLosses() map[flow]*tunnelLoss {
	// What was asked for too short a time to tell has the cause of other losses between the two.
	type loss struct {
		*leg
		t    *conversation
		sure bool
	}
	var all []loss
	lossy := map[[2]*node]bool{}
	for _, n := range j.in {
		for p := range model.Each(n.Tunnel.Silent) {
			far := j.at[p.Remote]
			if n.blind != "" || far == nil || far == n || j.at[p.Local] != n {
				continue
			}
			t := &conversation{asker: n, far: far, a: p.Local, b: p.Remote, pair: p}
			forward, reverse := tunnelLeg(n, far, t.a, t.b), tunnelLeg(far, n, t.b, t.a)
			r, _ := narrowest(far.Tunnel.Into, t.a)
			f, down := t.farFinding(), j.keyed[tunnelDown{far}]
			watched := far.blind == "" && len(far.Tunnel.Links) > 0 && overlaps(n, far, p.First, p.Last)
			// What the far node sent for the asker's range: nobody knows that replies are among it.
			unreturned := reverse.givenUp() && reverse.noneFrom() && j.holder(r) == n
			switch {
			case down != nil && f == nil:
				down.conversations = append(down.conversations, t)
			case watched && forward.givenUp() && (forward.noneFrom() || far.Tunnel.For[t.b] == 0):
				t.forward, lossy[[2]*node{n, far}] = forward, true
				all = append(all, loss{forward, t, true})
			case f != nil:
				c := j.adopt(far, f)
				c.conversations = append(c.conversations, t)
			case unreturned:
				lossy[[2]*node{far, n}] = lossy[[2]*node{far, n}] || watched
				all = append(all, loss{reverse, t, watched})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b loss) int { return model.Either(a.sure, 0, 1) - model.Either(b.sure, 0, 1) })
	by := map[flow]*tunnelLoss{}
	for _, w := range all {
		if !lossy[[2]*node{w.from, w.to}] {
			continue
		}
		link := w.t.asker.tunnelLink(model.TunnelLink{Place: model.Place{Link: w.t.pair.Link}})
		into, outOf := w.from.tunnelLink(link), w.to.tunnelLink(link)
		w.pair.EndRoute = &model.EndRoute{Link: into.Link}
		l := model.GetOrInsert(by, w.flow())
		l.from, l.to, l.into, l.outOf, l.lost, l.conversations = w.from, w.to, into, outOf, append(l.lost, w.leg), append(l.conversations, w.t)
	}
	return by
}

// tunnelLeg is what is lost by tunnels from an address of one node to one of another.
func tunnelLeg(from, to *node, src, dst netip.Addr) *leg {
	return &leg{from: from, to: to, pair: &model.EndPair{Local: src, Remote: dst}, state: lost}
}

// givenUp reports whether the sender gave its tunnel packets for the destination's range, and the
// receiver would have counted those of the leg.
func (w *leg) givenUp() bool {
	_, sent := narrowest(w.from.Tunnel.Into, w.dst())
	return sent >= minLost && w.to.Sees(w.dst(), w.src())
}

// noneFrom reports whether next to nothing of what the sender gave its tunnel came out of the receiver's from the
// source's range, which it counts: it sends there. Some packets may have been on their way when the loss began.
func (w *leg) noneFrom() bool {
	r, _ := narrowest(w.to.Tunnel.Into, w.src())
	_, sent := narrowest(w.from.Tunnel.Into, w.dst())
	return r.IsValid() && fewReplies*float64(w.to.Tunnel.OutOf[r]) <= w.to.longer(w.from)*float64(sent)
}

// tunnelDown is the cause that a node's tunnels are down, or its routes by them gone.
type tunnelDown struct{ *node }

// tunnelsDown makes a cause of each node that sends beside its tunnels what others send to it by theirs, since
// its links or its routes by them are gone, and leaves the legs that these do not explain.
func (j *joint) tunnelsDown(open []*leg) []*leg {
	for _, n := range j.in {
		if len(n.Tunnel.Links) == 0 {
			continue
		}
		beside, rest := model.Split(open, func(w *leg) bool {
			_, reverse := narrowest(w.to.Tunnel.Into, w.src())
			return w.from == n && w.pair.Routed && w.from.Pods[w.src()] && w.to.Pods[w.dst()] && w.to.tunnelUp() &&
				(!n.tunnelUp() || reverse > 0)
		})
		open = rest
		asked := !n.tunnelUp() && slices.ContainsFunc(j.in, func(o *node) bool {
			return o.blind == "" && slices.ContainsFunc(o.Tunnel.Silent,
				func(p model.EndPair) bool { return j.at[p.Remote] == n })
		})
		if asked || len(beside) > 0 {
			j.cause(tunnelDown{n}, cause{node: n, down: true, lost: beside})
		}
	}
	return open
}

func (n *node) tunnelUp() bool {
	return slices.ContainsFunc(n.Tunnel.Links, func(l model.TunnelLink) bool { return l.Up })
}

// downTunnel is the finding on a node whose tunnels' links are down, or that has no routes by them.
func (c *cause) downTunnel() model.Finding {
	n := c.node
	f := faults.Fault{Page: "NoReply-beside-tunnel",
		Finding: model.Finding{Code: "NoReply", Nodes: []string{n.String()}, LastHopAlive: n.Uplink}}
	if !n.tunnelUp() {
		f.Page, f.LastHopAlive.Direction = "NoReply-tunnel-down", model.Ingress
	}
	links := model.Map(n.Tunnel.Links, func(l model.TunnelLink) string { return l.Link })
	f.Facts = words.Facts{"node": n, "links": links, "lost": c.observeLost(&f.Finding)}
	var dst []netip.Addr
	asked := c.vainlyAsked()
	for _, x := range asked {
		f.Packets, dst = f.Packets+x.Packets, append(dst, x.Dst...)
		f.Nodes = model.With(f.Nodes, x.From.String())
	}
	f.Pods, f.Peers, f.Facts["asked"] = c.pods(), model.Hosts(model.Unique(dst)), asked
	return diagnose.Joined(f)
}

// tunnelLink is the node's counterpart of a link: that of its name and kind, or of its name, or kind, or the first.
func (n *node) tunnelLink(l model.TunnelLink) model.TunnelLink {
	rank := func(o model.TunnelLink) int {
		return model.Either(o.Link == l.Link, 2, 0) + model.Either(o.Kind == l.Kind, 1, 0)
	}
	return slices.MaxFunc(n.Tunnel.Links, func(a, b model.TunnelLink) int { return rank(a) - rank(b) })
}

// arrives reports whether what carries a loss arrives at the receiver, of whose tunnel
// nothing comes from there: of packets to the receiver's own addresses that are neither requests nor
// replies, as many arrive, beyond those that carry what does come out.
func (l *tunnelLoss) arrives() bool {
	for _, w := range l.lost {
		if _, others := narrowest(l.to.Tunnel.OutOf, w.src()); others > 0 {
			return false
		}
	}
	var out, in, carried uint64
	for p := range model.Each(l.from.Pairs) {
		if l.from.Node[p.Local] && l.to.Node[p.Remote] {
			out += p.Out.Other
			in += l.to.Pair(p.Remote, p.Local).In.Other
		}
	}
	for r, n := range l.to.Tunnel.OutOf {
		if l.from.holds(r) {
			carried += n
		}
	}
	arrive, longer := float64(in), l.to.longer(l.from)
	return in > carried && 2*(arrive-float64(carried)) >= longer*float64(l.sent) &&
		2*(longer*float64(out)-arrive) < longer*float64(l.sent)
}

// narrowest is the narrowest range that holds an address, and what is counted of it.
func narrowest[V comparable](by map[netip.Prefix]V, a netip.Addr) (netip.Prefix, V) {
	var none V
	for bits := a.BitLen(); bits >= 0; bits-- {
		if p, err := a.Prefix(bits); err == nil && by[p] != none {
			return p, by[p]
		}
	}
	return netip.Prefix{}, none
}

// lostByTunnel is the finding on packets that a tunnel loses between the nodes, or where they come out.
func (j *joint) lostByTunnel(c *cause) model.Finding {
	first := c.losses[0]
	f, senders, receivers := c.beyond()
	f.Code, f.Page, f.LastHopAlive = "NoReply", "NoReply-tunnel", first.into.Place
	f.Facts["bothWays"] = len(union(senders, receivers)) < len(senders)+len(receivers)
	f.Facts["link"], f.Facts["outOf"], f.Facts["from"] = first.into.Link, first.outOf.Link, first.from
	f.Facts["address"] = hopText(cmp.Or(first.to.hops[true], first.to.hops[false]))
	if first.arrives() {
		first.carried(f, c.losses)
		return diagnose.Joined(*f)
	}
	f.Facts["control"] = j.control(senders, receivers, netip.Addr{})
	f.Facts["unasked"] = !slices.ContainsFunc(c.conversations, func(t *conversation) bool { return t.forward != nil })
	var stray []misdirectedTunnel
	for _, l := range c.losses {
		if s, is := j.astray(l, f); is {
			stray = append(stray, s)
		}
	}
	if len(stray) > 0 {
		f.LastHopAlive, f.Facts["stray"], f.Facts["first"], f.Facts["others"] = stray[0].From.Uplink, stray, stray[0], stray[1:]
		f.Facts["unsure"] = model.Filter(stray, func(s misdirectedTunnel) bool { return !s.Right.IsValid() })
	}
	return diagnose.Joined(*f)
}

// carried: what carries the tunnels arrives, and gets lost at the receivers.
func (l *tunnelLoss) carried(f *faults.Fault, losses []*tunnelLoss) {
	up := l.to.Uplink
	f.Page, f.EndsAt = "NoReply-tunnel-arrives", nil
	f.LastHopAlive = model.Place{Link: up.Link, Role: up.Role, Direction: model.Ingress}
	f.Facts["uplink"] = up.Link
	for _, l := range losses {
		for d := range model.Each(l.to.Dropped) {
			if l.from.Node[d.Src] && l.to.Node[d.Dst] && 2*float64(d.Packets) >= l.to.longer(l.from)*float64(l.sent) {
				f.Evidence = append(f.Evidence, words.Say("dropped-there", words.Facts{"node": l.to, "drop": d})...)
			}
		}
	}
}

// misdirectedTunnel is a tunnel that leads to a wrong address.
type misdirectedTunnel struct {
	From, To   *node
	Into, At   string
	MAC        model.MAC
	Hop, Right netip.Addr
}

// astray is where the packets go that carry a loss, if not to the other node: as many leave the sender for an address that no
// recorded node has, and nothing comes from there. It is false where that is not so.
func (j *joint) astray(l *tunnelLoss, f *faults.Fault) (s misdirectedTunnel, is bool) {
	right, most := map[bool]uint64{}, &model.EndPair{}
	for p := range model.Each(l.from.Pairs) {
		_, recorded := j.at[p.Remote]
		switch {
		case !l.from.Node[p.Local]:
		case l.to.Node[p.Remote]:
			right[p.Remote.Is4()] += p.Out.Other
		case !recorded && !p.Range.IsValid() && p.In.Packets == 0 && p.Out.Other > most.Out.Other:
			most = p
		}
	}
	if 2*most.Out.Other < l.sent || 2*right[most.Remote.Is4()] >= l.sent {
		return s, false
	}
	hop := l.to.hops[most.Remote.Is4()]
	s = misdirectedTunnel{From: l.from, To: l.to, Into: l.into.Link, Hop: most.Remote, Right: hop, At: hopText(hop)}
	if l.into.Kind == "vxlan" && !l.outOf.MAC.IsZero() {
		s.MAC = l.outOf.MAC
	}
	f.Evidence = append(f.Evidence, words.Say("strays", words.Facts{"node": l.from, "link": l.from.Uplink.Link,
		"packets": most.Out.Packets, "local": most.Local, "hop": most.Remote})...)
	return s, true
}

// whereLost are the nodes that packets are lost between, those on either side: of those that both
// send and receive the one first that all losses touch.
func (c *cause) whereLost(senders, receivers []*node) sides {
	all := union(senders, receivers)
	if len(all) == len(senders)+len(receivers) {
		return sides{senders, receivers}
	}
	at := slices.IndexFunc(all, func(n *node) bool {
		return !slices.ContainsFunc(c.lost, func(w *leg) bool { return w.from != n && w.to != n })
	})
	if at < 0 {
		return sides{all, nil}
	}
	return sides{all[at : at+1], slices.Delete(slices.Clone(all), at, at+1)}
}

// sides are nodes on both sides of what lies between; none on the other where it is between all.
type sides struct{ One, Other []*node }
