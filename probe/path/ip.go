package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// atIP takes a packet into the node's IP layer, by a link or, with nil, from the node itself.
func (j *journey) atIP(in *model.Link) {
	if in != nil && j.byCilium(in) {
		return
	}
	name := ""
	if in != nil {
		name = in.Name
	}
	q := j.Query(j.packet(name, "")) // Marks are given before addresses are translated.
	n := j.translateDestination(model.Either(in == nil, "OUTPUT", "PREROUTING"))
	if q.Src, q.Dst, q.DstPort = j.src, j.dst, j.dstPort; !j.over {
		j.routed(in, q, n)
	}
}

// routed looks up the packet's route and follows it. n is the hop of address
// translation, to which the source's is added last.
func (j *journey) routed(in *model.Link, q Query, n *step) {
	name, hooks := q.In, []string{"OUTPUT", "POSTROUTING"}
	if in != nil {
		hooks = []string{"PREROUTING", "FORWARD", "POSTROUTING"}
	}
	d, route := j.Routing().Lookup(q), &step{PathHop: model.PathHop{Kind: model.HopRoute}, src: j.src, dst: j.dst}
	if j.decideRoute(route, in, &d); d.Rule != nil && d.Rule.Mask != 0 {
		for _, r := range q.MarkedBy {
			route.showRule(r)
		}
	}
	if j.over || d.Type != "unicast" {
		j.steps = append(j.steps, route)
		if !j.over {
			j.toNode(name)
		}
		return
	}
	out, known := j.fork(route, &d)
	j.filtered(name, out.Link, hooks...)
	if j.over {
		return
	}
	j.steps = append(j.steps, route)
	if !known {
		j.over = true
		return
	}
	j.translateSource(n, out.Link)
	j.toLink(out)
}

// decideRoute fills in the hop of the route. The path ends there where the lookup,
// or a check before it, lets no packet through.
func (j *journey) decideRoute(s *step, in *model.Link, d *Decision) {
	if d.Rule != nil && d.Rule.Priority != 0 && d.Rule.Priority < ruleMain {
		s.Rules = append(s.Rules, words.RoutingRuleText(d.Rule))
	}
	if d.Route != nil {
		text := words.RouteText(d.Route, linkName(j.ByIndex, d.Route.IfIndex))
		s.say("route", words.Facts{"route": text}).Rules = append(s.Rules, text)
	}
	for _, r := range d.Passed {
		s.show("rule-without", words.Facts{"rule": words.RoutingRuleText(r), "dst": j.dst})
		s.say("table-without", words.Facts{"rule": r})
	}
	for _, r := range d.Unsure {
		s.show("rule-unread", words.Facts{"rule": words.RoutingRuleText(r)})
	}
	if len(d.Unsure) > 0 {
		s.say("unless-rule", nil)
	}
	switch {
	case !j.Has(model.SourceRoutes) && (d.Route == nil || d.Type != "local"):
		s.says = append([]said{{name: "routes-not-whole"}}, s.says...)
		if d.Route == nil || len(d.Hops) == 0 {
			j.over = true
			return
		}
	case d.Type == "":
		j.die(s, "no-route", words.Facts{"dst": j.dst})
	case d.Discards():
		j.die(s, "discarded", words.Facts{"what": cmp.Or(s.decision(), words.RoutingRuleText(d.Rule)), "rule": d.Route})
	case len(d.Hops) == 0:
		s.say("hop-unread", nil)
		j.over = true
	}
	if in == nil || j.over {
		return
	}
	for _, a := range []netip.Addr{j.src, j.dst} {
		if l := j.Own[a]; l != nil && j.Owners[a] != nil && (a == j.src || d.Type == "local") {
			j.die(s, "own-address", words.Facts{"addr": a, "link": l.Name})
			return
		}
	}
	if d.Type == "unicast" {
		if off := j.Settings.NotForwarding(in.Name, isIPv6(j.dst)); off != "" && j.left() {
			s.say("program-forwards", words.Facts{"setting": off})
		} else if off != "" {
			j.die(s, "not-forwarding", words.Facts{"setting": off})
			return
		}
		if pods := j.Owners[j.dst]; len(pods) > 0 && j.Routing().Misses(d, pods) {
			j.die(s, "misrouted", words.Facts{"link": d.Hops[0].Link, "right": pods[0].Link})
			return
		}
	}
	back := j.Routing().ReturnPath(j.Query(j.packet(in.Name, "")))
	if j.Has(model.SourceRoutes) && len(back.Unsure)+len(d.Unsure) == 0 && back.Filtered(j.reverseFilter(in), in) {
		facts := words.Facts{"link": in.Name, "src": j.src}
		if len(back.Hops) > 0 && back.Type == "unicast" {
			facts["by"] = back.Hops[0].Link
		}
		j.die(s, "reverse-path", facts)
	}
}

func linkName(links map[int]*model.Link, index int) string {
	if l := links[index]; l != nil && index != 0 {
		return l.Name
	}
	return ""
}

// left reports whether such packets were counted as they left the node.
func (j *journey) left() bool {
	return slices.ContainsFunc(j.Traffic.Peers,
		func(p model.Peer) bool { return p.Local == j.src && p.Remote == j.dst && p.Out.Packets > 0 })
}

// reverseFilter is the reverse path filter's setting for a link, empty where it
// was not read, and for IPv6, which has none.
func (j *journey) reverseFilter(l *model.Link) string {
	return model.Either(isIPv6(j.dst), "", j.Settings.ReverseFilter(l.Name))
}

// packet is the packet as netfilter's rules see it. The names of links are empty where they are not known.
func (j *journey) packet(in, out string) Packet {
	state := model.Either(j.reply || j.answers, "established", "new")
	if j.reply && j.untracked {
		// Connection tracking takes a datagram for a new connection's.
		state = model.Either(j.ends.Proto == model.TCP, "invalid", model.Either(j.ends.Proto == 0, "", "new"))
	}
	p := Packet{Src: j.src, Dst: j.dst, SrcPort: j.srcPort, DstPort: j.dstPort, Proto: j.ends.Proto, State: state, Flow: j.known.Flow, Later: j.known.Later}
	if in != "" {
		p.In = []string{in}
	}
	if out != "" {
		p.Out = []string{out}
	}
	return p
}

// filtered asks the chains of netfilter that can drop the packet.
func (j *journey) filtered(in, out string, hooks ...string) {
	s := j.add(model.PathHop{Kind: model.HopPolicy})
	r := j.Tables().filter(j.packet(in, out), hooks...)
	if r.rule != nil && (r.does == drops || j.Has(model.SourceNAT) && !r.cutOff && r.does != unknown) {
		s.showRule(r.rule)
	}
	if !j.Has(model.SourceNAT) && r.does != drops {
		s.say("rules-unread", nil)
		return
	}
	j.refused(s, r)
}

// refused says what chains decide, and reports whether they drop the packet.
func (j *journey) refused(s *step, r decision) bool {
	switch {
	case r.does == drops:
		if r.rule == nil && r.policy != nil {
			s.show("policy", words.Facts{"policy": r.policy})
		}
		for _, rule := range r.or {
			s.showRule(rule)
		}
		j.die(s, "filter-rule", words.Facts{"rule": r.rule, "policy": r.policy, "or": r.or})
	case r.cutOff:
		s.say("rules-too-many", nil)
	case r.does == unknown:
		s.say("rules-may-decide", words.Facts{"rules": len(r.unsure)})
		for _, rule := range r.unsure {
			s.showRule(rule)
		}
	case s.Kind == model.HopPolicy:
		s.say("accept", words.Facts{"rule": r.rule})
	}
	return r.does == drops
}

func (j *journey) toNode(in string) {
	j.filtered(in, "", "PREROUTING", "INPUT")
	if j.over {
		return
	}
	j.add(model.PathHop{Kind: model.HopLocal}).say("nodes-own", words.Facts{"dst": j.dst, "balancer": j.balancer(j.dst)})
	j.over = true
}

// balancer is the dummy link that has the address, as the addresses of services are for IPVS: it takes packets
// for them after the filter rules of INPUT. It is nil where a flow shows what became of such packets; where
// that was not translated, the node itself replied.
func (j *journey) balancer(a netip.Addr) *model.Link {
	l := j.Own[a]
	if l == nil || l.Kind != "dummy" || !slices.Contains(l.Addresses, netip.PrefixFrom(a, a.BitLen())) ||
		len(j.flows) > 0 {
		return nil
	}
	return l
}

// toLink finds the next hop's MAC and sends the packet out.
func (j *journey) toLink(h NextHop) {
	l := j.ByIndex[h.IfIndex]
	if l == nil {
		j.add(model.PathHop{Kind: model.HopLink, Link: h.Link}).say("link-unknown", nil)
		j.over = true
		return
	}
	if !l.MAC.IsZero() {
		j.neighbor(l, h)
		if j.over {
			return
		}
	}
	// Where connection tracking of a bridge translated, the frame keeps its sender: it goes on from port to port.
	if j.through == nil || j.through.Master != l.Index || !j.filtersBridged(isIPv6(j.dst)) {
		j.srcMAC = l.MAC
	}
	if l.Kind == "bridge" {
		j.outOfBridge(l)
		return
	}
	j.toPort(l)
}

// neighbor is the hop at which the node finds the next hop's MAC.
func (j *journey) neighbor(l *model.Link, h NextHop) {
	next := cmp.Or(h.Gateway, j.dst)
	s := j.add(model.PathHop{Kind: model.HopNeighbor, Link: l.Name})
	s.next, s.direction, s.after = next, model.Egress, j.at(l, model.Egress)
	n := j.NeighborAt(next, l.Index)
	j.dstMAC = model.MAC{}
	if n != nil {
		j.dstMAC = n.MAC
		s.show("neighbour", words.Facts{"entry": n})
		s.say("neighbour", words.Facts{"entry": n})
	}
	if behind := j.Behind(next, l.Index); j.dstMAC.IsZero() && len(behind) == 1 {
		j.dstMAC = behind[0].MAC
	}
	dropped := func(d model.Drop) bool {
		return d.Dst == j.dst && d.Src == j.src && d.Hop() == model.HopNeighbor && (d.IfIndex == 0 || d.IfIndex == l.Index)
	}
	switch {
	case n == nil && !j.Has(model.SourceNeighbors):
		s.say("neighbours-unread", nil)
	case n == nil && j.unheard(l, next):
		j.die(s, "next-hop-silent", words.Facts{"next": next})
	case n == nil:
		s.say("no-entry", words.Facts{"next": next})
	case n.State == "FAILED" && slices.ContainsFunc(j.Traffic.Drops, dropped):
		j.die(s, "next-hop-silent", words.Facts{"next": next})
	case j.MissedPod(n) != nil:
		j.die(s, "stale-neighbour", words.Facts{"next": next, "entry": n, "right": j.MissedPod(n).MAC})
	}
}

// unheard reports whether a bridge keeps the node's ARP requests from the port of the pod that has the address.
func (j *journey) unheard(b *model.Link, a netip.Addr) bool {
	behind := j.Behind(a, b.Index)
	if b.Kind != "bridge" || isIPv6(a) || len(behind) == 0 {
		return false
	}
	port := j.ByIndex[behind[0].LinkIndex]
	return port != nil && port.Port != nil && !port.Port.BroadcastFlood
}
