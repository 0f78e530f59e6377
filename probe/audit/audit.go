// Package audit finds what would die on a node, without a packet: it follows connections that nobody made by the node's
// tables alone, and has the judge name the cause where packets of them would end. It is pure: a snapshot in, findings out.
package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// Result is what an audit found.
type Result struct {
	// On is the snapshot without what was counted, and without the sources that count.
	On    *model.Snapshot
	Audit *model.Audit
	// Findings are about the node's state, in the order of the judge.
	Findings []model.Finding
}

// Run audits the pods that have some of the addresses, all without any. The losses of a window, if the snapshot has some, are
// ignored.
func Run(s *model.Snapshot, pods []netip.Addr) Result {
	a := begin(s, pods)
	a.named()
	a.clouded()
	a.explainAll()
	a.refused()
	diagnose.Sort(a.found)
	return Result{a.Snapshot, &a.out, a.found}
}

// Beside are findings on pairs without traffic in a window, by the tables alone, which a verdict on that window does not have. Of
// a cause that a pair survived there is none. judged is the index of the window.
func Beside(judged *node.Index, verdict []model.Finding, pods []netip.Addr) []model.Finding {
	a, seen := begin(judged.Whole, pods), trafficOf(judged)
	a.clouded()
	for _, g := range a.groups {
		survived := slices.ContainsFunc(g.deaths, func(d death) bool {
			return seen.answered[seen.key(d.pair)] || g.reason == foreign && seen.sources[d.fate.As]
		})
		g.deaths = model.Filter(g.deaths, func(d death) bool { return !survived && !seen.passed(d.pair) })
	}
	a.groups = model.Filter(a.groups, func(g *group) bool { return len(g.deaths) > 0 })
	a.found = slices.Concat(verdict, a.found)
	a.explainAll()
	var out []model.Finding
	for _, f := range a.found {
		cuts := func(x model.AuditPair) bool { return x.Finding == f.Code && x.Cause == f.Cause }
		if !slices.ContainsFunc(a.out.Cut, cuts) || slices.ContainsFunc(verdict, func(g model.Finding) bool { return g.Key() == f.Key() }) {
			continue
		}
		// What no kind of finding names, such as a pod without a default route, may be meant, and nobody asks. Few pods ask themselves.
		if f.Code == "UnexplainedDrop" || f.Code == "HairpinDrop" {
			continue
		}
		if f.ByTables = true; slices.Contains(meant, f.Code) {
			f.Severity = model.Info
		}
		out = append(out, f)
	}
	return out
}

// meant are the findings on rules, which may be as somebody wants them.
var meant = []model.Code{"PolicyDrop", "BridgeRuleDrop"}

// begin follows what is to be audited.
func begin(s *model.Snapshot, pods []netip.Addr) *audit {
	index := node.New(stateOf(s))
	found := diagnose.Indexed(index).Findings
	a := &audit{
		Index: index, found: found, state: slices.Clone(found), byCause: map[cause]*group{}, masked: map[like]bool{}, pods: pods,
		ruled: map[netip.Addr]*model.RoutingRule{}, byProgram: map[int]*model.Program{}, writes: map[int]bool{},
	}
	a.beside()
	a.follow()
	a.backends()
	return a
}

func (a *audit) explainAll() {
	for i, g := range a.groups {
		if g.reason == inCloud {
			// What died before does not come there.
			cut := map[node.Pair]bool{}
			for x := range model.Each(a.out.Cut) {
				cut[node.Pair{Local: x.Pod, Remote: x.To}] = true
			}
			g.deaths = model.Filter(g.deaths, func(d death) bool { return !cut[node.Pair{Local: d.ends.Pod, Remote: d.ends.To}] })
		}
		if len(g.deaths) > 0 {
			a.explain(g, i < mostCauses)
		}
	}
}

// Since is the result without what an earlier one has too: the pairs that died since, and the findings that are new or about
// these. Pods are the same by their names, since an upgrade gives them other addresses.
func (r Result) Since(before Result) Result {
	pod := func(on *model.Snapshot, a netip.Addr) string {
		p := model.Find(on.Pods, func(p model.Pod) bool { return p.Has(a) })
		return model.Either(p.Name != "", p.Namespace+"/"+p.Name, a.String())
	}
	// Other nodes' ranges, services and the outside are the same by what they are.
	type pair struct {
		pod, to string
		kind    model.AuditKind
	}
	of := func(on *model.Snapshot) func(model.AuditPair) pair {
		return func(x model.AuditPair) pair {
			to := cmp.Or(x.Name, pod(on, x.To))
			return pair{pod(on, x.Pod), model.Either(x.Kind == model.AuditGateway, "", to), x.Kind}
		}
	}
	now, then := of(r.On), of(before.On)
	died, dead := model.SetOf(model.Map(before.Audit.Cut, then)), model.SetOf(model.Map(r.Audit.Cut, now))
	out := *r.Audit
	out.Since = before.On.Window.End
	out.Cut = model.Filter(r.Audit.Cut, func(x model.AuditPair) bool { return !died[now(x)] })
	out.Mended = model.Filter(before.Audit.Cut, func(x model.AuditPair) bool { return !dead[then(x)] })
	r.Audit, r.Findings = &out, model.Filter(r.Findings, func(f model.Finding) bool {
		there := func(g *model.Finding) bool { return g.Key() == f.Key() && (f.Cause != "" || g.Same(&f)) }
		return model.First(before.Findings, there) == nil ||
			slices.ContainsFunc(out.Cut, func(x model.AuditPair) bool { return x.Finding == f.Code && x.Cause == f.Cause })
	})
	return r
}

// stateOf is a snapshot without what was counted. Flows are from before: what becomes of a new connection, the tables say.
func stateOf(s *model.Snapshot) *model.Snapshot {
	out := *s
	out.Traffic, out.Edges, out.Flows, out.PastPods, out.Probes = model.Traffic{}, model.Edges{}, nil, nil, nil
	out.Devices, out.Softnet, out.Conntrack = nil, nil, model.Conntrack{Count: s.Conntrack.Count, Max: s.Conntrack.Max}
	counts := []string{model.SourceTC, model.SourceDrops, model.SourceChanges}
	out.Sources = model.Filter(s.Sources, func(x model.Source) bool { return !slices.Contains(counts, x.Name) })
	out.Queues = slices.Clone(s.Queues)
	for q := range model.Each(out.Queues) {
		q.DropsDelta = 0
	}
	return &out
}

// audit is one run.
type audit struct {
	*node.Index
	pods []netip.Addr
	// state are the findings on the state alone, found all.
	state, found []model.Finding
	out          model.Audit
	// groups are the pairs that die of the same, in the order in which they were met.
	groups  []*group
	byCause map[cause]*group
	// unserved are the services that kube-proxy refuses, since they have no endpoints.
	unserved []destination
	// ruled are the pods whose packets a routing rule of their own leads to a table, byProgram the BPF programs of unknown owners
	// by their links.
	ruled     map[netip.Addr]*model.RoutingRule
	byProgram map[int]*model.Program
	// writes is what written found of links.
	writes map[int]bool
	// routed: there are routes to other nodes' pods, or the plugin always has them. unrouted are pairs whose packets for such
	// leave by the default route.
	routed   bool
	unrouted []death
	// masked are the ranges and links of which a pod's packets to the outside are translated, raw the pairs whose are not.
	masked map[like]bool
	raw    []death
	// beyond are the pairs whose packets leave the node.
	beyond []death
}

// like is what pods share whose packets are translated alike: the range of their addresses, and the link they leave by.
type like struct {
	in   netip.Prefix
	exit int
}

// group is what dies of one cause, as far as the tables name it.
type group struct {
	cause
	deaths []death
	// decision is that of the first, in words.
	decision string
}

// death is a pair, and its fate.
type death struct {
	ends path.Ends
	fate path.Fate
	pair model.AuditPair
}

// cause is what the tables say of an end: the hop, why packets end there, and the rule, chain or route. Where another
// machine decides, it is the link or address that packets leave by, and one of the reasons below.
type cause struct {
	by           any
	kind         model.HopKind
	what, reason string
}

// The reasons for which packets may die beyond the tables.
const (
	untranslated = "untranslated"
	foreign      = "foreign-source"
	silentHop    = "silent-next-hop"
	vacant       = "vacant-backend"
	byDefault    = "default-route"
	onLink       = "on-link"
	emptied      = "empty-table"
	endless      = "no-tunnel-end"
	masqueraded  = "masqueraded"
	pastRules    = "past-rules"
	byBridge     = "pods-bridge"
	inCloud      = "cloud"
	narrow       = "narrow-link"
)

func (a *audit) add(k cause, d death) {
	g := model.GetOrInsert(a.byCause, k)
	if g.deaths == nil {
		g.cause, a.groups = k, append(a.groups, g)
	}
	g.deaths = append(g.deaths, d)
}

func (a *audit) chosen(pod netip.Addr) bool { return len(a.pods) == 0 || slices.Contains(a.pods, pod) }

// follow follows each pod's connections.
func (a *audit) follow() {
	all := a.destinations()
	a.routed = a.Node.Plugin == "kindnet"
	for i := range a.Pods {
		addrs := node.PodAddrs(&a.Pods[i])
		for _, from := range addrs {
			// It sends with its first address of each family.
			if !a.chosen(from) || node.SameFamily(addrs, from)[0] != from {
				continue
			}
			for _, to := range a.destinationsOf(i, from, all) {
				a.pair(from, to)
			}
		}
	}
	a.served()
	for _, d := range a.unrouted {
		if n := d.fate.Silent; a.routed && n != nil {
			a.add(cause{what: n.Link, reason: onLink}, d)
		} else if a.routed {
			a.add(cause{what: d.pair.Name, reason: byDefault}, d)
		} else if n == nil {
			a.translated(&d)
		}
	}
	for _, d := range a.raw {
		if a.masquerades(d.ends.Pod) || a.masked[a.like(&d)] {
			a.add(cause{what: d.fate.Exit.Name, reason: untranslated}, d)
		}
	}
}

// translated adds a pair of pods whose packets leave with the node's address.
func (a *audit) translated(d *death) {
	if d.fate.As != d.ends.Pod && a.Own[d.fate.As] != nil {
		a.add(cause{what: d.fate.As.String(), reason: masqueraded}, *d)
	}
}

func (a *audit) like(d *death) like {
	in := model.Find(a.Ranges.Local, func(p netip.Prefix) bool { return p.Contains(d.ends.Pod) })
	return like{model.Either(in.IsValid(), in, model.Host(d.ends.Pod)), d.fate.Exit.Index}
}

func (a *audit) pair(from netip.Addr, to destination) {
	e := path.Ends{Pod: from, To: to.addr, Port: to.port, Proto: to.proto}
	f := a.Follow(e)
	if len(f.Unsure) > 0 && e.Proto == 0 {
		// What is known of TCP alone is known.
		if e.Proto = model.TCP; a.Follow(e).Dead {
			f, to.proto = a.Follow(e), e.Proto
		}
	}
	d := death{ends: e, fate: f, pair: model.AuditPair{
		Pod: from, To: to.addr, Port: to.port, Proto: to.proto, Kind: to.kind, Name: to.name, Reply: f.Dead && f.Reply,
	}}
	if to.supposed.IsValid() {
		// Whether there is such a node is not known, nor a route to it.
		if f.Exit != nil && !f.Dead && len(f.Unsure) == 0 && !f.Masked {
			a.ruledAway(&d)
			a.translated(&d)
		}
		return
	}
	if f.Exit != nil && f.Exit.Role == model.RoleUplink && !f.Dead && a.Told() {
		a.beyond = append(a.beyond, d)
	}
	if f.Narrow != nil && !f.Dead {
		a.add(cause{by: f.Narrow.By, what: f.Narrow.Out.Name, reason: narrow}, d)
	}
	led, unheard := a.ledTo(&d), ""
	if led != nil {
		unheard = a.unheard(&d, led)
	}
	switch a.out.Pairs++; {
	case f.Dead:
		a.add(cause{f.By, f.Kind, f.Link, f.Reason}, d)
	case unheard == byBridge:
		a.add(cause{what: d.fate.Silent.Link, reason: byBridge}, d)
	case f.Silent != nil || unheard == silentHop:
		a.add(cause{what: d.fate.Silent.Addr.String(), reason: silentHop}, d)
	case a.endless(&f):
		a.add(cause{what: f.Exit.Name, reason: endless}, d)
	case a.ruledAway(&d):
	case len(f.Unsure) > 0 || a.program(&d) != nil:
		d.pair.Decision = words.Text("audit/open", words.Facts{"what": cmp.Or(f.Unsure...), "program": a.program(&d)})
		a.out.Unsure = append(a.out.Unsure, d.pair)
	case f.Exit == nil || f.Exit.Role != model.RoleUplink || f.Masked:
		a.routed = a.routed || f.Exit != nil && to.kind == model.AuditNode && f.Exit.Role == model.RoleTunnel
	case to.kind == model.AuditService && f.Dst == to.addr:
		a.add(cause{what: f.Exit.Name, reason: pastRules}, d)
	case to.kind == model.AuditNode && led.Route.Dst.Bits() > 0:
		if a.routed = a.routed || unheard == ""; unheard != "" {
			a.unrouted = append(a.unrouted, d)
		}
		a.translated(&d)
	case to.kind == model.AuditNode:
		a.unrouted = append(a.unrouted, d)
	case f.As == from && to.kind == model.AuditOutside:
		a.raw = append(a.raw, d)
	case f.As != from && a.Own[f.As] == nil && len(a.Owners[f.As]) == 0:
		a.add(cause{what: f.As.String(), reason: foreign}, d)
	case f.As != from && to.kind == model.AuditOutside:
		a.masked[a.like(&d)] = true
	}
}

// ruledAway adds a pair whose pod's own rule leads its packets to a table without a route for them, while another pod's rule of
// the same priority leads to one that has a route.
func (a *audit) ruledAway(x *death) bool {
	pod, to := x.ends.Pod, x.fate.Dst
	r := a.ruled[pod]
	decides := func(r *model.RoutingRule) bool {
		d := a.Routing().Lookup(path.Query{Src: r.From.Addr(), Dst: to})
		return d.Rule != nil && d.Rule.Table == r.Table
	}
	if r == nil || x.fate.As != pod || x.fate.Exit == nil || decides(r) {
		return false
	}
	for other, o := range a.ruled {
		if other != pod && o.Priority == r.Priority && other.Is4() == to.Is4() && decides(o) {
			a.add(cause{what: strconv.Itoa(r.Table), reason: emptied}, *x)
			return true
		}
	}
	return false
}

// clouded adds what the rules and addresses in a cloud that were read may decide on: all that leaves.
func (a *audit) clouded() {
	for _, d := range a.beyond {
		a.add(cause{what: string(d.pair.Kind), reason: inCloud}, d)
	}
}

// endless reports whether packets leave by a VXLAN that knows no node for their next hop.
func (a *audit) endless(f *path.Fate) bool {
	return f.Exit != nil && a.written(f.Exit) && !a.EndOf(f.As, f.Exit.Index, f.Dst).End.IsValid()
}

// written reports whether an agent writes an entry of a VXLAN for each node. One that learns or is told by a program has other
// entries, or none.
func (a *audit) written(l *model.Link) bool {
	if l.Kind != "vxlan" || !a.Has(model.SourceBridge, model.SourceNeighbors) {
		return false
	}
	is, known := a.writes[l.Index]
	if !known {
		of := model.Chosen(a.FDB, func(e *model.FDBEntry) bool { return e.IfIndex == l.Index && e.End.IsValid() })
		is = len(of) > 0 && !slices.ContainsFunc(of, func(e *model.FDBEntry) bool { return e.MAC.IsZero() })
		a.writes[l.Index] = is
	}
	return is
}

// ledTo is the route by which a pair's packets leave, or would, where it matters which: nil elsewhere.
func (a *audit) ledTo(d *death) *path.Decision {
	f := &d.fate
	if f.Dead || d.pair.Kind != model.AuditNode && f.Exit != nil && f.Exit.Kind != "vxlan" || d.pair.Kind == model.AuditPod {
		return nil
	}
	led := a.Routing().Lookup(path.Query{Src: f.As, Dst: f.Dst})
	return model.Either(led.Route == nil, nil, &led)
}

// unheard is the reason for which nobody may answer when the node asks for a pair's next hop, which has no MAC: empty where that
// is as usual.
func (a *audit) unheard(d *death, led *path.Decision) (reason string) {
	f := &d.fate
	if len(led.Hops) != 1 || f.Silent != nil {
		return ""
	}
	h := led.Hops[0]
	next := cmp.Or(h.Gateway, f.Dst)
	// The route that comes with a link's address leads to its own network.
	elsewhere, n := next == f.Dst && led.Route.Protocol != "kernel", a.NeighborAt(next, h.IfIndex)
	switch {
	case n != nil && path.Resolved(n):
	case f.Exit == nil && elsewhere && !a.Outer[h.IfIndex] && slices.Contains(f.Unsure, "mac-unknown") &&
		(d.pair.Kind == model.AuditNode || d.pair.Kind == model.AuditOutside):
		reason = byBridge
	case f.Exit != nil && a.written(f.Exit):
		reason = silentHop
	case f.Exit != nil && elsewhere && f.Exit.Role == model.RoleUplink && d.pair.Kind == model.AuditNode:
		reason = onLink
	}
	if reason != "" {
		f.Silent = &model.Neighbor{Addr: next, IfIndex: h.IfIndex, Link: h.Link}
	}
	return reason
}

// beside finds the pods' own routing rules, and the BPF programs that may decide beside the tables.
func (a *audit) beside() {
	for r := range model.Each(a.Rules) {
		if from := r.From.Addr(); r.From.IsSingleIP() && !r.Not && len(a.Owners[from]) > 0 && a.ruled[from] == nil {
			a.ruled[from] = r
		}
	}
	for p := range model.Each(a.Snapshot.Programs) {
		if p.ID != 0 && p.Kind != model.ProgramCgroup && p.Netns == a.Node.Netns && p.Owner() == "" {
			a.byProgram[p.IfIndex] = p
		}
	}
}

// program is a BPF program of an unknown owner on a pair's way, nil without any.
func (a *audit) program(d *death) *model.Program {
	for _, p := range []netip.Addr{d.ends.Pod, d.fate.Dst} {
		for _, o := range a.Owners[p] {
			if by := a.byProgram[o.LinkIndex]; by != nil {
				return by
			}
		}
	}
	if d.fate.Exit != nil {
		return a.byProgram[d.fate.Exit.Index]
	}
	return nil
}

// masquerades reports whether the node is meant to translate what a pod sends to the outside: its plugin always does or is
// configured to, or a rule translates what other packets of such a pod are. Else the network beyond may do it, as where a cloud
// has a NAT for all.
func (a *audit) masquerades(pod netip.Addr) bool {
	return a.Node.Masquerades || slices.Contains([]string{"kubenet", "kindnet", "azure-overlay"}, a.Node.Plugin) ||
		nil != model.First(a.PacketRules, func(r *model.PacketRule) bool {
			return (r.Target == "MASQUERADE" || r.Target == "SNAT") && !r.Mark.Set && (r.Family == "ip6") == pod.Is6() &&
				!r.Src.IsZero() && r.Src.Matches(pod)
		})
}

// backends are the endpoints to which rules lead, of this node's own range, and that no pod has.
func (a *audit) backends() {
	if !a.Has(model.SourcePods, model.SourceLinks) || len(a.Pods) == 0 {
		return
	}
	from := model.Find(node.PodAddrs(&a.Pods[0]), netip.Addr.Is4)
	vacant4 := func(to netip.Addr) bool { return to.Is4() && a.Vacant(to) && a.OwnRange(to) }
	for _, r := range a.Tables().Translations(vacant4) {
		if to := r.To.Addr(); from.IsValid() && a.chosen(from) {
			a.add(cause{what: to.String(), reason: vacant}, death{
				ends: path.Ends{Pod: from, To: to, Port: r.To.Port(), Proto: r.Proto}, fate: path.Fate{Src: from, Dst: to},
				pair: model.AuditPair{Pod: from, To: to, Port: r.To.Port(), Proto: r.Proto, Kind: model.AuditEndpoint},
			})
		}
	}
}

// refused tells of the services without endpoints. No pod need ask them: it is nothing that has to be mended.
func (a *audit) refused() {
	if len(a.unserved) == 0 || len(a.Pods) == 0 {
		return
	}
	names := model.Map(a.unserved, func(d destination) string { return d.name })
	f := model.Finding{Code: "DeadBackend", Severity: model.Info, Confidence: model.Proven, Verify: "lasthop audit", Cause: "unserved",
		Title: words.Text("audit/unserved", words.Facts{"names": names}), Why: words.Text("audit/unserved-why", nil)}
	for _, d := range a.unserved {
		from := model.Find(node.PodAddrs(&a.Pods[0]), func(p netip.Addr) bool { return p.Is4() == d.addr.Is4() })
		a.out.Cut = append(a.out.Cut, model.AuditPair{Pod: from, To: d.addr, Port: d.port, Proto: d.proto, Kind: d.kind, Name: d.name,
			Decision: words.Text("audit/unserved-here", nil), Finding: f.Code, Cause: f.Cause})
		f.Pods, f.Peers = model.With(f.Pods, from), model.With(f.Peers, model.Host(d.addr))
	}
	a.found = append(a.found, f)
}

// keeper is the program whose rule denies a group's packets for a policy, empty where they die of anything else: also of
// what kube-proxy refuses for want of endpoints, and of what Calico drops for want of a policy.
func (g *group) keeper() string {
	r, _ := g.by.(*model.PacketRule)
	if r == nil || strings.Contains(r.Text+r.Comment, "Unknown interface") {
		return ""
	}
	by := r.Keeper()
	return model.Either(by == "kube-proxy", "", by)
}

// explain finds who is to blame for a group: a policy, a finding on the state, or one that the judge makes of imagined
// packets. What none of them names is a finding too.
func (a *audit) explain(g *group, imagine bool) {
	dead := a.ends(g, a.Trace(a.found, g.deaths[0].ends))
	if g.decision = words.Text("audit/"+model.Either(g.kind == "", g.reason, "title"), words.Facts{"what": g.what}); dead != nil {
		g.decision = dead.Name() + ": " + dead.Decision
	}
	if by := g.keeper(); by != "" {
		for _, d := range g.deaths {
			d.pair.Decision, d.pair.Keeper = g.decision, by
			a.out.Denied = append(a.out.Denied, d.pair)
		}
		return
	}
	named := func(code model.Code) bool { return dead != nil && dead.Finding == code }
	state := func(f *model.Finding) bool { return named(f.Code) && about(f, g) }
	if f := model.First(a.found, state); f != nil {
		a.put(g, f)
		return
	}
	if imagine {
		if f, ok := a.imagined(g); ok {
			a.take(g, f)
			return
		}
	}
	primary := slices.ContainsFunc(g.deaths, func(d death) bool { return !a.second(d.ends.Pod) && !a.second(d.ends.To) })
	if dead == nil || g.reason == "no-route-in-pod" || g.reason == "misrouted" || !primary {
		// Whether packets die there another machine decides, and no kind of finding says that they do. A pod without a default route
		// may be isolated on purpose, and so may a second network.
		for _, d := range g.deaths {
			if d.pair.Decision = g.decision; dead != nil || g.deaths[0].fate.Silent != nil {
				a.out.Unsure = append(a.out.Unsure, d.pair)
			}
		}
	} else if f := model.First(a.found, func(f *model.Finding) bool { return f.Severity != model.Info && about(f, g) }); f != nil {
		a.put(g, f)
	} else {
		a.take(g, model.Finding{Code: "UnexplainedDrop", Severity: model.Warning, Confidence: model.Likely, Verify: "lasthop audit",
			Title: words.Text("audit/title", words.Facts{"decision": g.decision})})
	}
}

// second reports whether an address is of an interface that a pod has beside the one to its gateway.
func (a *audit) second(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Owners[addr], func(p *model.Pod) bool {
		first := func(o model.Pod) bool { return o.Netns == p.Netns && len(o.Gateways) > 0 }
		return len(p.Gateways) == 0 && slices.ContainsFunc(a.Pods, first)
	})
}

// ends is the hop of a path at which a group's packets end; nil where another machine decides.
func (a *audit) ends(g *group, p model.Path) *model.PathHop {
	return model.First(slices.Concat(p.Forward, p.Return),
		func(h *model.PathHop) bool { return h.Reason == g.reason && h.Kind == g.kind })
}

// about reports whether a finding is about a pair of the group: it names a pod of it, or none.
func about(f *model.Finding, g *group) bool {
	return len(f.Pods) == 0 || slices.ContainsFunc(g.deaths, func(d death) bool {
		return slices.Contains(f.Pods, d.ends.Pod) || slices.Contains(f.Pods, d.ends.To)
	})
}

// take adds a finding, unless it is there.
func (a *audit) take(g *group, f model.Finding) {
	if same := model.First(a.found, func(x *model.Finding) bool { return x.Same(&f) }); same != nil {
		a.put(g, same)
		return
	}
	// Who wrote a rule about a range outside wants it, and so does a pod that refuses new connections, but not what drops replies too.
	d, replies := &g.deaths[0].pair, slices.ContainsFunc(g.deaths, func(d death) bool { return d.fate.Reply })
	if slices.Contains(meant, f.Code) && (d.Kind == model.AuditOutside && d.Name != "" || g.kind == model.HopPod && !replies) {
		f.Severity = model.Info
	}
	if len(f.Pods) == 0 {
		f.Pods = model.Unique(model.Map(g.deaths, func(d death) netip.Addr { return d.ends.Pod }))
	}
	a.found = append(a.found, f)
	a.put(g, &a.found[len(a.found)-1])
}

// put says of a group's pairs that a finding is about them.
func (a *audit) put(g *group, f *model.Finding) {
	for i := range g.deaths {
		p := &g.deaths[i].pair
		p.Decision, p.Finding, p.Cause = g.decision, f.Code, f.Cause
		a.out.Cut = append(a.out.Cut, *p)
	}
	f.Evidence = append(f.Evidence, words.Say("audit", words.Facts{"decision": g.decision, "paths": len(g.deaths)})...)
	if f.Confidence == model.Possible && g.kind != "" && !a.MayRedirect() {
		// The tables say what state alone leaves open.
		f.Confidence = model.Likely
	}
}
