// Package join judges several nodes' observations of one time together. What one node can only suppose of the
// others, since it does not see them, the observations of both ends of a flow show: whether packets arrived,
// who replied, and on which leg they were lost.
//
// It is pure, and compares pairs of addresses at the uplinks. Windows overlap and
// need not be equal, and clocks differ. So what counts are presence and proportions in
// the time common to the windows, never the equality of counts nor absolute time.
package join

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	nodeindex "github.com/lasthop/lasthop/probe/node"
)

// Source is one node's recording.
type Source struct {
	// Name is that of the recording, in what is said of it.
	Name string
	// Read returns its snapshot, the same each time: it may be called twice, so that not all snapshots need be
	// held at once. Those of several sources are called at the same time.
	Read func() (*model.Snapshot, error)
	// Within returns its traffic within a part of its window, and around another; nil
	// without error where nothing is within. It may be nil itself.
	Within func(within, around model.Window) (inner, outer *model.Snapshot, err error)
	// Tables are the findings on pairs without packets, by the node's tables, which its verdict does not have; it may be nil.
	Tables func(s *model.Snapshot, verdict []model.Finding) []model.Finding
	// Cut says why the recording is not whole; empty if it is.
	Cut string
}

// Result is what several nodes' observations come to.
type Result struct {
	// Nodes are sorted by name. Failed ones have a Recording and a Reason alone.
	Nodes []model.NodeSeen
	// Findings are in the order of diagnose.Judge.
	Findings []model.Finding
}

// apart is how long after the end of another an observation may begin to be of its time. Clocks may differ by minutes.
const apart = 10 * time.Minute

// Judge reads each source, and judges them together. The order of the sources
// does not matter. A source that cannot be read is named in the result.
func Judge(sources []Source) Result {
	var g Group
	onAllCPUs(len(sources), func(i int) { g.Add(sources[i]) })
	return g.Judge()
}

// Group are sources that become known one after the other. Each is read at once, and what is
// judged of it alone is kept. The zero value is empty.
type Group struct {
	mu    sync.Mutex
	nodes []*node
}

// Add reads a source. It may be called by several at the same time.
func (g *Group) Add(src Source) {
	n := newNode(src)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nodes = append(g.nodes, n)
}

// Judge judges all that were added together.
func (g *Group) Judge() Result {
	nodes := g.nodes
	slices.SortFunc(nodes, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.seen.Node.Name, b.seen.Node.Name), cmp.Compare(a.seen.Recording, b.seen.Recording))
	})
	setApart(nodes)
	setClocks(nodes)
	nameApart(nodes)
	j := &joint{nodes: nodes, in: compared(nodes), at: map[netip.Addr]*node{}, keyed: map[any]*cause{}}
	j.locate()
	j.nextHops()
	j.suppose()
	j.follow()
	j.introduce()
	j.explain()
	r := Result{Findings: j.findings()} // which may say more of nodes
	r.Nodes = model.Map(nodes, func(n *node) model.NodeSeen { return n.seen })
	return r
}

// onAllCPUs does something n times: to read and judge each node is most of the work.
func onAllCPUs(n int, do func(i int)) {
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		all.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = all.Wait() // none fails
}

// node is one node's observation, in brief.
type node struct {
	source Source
	seen   model.NodeSeen
	*model.Ends
	// rest are the findings but for the consequences of causes elsewhere.
	findings, rest []model.Finding
	// blind says why its silence proves nothing; empty where it does.
	blind string
	// out is set where it is not compared with the others.
	out bool
	// supposed are those of Ranges that other nodes take for its own.
	supposed []netip.Prefix
	// ahead is how far its clock is ahead of the first node's, and unsure how far that may be wrong.
	ahead, unsure time.Duration
	// hops are the addresses that routes to its pods have for a next hop, by whether they
	// are of IPv4; none where that may be one of several.
	hops map[bool]netip.Addr
	// whole is all that it counted, inner and outer what it did within the time common to it and
	// others, and around that: nil where that was not needed, or is not known.
	whole, inner, outer *span
	// settled are the pairs that causes explain, lost those whose packets left and did not arrive at the other end, waits
	// those of others' ends that wait for what the node dropped. vacant are the addresses that its pods ask for and that no
	// pod has, with the node that says so.
	settled, lost, waits map[nodeindex.Pair]bool
	vacant               map[netip.Addr]string
	// introduced: the node was judged with what recordings show of the others.
	introduced bool
	// diedOut are packets by source and destination that the node dropped after its uplink had counted them as they left,
	// diedIn those that it dropped before they were counted as they came.
	diedOut, diedIn map[nodeindex.Pair]uint64
}

func newNode(src Source) *node {
	n := &node{source: src, seen: model.NodeSeen{Recording: src.Name}, settled: map[nodeindex.Pair]bool{},
		lost: map[nodeindex.Pair]bool{}, waits: map[nodeindex.Pair]bool{}, vacant: map[netip.Addr]string{},
		diedOut: map[nodeindex.Pair]uint64{}, diedIn: map[nodeindex.Pair]uint64{}}
	s, err := src.Read()
	if err != nil {
		n.seen.Reason, n.seen.Failed, n.out = err.Error(), true, true
		return n
	}
	n.seen.Node, n.seen.Window, n.seen.Sources, n.seen.Lost, n.seen.Pods = s.Node, s.Window, s.Sources, s.Traffic.Lost,
		len(s.Pods)
	n.Ends, n.findings = diagnose.Observe(s)
	n.whole = &span{s.Window, nil, n.Leaving, n.Arriving}
	for d := range model.Each(n.Dropped) {
		switch {
		case !n.Uplinks[d.IfIndex]:
		case d.Is(model.AtEgress | model.Transmitting | model.Queued):
			n.diedOut[nodeindex.Pair{Local: d.Src, Remote: d.Dst}] += d.Packets
		case d.Is(model.AtXDP):
			n.diedIn[nodeindex.Pair{Local: d.Src, Remote: d.Dst}] += d.Packets
		}
	}
	n.blind = cmp.Or(src.Cut, n.Unwatched)
	n.seen.Reason = n.blind
	return n
}

// setApart takes out of the comparison what is not of one time: all but the most
// observations that are, and of one node all but the latest.
func setApart(nodes []*node) {
	end := func(n *node) time.Time { return n.seen.Window.End }
	in := compared(nodes)
	var best []*node
	for _, first := range in {
		group := model.Filter(in, func(n *node) bool {
			return n == first || !end(n).Before(end(first)) && n.seen.Window.Start.Sub(end(first)) <= apart
		})
		if len(group) > len(best) || len(group) == len(best) && end(group[0]).After(end(best[0])) {
			best = group
		}
	}
	for _, n := range in {
		if !slices.Contains(best, n) {
			n.out, n.seen.Reason = true, fmt.Sprintf("its window is more than %v apart from the others'", apart)
		}
	}
	slices.SortStableFunc(best, func(a, b *node) int { return end(a).Compare(end(b)) })
	for i, older := range best {
		later := model.Filter(best[i+1:], func(n *node) bool { return sameNode(older, n) })
		if len(later) > 0 {
			older.out, older.seen.Reason = true, "a later recording of the same node is "+later[0].seen.Recording
			older.findings = nil
		}
	}
}

func sameNode(a, b *node) bool {
	shared := func(x netip.Addr) bool { return x.IsGlobalUnicast() && b.Node[x] }
	return a.seen.Node.Name == b.seen.Node.Name &&
		(len(a.Node)+len(b.Node) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(a.Node)), shared))
}

// nameApart gives nodes without a name that of their recording, and adds it to names that several have.
func nameApart(nodes []*node) {
	count := map[string]int{}
	for _, n := range nodes {
		count[n.seen.Node.Name]++
	}
	for _, n := range nodes {
		name := n.seen.Node.Name
		if n.seen.Name = cmp.Or(name, n.seen.Recording); name != "" && count[name] > 1 {
			n.seen.Name += " (" + n.seen.Recording + ")"
		}
	}
}

// String is the node's name; empty for no node.
func (n *node) String() string {
	if n == nil {
		return ""
	}
	return n.seen.Name
}

// Machine is the node's name in the cloud, as far as it is known.
func (n *node) Machine() string { return cmp.Or(n.seen.Node.Name, "NODE") }

// joint is the comparison in progress.
type joint struct {
	nodes []*node
	// in are those that are compared.
	in []*node
	// at says which node has an address; nil where several do.
	at map[netip.Addr]*node
	// legs are those that packets took from one node to another, conversations the pairs
	// of which an end waits for replies.
	legs          []*leg
	conversations []*conversation
	// gets are what nodes found of what they get that is for others: for others' pods, or dropped while others wait for it.
	gets []cause
	// causes explain the conversations, keyed are those of them that are looked up by what they are.
	causes []*cause
	keyed  map[any]*cause
}

func compared(nodes []*node) []*node {
	return model.Filter(nodes, func(n *node) bool { return !n.out })
}

func (j *joint) locate() {
	for _, n := range j.in {
		for _, set := range []map[netip.Addr]bool{n.Node, n.Pods, n.Fresh} {
			for a := range set {
				if other, taken := j.at[a]; a.IsGlobalUnicast() {
					j.at[a] = model.Either(taken && other != n, nil, n)
				}
			}
		}
	}
}

// own are the nodes' own findings with some traits.
func (j *joint) own(traits model.Trait) []cause {
	return model.Flat(j.in, func(n *node) []cause {
		found := model.Chosen(n.findings, func(f *model.Finding) bool { return f.Is(traits) })
		return model.Map(found, func(f *model.Finding) cause { return cause{node: n, found: f} })
	})
}

// suppose gives nodes whose pods' range is not known the one that another node takes for it, and finds silent:
// that of a missing route, where it holds the node's pods and no other's.
func (j *joint) suppose() {
	holders := map[netip.Prefix]*node{}
	for _, c := range j.own(model.Unheard | model.ByRoute) {
		for _, p := range c.found.Peers {
			owner, known := holders[p]
			if !known {
				owner = j.holder(p)
				holders[p] = owner
			}
			if owner == nil || owner == c.node ||
				slices.ContainsFunc(owner.Ranges, func(r netip.Prefix) bool { return r.Addr().Is4() == p.Addr().Is4() }) {
				continue
			}
			owner.Ranges, owner.supposed = append(owner.Ranges, p), append(owner.supposed, p)
			for _, row := range c.found.Rows {
				if row.Range == p {
					row.Node = owner.seen.Node.Name
					owner.Rows = append(owner.Rows, owner.withHop(row))
				}
			}
		}
	}
}

// introduce has nodes judged anew that lack routes of their own to others or have wrong ones, that get what is for others'
// pods, or that drop what others wait for: what the recordings show of the others is for them as a file of the nodes.
func (j *joint) introduce() {
	routes := map[*node]bool{}
	for _, w := range model.Filter(j.legs, (*leg).isLost) {
		w.from.lost[nodeindex.Pair{Local: w.src(), Remote: w.dst()}] = true
		routes[w.from] = routes[w.from] || !w.pair.Routed
	}
	onAllCPUs(len(j.in), func(i int) {
		n := j.in[i]
		for d := range model.Each(n.Dropped) {
			k := nodeindex.Pair{Local: d.Src, Remote: d.Dst}
			if o := j.at[d.Src]; o != nil && o != n && !n.Pods[d.Dst] && o.Pair(d.Src, d.Dst).Silent {
				n.waits[k] = true
			}
		}
		keeps := func(a netip.Addr) bool { return j.at[a] != nil && j.at[a] != n }
		known := func(f *model.Finding) bool { return f.Is(model.Foreign) || f.Is(model.OnlySent) }
		n.introduced = routes[n] || len(n.waits) > 0 || model.First(n.findings, known) != nil ||
			len(n.lost) > 0 && slices.ContainsFunc(slices.Collect(maps.Keys(n.Gateways)), keeps)
		if !n.introduced {
			return
		}
		if s, err := n.source.Read(); err == nil {
			n.findings = diagnose.Besides(s, j.beyond(n))
		}
	})
}

// beyond is what the others know, and a node does not see.
func (j *joint) beyond(n *node) nodeindex.Beyond {
	b := nodeindex.Beyond{Explains: n.settled, Vacant: n.vacant, Lost: n.lost, Waits: n.waits}
	if n.introduced {
		b.Nodes = j.others(n)
	}
	return b
}

// others are the recorded nodes whose address for routes is known, but for one of them.
func (j *joint) others(but *node) (out []model.ClusterNode) {
	for _, n := range j.in {
		known := model.Filter([]netip.Addr{n.hops[true], n.hops[false]}, netip.Addr.IsValid)
		if n != but && len(known) > 0 {
			out = append(out, model.ClusterNode{Name: n.seen.Node.Name, Addresses: known, PodCIDRs: n.Ranges})
		}
	}
	return out
}

// holder is the only node that has pods in a range; nil where several do, or none.
func (j *joint) holder(p netip.Prefix) *node {
	if has := model.Filter(j.in, func(n *node) bool { return n.holds(p) }); len(has) == 1 {
		return has[0]
	}
	return nil
}

func (n *node) holds(p netip.Prefix) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(n.Pods)), p.Contains)
}

// owner is the node whose pod range holds an address, or that has found out that a
// pod of its own should have it, or gives it to its pods' packets.
func (j *joint) owner(a netip.Addr) *node {
	for _, owns := range []func(n *node) bool{
		func(n *node) bool { return model.InAny(n.Own, a) || model.InAny(n.Ranges, a) },
		func(n *node) bool {
			return model.First(n.findings, func(f *model.Finding) bool { return slices.Contains(f.Pods, a) && !f.Is(model.Unheard) }) != nil
		},
		func(n *node) bool { return len(n.Given[a]) > 0 },
	} {
		if n := model.Find(j.in, owns); n != nil {
			return n
		}
	}
	return nil
}

// rangeOf is the node's pod range that holds an address; not valid where none does.
func (n *node) rangeOf(a netip.Addr) netip.Prefix {
	return model.Find(n.Ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
