package join

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// tunnelLoss is what a node gives to its tunnel and does not come out of another's.
type tunnelLoss struct {
	from, to *node
	// into and outOf are the links, which each node may have several of.
	into, outOf diagnose.TunnelLink
	sent        uint64
	dst         []netip.Addr
	talks       []*talk
	// asked: connections to dst went into the tunnel. What is lost the other way are the
	// replies, of which nobody knows that they were sent.
	asked bool
	// partly: others of the sender's range come out.
	partly bool
	// arrives: what carries it comes in at the receiver.
	arrives bool
}

func (l *tunnelLoss) ends() (from, to *node) { return l.from, l.to }

// tunnels finds the causes of connections by tunnels that get no reply. What a tunnel
// carries is counted by range and by pod at its own links, not by pair.
func (j *joint) tunnels() {
	type route struct {
		from, to *node
		link     string
	}
	by := map[route]*tunnelLoss{}
	var lost []*tunnelLoss
	for _, n := range j.in {
		if n.blind != "" {
			continue
		}
		for p := range model.Each(n.Tunnel.Silent) {
			far := j.at[p.Remote]
			if far == nil || far == n || j.at[p.Local] != n {
				continue
			}
			t := &talk{asker: n, far: far, a: p.Local, b: p.Remote, pair: p}
			if i := slices.IndexFunc(j.causes, func(c *cause) bool { return c.down && c.node == far }); i >= 0 && t.diedOf() == nil {
				j.causes[i].talks = append(j.causes[i].talks, t)
				continue
			}
			from, to, src, dst, asked := n, far, p.Local, p.Remote, true
			if !lostInTunnel(n, far, p) {
				if f := t.diedOf(); f != nil {
					c := j.adopt(far, f)
					c.talks = append(c.talks, t)
					continue
				}
				if !j.repliesLost(n, far, p) {
					continue
				}
				from, to, src, dst, asked = far, n, p.Remote, p.Local, false
			}
			link := n.tunnelLink(diagnose.TunnelLink{Place: model.Place{Link: p.Link}})
			into, outOf := from.tunnelLink(link), to.tunnelLink(link)
			k := route{from, to, into.Link}
			if by[k] == nil {
				by[k] = &tunnelLoss{from: from, to: to, into: into, outOf: outOf}
				lost = append(lost, by[k])
			}
			l := by[k]
			_, others := narrowest(to.Tunnel.OutOf, src)
			l.partly = l.partly || others > 0
			l.dst, l.talks, l.asked = append(l.dst, dst), append(l.talks, t), l.asked || asked
		}
	}
	for _, l := range lost {
		l.dst = unique(l.dst)
		seen := map[netip.Prefix]bool{}
		for _, a := range l.dst {
			if r, sent := narrowest(l.from.Tunnel.Into, a); !seen[r] {
				seen[r], l.sent = true, l.sent+sent
			}
		}
	}
	slices.SortFunc(lost, func(a, b *tunnelLoss) int {
		return cmp.Or(cmp.Compare(a.from.name(), b.from.name()), cmp.Compare(a.to.name(), b.to.name()), cmp.Compare(a.into.Link, b.into.Link))
	})
	var between, inside []*tunnelLoss
	for _, l := range lost {
		if l.arrives = l.isCarried(); l.arrives {
			inside = append(inside, l)
		} else {
			between = append(between, l)
		}
	}
	for _, mine := range slices.Concat(connected(between, (*tunnelLoss).ends), connected(inside, (*tunnelLoss).ends)) {
		c := &cause{node: mine[0].from, tunnel: mine}
		for _, l := range mine {
			c.talks = append(c.talks, l.talks...)
		}
		j.causes = append(j.causes, c)
	}
}

// tunnelsDown makes a cause of each node that sends beside its tunnels what others send to it
// by theirs, since its links or its routes by them are gone, and leaves the ways that these
// do not explain.
func (j *joint) tunnelsDown(open []*way) (rest []*way) {
	for _, n := range j.in {
		if len(n.Tunnel.Links) == 0 {
			continue
		}
		c := &cause{node: n, down: true}
		open = slices.DeleteFunc(slices.Clone(open), func(w *way) bool {
			mine := w.from == n && w.pair.Routed && w.from.Pods[w.src()] && w.to.Pods[w.dst()] && w.to.tunnelUp()
			if mine && n.tunnelUp() {
				_, back := narrowest(w.to.Tunnel.Into, w.src())
				mine = back > 0
			}
			if mine {
				c.lost = append(c.lost, w)
			}
			return mine
		})
		asked := !n.tunnelUp() && slices.ContainsFunc(j.in, func(o *node) bool {
			return o.blind == "" && slices.ContainsFunc(o.Tunnel.Silent, func(p diagnose.EndPair) bool { return j.at[p.Remote] == n })
		})
		if asked || len(c.lost) > 0 {
			j.causes = append(j.causes, c)
		}
	}
	return open
}

// tunnelUp reports whether the node has a tunnel whose link is up.
func (n *node) tunnelUp() bool {
	return slices.ContainsFunc(n.Tunnel.Links, func(l diagnose.TunnelLink) bool { return l.Up })
}

// tunnelDown is the finding on a node whose tunnels' links are down, or that has no routes by
// them.
func (c *cause) tunnelDown() model.Finding {
	n := c.node
	f := found{Finding: model.Finding{
		Code: diagnose.NoReply, Severity: model.Warning, Confidence: model.Proven, Nodes: []string{n.name()}, LastHopAlive: n.Uplink,
	}}
	f.page = "NoReply-beside-tunnel"
	if !n.tunnelUp() {
		f.page, f.LastHopAlive.Direction = "NoReply-tunnel-down", model.Ingress
	}
	var links []string
	for _, l := range n.Tunnel.Links {
		links = append(links, l.Link)
	}
	f.facts = words.Facts{"node": n, "links": links, "lost": c.observeLost(&f.Finding)}
	f.facts["asked"] = c.observeAsked(&f.Finding)
	return f.worded()
}

// observeAsked is what other nodes asked of the pods by the tunnel.
func (c *cause) observeAsked(f *model.Finding) []sent {
	by := map[*node]uint64{}
	var out []sent
	for _, t := range c.talks {
		by[t.asker] += t.pair.Out.Packets
		f.Pods = append(f.Pods, t.a, t.b)
		f.Peers = append(f.Peers, netip.PrefixFrom(t.b, t.b.BitLen()))
	}
	for _, o := range union(slices.Collect(maps.Keys(by)), nil) {
		f.Packets += by[o]
		out = append(out, sent{From: o, Packets: by[o]})
		addNode(f, o.name())
	}
	f.Pods = unique(slices.Concat(f.Pods, c.pods()))
	slices.SortFunc(f.Peers, comparePrefix)
	f.Peers = slices.Compact(f.Peers)
	return out
}

// tunnelLink is the node's counterpart of a link: that of its name and kind, or of its
// name, or kind, or the first.
func (n *node) tunnelLink(l diagnose.TunnelLink) diagnose.TunnelLink {
	rank := func(o diagnose.TunnelLink) int {
		r := 0
		if o.Link == l.Link {
			r += 2
		}
		if o.Kind == l.Kind {
			r++
		}
		return r
	}
	best := n.Tunnel.Links[0]
	for _, o := range n.Tunnel.Links[1:] {
		if rank(o) > rank(best) {
			best = o
		}
	}
	return best
}

// isCarried reports whether what carries a loss arrives at the receiver, of whose tunnel
// nothing comes: of packets to the receiver's own addresses that are neither requests nor
// replies, as many arrive, beyond those that carry what does come out.
func (l *tunnelLoss) isCarried() bool {
	var out, in, carried uint64
	for p := range model.Each(l.from.Pairs) {
		if l.from.Node[p.Local] && l.to.Node[p.Remote] {
			out += p.Out.Other
			if there := l.to.pair(p.Remote, p.Local); there != nil {
				in += there.In.Other
			}
		}
	}
	for r, n := range l.to.Tunnel.OutOf {
		if l.from.holds(r) {
			carried += n
		}
	}
	arrive, longer := float64(in), l.to.longer(l.from)
	return !l.partly && in > carried && 2*(arrive-float64(carried)) >= longer*float64(l.sent) && 2*(longer*float64(out)-arrive) < longer*float64(l.sent)
}

// lostInTunnel reports whether a node gave its tunnel connections to a pod of another, and
// nothing for it, or from the sender's range, came out there while they were sent.
func lostInTunnel(n, far *node, p *diagnose.EndPair) bool {
	_, sent := narrowest(n.Tunnel.Into, p.Remote)
	return bothWatched(n, far, p) && far.Sees(p.Remote, p.Local) && sent >= minLost &&
		(far.Tunnel.For[p.Remote] == 0 || noneFrom(far, p.Local))
}

// repliesLost reports whether a node that was asked by a tunnel gave its own packets for
// the asker's range, and nothing at all came out there from its own.
func (j *joint) repliesLost(n, far *node, p *diagnose.EndPair) bool {
	r, sent := narrowest(far.Tunnel.Into, p.Local)
	return bothWatched(n, far, p) && n.Sees(p.Local, p.Remote) && sent >= minLost && noneFrom(n, p.Remote) && j.holder(r) == n
}

// bothWatched reports whether two nodes' tunnels were watched while a pair's packets were
// sent.
func bothWatched(n, far *node, p *diagnose.EndPair) bool {
	return n.blind == "" && far.blind == "" && len(n.Tunnel.Links) > 0 && len(far.Tunnel.Links) > 0 && overlaps(n, far, p.First, p.Last)
}

// noneFrom reports whether nothing came out of a node's tunnel from an address's range,
// which it counts: it sends there.
func noneFrom(n *node, src netip.Addr) bool {
	r, _ := narrowest(n.Tunnel.Into, src)
	return r.IsValid() && n.Tunnel.OutOf[r] == 0
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

// connected are losses by the nodes that they have in common: those of one set have one
// cause, at the node that all of them touch, or at none of them.
func connected[T comparable](lost []T, ends func(T) (from, to *node)) [][]T {
	at := map[*node][]T{}
	for _, l := range lost {
		from, to := ends(l)
		at[from], at[to] = append(at[from], l), append(at[to], l)
	}
	taken := map[T]bool{}
	var out [][]T
	for _, first := range lost {
		if taken[first] {
			continue
		}
		start, _ := ends(first)
		reached := map[*node]bool{start: true}
		for todo := []*node{start}; len(todo) > 0; todo = todo[1:] {
			for _, l := range at[todo[0]] {
				taken[l] = true
				from, to := ends(l)
				for _, n := range []*node{from, to} {
					if !reached[n] {
						reached[n], todo = true, append(todo, n)
					}
				}
			}
		}
		out = append(out, slices.DeleteFunc(slices.Clone(lost), func(l T) bool { from, _ := ends(l); return !reached[from] }))
	}
	return out
}

// lostByTunnel is the finding on packets that a tunnel loses between the nodes, or where
// they come out.
func (j *joint) lostByTunnel(c *cause) model.Finding {
	first := c.tunnel[0]
	f := found{page: "NoReply-tunnel", Finding: model.Finding{
		Code: diagnose.NoReply, Severity: model.Warning, Confidence: model.Proven, EndsAt: []model.HopKind{model.HopBeyond}, LastHopAlive: first.into.Place,
	}}
	evidence, senders, receivers := c.observeTunnels(&f.Finding)
	all := union(senders, receivers)
	f.facts = words.Facts{
		"lost": evidence, "senders": senders, "receivers": receivers, "all": all, "bothWays": len(all) < len(senders)+len(receivers),
		"where": c.whereLost(senders, receivers), "link": first.into.Link, "outOf": first.outOf.Link, "from": first.from, "address": first.anyAddress(),
	}
	if first.arrives {
		c.carried(&f)
		return f.worded()
	}
	f.facts["control"] = j.control(senders, receivers)
	if !slices.ContainsFunc(c.tunnel, func(l *tunnelLoss) bool { return l.asked }) {
		f.Confidence, f.facts["unasked"] = model.Likely, true
	}
	var stray []strayTunnel
	for _, l := range c.tunnel {
		if hop := j.astray(l); hop.IsValid() {
			stray = append(stray, l.leadsTo(&f, hop))
		}
	}
	if len(stray) > 0 {
		f.LastHopAlive, f.facts["stray"], f.facts["first"], f.facts["others"] = stray[0].From.Uplink, stray, stray[0], stray[1:]
	}
	return f.worded()
}

// observeTunnels is what the two ends of each tunnel saw, of many of the first few.
func (c *cause) observeTunnels(f *model.Finding) (out []model.Evidence, senders, receivers []*node) {
	var dst []netip.Addr
	for i, l := range c.tunnel {
		senders, receivers, dst = append(senders, l.from), append(receivers, l.to), append(dst, l.dst...)
		f.Packets += l.sent
		if i < maxObserved {
			out = append(out, words.Say("lost-tunnel", words.Facts{"from": l.from, "to": l.to, "into": l.into.Link, "outOf": l.outOf.Link, "packets": l.sent, "dst": l.dst})...)
		}
		addNode(f, l.from.name())
		addNode(f, l.to.name())
	}
	f.Peers = hosts(unique(dst))
	for _, t := range c.talks {
		f.Pods = append(f.Pods, t.a, t.b)
	}
	f.Pods = unique(f.Pods)
	return out, union(senders, nil), union(receivers, nil)
}

// carried: what carries the tunnels arrives, and gets lost at the receivers.
func (c *cause) carried(f *found) {
	up := c.tunnel[0].to.Uplink
	f.page, f.Confidence, f.EndsAt = "NoReply-tunnel-arrives", model.Likely, nil
	f.LastHopAlive = model.Place{Link: up.Link, Role: up.Role, Direction: model.Ingress}
	f.facts["uplink"] = up.Link
	for _, l := range c.tunnel {
		for d := range model.Each(l.to.Dropped) {
			if l.from.Node[d.Src] && 2*float64(d.Packets) >= l.to.longer(l.from)*float64(l.sent) {
				f.Evidence = append(f.Evidence, words.Say("dropped-there", words.Facts{"node": l.to, "drop": d})...)
			}
		}
	}
}

// astray is where the packets that carry a loss go, if not to the other node: as many
// leave the sender for an address that no recorded node has, and nothing comes from
// there. Not valid where that is not so.
func (j *joint) astray(l *tunnelLoss) netip.Addr {
	right := map[bool]uint64{}
	var found netip.Addr
	var most uint64
	for p := range model.Each(l.from.Pairs) {
		_, recorded := j.at[p.Remote]
		switch {
		case !l.from.Node[p.Local]:
		case l.to.Node[p.Remote]:
			right[p.Remote.Is4()] += p.Out.Other
		case !recorded && !p.Range.IsValid() && p.In.Packets == 0 && p.Out.Other > most:
			found, most = p.Remote, p.Out.Other
		}
	}
	if 2*most < l.sent || 2*right[found.Is4()] >= l.sent {
		return netip.Addr{}
	}
	return found
}

// strayTunnel is a tunnel that leads to a wrong address.
type strayTunnel struct {
	From, To   *node
	Into, Kind string
	MAC        model.MAC
	Hop, Right netip.Addr
	At         string
	Links      string
}

// leadsTo is that the tunnel leads to a wrong address, and what left for there.
func (l *tunnelLoss) leadsTo(f *found, hop netip.Addr) strayTunnel {
	s := strayTunnel{From: l.from, To: l.to, Into: l.into.Link, Hop: hop, Right: l.to.address(l.from, hop.Is4())}
	s.At = orNodeIP(s.Right)
	if l.into.Kind == "vxlan" && !l.outOf.MAC.IsZero() {
		s.MAC = l.outOf.MAC
	}
	for p := range model.Each(l.from.Pairs) {
		if p.Remote == hop && l.from.Node[p.Local] {
			f.Evidence = append(f.Evidence, words.Say("strays", words.Facts{"node": l.from, "link": l.from.Uplink.Link, "packets": p.Out.Packets, "local": p.Local, "hop": hop})...)
		}
	}
	if !s.Right.IsValid() {
		f.Confidence = model.Likely
	}
	return s
}

// whereLost are the nodes that packets are lost between, those on either side: of those that both
// send and receive the one first that all losses touch.
func (c *cause) whereLost(senders, receivers []*node) sides {
	all := union(senders, receivers)
	if len(all) == len(senders)+len(receivers) {
		return sides{senders, receivers}
	}
	at := slices.IndexFunc(all, c.touches)
	if at < 0 {
		return sides{all, nil}
	}
	return sides{all[at : at+1], slices.Delete(slices.Clone(all), at, at+1)}
}

// sides are nodes on both sides of what lies between; none on the other where it is between all.
type sides struct{ One, Other []*node }

// touches reports whether all losses are from or to a node.
func (c *cause) touches(n *node) bool {
	return !slices.ContainsFunc(c.tunnel, func(l *tunnelLoss) bool { return l.from != n && l.to != n }) &&
		!slices.ContainsFunc(c.lost, func(w *way) bool { return w.from != n && w.to != n })
}

// orNodeIP is an address, or a word for it where it is not known.
func orNodeIP(a netip.Addr) string {
	if !a.IsValid() {
		return diagnose.NodeIP
	}
	return a.String()
}

// anyAddress is the receiver's on the network, of the family that it has.
func (l *tunnelLoss) anyAddress() string {
	a := l.to.address(l.from, true)
	if !a.IsValid() {
		a = l.to.address(l.from, false)
	}
	return orNodeIP(a)
}

// address is the node's own of a family at which another reaches it: of several on the
// network, that from which the other gets what carries tunnels, or with which it talks, or
// that is on link there. Not valid where none or several are left.
func (n *node) address(other *node, v4 bool) netip.Addr {
	carries, talks := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for p := range model.Each(other.Pairs) {
		if other.Node[p.Local] && n.Node[p.Remote] {
			talks[p.Remote] = true
			carries[p.Remote] = carries[p.Remote] || p.In.Other > 0
		}
	}
	var own []netip.Addr
	for a := range n.Node {
		if a.IsGlobalUnicast() && a.Is4() == v4 && inAny(n.Networks, a) {
			own = append(own, a)
		}
	}
	own = narrowed(own, func(a netip.Addr) bool { return carries[a] })
	own = narrowed(own, func(a netip.Addr) bool { return talks[a] })
	own = narrowed(own, func(a netip.Addr) bool { return inAny(other.Networks, a) })
	if len(own) != 1 {
		return netip.Addr{}
	}
	return own[0]
}
