package join

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	faults "github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/fault/fabric"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// lostBetween is the finding on packets that left one node and did not arrive at another.
func (j *joint) lostBetween(c *cause) model.Finding {
	g := c.guess
	f, senders, receivers := c.beyond()
	src, dst := addrs(c.lost)
	f.LastHopAlive, f.Nodes = senders[0].Uplink, model.With(model.Map(senders, (*node).String), f.Nodes...)
	f.Facts["to"], f.Facts["src"], f.Facts["dst"], f.Facts["control"] = receivers[0], src, dst, j.control(senders, receivers, dst[0])
	switch {
	case g.via != nil:
		c.wrongRow(f, receivers[0])
	case g.large:
		f.Code, f.Page = "PathMTU", "PathMTU-joined"
		f.Facts["fragments"] = !slices.ContainsFunc(c.lost, func(w *leg) bool { return !w.losesFragments() })
		f.Facts["datagrams"] = !slices.ContainsFunc(c.lost, func(w *leg) bool { return !w.onlyDatagrams() })
	case g.some:
		f.Code, f.Page, f.Confidence = "NoReply", "NoReply-some", model.Likely
	case g.shape <= noRow:
		j.missingRoute(c, f, receivers)
	case g.shape == ipForwardingOff:
		f.Code, f.Page, f.Peers = "NICForwarding", "NICForwarding-joined", slices.Clone(c.rows)
		f.Facts["node"] = g.Node
	default:
		j.filtered(c, f, receivers[0])
	}
	f.Facts["struck"], f.Facts["rivals"] = g.refuted, g.rivals
	if x := j.translated(c); g.ports == nil && !g.large && !g.some && x.IsValid() {
		f.Facts["translated"] = x
	}
	return diagnose.Joined(*f)
}

// beyond is a finding on what is lost between those who sent it, and those that it was for.
func (c *cause) beyond() (f *faults.Fault, senders, receivers []*node) {
	senders, receivers = c.sides()
	_, dst := addrs(c.lost)
	f = &faults.Fault{Finding: model.Finding{Pods: c.pods(), Peers: model.Hosts(dst), EndsAt: []model.HopKind{model.HopBeyond}}}
	f.Facts = words.Facts{"senders": senders, "receivers": receivers, "all": union(senders, receivers),
		"lost": c.observeLost(&f.Finding), "where": c.whereLost(senders, receivers)}
	return f, senders, receivers
}

func (j *joint) missingRoute(c *cause, f *faults.Fault, receivers []*node) {
	g := c.guess
	f.Code, f.Page, f.Peers = "MissingUDR", "MissingUDR-joined", slices.Clone(c.rows)
	var rows, supposed []row
	for _, r := range c.rows {
		for _, n := range receivers {
			if !slices.Contains(n.Ranges, r) {
				continue
			}
			rows = append(rows, row{r, n.hopOr(r, f), n})
			fabric.AddRows(&f.Finding, model.Filter(n.Rows, func(x model.Row) bool { return x.Range == r })...)
			if slices.Contains(n.supposed, r) {
				supposed = append(supposed, rows[len(rows)-1])
			}
		}
	}
	f.Facts["rows"], f.Facts["supposed"] = rows, supposed
	if g.shape == noTable {
		f.Rows = slices.Concat(receivers[0].Table, f.Rows)
	} else {
		f.Facts["row"] = c.rows[0]
	}
	// The protocols and ports that were tried, where that is known.
	if kinds := model.With(nil, model.Flat(c.lost, func(w *leg) []string { return model.Map(w.pair.Asked, kindText) })...); len(kinds) == 1 {
		f.Facts["kind"] = kinds[0]
	}
}

// row is one that a route table should have.
type row struct {
	Range netip.Prefix
	Hop   string
	Node  *node
}

func (r row) String() string { return fmt.Sprintf("%s -> %s (%s)", r.Range, r.Hop, r.Node) }

// transit is what a node gets and sends back.
type transit struct {
	Packets uint64
	From    bool
	Range   netip.Prefix
}

// wrongRow is the finding on packets that another node gets.
func (c *cause) wrongRow(f *faults.Fault, to *node) {
	g := c.guess
	f.Code, f.Page, f.Peers = "WrongUDR", "WrongUDR-joined", slices.Clone(c.rows)
	returned := []transit{{g.via.Returned[model.Transit{Range: g.Row, Side: model.AsDestination}], false, g.Row}}
	for _, w := range c.lost {
		r := w.fromRange()
		returned = model.With(returned, transit{g.via.Returned[model.Transit{Range: r, Side: model.AsSource}], true, r})
	}
	returned = model.Filter(returned, func(t transit) bool { return t.Packets > 0 })
	f.Facts["via"], f.Facts["row"], f.Facts["hop"], f.Facts["returned"] = g.via, g.Row, to.hopOr(g.Row, f), returned
	f.Nodes = model.With(f.Nodes, g.via.String())
	for _, row := range to.Rows {
		if row.Range == g.Row {
			row.Update = true
			f.Rows = append(f.Rows, row)
		}
	}
}

// filtered is the finding on packets of which no larger fault explains the loss.
func (j *joint) filtered(c *cause, f *faults.Fault, to *node) {
	g := c.guess
	f.Code, f.Page = "NoReply", "NoReply-between"
	dst := f.Facts["dst"].([]netip.Addr)
	switch {
	case g.ports != nil:
		first := g.ports[0]
		f.Facts["ports"], f.Facts["first"], f.Facts["udp"] = portTexts(g.ports), first, first.Proto == model.UDP
		f.Facts[model.Either(first.Here, "replyPort", "port")] = first.Port
	case g.shape == fromPods:
		f.Facts["sender"] = g.Node
	default:
		f.Facts["pass"] = model.Filter(dst, func(a netip.Addr) bool { return j.at[a].getsOthers(a) })
		if r := to.rangeOf(dst[0]); len(dst) == 1 && r.IsValid() && c.lost[0].pair.Routed &&
			!slices.ContainsFunc(g.refuted, func(r refutation) bool { return r.shape == noRow }) {
			f.Facts["row"] = r
		}
	}
	g.rivals = slices.DeleteFunc(g.rivals, func(r suspect) bool { return r.shape <= noRow })
}

// addrs are the addresses that what is lost is from, and for.
func addrs(legs []*leg) (src, dst []netip.Addr) {
	return model.Unique(model.Map(legs, (*leg).src)), model.Unique(model.Map(legs, (*leg).dst))
}

func (n *node) getsOthers(a netip.Addr) bool {
	return slices.ContainsFunc(n.Pairs, func(p model.EndPair) bool { return p.Local == a && p.In.Packets > 0 })
}

// control is what shows that packets do pass between the nodes, of the IP version of an address if that is valid; nil where
// nothing does. What may carry a tunnel is not counted: it may be what is lost.
func (j *joint) control(senders, receivers []*node, like netip.Addr) *example {
	var best *leg
	for _, w := range j.legs {
		if w.state == arrived && w.bare() > 0 && (!like.IsValid() || like.Is4() == w.dst().Is4()) &&
			slices.Contains(senders, w.from) && slices.Contains(receivers, w.to) &&
			(best == nil || w.isNode() && !best.isNode()) {
			best = w
		}
	}
	if best == nil {
		return nil
	}
	return &example{best.to, best.from, best.bare(), best.src(), best.dst()}
}

// Is reports whether the fault has a shape, by its name in pages.
func (f suspect) Is(name string) bool {
	return f.shape == map[string]shape{"noTable": noTable, "noRow": noRow, "noCard": ipForwardingOff,
		"fromPods": fromPods}[name]
}

// sides are the nodes that sent what was lost, and those that it was for.
func (c *cause) sides() (senders, receivers []*node) {
	return union(model.Map(c.lost, func(w *leg) *node { return w.from }), nil),
		union(model.Map(c.lost, func(w *leg) *node { return w.to }), nil)
}

func union(a, b []*node) []*node {
	return slices.Compact(sortedNodes(slices.Values(slices.Concat(a, b))))
}

func sortedNodes(nodes iter.Seq[*node]) []*node {
	return slices.SortedFunc(nodes, func(a, b *node) int { return cmp.Compare(a.String(), b.String()) })
}

// pods are the pods at both ends of what is lost, those behind a node's address included.
func (c *cause) pods() []netip.Addr {
	var out []netip.Addr
	add := func(n *node, a netip.Addr) {
		if n.Pods[a] {
			out = append(out, a)
		}
	}
	for _, w := range c.lost {
		add(w.from, w.src())
		add(w.to, w.dst())
	}
	for _, t := range c.conversations {
		add(t.asker, t.a)
		add(t.far, t.b)
		out = append(out, t.pair.Behind...)
	}
	return model.Unique(out)
}

func kindText(k model.Asked) string {
	if k.Port == 0 {
		return model.ProtoName(k.Proto)
	}
	return fmt.Sprintf("port %d/%s", k.Port, model.ProtoName(k.Proto))
}

// translated is an address that no recorded node has, from which as much arrives at
// the destinations as was sent to them; not valid where none is.
func (j *joint) translated(c *cause) netip.Addr {
	sent := map[netip.Addr]float64{}
	for _, w := range c.lost {
		sent[w.dst()] += w.to.longer(w.from) * float64(w.sent())
	}
	_, all := addrs(c.lost)
	for _, dst := range all {
		to := j.at[dst]
		for p := range model.Each(to.Pairs) {
			_, recorded := j.at[p.Remote]
			if got := float64(p.In.Packets); p.Local == dst && !recorded && p.In.Requests > 0 && !p.Range.IsValid() &&
				!model.InAny(to.Networks, p.Remote) && got <= 3*sent[dst] && sent[dst] <= 3*got {
				return p.Remote
			}
		}
	}
	return netip.Addr{}
}
