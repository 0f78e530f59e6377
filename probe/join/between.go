package join

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// lostBetween is the finding on packets that left one node and did not arrive at
// another.
func (j *joint) lostBetween(c *cause) model.Finding {
	g := c.guess
	f := model.Finding{Severity: model.Critical, Confidence: model.Proven}
	senders, receivers := c.sides()
	f.LastHopAlive = senders[0].Uplink
	for _, n := range senders {
		addNode(&f, n.name())
	}
	c.observeLost(&f)
	f.Pods = c.pods()
	switch {
	case g.route != nil:
		j.wrongNodeRoute(c, &f, receivers[0])
	case g.via != nil:
		c.wrongRow(&f, receivers)
	case g.large:
		c.tooLarge(&f, senders, receivers)
	case g.shape == noRow && j.keepRoutes(c, receivers[0]):
		j.missingNodeRoute(c, &f, senders, receivers[0])
	case g.shape <= noRow:
		j.missingRoute(c, &f, senders, receivers)
	case g.shape == noCard:
		f.Code = diagnose.NICForwarding
		f.Confidence = model.Likely
		f.Peers = slices.Clone(g.node.Ranges)
		f.Title = fmt.Sprintf("nothing from or for the pods of %s gets past its NIC", g.node.name())
		f.Why = fmt.Sprintf("What other nodes send to %s does not arrive at %s, and what its pods send arrives at no other node, while other packets pass. "+
			"So its NIC refuses what is not from or for its own addresses: IP forwarding is off.", addrs(g.node.Ranges), g.node.name())
		f.Alternatives = []string{"a network security group of that NIC or subnet leaves the pods' addresses out"}
		f.Unseen = []string{"the NIC's settings"}
		f.Fix = []string{"az network nic update --ids NIC --ip-forwarding true # the NIC of " + g.node.name()}
	default:
		c.filtered(&f, senders, receivers)
	}
	for _, r := range g.struck {
		f.Evidence = append(f.Evidence, seen(r.by.node, "%s, so this is not the cause: %s", r.by.text, r.text()))
	}
	for _, r := range g.rivals {
		f.Alternatives = append(f.Alternatives, r.text())
	}
	if x := j.translated(c); g.port == nil && !g.large && g.route == nil && x.IsValid() {
		f.Confidence = model.Likely
		f.Alternatives = append(f.Alternatives, fmt.Sprintf("something between the nodes gives the packets another address: %s, which no recorded node has, sends about as many packets to the same pods", x))
	}
	f.Verify = "lasthop check --only " + string(f.Code)
	f.EndsAt = []model.HopKind{model.HopBeyond}
	return f
}

// missingRoute says which rows are missing.
func (j *joint) missingRoute(c *cause, f *model.Finding, senders, receivers []*node) {
	g := c.guess
	f.Code, f.Peers = diagnose.MissingUDR, slices.Clone(g.rows)
	var rows []string
	for _, r := range g.rows {
		for _, n := range receivers {
			if !slices.Contains(n.Ranges, r) {
				continue
			}
			rows = append(rows, fmt.Sprintf("%s -> %s (%s)", r, n.hopOr(r, f), n.name()))
			for _, row := range slices.Concat(n.Rows, n.supposed[r]) {
				if row.Range == r {
					diagnose.AddRows(f, n.withHop(row))
				}
			}
			if n.supposed[r] != nil {
				f.Confidence = model.Likely
				f.Unseen = append(f.Unseen, fmt.Sprintf("the range of the pods of %s (give --nodes): %s holds those that it has", n.name(), r))
			}
		}
	}
	if g.shape == noTable {
		f.Title = fmt.Sprintf("no route between the pods of %s: the subnet has no route table", nodeNames(union(senders, receivers)))
		f.Why = "What pods send to those of other nodes leaves correctly, and none of it arrives at any of them. " +
			"The route table does not apply, or lacks all of these rows: " + few(rows) + "."
		f.Fix = append(slices.Clone(receivers[0].Table), f.Fix...)
		f.Alternatives = []string{"the table applies and lacks all of these rows"}
	} else {
		f.Title = fmt.Sprintf("no route to %s, the pods of %s", g.rows[0], nodeNames(receivers))
		f.Why = fmt.Sprintf("What %s for that range leaves correctly, and nothing of it arrives at %s, whichever of its addresses it is for. "+
			"The network lacks this row: %s.", sends(senders), nodeNames(receivers), few(rows))
		f.Alternatives = []string{byElsewhere}
	}
	if text := j.control(senders, receivers); text.Text != "" {
		f.Evidence = append(f.Evidence, text)
	} else {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "any packet between these nodes that arrives")
	}
	if kinds := c.kinds(); len(kinds) == 1 {
		f.Confidence = model.Likely
		f.Alternatives = append(f.Alternatives, fmt.Sprintf("a network security group drops %s: nothing else was sent there", kindText(kinds[0])))
	}
	g.rivals = slices.DeleteFunc(g.rivals, func(r fault) bool {
		p := j.silentElsewhere(r, g)
		if p != nil {
			f.Evidence = append(f.Evidence, seen(p.node, "%s, so this is not the cause: %s", p.text, r.text()))
		}
		return p != nil
	})
	if slices.ContainsFunc(g.rivals, func(r fault) bool { return r.shape != noRow }) {
		f.Confidence = model.Likely
	}
	f.Alternatives = append(f.Alternatives, "a network security group drops whatever is for these pods")
}

// keepRoutes reports whether those who sent what is lost have routes of their own to other
// recorded nodes' pods, and reach the one that has the range without a router. Then they
// lack such a route, and no network does.
func (j *joint) keepRoutes(c *cause, to *node) bool {
	hop := to.hop(c.guess.row)
	if !hop.IsValid() {
		return false
	}
	for _, w := range c.lost {
		keeps := slices.ContainsFunc(slices.Collect(maps.Keys(w.from.Gateways)), func(a netip.Addr) bool {
			return a.Is4() == hop.Is4() && j.at[a] != nil && j.at[a] != w.from
		})
		if !keeps || !inAny(w.from.Networks, hop) {
			return false
		}
	}
	return true
}

// missingNodeRoute says which nodes lack a route of their own.
func (j *joint) missingNodeRoute(c *cause, f *model.Finding, senders []*node, to *node) {
	row, hop := c.guess.row, to.hop(c.guess.row)
	f.Code, f.Peers = diagnose.MissingNodeRoute, []netip.Prefix{row}
	f.Title = fmt.Sprintf("no route on %s to %s, the pods of %s", nodeNames(senders), row, to.name())
	f.Why = fmt.Sprintf("What %s for that range follows the default route, and nothing of it arrives at %s. The routes to other nodes' pods lead to these nodes: the one to %s by %s is missing.",
		sends(senders), to.name(), row, hop)
	command := "ip"
	if row.Addr().Is6() {
		command = "ip -6"
	}
	for _, n := range senders {
		f.Fix = append(f.Fix, onNodes(n.name()), fmt.Sprintf("%s route replace %s via %s dev %s", command, row, hop, shellName(n.Uplink.Link)))
	}
	c.guess.rivals = nil
}

// rightHop is the address by which the way's destination is reached that the sender's route to it
// does not have for a next hop, and could have: no router is between. Not valid where the route
// leads there, or where that is not known.
func (w *way) rightHop() netip.Addr {
	right := w.to.hops[w.dst().Is4()]
	if w.pair.Via == nil || !w.to.Pods[w.dst()] || w.to.Node[w.pair.Via.Gateway] || !inAny(w.from.Networks, right) {
		return netip.Addr{}
	}
	return right
}

// misrouted makes causes of the nodes' own routes with a wrong next hop, and leaves the ways that
// these do not explain.
func misrouted(open []*way) (rest []*way, out []*cause) {
	for _, w := range open {
		if !w.rightHop().IsValid() {
			rest = append(rest, w)
			continue
		}
		at := slices.IndexFunc(out, func(c *cause) bool { return c.node == w.from && *c.guess.route == *w.pair.Via })
		if at < 0 {
			at = len(out)
			out = append(out, &cause{node: w.from, guess: &guess{fault: fault{shape: filtered, node: w.from, to: w.to}, route: w.pair.Via}})
		}
		out[at].lost = append(out[at].lost, w)
	}
	return rest, out
}

// wrongNodeRoute says where a node's own route leads, and where it should.
func (j *joint) wrongNodeRoute(c *cause, f *model.Finding, to *node) {
	r, right, from := c.guess.route, c.lost[0].rightHop(), c.node.name()
	f.Code, f.Peers = diagnose.WrongNodeRoute, []netip.Prefix{r.Dst}
	leads := r.Gateway.String()
	if other := j.at[r.Gateway]; other != nil {
		leads = other.name() + " at " + leads
	} else {
		f.Confidence = model.Likely
		f.Unseen = []string{"who has " + leads + ": no recorded node"}
		f.Alternatives = []string{fmt.Sprintf("%s is a router that leads to %s, and the packets are lost behind it", leads, to.name())}
	}
	f.Title = fmt.Sprintf("the route on %s for %s leads to %s, not to %s at %s", from, r.Dst, leads, to.name(), right)
	f.Why = fmt.Sprintf("%s has these pods. What %s sends them goes to %s, and nothing of it arrives at %s.", to.name(), from, leads, to.name())
	f.Evidence = append(f.Evidence, model.Evidence{Source: model.SourceRoutes, Text: r.Text, Node: from})
	f.Fix = []string{onNodes(from), r.Replace(right), "find what wrote the route: an agent with an old address of that node writes it again"}
}

// silentElsewhere is the silence of a node that was not watched, where a fault of one
// card does not explain it and a missing table does; nil where there is none.
func (j *joint) silentElsewhere(f fault, g *guess) *example {
	if g.shape != noTable || f.shape != noCard {
		return nil
	}
	for _, n := range j.nodes {
		if n.out || n == f.node {
			continue
		}
		for p := range model.Each(n.Pairs) {
			if _, watched := j.at[p.Remote]; p.Silent && p.Routed && !watched && p.Range.IsValid() && n.rangeOf(p.Local).IsValid() && j.owner(p.Remote) == nil {
				return &example{n, fmt.Sprintf("nothing returns to %s from %s either", p.Local, p.Remote)}
			}
		}
	}
	return nil
}

// wrongRow is the finding on packets that another node gets.
func (c *cause) wrongRow(f *model.Finding, receivers []*node) {
	g, to := c.guess, receivers[0]
	f.Code, f.Peers = diagnose.WrongUDR, slices.Clone(g.rows)
	hop := to.hopOr(g.row, f)
	f.Title = fmt.Sprintf("the route for %s leads to %s, not to %s at %s", g.row, g.via.name(), to.name(), hop)
	f.Why = fmt.Sprintf("What is for the pods of %s leaves right, does not arrive there, and arrives at %s, which sends it back into the network. "+
		"The row of that range has the wrong next hop: it should be %s -> %s (%s).", to.name(), g.via.name(), g.row, hop, to.name())
	for _, side := range []model.Side{model.AsDestination, model.AsSource} {
		seenRows := map[netip.Prefix]bool{}
		for _, w := range c.lost {
			r, word := w.toRange(), "for"
			if side == model.AsSource {
				r, word = w.fromRange(), "from"
			}
			if n := g.via.Returned[diagnose.Transit{Range: r, Side: side}]; n > 0 && !seenRows[r] {
				seenRows[r] = true
				f.Evidence = append(f.Evidence, seen(g.via, "%s ingress and egress: %s %s %s come in and leave again", g.via.Uplink.Link, packets(n), word, r))
			}
		}
	}
	addNode(f, g.via.name())
	for _, row := range to.Rows {
		if row.Range == g.row {
			diagnose.CorrectRow(f, row)
		}
	}
}

// byElsewhere is what a missing row and a wrong one have in common.
const byElsewhere = "the row is there and leads to a machine that was not recorded"

// filtered is the finding on packets of which no larger fault explains the loss.
func (c *cause) filtered(f *model.Finding, senders, receivers []*node) {
	g := c.guess
	f.Code, f.Severity = diagnose.NoReply, model.Warning
	src, dst := c.ends()
	for _, a := range dst {
		f.Peers = append(f.Peers, netip.PrefixFrom(a, a.BitLen()))
	}
	what := fmt.Sprintf("packets from %s to %s", addrs(src), addrs(dst))
	f.Why = fmt.Sprintf("They leave %s correctly and do not arrive at %s: neither node loses them, and no network policy on either.", nodeNames(senders), nodeNames(receivers))
	f.Unseen = []string{"what between the nodes drops them: neither sees that"}
	port := "PORT"
	if g.port != nil {
		port = strconv.Itoa(int(g.port.Port))
	}
	f.Fix = []string{fmt.Sprintf("az network watcher test-ip-flow --direction Inbound --protocol TCP --vm %s --local %s:%s --remote %s:PORT",
		shellName(receivers[0].seen.Node.Name), dst[0], port, src[0])}
	switch {
	case g.port != nil:
		what = kindText(*g.port) + " from " + addrs(src) + " to " + addrs(dst)
		f.Why += " Other packets between these addresses arrive."
		f.Alternatives = []string{"a network security group or a firewall between the nodes drops this port"}
	case g.shape == fromPods:
		what = "what the pods of " + g.node.name() + " send"
		f.Alternatives = []string{fmt.Sprintf("a network security group drops the addresses of the pods of %s, as one does that allows the virtual network's alone", g.node.name())}
	default:
		f.Alternatives = []string{"a network security group or a firewall between the nodes drops these addresses or ports"}
		for _, a := range dst {
			if c.samePasses(a) {
				f.Why += " Other packets for " + a.String() + " arrive."
			}
		}
		if r := receivers[0].rangeOf(dst[0]); len(dst) == 1 && r.IsValid() && c.lost[0].pair.Routed && !g.isStruck(noRow) {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("the network lacks the route to %s, or it leads elsewhere: no other of its addresses was asked for", r))
		}
	}
	f.Title = fmt.Sprintf("lost between %s and %s: %s", nodeNames(senders), nodeNames(receivers), what)
	g.rivals = slices.DeleteFunc(g.rivals, func(r fault) bool { return r.shape <= noRow })
}

// ends are the addresses that what is lost is from, and for.
func (c *cause) ends() (src, dst []netip.Addr) {
	for _, w := range c.lost {
		src, dst = append(src, w.src()), append(dst, w.dst())
	}
	return unique(src), unique(dst)
}

func (g *guess) isStruck(s shape) bool {
	return slices.ContainsFunc(g.struck, func(r refuted) bool { return r.shape == s })
}

// samePasses reports whether a lost way's destination got other packets.
func (c *cause) samePasses(a netip.Addr) bool {
	for _, w := range c.lost {
		if w.dst() != a {
			continue
		}
		for p := range model.Each(w.to.Pairs) {
			if p.Local == a && p.In.Packets > 0 {
				return true
			}
		}
	}
	return false
}

// control is what shows that packets do pass between the nodes. What may carry a tunnel
// is not counted: it may be what is lost.
func (j *joint) control(senders, receivers []*node) model.Evidence {
	var best *way
	for _, w := range j.ways {
		if w.state == arrived && (!w.mayCarry() || w.far.In.Requests+w.far.In.Replies > 0) && slices.Contains(senders, w.from) && slices.Contains(receivers, w.to) && (best == nil || w.isNode() && !best.isNode()) {
			best = w
		}
	}
	if best == nil {
		return model.Evidence{}
	}
	got := best.got()
	if best.mayCarry() {
		got = best.far.In.Requests + best.far.In.Replies
	}
	return seen(best.to, "%s ingress: %s from %s for %s, so packets of %s do arrive", best.to.Uplink.Link, packets(got), best.src(), best.dst(), best.from.name())
}

// text is the fault in words, as what else may be the cause.
func (f fault) text() string {
	switch f.shape {
	case noTable:
		return "the subnet has no route table"
	case noRow:
		return "the network lacks the route to " + f.row.String()
	case noCard:
		return "the NIC of " + f.node.name() + " does not forward (IP forwarding off)"
	}
	return "a network security group drops what the pods of " + f.node.name() + " send"
}

// sides are the nodes that sent what was lost, and those that it was for.
func (c *cause) sides() (senders, receivers []*node) {
	for _, w := range c.lost {
		senders, receivers = append(senders, w.from), append(receivers, w.to)
	}
	return union(senders, nil), union(receivers, nil)
}

func union(a, b []*node) []*node {
	out := slices.Concat(a, b)
	slices.SortFunc(out, func(a, b *node) int { return cmp.Compare(a.name(), b.name()) })
	return slices.Compact(out)
}

// pods are the pods at both ends of what is lost, those behind a node's address
// included.
func (c *cause) pods() []netip.Addr {
	var out []netip.Addr
	for _, w := range c.lost {
		if w.from.Pods[w.src()] {
			out = append(out, w.src())
		}
		if w.to.Pods[w.dst()] {
			out = append(out, w.dst())
		}
	}
	for _, t := range c.talks {
		if t.asker.Pods[t.a] {
			out = append(out, t.a)
		}
		out = append(out, t.pair.Behind...)
	}
	return unique(out)
}

// kinds are the protocols and ports that were tried, where that is known.
func (c *cause) kinds() []diagnose.Asked {
	var out []diagnose.Asked
	for _, w := range c.lost {
		for _, k := range w.pair.Asked {
			if !slices.ContainsFunc(out, k.Same) {
				out = append(out, k)
			}
		}
	}
	return out
}

func kindText(k diagnose.Asked) string {
	if k.Port == 0 {
		return model.ProtoName(k.Proto)
	}
	return fmt.Sprintf("port %d/%s", k.Port, model.ProtoName(k.Proto))
}

// translated is an address that no recorded node has, from which as much arrives at
// the destinations as was sent to them; not valid where none is.
func (j *joint) translated(c *cause) netip.Addr {
	sent := map[netip.Addr]float64{}
	to := map[netip.Addr]*node{}
	for _, w := range c.lost {
		sent[w.dst()] += w.to.longer(w.from) * float64(w.sent())
		to[w.dst()] = w.to
	}
	for _, dst := range unique(keys(sent)) {
		for p := range model.Each(to[dst].Pairs) {
			_, recorded := j.at[p.Remote]
			if got := float64(p.In.Packets); p.Local == dst && !recorded && p.In.Requests > 0 && !p.Range.IsValid() &&
				!inAny(to[dst].Networks, p.Remote) && got <= 3*sent[dst] && sent[dst] <= 3*got {
				return p.Remote
			}
		}
	}
	return netip.Addr{}
}

func keys[V any](m map[netip.Addr]V) []netip.Addr {
	var out []netip.Addr
	for a := range m {
		out = append(out, a)
	}
	return out
}

func nodeNames(list []*node) string {
	names := make([]string, len(list))
	for i, n := range list {
		names[i] = n.name()
	}
	return few(names)
}

// few lists words, the first ones of many.
func few(words []string) string {
	const most = 4
	if len(words) > most {
		return strings.Join(words[:most], ", ") + fmt.Sprintf(" and %d more", len(words)-most)
	}
	return strings.Join(words, ", ")
}

func sends(list []*node) string {
	if len(list) == 1 {
		return list[0].name() + " sends"
	}
	return nodeNames(list) + " send"
}

// shellName is a node's name where a shell reads it.
func shellName(name string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return !(r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) {
		return "NODE"
	}
	return name
}
