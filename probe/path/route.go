package path

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Query is a packet as the routing rules and tables look at it.
type Query struct {
	Src, Dst netip.Addr
	// In is the link through which the packet came; empty for one that the
	// node itself sends, which the rules know as coming from the loopback.
	In string
	// MarkedBy are the rules that wrote the packet's mark, or that of its connection.
	Mark     Mark
	MarkedBy []*model.PacketRule
	// Proto and the ports are zero where they are not known.
	Proto            uint8
	SrcPort, DstPort uint16
}

// Query is a packet as the node's routing gets it, from a link or from the node itself.
func (st *State) Query(p Packet) Query {
	q, hook := queryOf(p), "OUTPUT"
	if len(p.In) > 0 && p.In[0] != "" {
		q.In, hook = p.In[0], "PREROUTING"
	}
	if marks := st.Routing().marks; marks != 0 && marks&st.Tables().writes != 0 {
		p, q.MarkedBy = st.Tables().MarkedAt(p, hook)
		q.Mark = p.Mark
	}
	return q
}

func queryOf(p Packet) Query {
	return Query{Src: p.Src, Dst: p.Dst, Proto: p.Proto, SrcPort: p.SrcPort, DstPort: p.DstPort}
}

// Decision is what the routing tables do with a packet.
type Decision struct {
	// Type is that of the route or rule that decides: unicast, local,
	// broadcast, blackhole, unreachable, prohibit; empty where none matches.
	Type string
	// Table and Route are where the search ended; no route where a rule decides by itself, or none matches.
	Table int
	Route *model.Route
	// Rule is the one that led there.
	Rule *model.RoutingRule
	// Passed are rules for such packets that came before it, and whose tables have no
	// route for this one: the search went on.
	Passed []*model.RoutingRule
	// Hops are the next hops, of which the kernel takes one by a hash of the flow.
	Hops []NextHop
	// Unsure are rules before that one of which it is not known whether the packet matches; they were taken as not matching.
	Unsure []*model.RoutingRule
}

// NextHop is where a packet goes next.
type NextHop struct {
	// Gateway is not valid where the destination is on the link.
	Gateway netip.Addr
	IfIndex int
	Link    string
}

// Through reports whether the packet may leave by the link of that index.
func (d *Decision) Through(ifindex int) bool {
	return slices.ContainsFunc(d.Hops, func(h NextHop) bool { return h.IfIndex == ifindex })
}

// Discards reports whether a route or a rule throws the packet away on purpose.
func (d *Decision) Discards() bool {
	return model.Discards(d.Type)
}

// Numbers of the tables and priorities that the kernel makes by itself.
const (
	tableDefault = 253
	tableMain    = 254
	tableLocal   = 255

	ruleMain    = 32766
	ruleDefault = 32767
)

// Routing predicts the decisions of a snapshot's routing rules and tables.
type Routing struct {
	tables map[tableKey]*fib
	// rules4 and rules6 are in the order in which the kernel asks them.
	rules4, rules6 ruleList
	// merged: as long as no rule was added, the kernel keeps IPv4's tables
	// local and main as one, so that the longest prefix of both decides.
	merged bool
	// marks are the bits of marks that rules look at.
	marks uint32
	state *State
}

type tableKey struct {
	number int
	isIPv6 bool
}

// ruleList are rules in their order, by the one address that they are about. Where each pod
// has some, few of many are about one packet.
type ruleList struct {
	all []*model.RoutingRule
	index[netip.Addr]
}

// newRuleList has the rules of a family in their order; those that the kernel makes, where none was read.
func newRuleList(all []model.RoutingRule, family int) ruleList {
	l := ruleList{all: model.Chosen(all, func(r *model.RoutingRule) bool { return r.Family == family })}
	if len(l.all) == 0 {
		l.all = builtin(family)
	}
	slices.SortStableFunc(l.all, func(a, b *model.RoutingRule) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, r := range l.all {
		about := model.Either(r.From.IsSingleIP(), r.From, r.To)
		l.add(about.Addr(), !r.Not && about.IsSingleIP())
	}
	return l
}

// fib holds the routes of a table by prefix, the preferred one of a prefix first.
type fib struct {
	routes map[netip.Prefix][]*model.Route
	// lengths says which its prefixes have.
	lengths [129]bool
}

func newRouting(s *State) *Routing {
	r := &Routing{tables: map[tableKey]*fib{}, state: s}
	r.rules4, r.rules6 = newRuleList(s.Rules, 4), newRuleList(s.Rules, 6)
	for rule := range model.Each(s.Rules) {
		r.marks |= rule.Mask
	}
	r.merged = slices.EqualFunc(r.rules4.all, builtin(4), func(a, b *model.RoutingRule) bool {
		return a.Priority == b.Priority && a.Table == b.Table && a.Action == b.Action && !a.From.IsValid() && !a.To.IsValid()
	})
	preferred := func(a, b *model.Route) int {
		return cmp.Or(cmp.Compare(b.Table, a.Table), cmp.Compare(a.Priority, b.Priority))
	}
	for _, route := range slices.SortedStableFunc(model.Each(s.Routes), preferred) {
		if !route.Dst.IsValid() {
			continue
		}
		k := tableKey{route.Table, route.Dst.Addr().Is6()}
		if r.merged && !k.isIPv6 && k.number == tableLocal {
			k.number = tableMain
		}
		if r.tables[k] == nil {
			r.tables[k] = &fib{routes: map[netip.Prefix][]*model.Route{}}
		}
		t, p := r.tables[k], route.Dst.Masked()
		t.routes[p], t.lengths[p.Bits()] = append(t.routes[p], route), true
	}
	return r
}

// builtin are the rules of a fresh namespace.
func builtin(family int) []*model.RoutingRule {
	out := []*model.RoutingRule{
		{Family: family, Table: tableLocal, Action: "lookup"},
		{Family: family, Priority: ruleMain, Table: tableMain, Action: "lookup"},
	}
	if family == 4 {
		out = append(out, &model.RoutingRule{Family: 4, Priority: ruleDefault, Table: tableDefault, Action: "lookup"})
	}
	return out
}

// Lookup finds the route of a packet, as the kernel's fib_lookup does: the rules by priority, in each table the
// longest prefix, among equals the lowest metric. It ignores the type of service, and what precedes the lookup
// (forwarding, the reverse path filter, martian addresses).
func (r *Routing) Lookup(q Query) Decision {
	rules := model.Either(q.Dst.Is6(), &r.rules6, &r.rules4)
	var d Decision
	from, places := 0, rules.of(q.Src, q.Dst)
	slices.Sort(places)
	for _, i := range slices.Compact(places) {
		rule := rules.all[i]
		if i < from {
			continue
		}
		switch q.fits(rule) {
		case No:
			continue
		case Maybe:
			d.Unsure = append(d.Unsure, rule)
			continue
		}
		switch rule.Action {
		case "lookup":
			if route := r.in(rule.Table, q.Dst); route != nil && route.Type != "throw" && route.Dst.Bits() >= rule.MinBits {
				d.Rule, d.Route, d.Table, d.Type = rule, route, route.Table, route.Type
				if !d.Discards() {
					d.Hops = r.hops(route)
				}
				return d
			}
			if rule.From.IsValid() || rule.To.IsValid() {
				d.Passed = append(d.Passed, rule)
			}
		case "blackhole", "unreachable", "prohibit":
			d.Rule, d.Type = rule, rule.Action
			return d
		case "goto":
			// Only forward, which the kernel sees to: the search ends.
			next := slices.IndexFunc(rules.all, func(o *model.RoutingRule) bool { return o.Priority >= rule.Goto })
			if next < 0 {
				return d
			}
			from = next
		}
	}
	return d
}

// fits says how surely the packet matches a rule.
func (q *Query) fits(r *model.RoutingRule) Fit {
	ok := (!r.From.IsValid() || r.From.Contains(q.Src)) && (!r.To.IsValid() || r.To.Contains(q.Dst)) &&
		(r.In == "" || r.In == cmp.Or(q.In, "lo")) && r.Out == "" && (q.Mark.Value^r.Mark)&r.Mask&^q.Mark.Loose == 0
	f := min(known(true, ok), known(r.Proto == 0 || q.Proto != 0, r.Proto == 0 || r.Proto == q.Proto),
		q.portFits(r.SrcPorts, q.SrcPort), q.portFits(r.DstPorts, q.DstPort))
	switch {
	case f == No:
		return model.Either(r.Not, Yes, No)
	case f == Maybe || r.Mask&q.Mark.Loose != 0 || len(r.Unknown) > 0:
		return Maybe
	}
	return model.Either(r.Not, No, Yes)
}

// portFits compares a port: what is neither TCP nor UDP has none.
func (q *Query) portFits(r model.PortRange, port uint16) Fit {
	portless := q.Proto != 0 && q.Proto != model.TCP && q.Proto != model.UDP
	return known(r.Last == 0 || port != 0 || portless, r.Last == 0 || port != 0 && r.Has(port))
}

// Covering lists the routes of a table that match an address, the preferred one first.
func (r *Routing) Covering(number int, dst netip.Addr) []*model.Route {
	return slices.Collect(r.covering(number, dst))
}

func (r *Routing) covering(number int, dst netip.Addr) iter.Seq[*model.Route] {
	return func(yield func(*model.Route) bool) {
		t := r.tables[tableKey{number, dst.Is6()}]
		if t == nil {
			return
		}
		for bits := dst.BitLen(); bits >= 0; bits-- {
			if !t.lengths[bits] {
				continue
			}
			p, _ := dst.Prefix(bits)
			for _, route := range t.routes[p] {
				if !yield(route) {
					return
				}
			}
		}
	}
}

// in is the route that a table has for an address, nil for none.
func (r *Routing) in(number int, dst netip.Addr) *model.Route {
	for route := range r.covering(number, dst) {
		return route
	}
	return nil
}

// hops are those of the route whose links are up; of a route with one hop, that one: it would be gone with its link.
func (r *Routing) hops(route *model.Route) []NextHop {
	out := []NextHop{{route.Gateway, route.IfIndex, linkName(r.state.ByIndex, route.IfIndex)}}
	if len(route.NextHops) == 0 {
		return out
	}
	for _, n := range route.NextHops {
		out = append(out, NextHop{n.Gateway, n.IfIndex, linkName(r.state.ByIndex, n.IfIndex)})
	}
	up := slices.DeleteFunc(slices.Clone(out),
		func(h NextHop) bool { l := r.state.ByIndex[h.IfIndex]; return l != nil && !l.Up })
	return model.Either(len(up) == 0, out, up)
}

// Misses reports whether a decision leads away from all of the pods that have an address. A link of an unknown
// kind may well lead there: a plugin's router, whose programs deliver, or a device on top of the bridge.
func (r *Routing) Misses(d *Decision, pods []*model.Pod) bool {
	if d.Type != "unicast" {
		return d.Type == "" || d.Discards()
	}
	right := map[int]bool{}
	for _, p := range pods {
		right[p.LinkIndex] = true
		if l := r.state.ByIndex[p.LinkIndex]; l != nil && l.Master != 0 {
			right[l.Master] = true
		}
	}
	return !slices.ContainsFunc(d.Hops, func(h NextHop) bool {
		l := r.state.ByIndex[h.IfIndex]
		return l == nil || right[h.IfIndex] || !r.state.Outer[h.IfIndex] && l.Role != model.RolePodLink && l.Kind != "bridge"
	})
}

// ReturnPath is the decision by which the reverse path filter judges a packet: the route to its
// source, as for a reply that comes in through the link by which the packet would leave. The mark
// counts only where that is set, which it is not by default.
func (r *Routing) ReturnPath(q Query) Decision {
	back := Query{Src: q.Dst, Dst: q.Src, Proto: q.Proto, SrcPort: q.DstPort, DstPort: q.SrcPort}
	if r.state.Settings.SourceMark(q.In) != "" {
		back.Mark = q.Mark
	}
	if there := r.Lookup(q); there.Type == "unicast" && len(there.Hops) > 0 {
		back.In = there.Hops[0].Link
	}
	return r.Lookup(back)
}

// Filtered reports whether a reverse path filter of that mode (1 strict, 2 loose) drops what
// came by a link, by its return path. A link without an address of IPv4 is never loose (__fib_validate_source).
func (d *Decision) Filtered(mode string, in *model.Link) bool {
	strict := mode == "1" || mode == "2" && !in.HasIPv4()
	return strict && !(d.Type == "unicast" && d.Through(in.Index)) || mode == "2" && d.Type != "unicast"
}
