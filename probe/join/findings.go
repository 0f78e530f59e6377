package join

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	nodeindex "github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// findings are those of the causes, and what each node has found besides. What has
// its cause at another node is left out, and one cause is one finding.
func (j *joint) findings() []model.Finding {
	for _, c := range j.causes {
		for _, t := range c.conversations {
			t.asker.settled[nodeindex.Pair{Local: t.a, Remote: t.b}], t.far.settled[nodeindex.Pair{Local: t.b, Remote: t.a}] = true, true
			if c.silent != nil && c.silent.how == vacant {
				t.asker.vacant[t.b] = t.far.String()
			}
		}
	}
	onAllCPUs(len(j.nodes), func(i int) {
		n := j.nodes[i]
		read := sync.OnceValues(n.source.Read)
		n.rest = model.Filter(j.besides(n, read), func(f model.Finding) bool { return !j.compares(n, &f) })
		if n.source.Tables != nil && len(j.nodes) <= maxByTables && !n.seen.Failed {
			if s, err := read(); err == nil {
				n.rest = append(n.rest, n.source.Tables(s, slices.Concat(n.findings, n.rest))...)
			}
		}
	})
	var out []nodeFinding
	for _, c := range j.causes {
		if c.silent != nil && c.silent.how == vacant {
			// The asker's own finding may say what leads there.
			c.conversations = slices.DeleteFunc(c.conversations, func(t *conversation) bool {
				return slices.ContainsFunc(t.asker.rest,
					func(f model.Finding) bool { return f.Is(model.Vacant) && model.InAny(f.Peers, t.b) })
			})
			if len(c.conversations) == 0 {
				continue
			}
		}
		out = append(out, nodeFinding{j.finding(c), model.Either(c.found != nil, []string{c.node.String()}, nil)})
	}
	for _, n := range j.nodes {
		for _, f := range n.rest {
			adopted := func(c *cause) bool { return c.node == n && c.found != nil && f.Same(c.found) }
			if !slices.ContainsFunc(j.causes, adopted) {
				tell(n.String(), &f)
				out = append(out, nodeFinding{f, []string{n.String()}})
			}
		}
	}
	for t := range model.Each(out) {
		words.PutRows(&t.Finding)
	}
	var list []model.Finding
	for _, group := range grouped(out) {
		f := mergeOne(group)
		if len(j.nodes) > 1 {
			f.site(group)
		}
		list = append(list, f.Finding)
	}
	diagnose.Sort(list)
	return list
}

// maxByTables is how many nodes' tables are followed too for what no packet shows: that takes as long as to judge a node.
const maxByTables = 50

// nodeFinding is a finding with the nodes that tell of it as their own; none where only the comparison does.
type nodeFinding struct {
	model.Finding
	at []string
}

// On is a finding that one of several nodes has told by itself.
func On(name string, f model.Finding) model.Finding {
	tell(name, &f)
	t := nodeFinding{f, []string{name}}
	t.site([]nodeFinding{t})
	return t.Finding
}

// site says which of several nodes the finding is about, and on which the steps of those that it was made of are to be
// run, unless they are for the network between them.
func (t *nodeFinding) site(of []nodeFinding) {
	if len(t.at) == 1 {
		t.Title = "on " + t.at[0] + ": " + t.Title
	}
	if t.Is(model.Unheard) || t.Mended {
		return
	}
	for _, steps := range stepsOf {
		var sited []string
		for first := range model.Each(of) {
			var at []string
			for o := range model.Each(of) {
				if list := steps(&o.Finding); slices.Equal(*list, *steps(&first.Finding)) {
					at, *list = model.With(at, o.at...), model.Either(o == first, *list, nil)
				}
			}
			if list := *steps(&first.Finding); len(list) > 0 {
				if len(at) > 0 {
					sited = append(sited, words.OnNodes(at))
				}
				sited = append(sited, list...)
			}
		}
		*steps(&t.Finding) = sited
	}
}

// stepsOf are the two lists of steps that a finding has.
var stepsOf = []func(*model.Finding) *[]string{
	func(f *model.Finding) *[]string { return &f.Fix },
	func(f *model.Finding) *[]string { return &f.Next },
}

// tell names the node as who tells of a finding, and those others that know a part.
func tell(name string, f *model.Finding) {
	f.Nodes, f.Evidence = []string{name}, slices.Clone(f.Evidence)
	for e := range model.Each(f.Evidence) {
		e.Node = cmp.Or(e.Node, name)
		f.Nodes = model.With(f.Nodes, e.Node)
	}
}

// compares reports whether a finding is about flows that die beside others of the same two ends, both of which were watched:
// inPart compares the flows of both, and what arrived is its node's.
func (j *joint) compares(n *node, f *model.Finding) bool {
	return f.Silent() && len(f.Peers) > 0 && !n.out && !slices.ContainsFunc(f.Peers, func(p netip.Prefix) bool {
		far := j.at[p.Addr()]
		return far == nil || far == n || far.out ||
			!slices.ContainsFunc(n.Pairs, func(e model.EndPair) bool { return e.Remote == p.Addr() && !e.Silent && e.In.Packets > 0 })
	})
}

// besides are the node's findings but for the consequences of causes elsewhere. read reads its observation.
func (j *joint) besides(n *node, read func() (*model.Snapshot, error)) []model.Finding {
	if n.out {
		return n.findings
	}
	for _, p := range n.silentPairs() {
		e, far := nodeindex.Pair{Local: p.Local, Remote: p.Remote}, j.at[p.Remote]
		if !n.settled[e] && (far != nil && far != n && (n.outlasted(far, p) || n.supposesLess(far, p)) ||
			slices.ContainsFunc(j.causes, func(c *cause) bool { return c.accounts(n, p) })) {
			n.settled[e] = true
		}
	}
	if len(n.settled) == 0 {
		return n.findings
	}
	s, err := read()
	if err != nil {
		n.seen.Reason = err.Error()
		return n.findings
	}
	return diagnose.Besides(s, j.beyond(n))
}

// grace is how long pods are asked after they went: endpoints are withdrawn and clients told meanwhile.
const grace = 30 * time.Second

// outlasted reports whether a silent pair's remote end is a pod that went during the window of
// its node, and that had replied, or was asked from then on only: so it is where a
// deployment is rolled out. Who asks on for longer asks nobody.
func (n *node) outlasted(far *node, p *model.EndPair) bool {
	until, gone := far.Gone[p.Remote]
	if !gone {
		return false
	}
	until = until.Add(n.ahead - far.ahead)
	was := far.Pair(p.Remote, p.Local)
	return p.Last.Sub(until) <= grace && (!p.First.Before(until.Add(-overlap)) || was.In.Packets > 0 &&
		was.Out.Packets > 0)
}

// supposesLess reports whether a route accounts for a silent pair which another node supposes
// to be missing: the replies to what comes from a range vanish with what else is for it.
func (n *node) supposesLess(far *node, p *model.EndPair) bool {
	mine, theirs := n.supposes(p.Local, p.Remote), far.supposes(p.Remote, p.Local)
	// If both suppose one, that stands of which more was lost.
	return theirs != nil && (mine == nil || cmp.Or(cmp.Compare(mine.Packets, theirs.Packets), cmp.Compare(far.String(),
		n.String())) <= 0)
}

// supposes is the node's finding that the route is missing by which its pod would reach
// an address; nil where it has none.
func (n *node) supposes(pod, remote netip.Addr) *model.Finding {
	return model.First(n.findings, func(f *model.Finding) bool {
		return f.Is(model.Unheard|model.ByRoute) && len(f.Peers) == 1 && model.InAny(f.Peers, remote) && slices.Contains(f.Pods, pod)
	})
}

func (n *node) silentPairs() []*model.EndPair {
	return model.Chosen(n.Pairs, func(p *model.EndPair) bool { return p.Silent })
}

// accounts reports whether the cause also explains the silence of a pair whose other end was
// not watched. A missing route does for what is for the range, and for the replies to what
// is from it; an address that is cut off from all nodes does for what it asks of others.
func (c *cause) accounts(n *node, p *model.EndPair) bool {
	if c.down {
		return n == c.node && p.Range.IsValid() && n.Pods[p.Local]
	}
	near := (p.Range.IsValid() || model.InAny(n.Networks, p.Remote)) && (c.twins == nil || slices.Contains(c.twins, n))
	return model.InAny(c.rows, p.Remote) || near && (model.InAny(c.rows, p.Local) || c.severed[p.Local])
}

func (j *joint) finding(c *cause) model.Finding {
	switch {
	case c.twins != nil:
		return c.sharedRange()
	case c.found != nil:
		return j.adopted(c)
	case c.guess != nil:
		return j.lostBetween(c)
	case c.losses != nil:
		return j.lostByTunnel(c)
	case c.down:
		return c.downTunnel()
	}
	return c.unanswered()
}

// adopted is a node's own finding, with what the nodes at the other ends saw of it.
func (j *joint) adopted(c *cause) model.Finding {
	f := *c.found
	tell(c.node.String(), &f)
	if len(c.conversations) > 0 && f.Severity == model.Info && f.Is(model.Unknown) {
		// Somebody waits in vain for what is dropped.
		f.Severity = model.Warning
	}
	if f.Is(model.OnlySent) {
		f.Pods = model.Unique(slices.Concat(f.Pods, c.pods()))
	}
	f.Evidence = append(f.Evidence, c.observeLost(&f)...)
	f.Evidence = append(f.Evidence, c.observeAsked(&f)...)
	f.Evidence = append(f.Evidence, c.observeTalks(&f)...)
	asking := model.Filter(c.conversations, func(t *conversation) bool {
		return t.asker != c.node && t.forward.hasArrived() && !t.leadsOn(c.node)
	})
	for _, a := range model.Unique(model.Map(asking, func(t *conversation) netip.Addr { return t.a })) {
		if !names(&f, a) && len(f.Peers) > 0 {
			f.Peers = append(f.Peers, model.Host(a))
		}
	}
	return f
}

// observeAsked is what nodes sent in vain for pods of the finding's peers, beside what went to recorded nodes.
func (c *cause) observeAsked(f *model.Finding) (out []model.Evidence) {
	for _, n := range sortedNodes(maps.Keys(c.asked)) {
		out = append(out, words.Say("unanswered", words.Facts{"from": n, "link": n.Uplink.Link, "packets": c.asked[n],
			"to": f.Peers})...)
		f.Nodes = model.With(f.Nodes, n.String())
	}
	return out
}

// maxObserved bounds the pairs of nodes of which a finding has evidence.
const maxObserved = 6

// flow is what goes from one node to another, by a tunnel or without.
type flow struct {
	from, to *node
	tunnel   string
}

func (w *leg) flow() flow { return flow{w.from, w.to, w.pair.Link} }

func compareFlows(a, b flow) int {
	return cmp.Or(cmp.Compare(a.from.String(), b.from.String()), cmp.Compare(a.to.String(), b.to.String()),
		cmp.Compare(a.tunnel, b.tunnel))
}

// observed is what is said of each pair of nodes, of many of the first few; all are named.
func observed[V any](f *model.Finding, by map[flow]V, of func(flow) (page string, facts words.Facts)) []model.Evidence {
	var out []model.Evidence
	for i, k := range slices.SortedFunc(maps.Keys(by), compareFlows) {
		if page, facts := of(k); i < maxObserved {
			facts["from"], facts["to"], facts["fromLink"], facts["toLink"] = k.from, k.to, k.from.Uplink.Link, k.to.Uplink.Link
			out = append(out, words.Say(page, facts)...)
		}
		f.Nodes = model.With(f.Nodes, k.from.String(), k.to.String())
	}
	if more := len(by) - maxObserved; more > 0 {
		out = append(out, words.Say("more-pairs", words.Facts{"more": more})...)
	}
	return out
}

// observeLost is what the senders of lost packets saw, and what the receivers did.
func (c *cause) observeLost(f *model.Finding) []model.Evidence {
	by := map[flow][]*leg{}
	for _, w := range c.lost {
		by[w.flow()] = append(by[w.flow()], w)
	}
	losses := model.Table(c.losses, func(l **tunnelLoss) (flow, *tunnelLoss) { return (*l).lost[0].flow(), *l })
	return observed(f, by, func(k flow) (string, words.Facts) {
		src, dst := addrs(by[k])
		if l := losses[k]; l != nil {
			f.Packets += l.sent
			_, got := narrowest(l.to.Tunnel.OutOf, src[0])
			return "lost-tunnel", words.Facts{"into": l.into.Link, "outOf": l.outOf.Link, "packets": l.sent, "got": got,
				"dst": dst}
		}
		if g := c.guess; g != nil && (g.large || g.some) {
			l := largeLost(by[k])
			large := max(l.Others-min(l.Others, l.GotOthers), l.Fragments-min(l.Fragments, l.GotFragments))
			f.Packets += model.Either(g.some, l.Asked-min(l.Asked, l.GotAsked), large)
			return model.Either(g.some, "lost-some", "lost-large"), words.Facts{"n": l, "dst": dst}
		}
		if c.guess != nil && c.guess.ports != nil {
			n := model.Sum(by[k], func(w *leg) int { return w.flows.n })
			f.Packets += uint64(n)
			ports := model.Filter(c.guess.ports, func(a model.Asked) bool {
				return slices.ContainsFunc(by[k], func(w *leg) bool { return slices.Contains(w.flows.ports, a) })
			})
			return "lost-flows", words.Facts{"n": n, "ports": portTexts(ports), "replies": ports[0].Here}
		}
		sent := model.Sum(by[k], (*leg).sent)
		if c.found == nil || c.found.Packets == 0 {
			// Otherwise the node's own finding has counted its packets already.
			f.Packets += sent
		}
		return "lost", words.Facts{"packets": sent, "src": src, "dst": dst}
	})
}

// observeTalks is that packets arrived at the node of the cause, and that who sent them got no reply.
func (c *cause) observeTalks(f *model.Finding) []model.Evidence {
	by := map[flow][]*conversation{}
	for _, t := range c.conversations {
		if t.forward.hasArrived() && (t.reverse == nil || t.reverse.hasArrived()) {
			k := flow{from: t.far, to: t.asker}
			by[k] = append(by[k], t)
		}
	}
	out := observed(f, by, func(k flow) (string, words.Facts) {
		var sent, got uint64
		var src, dst []netip.Addr
		for _, t := range by[k] {
			sent, got = sent+t.forward.sent(), got+t.forward.got()
			src, dst = append(src, t.a), append(dst, t.b)
		}
		return "waits", words.Facts{"sent": sent, "got": got, "src": model.Unique(src), "dst": model.Unique(dst)}
	})
	// What was asked of an address that the node has no pod for is counted by nobody.
	for _, t := range c.conversations {
		if t.forward != nil || t.asker == t.far {
			continue
		}
		f.Nodes = model.With(f.Nodes, t.asker.String())
		if len(t.far.Given[t.b]) > 0 {
			out = append(out, words.Say("given", words.Facts{"asker": t.asker, "link": t.asker.Uplink.Link,
				"in": t.pair.In.Packets, "out": t.pair.Out.Packets, "a": t.a, "b": t.b})...)
		}
	}
	return out
}

// sent is what left a node.
type sent struct {
	From    *node
	Link    string
	Packets uint64
	Dst     []netip.Addr
}
