// Package reach sums up who reaches whom: the pods of a node by destinations. It is pure, and
// made from what was counted and judged.
package reach

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

const dnsPort = 53

// pair is what was seen of a pod and one address.
type pair struct {
	model.MatrixPair
	to model.Destination
	// replied: something shows that packets pass both ways. asked: a connection between pods of the node began and got no
	// reply. both: other packets were counted in both directions, which may be the same ones where a bridge floods.
	replied, asked, both bool
	// silent: requests left and no reply came; ordinary: as in a healthy network. faulty: the
	// finding is no mere information.
	silent, ordinary, faulty bool
}

type builder struct {
	*model.Snapshot
	// findings are those that are no mere information, by the pods that they are about.
	findings map[netip.Addr][]*model.Finding
	faults   map[model.Code]bool
	columns
	pods  map[netip.Addr]bool
	pairs map[[2]netip.Addr]*pair
	// hidden are the pairs whose packets leave with an address of the node, by that and the peer.
	hidden map[[2]netip.Addr][]*pair
}

// Matrix is that of the snapshot which a verdict is on.
func Matrix(v model.Verdict) model.Matrix {
	b := &builder{
		Snapshot: v.On, columns: newColumns(v.On), findings: map[netip.Addr][]*model.Finding{}, faults: map[model.Code]bool{},
		pods: map[netip.Addr]bool{}, pairs: make(map[[2]netip.Addr]*pair, len(v.On.Traffic.Peers)), hidden: map[[2]netip.Addr][]*pair{},
	}
	for f := range model.Each(v.Findings) {
		if f.Severity.Rank() >= model.Warning.Rank() {
			b.faults[f.Code] = true
			for _, a := range f.Pods {
				b.findings[a] = append(b.findings[a], f)
			}
		}
	}
	for p := range model.Each(v.On.Pods) {
		for _, a := range p.Known() {
			b.pods[a] = true
		}
	}
	b.flows()
	b.peers()
	b.drops(v.Causes)
	b.silences(v.Silences)
	b.explained()
	return b.matrix()
}

// pair is that of a pod with another address; nil where the one is none of the node's pods, or the other has no owner.
func (b *builder) pair(pod, peer netip.Addr) *pair {
	if !b.pods[pod] || !model.Unicast(peer) {
		return nil
	}
	k := [2]netip.Addr{pod, peer}
	if b.pairs[k] == nil {
		b.pairs[k] = &pair{MatrixPair: model.MatrixPair{Pod: pod, Peer: peer}, to: b.destination(peer)}
	}
	return b.pairs[k]
}

// columns are those of ranges. A longer range counts before a shorter one.
type columns struct {
	of   map[netip.Prefix]model.Destination
	bits map[int]bool
	most []int
}

// newColumns are the columns of a snapshot's ranges.
func newColumns(s *model.Snapshot) columns {
	c := columns{of: map[netip.Prefix]model.Destination{}, bits: map[int]bool{}}
	elsewhere := model.Destination{Kind: model.ToNode, Name: "other nodes"}
	for n := range model.Each(s.Cluster.Nodes) {
		for _, p := range n.PodCIDRs {
			there := model.Destination{Kind: model.ToNode, Name: cmp.Or(n.Name, p.String())}
			c.add(p, model.Either(n.Name == s.Node.Name, model.Destination{Kind: model.ToPods}, there))
		}
		for _, a := range n.Addresses {
			c.add(model.Host(a), model.Destination{Kind: model.ToNetwork})
		}
	}
	for h := range model.Each(s.Traffic.Hops) {
		if h.Prefix.IsValid() {
			c.add(h.Prefix, model.Destination{Kind: model.ToNode, Name: h.Prefix.String()})
		}
	}
	outward := map[int]bool{}
	for l := range model.Each(s.Links) {
		if l.Role == model.RoleUplink {
			outward[l.Index], outward[l.Master] = true, true
		}
	}
	for l := range model.Each(s.Links) {
		to := model.Either(outward[l.Index], model.ToNetwork, model.ToPods)
		for _, p := range l.Addresses {
			c.add(p.Masked(), model.Destination{Kind: to})
			c.add(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), model.Destination{Kind: model.ToNetwork})
		}
	}
	for p := range model.Each(s.Cluster.Pods) {
		for _, a := range p.Addresses {
			c.add(netip.PrefixFrom(a, a.BitLen()), elsewhere)
		}
	}
	for _, p := range s.Cluster.PodCIDRs {
		c.add(p, elsewhere)
	}
	for _, p := range private {
		c.add(p, model.Destination{Kind: model.ToNetwork})
	}
	c.most = slices.Sorted(maps.Keys(c.bits))
	slices.Reverse(c.most)
	return c
}

// add gives a range a column, unless it has one.
func (c *columns) add(p netip.Prefix, d model.Destination) {
	if p = p.Masked(); p.IsValid() && c.of[p].Kind == "" {
		c.of[p], c.bits[p.Bits()] = d, true
	}
}

// private are the ranges of no part of the internet. Clouds use RFC 6598's too.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::1/128"),
}

// destination is the column of an address that is not known to be a service.
func (b *builder) destination(a netip.Addr) model.Destination {
	if b.pods[a] {
		return model.Destination{Kind: model.ToPods}
	}
	for _, bits := range b.most {
		if p, err := a.Prefix(bits); err == nil && b.of[p].Kind != "" {
			return b.of[p]
		}
	}
	return model.Destination{Kind: model.ToInternet}
}

// flows takes what connection tracking knows: which addresses are services, and who replied.
func (b *builder) flows() {
	for f := range model.Each(b.Flows) {
		began := !f.Start.IsZero()
		if p := b.pair(f.Original.Src, f.Reply.Src); p != nil {
			switch {
			case f.Original.DstPort == dnsPort:
				p.to = model.Destination{Kind: model.ToDNS}
			case f.Original.Dst != f.Reply.Src && p.to.Kind != model.ToDNS:
				p.to = model.Destination{Kind: model.ToServices}
			}
			if f.Reply.Dst != f.Original.Src {
				k := [2]netip.Addr{f.Reply.Dst, f.Reply.Src}
				b.hidden[k] = append(b.hidden[k], p)
			}
			b.take(p, f, began)
		}
		if p := b.pair(f.Reply.Src, f.Original.Src); p != nil {
			b.take(p, f, began)
		}
	}
}

// take takes a connection of a pair. One whose handshake did not end shows packets in one direction.
func (b *builder) take(p *pair, f *model.Flow, began bool) {
	half := f.State == "SYN_SENT" || f.State == "SYN_RECV" || f.State == "SYN_SENT2"
	switch {
	case began && f.Replied && !half:
		p.replied = true
	case began && f.Proto == 6 && b.pods[p.Peer] && b.Window.Settled(f.Start):
		p.asked = true
	}
}

// peers takes what uplinks count. What a pod replies does not show that it arrives.
func (b *builder) peers() {
	for x := range model.Each(b.Traffic.Peers) {
		if x.Range.IsValid() {
			continue
		}
		if p := b.pair(x.Local, x.Remote); p != nil {
			p.Sent, p.Received = p.Sent+x.Out.Packets, p.Received+x.In.Packets
			p.replied = p.replied || x.In.Replies > 0
			p.both = p.both || x.In.Other > 0 && x.Out.Other > 0
		}
	}
}

// drops takes what the node dropped and a finding explains.
func (b *builder) drops(causes []model.DropCause) {
	for i := range b.Traffic.Drops {
		d := &b.Traffic.Drops[i]
		if i >= len(causes) || causes[i].Code == "" {
			continue
		}
		for _, p := range []*pair{b.pair(d.Src, d.Dst), b.pair(d.Dst, d.Src)} {
			if p != nil {
				p.Lost, p.Code = p.Lost+d.Packets, causes[i].Code
			}
		}
	}
}

// silences takes the pairs of which requests left and no reply came.
func (b *builder) silences(list []model.Silence) {
	for x := range model.Each(list) {
		of := b.hidden[[2]netip.Addr{x.Local, x.Remote}]
		if p := b.pair(x.Local, x.Remote); p != nil {
			of = []*pair{p}
		}
		for _, p := range of {
			p.silent, p.ordinary, p.Code = true, x.Ordinary != "" && !x.Ordinary.Open(), cmp.Or(p.Code, x.Code)
		}
	}
}

// explained takes the findings on pairs of which nothing else tells what became of them.
func (b *builder) explained() {
	for _, p := range b.pairs {
		p.replied = p.replied || p.both && !p.silent
		if p.Code == "" && !p.replied && !(p.silent && p.ordinary) {
			if f := model.Find(b.findings[p.Pod], func(f *model.Finding) bool { return model.InAny(f.Peers, p.Peer) }); f != nil {
				p.Code = f.Code
			}
		}
		p.faulty = b.faults[p.Code]
	}
}

// reach is what became of a pair's packets.
func (p *pair) reach() model.Reach {
	passed := p.Sent+p.Received > 0
	switch {
	case p.replied && p.faulty:
		return model.ReachLossy
	case p.replied:
		return model.ReachWell
	case p.faulty && (p.silent || passed):
		return model.ReachOneWay
	case p.faulty:
		return model.ReachDead
	case p.silent && p.ordinary:
		return model.ReachSilent
	case p.silent, p.asked, passed, p.Code != "":
		return model.ReachUnclear
	}
	return model.ReachNone
}

func (b *builder) matrix() model.Matrix {
	var m model.Matrix
	cells := map[netip.Addr]map[model.Destination]*model.MatrixCell{}
	seen := map[model.Destination]model.Reach{}
	for _, p := range b.pairs {
		if p.Reach = p.reach(); p.Reach == model.ReachNone {
			continue
		}
		row := cells[p.Pod]
		if row == nil {
			row = map[model.Destination]*model.MatrixCell{}
			cells[p.Pod] = row
		}
		c := model.GetOrInsert(row, p.to)
		c.Sent, c.Received, c.Lost = c.Sent+p.Sent, c.Received+p.Received, c.Lost+p.Lost
		c.Pairs = append(c.Pairs, p.MatrixPair)
		if _, known := seen[p.to]; !known {
			m.Columns = append(m.Columns, p.to)
		}
		seen[p.to] = seen[p.to].Join(p.Reach)
	}
	slices.SortFunc(m.Columns, func(a, b model.Destination) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), cmp.Compare(seen[b].Rank(), seen[a].Rank()), cmp.Compare(a.Name, b.Name))
	})
	dead := map[netip.Addr]int{}
	for a := range b.pods {
		r := b.row(a, cells[a], m.Columns)
		for _, c := range r.Cells {
			if c != nil && c.Reach.Dead() {
				dead[a]++
			}
		}
		m.Rows = append(m.Rows, r)
	}
	slices.SortFunc(m.Rows, func(a, b model.MatrixRow) int {
		return cmp.Or(cmp.Compare(b.Reach.Rank(), a.Reach.Rank()), cmp.Compare(dead[b.Pod], dead[a.Pod]), a.Pod.Compare(b.Pod))
	})
	return m
}

// row is that of a pod, with its cells by columns. Connections between pods of the node, and those
// that leave with its address, are known by connection tracking alone.
func (b *builder) row(a netip.Addr, cells map[model.Destination]*model.MatrixCell, columns []model.Destination) model.MatrixRow {
	r := model.MatrixRow{
		Pod: a, Cells: make([]*model.MatrixCell, len(columns)),
		Whole: b.Has(model.SourceTC, model.SourceConntrack) && b.Traffic.Lost.Of(a).Peers == 0,
	}
	shown := map[model.Code]bool{}
	for i, d := range columns {
		c := cells[d]
		if c == nil {
			continue
		}
		slices.SortFunc(c.Pairs, worstFirst)
		for _, p := range c.Pairs {
			c.Reach = c.Reach.Join(p.Reach)
			shown[p.Code] = true
		}
		r.Cells[i], r.Reach = c, r.Reach.Join(c.Reach)
	}
	for _, f := range b.findings[a] {
		if f.Severity == model.Critical && !shown[f.Code] {
			// What such a pod sends does not even become a pair.
			r.Reach = r.Reach.Join(model.ReachDead)
		}
	}
	return r
}

// kinds is the order of the columns.
var kinds = []model.DestinationKind{model.ToPods, model.ToNode, model.ToServices, model.ToDNS, model.ToNetwork, model.ToInternet}

func worstFirst(a, b model.MatrixPair) int {
	return cmp.Or(
		cmp.Compare(b.Reach.Rank(), a.Reach.Rank()), cmp.Compare(b.Lost, a.Lost),
		cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), a.Peer.Compare(b.Peer),
	)
}
