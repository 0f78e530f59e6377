// Package join judges several nodes' observations of one time together. What one
// node can only suppose of the others, since it does not see them, the observations
// of both ends of a flow show: whether packets arrived, who replied, and on which
// way they were lost.
//
// It is pure, and compares pairs of addresses at the uplinks. Windows overlap and
// need not be equal, and clocks differ. So what counts are presence and proportions in
// the time common to the windows, never the equality of counts nor absolute time.
package join

import (
	"cmp"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// Source is one node's recording.
type Source struct {
	// Name is that of the recording, in what is said of it.
	Name string
	// Read returns its snapshot, the same each time: it may be called twice, so
	// that not all snapshots need be held at once. Those of several sources are
	// called at the same time.
	Read func() (*model.Snapshot, error)
	// Within returns its traffic within a part of its window, and around another; nil
	// without error where nothing is within. It may be nil itself.
	Within func(within, around model.Window) (inner, outer *model.Snapshot, err error)
	// Cut says why the recording is not whole; empty if it is.
	Cut string
}

// Result is what several nodes' observations come to.
type Result struct {
	// Nodes are sorted by name. Failed ones have a Recording and a Reason alone.
	Nodes []model.NodeSeen
	// Findings are in the order of diagnose.Diagnose.
	Findings []model.Finding
}

// apart is how long after the end of another an observation may begin to be of its
// time. Clocks may differ by minutes.
const apart = 10 * time.Minute

// Judge reads each source, and judges them together. The order of the sources
// does not matter. A source that cannot be read is named in the result.
func Judge(sources []Source) Result {
	nodes := readAll(sources)
	slices.SortFunc(nodes, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.seen.Node.Name, b.seen.Node.Name), cmp.Compare(a.seen.Recording, b.seen.Recording))
	})
	setApart(nodes)
	setClocks(nodes)
	nameApart(nodes)
	j := &joint{nodes: nodes, at: map[netip.Addr]*node{}, settled: map[*node]map[ends]bool{}}
	j.locate()
	j.nextHops()
	j.suppose()
	j.follow()
	j.explain()
	r := Result{Findings: j.findings()}
	for _, n := range nodes {
		r.Nodes = append(r.Nodes, n.seen)
	}
	return r
}

// readAll reads the sources.
func readAll(sources []Source) []*node {
	nodes := make([]*node, len(sources))
	onAllCPUs(len(sources), func(i int) { nodes[i] = newNode(sources[i]) })
	return nodes
}

// onAllCPUs does something n times: to read and judge each node is most of the work.
func onAllCPUs(n int, do func(i int)) {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wait.Wait()
}

// ends are a local and a remote address.
type ends struct{ local, remote netip.Addr }

// node is one node's observation, in brief.
type node struct {
	source Source
	seen   model.NodeSeen
	*diagnose.Ends
	findings []model.Finding
	// blind says why its silence proves nothing; empty where it does.
	blind string
	// out is set where it is not compared with the others.
	out bool
	// supposed are those of Ranges that other nodes take for its own, with the rows
	// that they print for them.
	supposed map[netip.Prefix][]model.Row
	// ahead is how far its clock is ahead of the first node's, and unsure how far that may
	// be wrong.
	ahead, unsure time.Duration
	// hops are the addresses that routes to its pods have for a next hop, by whether they
	// are of IPv4; none where that may be one of several.
	hops map[bool]netip.Addr
	// whole is all that it counted, inner and outer what it did within the time common to it and
	// others, and around that: nil where that was not needed, or is not known.
	whole, inner, outer *span
}

func newNode(src Source) *node {
	n := &node{source: src, seen: model.NodeSeen{Recording: src.Name}}
	s, err := src.Read()
	if err != nil {
		n.seen.Reason, n.seen.Failed, n.out = err.Error(), true, true
		return n
	}
	n.seen.Node, n.seen.Window, n.seen.Sources, n.seen.Lost, n.seen.Pods = s.Node, s.Window, s.Sources, s.Traffic.Lost, len(s.Pods)
	n.Ends, n.findings = diagnose.Observe(s)
	n.whole = &span{s.Window, nil, n.Leaving, n.Arriving}
	n.blind = cmp.Or(src.Cut, n.Unwatched)
	n.seen.Reason = n.blind
	return n
}

// pair is what the node saw between two addresses; nil where that is nothing.
func (n *node) pair(local, remote netip.Addr) *diagnose.EndPair {
	if i := n.Pair(local, remote); i >= 0 {
		return &n.Pairs[i]
	}
	return nil
}

// setApart takes out of the comparison what is not of one time: all but the most
// observations that are, and of one node all but the latest.
func setApart(nodes []*node) {
	end := func(n *node) time.Time { return n.seen.Window.End }
	var best []*node
	for _, first := range nodes {
		if first.out {
			continue
		}
		var group []*node
		for _, n := range nodes {
			if n == first || !n.out && !end(n).Before(end(first)) && n.seen.Window.Start.Sub(end(first)) <= apart {
				group = append(group, n)
			}
		}
		if len(group) > len(best) || len(group) == len(best) && end(group[0]).After(end(best[0])) {
			best = group
		}
	}
	for _, n := range nodes {
		if !n.out && !slices.Contains(best, n) {
			n.out, n.seen.Reason = true, fmt.Sprintf("its window is more than %v from that of the others", apart)
		}
	}
	for i, n := range nodes {
		for _, o := range nodes[i+1:] {
			if n.out || o.out || !sameNode(n, o) {
				continue
			}
			older, newer := n, o
			if end(n).After(end(o)) {
				older, newer = o, n
			}
			older.out, older.seen.Reason = true, "a later recording of the same node is "+newer.seen.Recording
			older.findings = nil
		}
	}
}

// sameNode reports whether two observations are of one node.
func sameNode(a, b *node) bool {
	if a.seen.Node.Name != b.seen.Node.Name {
		return false
	}
	for addr := range a.Node {
		if addr.IsGlobalUnicast() && b.Node[addr] {
			return true
		}
	}
	return len(a.Node) == 0 && len(b.Node) == 0
}

// nameApart gives nodes without a name that of their recording, and adds it to
// names that several have.
func nameApart(nodes []*node) {
	count := map[string]int{}
	for _, n := range nodes {
		count[n.seen.Node.Name]++
	}
	for _, n := range nodes {
		switch name := n.seen.Node.Name; {
		case name == "":
			n.seen.Name = n.seen.Recording
		case count[name] > 1:
			n.seen.Name = name + " (" + n.seen.Recording + ")"
		default:
			n.seen.Name = name
		}
	}
}

func (n *node) name() string { return n.seen.Name }

// String is the node's name, in words.
func (n *node) String() string { return n.name() }

// Shell is the name where a shell reads it.
func (n *node) Shell() string { return shellName(n.seen.Node.Name) }

// joint is the comparison in progress.
type joint struct {
	nodes []*node
	// at says which node has an address; nil where several do.
	at map[netip.Addr]*node
	// ways are those that packets took from one node to another, talks the pairs
	// of which an end waits for replies.
	ways  []*way
	talks []*talk
	// gets are what nodes found themselves to get that is for others' pods.
	gets []getting
	// causes explain the talks, and settled are the pairs that they explain.
	causes  []*cause
	settled map[*node]map[ends]bool
}

// locate finds the node of each address.
func (j *joint) locate() {
	for _, n := range j.nodes {
		if n.out {
			continue
		}
		for _, set := range []map[netip.Addr]bool{n.Node, n.Pods, n.Fresh} {
			for a := range set {
				if !a.IsGlobalUnicast() {
					continue
				}
				if other, taken := j.at[a]; taken && other != n {
					j.at[a] = nil
				} else {
					j.at[a] = n
				}
			}
		}
	}
}

// suppose gives nodes whose pods' range is not known the one that another node takes for
// it, and finds silent: that of a missing route, where it holds the node's pods and no
// other's.
func (j *joint) suppose() {
	holders := map[netip.Prefix]*node{}
	for _, n := range j.nodes {
		for f := range model.Each(n.findings) {
			if n.out || f.Code != diagnose.MissingUDR {
				continue
			}
			for _, p := range f.Peers {
				owner, known := holders[p]
				if !known {
					owner = j.holder(p)
					holders[p] = owner
				}
				if owner == nil || owner == n || slices.ContainsFunc(owner.Ranges, func(r netip.Prefix) bool { return r.Addr().Is4() == p.Addr().Is4() }) {
					continue
				}
				owner.Ranges = append(owner.Ranges, p)
				if owner.supposed == nil {
					owner.supposed = map[netip.Prefix][]model.Row{}
				}
				for _, row := range f.Rows {
					if row.Range == p && owner.hop(p).IsValid() {
						row.Node = owner.seen.Node.Name
						owner.supposed[p] = append(owner.supposed[p], owner.withHop(row))
					}
				}
			}
		}
	}
}

// holder is the only node that has pods in a range; nil where several do, or none.
func (j *joint) holder(p netip.Prefix) *node {
	var found *node
	for _, n := range j.nodes {
		for a := range n.podAddrs() {
			if n.out || !p.Contains(a) {
				continue
			}
			if found != nil && found != n {
				return nil
			}
			found = n
		}
	}
	return found
}

// podAddrs are those of the node's pods.
func (n *node) podAddrs() map[netip.Addr]bool {
	if n.Ends == nil {
		return nil
	}
	return n.Pods
}

// owner is the node whose pod range holds an address, or that has found out that a
// pod of its own should have it, or gives it to its pods' packets.
func (j *joint) owner(a netip.Addr) *node {
	for _, n := range j.nodes {
		if !n.out && (inAny(n.Own, a) || n.rangeOf(a).IsValid()) {
			return n
		}
	}
	for _, n := range j.nodes {
		if !n.out && slices.ContainsFunc(n.findings, func(f model.Finding) bool { return slices.Contains(f.Pods, a) && !slices.Contains(silences, f.Code) }) {
			return n
		}
	}
	for _, n := range j.nodes {
		if !n.out && len(n.Given[a]) > 0 {
			return n
		}
	}
	return nil
}

// rangeOf is the node's pod range that holds an address; not valid where none does.
func (n *node) rangeOf(a netip.Addr) netip.Prefix {
	for _, p := range n.Ranges {
		if p.Contains(a) {
			return p
		}
	}
	return netip.Prefix{}
}
