package path

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// atIP takes a packet into the node's IP layer, by a link or, with nil, from
// the node itself.
func (j *journey) atIP(in *model.Link) {
	hook := "PREROUTING"
	if in == nil {
		hook = "OUTPUT"
	}
	n := j.translateDestination(hook)
	if !j.over {
		j.routed(in, n)
	}
}

// routed looks up the packet's route and follows it. n is the hop of address
// translation, to which the source's is added last.
func (j *journey) routed(in *model.Link, n *step) {
	name := ""
	if in != nil {
		name = in.Name
	}
	d := j.Routing().Lookup(Query{Src: j.src, Dst: j.dst, In: name})
	route := &step{PathHop: model.PathHop{Kind: model.HopRoute}, src: j.src, dst: j.dst}
	j.decideRoute(route, in, &d)
	if j.over {
		j.steps = append(j.steps, route)
		return
	}
	if d.Type != "unicast" {
		j.steps = append(j.steps, route)
		j.toNode(name)
		return
	}
	out, known := j.fork(route, &d)
	if in == nil {
		j.filtered("", out.Link, "OUTPUT", "POSTROUTING")
	} else {
		j.filtered(name, out.Link, "PREROUTING", "FORWARD", "POSTROUTING")
	}
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
		s.Rules = append(s.Rules, RoutingRuleText(d.Rule))
	}
	if d.Route != nil {
		s.Decision = RouteText(d.Route, linkName(j.ByIndex, d.Route.IfIndex))
		s.Rules = append(s.Rules, s.Decision)
	}
	for _, r := range d.Passed {
		s.Rules = append(s.Rules, fmt.Sprintf("%s: no route there for %s", RoutingRuleText(r), j.dst))
		s.Decision = join(s.Decision, fmt.Sprintf("table %d, which rule %d leads to, has none", r.Table, r.Priority))
	}
	if len(d.Passed) > 0 {
		s.Rules = append(s.Rules, j.othersRules()...)
	}
	for _, r := range d.Unsure {
		s.Rules = append(s.Rules, RoutingRuleText(r)+": conditions that were not read")
	}
	if len(d.Unsure) > 0 {
		s.Decision += ", unless a rule with conditions that were not read decides otherwise"
	}
	switch {
	case !j.Has(model.SourceRoutes) && (d.Route == nil || d.Type != "local"):
		s.Decision = join("the routes were not read whole", s.Decision)
		if d.Route == nil || len(d.Hops) == 0 {
			j.over = true
			return
		}
	case d.Type == "":
		j.die(s, "no route to "+j.dst.String())
	case d.Discards():
		j.die(s, fmt.Sprintf("discarded: %s", orRule(s.Decision, d)))
	case len(d.Hops) == 0:
		s.Decision, j.over = join(s.Decision, "no next hop was read"), true
	}
	if in == nil || j.over {
		return
	}
	if d.Type == "unicast" {
		if off := j.Settings.NotForwarding(in.Name, isIPv6(j.dst)); off != "" && j.left() {
			s.Decision = join(s.Decision, off+" is 0, and packets leave: a program forwards them")
		} else if off != "" {
			j.die(s, "not forwarded: "+off+" is 0")
			return
		}
		if why := j.misrouted(d); why != "" {
			j.die(s, why)
			return
		}
	}
	if why := j.reverseDropped(in, d); why != "" {
		j.die(s, why)
	}
}

// othersRules are the first few rules of other pods of the node.
func (j *journey) othersRules() []string {
	const few = 3
	var out []string
	for r := range model.Each(j.Snapshot.Rules) {
		if r.From.IsSingleIP() && r.From.Addr() != j.src && r.From.Addr().Is4() == j.src.Is4() && j.pods[r.From.Addr()] != nil && len(out) < few {
			out = append(out, "of another pod: "+RoutingRuleText(r))
		}
	}
	return out
}

// orRule is the text of the rule where a rule decides and no route.
func orRule(text string, d *Decision) string {
	if text == "" && d.Rule != nil {
		return RoutingRuleText(d.Rule)
	}
	return text
}

func linkName(links map[int]*model.Link, index int) string {
	if l := links[index]; l != nil && index != 0 {
		return l.Name
	}
	return ""
}

// left reports whether such packets were counted as they left the node.
func (j *journey) left() bool {
	return slices.ContainsFunc(j.Traffic.Peers, func(p model.Peer) bool { return p.Local == j.src && p.Remote == j.dst && p.Out.Packets > 0 })
}

// misrouted says that a pod of this node is routed off the node or to another pod.
func (j *journey) misrouted(d *Decision) string {
	pods := j.Owners[j.dst]
	if len(pods) == 0 || !j.Routing().Misses(d, pods) {
		return ""
	}
	return fmt.Sprintf("leads to %s, and the pod is behind %s", d.Hops[0].Link, pods[0].Link)
}

// reverseFilter is the reverse path filter's setting for a link, empty where it
// was not read, and for IPv6, which has none.
func (j *journey) reverseFilter(l *model.Link) string {
	if isIPv6(j.dst) {
		return ""
	}
	return j.Settings.ReverseFilter(l.Name)
}

// reverseDropped says that the reverse path filter drops what comes by a link.
func (j *journey) reverseDropped(in *model.Link, d *Decision) string {
	back := j.Routing().WayBack(Query{Src: j.src, Dst: j.dst, In: in.Name})
	if !j.Has(model.SourceRoutes) || len(back.Unsure) > 0 || len(d.Unsure) > 0 || !back.Filtered(j.reverseFilter(in), in.Index) {
		return ""
	}
	where := "nowhere"
	if len(back.Hops) > 0 && back.Type == "unicast" {
		where = "by " + back.Hops[0].Link
	}
	return fmt.Sprintf("dropped by the reverse path filter of %s: the route back to %s is %s", in.Name, j.src, where)
}

// packet is the packet as netfilter's rules see it. The names of links are empty
// where they are not known.
func (j *journey) packet(in, out string) Packet {
	p := Packet{Src: j.src, Dst: j.dst, SrcPort: j.srcPort, DstPort: j.dstPort, Proto: j.ends.Proto, State: j.state}
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
	r := j.tables.filter(j.packet(in, out), hooks...)
	switch {
	case r.does == drops:
		why := "dropped"
		switch {
		case r.rule != nil:
			why = fmt.Sprintf("dropped by %s %s rule %d", r.rule.Table, r.rule.Chain, r.rule.Number)
			s.Rules = append(s.Rules, packetRuleText(r.rule))
		case r.policy != nil:
			why = fmt.Sprintf("dropped by the policy of %s %s", r.policy.Table, r.policy.Name)
			s.Rules = append(s.Rules, fmt.Sprintf("%s %s policy DROP", r.policy.Table, r.policy.Name))
		}
		j.die(s, why)
	case !j.Has(model.SourceNAT):
		s.Decision = "unknown: the rules were not read whole"
	case r.cutOff:
		s.Decision = "unknown: there are more rules than lasthop follows"
	case r.does == unknown:
		s.Decision = fmt.Sprintf("unknown: %s may decide, with matches that were not read", model.Plural(len(r.unsure), "rule"))
		for _, rule := range r.unsure {
			s.Rules = append(s.Rules, packetRuleText(rule))
		}
	case r.rule != nil:
		s.Decision = fmt.Sprintf("accept (%s %s rule %d)", r.rule.Table, r.rule.Chain, r.rule.Number)
		s.Rules = append(s.Rules, packetRuleText(r.rule))
	default:
		s.Decision = "accept"
	}
}

// toNode is delivery to the node itself.
func (j *journey) toNode(in string) {
	j.filtered(in, "", "PREROUTING", "INPUT")
	if j.over {
		return
	}
	decision := j.dst.String() + " is the node's own"
	if l := j.balancer(j.dst); l != nil {
		decision = fmt.Sprintf("%s is on the dummy link %s: IPVS sends it on to a backend, which is not read, or the node takes it", j.dst, l.Name)
	}
	j.add(model.PathHop{Kind: model.HopLocal, Decision: decision})
	j.over = true
}

// balancer is the dummy link that has the address, as the addresses of services
// are for IPVS: it takes packets for them after the filter rules of INPUT. It is
// nil where a flow shows what became of such packets; where that was not
// translated, the node itself replied.
func (j *journey) balancer(a netip.Addr) *model.Link {
	l := j.Own[a]
	if l == nil || l.Kind != "dummy" || !slices.Contains(l.Addresses, netip.PrefixFrom(a, a.BitLen())) || len(j.flows()) > 0 {
		return nil
	}
	return l
}

// toLink finds the next hop's MAC and sends the packet out.
func (j *journey) toLink(h NextHop) {
	l := j.ByIndex[h.IfIndex]
	if l == nil {
		j.add(model.PathHop{Kind: model.HopLink, Link: h.Link, Decision: "the link is not known"})
		j.over = true
		return
	}
	if !l.MAC.IsZero() {
		j.neighbor(l, h)
		if j.over {
			return
		}
	}
	// Where connection tracking of a bridge translated, the frame keeps its
	// sender: it goes on from port to port.
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
	next := h.Gateway
	if !next.IsValid() {
		next = j.dst
	}
	s := j.add(model.PathHop{Kind: model.HopNeighbor, Link: l.Name})
	s.next = next
	s.direction, s.after = model.Egress, j.at(l, model.Egress)
	n := j.NeighborAt(next, l.Index)
	j.dstMAC = model.MAC{}
	if n != nil {
		j.dstMAC = n.MAC
	}
	if behind := j.Behind(next, l.Index); j.dstMAC.IsZero() && len(behind) == 1 {
		j.dstMAC = behind[0].MAC
	}
	switch {
	case n == nil && !j.Has(model.SourceNeighbors):
		s.Decision = "the neighbours were not read whole"
		return
	case n == nil:
		s.Decision = "no entry for " + next.String() + ": it is asked for"
		return
	}
	s.Decision, s.Rules = neighborText(n), []string{neighborText(n)}
	if n.State == "FAILED" && j.unresolved(l) {
		j.die(s, "nobody answers for "+next.String())
	} else if p := j.Misled(n); p != nil {
		j.die(s, fmt.Sprintf("%s is at %s here (%s), and the pod has %s", next, n.MAC, n.State, p.MAC))
	}
}

// unresolved reports whether packets of these ends were dropped because the
// next hop's MAC behind the link is not known.
func (j *journey) unresolved(l *model.Link) bool {
	return slices.ContainsFunc(j.Traffic.Drops, func(d model.Drop) bool {
		return d.Dst == j.dst && d.Src == j.src && d.Hop() == model.HopNeighbor && (d.IfIndex == 0 || d.IfIndex == l.Index)
	})
}
