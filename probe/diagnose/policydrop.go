package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// PolicyDrop is the code of this finding.
const PolicyDrop model.Code = "PolicyDrop"

var policyDrop = kind{
	code:     PolicyDrop,
	severity: model.Warning,
	find:     findPolicyDrop,
	ends:     []model.HopKind{model.HopPolicy, model.HopPod},
}

// netfilterDrop is a drop whose rule is looked for.
type netfilterDrop struct {
	*model.Drop
	found
}

// attribution is a rule with the drops that are put down to it.
type attribution struct {
	*candidateRule
	parts []part
}

// part is what one rule dropped of a drop's packets.
type part struct {
	drop    *model.Drop
	packets uint64
	// others are further rules that may have dropped them as well.
	others []*candidateRule
	// covered: the rule counted as many. sure: if not, no other may have dropped
	// them. whole is as in found.
	covered, sure, whole bool
}

func findPolicyDrop(v *view) []finding {
	drops, unread, inPods := v.netfilterDrops()
	var out []finding
	// same is where the finding is that further rules of one cause are part of.
	same := map[string]int{}
	for _, a := range attribute(drops) {
		f, ok := v.droppedBy(a)
		if !ok {
			continue
		}
		cause, _ := a.serviceWithout()
		if a.dropsUnknownLink() {
			cause = words.Calico
		}
		i, known := same[cause]
		switch x := (finding{Finding: f, claims: a.explains()}); {
		case known && cause != "":
			out[i] = merge(out[i], x)
		default:
			same[cause] = len(out)
			out = append(out, x)
		}
	}
	if i, known := same[words.Calico]; known {
		out[i].Finding = unknownLinks(out[i].Finding)
	}
	if f, ok := v.droppedUnread(unread); ok {
		out = append(out, finding{Finding: f, claims: sameDrops(unread.drops)})
	}
	for _, pod := range slices.SortedFunc(maps.Keys(inPods), netip.Addr.Compare) {
		if f, ok := v.droppedInPod(pod, inPods[pod]); ok {
			out = append(out, finding{Finding: f, claims: sameDrops(inPods[pod].drops)})
		}
	}
	return out
}

// netfilterDrops lists the drops of netfilter on the node with the rules that
// may have dropped them; those that only rules which were not read can have
// dropped; and the drops in pods' own namespaces by pod.
func (v *view) netfilterDrops() (drops []netfilterDrop, unread *lost, inPods map[netip.Addr]*lost) {
	rules := v.newDropRules()
	unread, inPods = &lost{}, map[netip.Addr]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Netfilter() || v.pod(d) == (netip.Addr{}) || v.explained(d) || v.drops.Class(d) != loss.Lost {
			continue
		}
		if pod := v.inPod(d); pod.IsValid() {
			if inPods[pod] == nil {
				inPods[pod] = &lost{}
			}
			inPods[pod].addFor(pod, d)
			continue
		}
		n := netfilterDrop{d, rules.candidates(v.dropIn(d))}
		if len(n.candidates) == 0 && !(n.whole && v.Has(model.SourceNAT)) {
			unread.add(v, d)
			continue
		}
		drops = append(drops, n)
	}
	return drops, unread, inPods
}

// attribute distributes the drops among their candidates, so that none has
// dropped more than it counted. Drops with few candidates go first.
func attribute(drops []netfilterDrop) []*attribution {
	slices.SortStableFunc(drops, func(a, b netfilterDrop) int { return cmp.Compare(len(a.candidates), len(b.candidates)) })
	found := map[*candidateRule]*attribution{}
	var order []*attribution
	for _, d := range drops {
		for rest := d.Packets; rest > 0; {
			best := d.best(rest)
			if best == nil {
				break
			}
			p := part{drop: d.Drop, packets: min(rest, best.left), covered: true, sure: d.sure(best), whole: d.whole, others: d.others(best, rest)}
			if p.packets == 0 {
				// It has no counter, or that was zeroed in between.
				p.packets, p.covered = rest, false
			}
			best.left -= min(p.packets, best.left)
			rest -= p.packets
			if found[best] == nil {
				found[best] = &attribution{candidateRule: best}
				order = append(order, found[best])
			}
			found[best].parts = append(found[best].parts, p)
		}
	}
	return order
}

// best is the candidate for so many packets: one whose counter covers them, the
// first that the packet meets; then one whose counter covers some; then one
// without a counter; then one whose counter is used up.
func (d *netfilterDrop) best(packets uint64) *candidateRule {
	for _, ok := range []func(*candidate) bool{
		func(c *candidate) bool { return !c.poor && c.left == packets },
		func(c *candidate) bool { return !c.poor && c.left > packets },
		func(c *candidate) bool { return c.left > packets },
		func(c *candidate) bool { return c.left > 0 },
		func(c *candidate) bool { return !c.counted && !c.poor },
		func(c *candidate) bool { return !c.counted },
		func(*candidate) bool { return true },
	} {
		for i := range d.candidates {
			if ok(&d.candidates[i]) {
				return d.candidates[i].candidateRule
			}
		}
	}
	return nil
}

// sure reports whether a rule whose count does not tell dropped the packets: they surely
// meet it and match; or the kernel says that a rule of nft did, and no other can be.
func (d *netfilterDrop) sure(best *candidateRule) bool {
	for _, c := range d.candidates {
		if c.candidateRule == best {
			return !c.poor && (c.fit == path.Yes || len(d.candidates) == 1 && d.whole && !d.open && d.Location == model.LocationNFT)
		}
	}
	return false
}

// others are the candidates besides the best that counted enough to have dropped
// so many packets: where the best counted just these, others that did so too. Besides one
// without a counter they are those without.
func (d *netfilterDrop) others(best *candidateRule, packets uint64) []*candidateRule {
	var out []*candidateRule
	for _, c := range d.candidates {
		enough := c.counted && (c.left >= packets && best.left != packets || c.left == packets) || !c.counted && !best.counted
		if c.candidateRule != best && !c.poor && enough {
			out = append(out, c.candidateRule)
		}
	}
	return out
}

// explains accounts for what was dropped and, where that was a pod's ICMPv6, for
// what the pod could not send: ip6tables drops the replies to its neighbour
// solicitations too, which a bridge takes through it. ARP is not filtered.
func (a *attribution) explains() func(*model.Drop) bool {
	drops := make([]*model.Drop, len(a.parts))
	deaf := map[netip.Addr]bool{}
	for i, p := range a.parts {
		drops[i] = p.drop
		if p.drop.Proto == icmp6 {
			deaf[p.drop.Dst] = true
		}
	}
	these := sameDrops(drops)
	return func(d *model.Drop) bool { return these(d) || deaf[d.Src] && d.Link == "" && d.NeighborFailed() }
}

// merge makes one finding of two with one cause.
func merge(a, b finding) finding {
	f, x := a.Finding, b.Finding
	f.Packets += x.Packets
	f.Pods = union(f.Pods, x.Pods, netip.Addr.Compare)
	f.Peers = union(f.Peers, x.Peers, netip.Prefix.Compare)
	f.Confidence = weaker(f.Confidence, x.Confidence)
	f.Evidence = slices.Concat(f.Evidence, x.Evidence)
	f.Unseen = slices.Compact(slices.Concat(f.Unseen, x.Unseen))
	for _, other := range x.Alternatives {
		if !slices.Contains(f.Alternatives, other) {
			f.Alternatives = append(slices.Clone(f.Alternatives), other)
		}
	}
	for _, fix := range x.Fix {
		if !slices.Contains(f.Fix, fix) {
			f.Fix = append(slices.Clone(f.Fix), fix)
		}
	}
	return finding{Finding: f, claims: func(d *model.Drop) bool { return a.claims(d) || b.claims(d) }}
}

// unknownLinks is the finding on the rules, one for each direction, by which Calico
// drops packets of links that it has no chains for.
func unknownLinks(f model.Finding) model.Finding {
	f.Title = "Calico does not know the links of " + words.Addrs(f.Pods)
	f.Why = fmt.Sprintf("Calico drops what comes from or goes to a link that it has made no chains for. It dropped %s. "+
		"The pod's policy was not programmed, or was taken away while the pod runs.", words.Count(f.Packets, "packet"))
	f.Fix = append([]string{"kubectl get pods -A -l k8s-app=calico-node -o wide; its log on this node tells why the pod's endpoint is not programmed"}, f.Fix...)
	return f
}

func union[T comparable](a, b []T, compare func(T, T) int) []T {
	out := slices.Concat(a, b)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

// droppedBy is the finding on one rule or policy.
func (v *view) droppedBy(a *attribution) (model.Finding, bool) {
	var l lost
	var others []*candidateRule
	covered, sure, whole := true, true, true
	for _, p := range a.parts {
		covered, sure, whole = covered && p.covered, sure && (p.covered || p.sure), whole && p.whole
		for _, o := range p.others {
			if !slices.Contains(others, o) {
				others = append(others, o)
			}
		}
		for _, pod := range v.struck(a.candidateRule, p.drop) {
			l.about(pod, p.drop)
		}
		l.packets += p.packets
		l.drops = append(l.drops, p.drop)
	}
	if l.packets < minDrops {
		return model.Finding{}, false
	}
	f := l.finding()
	if a.dropsInvalid() {
		// A few late segments of closed connections are no fault.
		f.Severity = model.Info
	}
	what := "A rule"
	if a.chain != nil {
		what = "The policy"
	}
	f.Title = fmt.Sprintf("%s %s drops packets of %s", a.key.Table, a.key.Chain, words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("%s in table %s, chain %s (%s) dropped %s. It belongs to %s.", what, a.key.Table, a.key.Chain, a.key.Backend,
		words.Count(f.Packets, "packet"), cmp.Or(a.maker(), "no program known to lasthop: made by hand, or by a script"))
	f.Evidence = append([]model.Evidence{a.evidence()}, dropEvidence(l.drops)...)
	f.LastHopAlive = v.cameBy(mostDropped(l.drops)[0])
	f.Fix = a.fix()
	a.sayService(&f)
	if !whole {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, tooManyRules)
	}
	v.weighPolicy(a.candidateRule, &f, others, covered, sure)
	return f, true
}

// tooManyRules is what is not known where the search was cut off.
const tooManyRules = "the rules that a packet meets last: there are more than lasthop follows"

// weighPolicy says how sure it is that this was the rule.
func (v *view) weighPolicy(c *candidateRule, f *model.Finding, others []*candidateRule, covered, sure bool) {
	if len(others) > 0 {
		f.Confidence = weaker(f.Confidence, model.Likely)
		for _, o := range others {
			counted := "counted " + words.Count(o.counter.Delta, "packet")
			if !o.counted {
				counted = "has no counter"
			}
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s, which %s and may match too", o, counted))
		}
	}
	if !covered && (c.counted || c.counter.Restarted || !v.Has(model.SourceNAT, model.SourceEbtables) || !sure) {
		f.Confidence = weaker(f.Confidence, model.Likely)
		f.Unseen = append(f.Unseen, "a counter that covers all of the drops: the rule was written anew in the window, was not read when it began, or counts nothing")
	}
	if f.Confidence == model.Proven {
		return
	}
	for _, m := range c.unknown {
		f.Unseen = append(f.Unseen, "whether the packets matched "+m)
	}
	if len(f.Unseen)+len(f.Alternatives) == 0 {
		f.Unseen = append(f.Unseen, "the packet at the rule itself")
	}
}

// struck are the pods that the rule is about: the receiver, or the sender where
// the rule or a jump to it names the sender; both where neither is named.
func (v *view) struck(c *candidateRule, d *model.Drop) []netip.Addr {
	src, dst := len(v.pods[d.Src]) > 0, len(v.pods[d.Dst]) > 0
	if !src || !dst {
		return []netip.Addr{v.pod(d)}
	}
	src, dst = c.names()
	if src == dst {
		src, dst = c.sides()
	}
	switch {
	case src && !dst:
		return []netip.Addr{d.Src}
	case dst && !src:
		return []netip.Addr{d.Dst}
	}
	return []netip.Addr{d.Src, d.Dst}
}

// droppedUnread is the finding on drops by rules that were not read.
func (v *view) droppedUnread(l *lost) (model.Finding, bool) {
	if l.packets < minDrops {
		return model.Finding{}, false
	}
	f := l.finding()
	f.Evidence = dropEvidence(l.drops)
	f.Confidence = model.Likely
	f.Title = "a firewall rule drops packets of " + words.Addrs(f.Pods)
	f.Why = fmt.Sprintf("Netfilter dropped %s, and it is not known by which rule.", words.Count(f.Packets, "packet"))
	f.Unseen = []string{tooManyRules}
	if !v.Has(model.SourceNAT) {
		f.Unseen = []string{"the rules: that source could not be read whole"}
	}
	f.LastHopAlive = v.cameBy(mostDropped(l.drops)[0])
	tool := words.IPTables(f.Pods[0])
	f.Fix = []string{fmt.Sprintf("%s-save -c | grep -E 'DROP|REJECT'; %s-legacy-save -c | grep -E 'DROP|REJECT'; nft list ruleset", tool, tool)}
	return f, true
}

// droppedInPod is the finding on drops by a pod's own rules, which are not read.
func (v *view) droppedInPod(pod netip.Addr, l *lost) (model.Finding, bool) {
	if l.packets < minDrops {
		return model.Finding{}, false
	}
	f := l.finding()
	f.Evidence = dropEvidence(l.drops)
	f.Confidence = model.Likely
	p := v.pods[pod][0]
	f.Title = fmt.Sprintf("%s drops packets by rules of its own", words.PodName(p))
	f.Why = fmt.Sprintf("A firewall rule in the pod's own namespace dropped %s; the node's rules did not see them.", words.Count(f.Packets, "packet"))
	f.Unseen = []string{"the rules in the pod's namespace: only the node's are read"}
	f.LastHopAlive = v.place(p.Link, model.Egress)
	f.Fix = []string{words.Inside(p) + "nft list ruleset"}
	return f, true
}
