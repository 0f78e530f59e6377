package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// PolicyDrop is the code of this finding.
const PolicyDrop model.Code = "PolicyDrop"

var policyDrop = kind{
	page: Page{
		Code:     PolicyDrop,
		Severity: model.Warning,
		Title:    "a firewall rule, or the policy of a chain, drops packets of pods",
		Meaning: "Netfilter drops what it is told to: by a rule that somebody made by hand, by one that a network plugin keeps for " +
			"a network policy, by what an earlier plugin left behind, or by the policy of a chain (FORWARD DROP, as Docker sets " +
			"it). The kernel says NETFILTER_DROP and not which rule it was. The rule is found by what it counted in the window " +
			"and by its match: addresses, protocol, ports, links, and the chains that lead to it.",
		Evidence: "the dropped packets; the rule or policy with its table and chain, and how many packets it counted in the window; " +
			"the program that keeps such chains.",
		Fix: "a rule made by hand: delete it. One that a program keeps comes back: change what it is made from, the network " +
			"policy or the program's configuration.",
	},
	find:  findPolicyDrop,
	after: []model.Code{ReversePathFilter, PathMTU, BridgeRuleDrop, HairpinDrop, ConntrackFull, ConntrackRace},
	ends:  []model.HopKind{model.HopPolicy, model.HopPod},
}

// claim is a drop whose rule is looked for.
type claim struct {
	*model.Drop
	candidates []candidate
	// whole is false where there are more rules than were searched.
	whole bool
}

// share is what one suspect dropped of a claim.
type share struct {
	drop    *model.Drop
	packets uint64
	// others are further suspects that may have dropped it as well; within
	// says that the suspect's counter covers it.
	others []*suspect
	within bool
	// whole is false where there are more rules than were searched.
	whole bool
}

// withNeighbors accounts for what was dropped and, where that was a pod's
// ICMPv6, for what the pod could not send: ip6tables drops the answers to its
// neighbour solicitations too, which a bridge takes through it. ARP passes by.
func withNeighbors(shares []share) func(*model.Drop) bool {
	drops := make([]*model.Drop, len(shares))
	deaf := map[netip.Addr]bool{}
	for i, s := range shares {
		drops[i] = s.drop
		if s.drop.Proto == icmp6 {
			deaf[s.drop.Dst] = true
		}
	}
	these := sameDrops(drops)
	return func(d *model.Drop) bool { return these(d) || deaf[d.Src] && d.Link == "" && d.NeighborFailed() }
}

// conviction is a suspect with all that it dropped.
type conviction struct {
	*suspect
	shares []share
}

func findPolicyDrop(v *view) []finding {
	claims, unread, elsewhere := v.claims()
	var out []finding
	var unknown []bool
	for _, c := range convict(claims) {
		if f, ok := v.droppedBy(c); ok {
			out = append(out, finding{Finding: f, explains: withNeighbors(c.shares)})
			unknown = append(unknown, c.dropsUnknownLink())
		}
	}
	out = mergeUnknownLinks(out, unknown)
	if f, ok := v.droppedUnread(unread); ok {
		out = append(out, finding{Finding: f, explains: sameDrops(unread)})
	}
	for _, pod := range slices.SortedFunc(maps.Keys(elsewhere), netip.Addr.Compare) {
		if f, ok := v.droppedInPod(pod, elsewhere[pod]); ok {
			out = append(out, finding{Finding: f, explains: sameDrops(elsewhere[pod])})
		}
	}
	return out
}

// dropsUnknownLink reports whether the rule is the one by which Calico drops
// what comes from, or goes to, a link that it has no chain for.
func (s *suspect) dropsUnknownLink() bool {
	return s.rule != nil && strings.Contains(s.rule.Text+s.rule.Comment, "Unknown interface") && s.owner() == calicoOwner
}

// mergeUnknownLinks makes one finding of those on the two rules, one for each
// direction, that drop for the same reason: Calico does not know the pods.
func mergeUnknownLinks(list []finding, unknown []bool) []finding {
	var out []finding
	first := -1
	for i, f := range list {
		switch {
		case !unknown[i]:
			out = append(out, f)
		case first < 0:
			first = len(out)
			out = append(out, f)
		default:
			out[first] = joined(out[first], f)
		}
	}
	if first < 0 {
		return out
	}
	f := &out[first].Finding
	f.Title = "Calico does not know the links of " + addrs(f.Pods)
	f.Why = fmt.Sprintf("Calico drops what comes from or goes to a link that it has made no chains for. It dropped %s. "+
		"The pod's policy was not programmed, or was taken away while the pod runs.", count(f.Packets, "packet"))
	f.Fix = append([]string{"kubectl get pods -A -l k8s-app=calico-node -o wide; its log on this node tells why the pod's endpoint is not programmed"}, f.Fix...)
	return out
}

// joined is one verdict for two on the same cause.
func joined(a, b finding) finding {
	f := a.Finding
	f.Packets += b.Packets
	f.Pods = union(a.Pods, b.Pods, netip.Addr.Compare)
	f.Peers = union(a.Peers, b.Peers, netip.Prefix.Compare)
	f.Confidence = weaker(a.Confidence, b.Confidence)
	f.Evidence = slices.Concat(a.Evidence, b.Evidence)
	f.Unseen = slices.Compact(slices.Concat(a.Unseen, b.Unseen))
	f.Alternatives = slices.Concat(a.Alternatives, b.Alternatives)
	for _, fix := range b.Fix {
		if !slices.Contains(f.Fix, fix) {
			f.Fix = append(slices.Clone(f.Fix), fix)
		}
	}
	return finding{Finding: f, explains: func(d *model.Drop) bool { return a.explains(d) || b.explains(d) }}
}

func union[T comparable](a, b []T, compare func(T, T) int) []T {
	out := slices.Concat(a, b)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

// claims lists the drops of netfilter on the node with those that may have
// dropped them; those that only rules which could not be read can have dropped;
// and the drops in pods' own namespaces by pod.
func (v *view) claims() (claims []claim, unread []*model.Drop, elsewhere map[netip.Addr][]*model.Drop) {
	allowed := v.byDesign()
	rules := v.newDropRules()
	samples := v.dropSamples()
	elsewhere = map[netip.Addr][]*model.Drop{}
	for i := range v.Traffic.Drops {
		d := &v.Traffic.Drops[i]
		if !d.Netfilter() || v.pod(d) == (netip.Addr{}) || v.explained(d) || !v.drops.Lost(d) || allowed.take(d) {
			continue
		}
		if pod := v.inPod(d); pod.IsValid() {
			elsewhere[pod] = append(elsewhere[pod], d)
			continue
		}
		c := claim{Drop: d}
		c.candidates, c.whole = rules.candidates(v.dropIn(d, samples))
		if len(c.candidates) == 0 && !(c.whole && v.Has(model.SourceNAT)) {
			unread = append(unread, d)
			continue
		}
		claims = append(claims, c)
	}
	return claims, unread, elsewhere
}

// convict distributes the drops among the suspects, so that none has dropped
// more than it counted. Drops with few suspects go first.
func convict(claims []claim) []*conviction {
	slices.SortStableFunc(claims, func(a, b claim) int { return cmp.Compare(len(a.candidates), len(b.candidates)) })
	found := map[*suspect]*conviction{}
	var order []*conviction
	for _, c := range claims {
		for _, s := range c.distribute() {
			if found[s.suspect] == nil {
				found[s.suspect] = &conviction{suspect: s.suspect}
				order = append(order, found[s.suspect])
			}
			found[s.suspect].shares = append(found[s.suspect].shares, s.share)
		}
	}
	return order
}

type charge struct {
	*suspect
	share
}

// distribute says who dropped a claim's packets.
func (c *claim) distribute() []charge {
	var out []charge
	rest := c.Packets
	for rest > 0 {
		best := c.best(rest)
		if best == nil {
			break
		}
		n := min(rest, best.left)
		within := true
		others := c.rivals(best.suspect, rest)
		if n == 0 {
			// It has no counter, or that was zeroed in between.
			n, within = rest, false
		}
		best.left -= min(n, best.left)
		rest -= n
		out = append(out, charge{best.suspect, share{drop: c.Drop, packets: n, within: within, whole: c.whole, others: others}})
	}
	return out
}

// best is the suspect for so many packets: one whose counter covers them, the
// first that the packet meets; then one whose counter covers some; then one
// without a counter; then one whose counter is used up.
func (c *claim) best(packets uint64) *candidate {
	tests := []func(*candidate) bool{
		func(s *candidate) bool { return s.fit > poorFit && s.left == packets },
		func(s *candidate) bool { return s.fit > poorFit && s.left > packets },
		func(s *candidate) bool { return s.left > packets },
		func(s *candidate) bool { return s.left > 0 },
		func(s *candidate) bool { return !s.counted },
		func(*candidate) bool { return true },
	}
	for _, ok := range tests {
		for i := range c.candidates {
			if ok(&c.candidates[i]) {
				return &c.candidates[i]
			}
		}
	}
	return nil
}

// rivals are the other suspects that counted enough to have dropped so many
// packets: where the suspect counted just these, others that did so too.
func (c *claim) rivals(not *suspect, packets uint64) []*suspect {
	var out []*suspect
	for _, s := range c.candidates {
		enough := s.left >= packets && not.left != packets || s.left == packets
		if s.suspect != not && s.fit > poorFit && s.counted && enough && !slices.Contains(out, s.suspect) {
			out = append(out, s.suspect)
		}
	}
	return out
}

// droppedBy is the finding on one rule or policy.
func (v *view) droppedBy(c *conviction) (model.Finding, bool) {
	f := model.Finding{Confidence: model.Proven}
	pods, peers := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	covered, whole := true, true
	var rivals []*suspect
	drops := make([]*model.Drop, len(c.shares))
	for i, s := range c.shares {
		f.Packets += s.packets
		drops[i] = s.drop
		covered, whole = covered && s.within, whole && s.whole
		for _, o := range s.others {
			if !slices.Contains(rivals, o) {
				rivals = append(rivals, o)
			}
		}
		for _, pod := range v.struck(c.suspect, s.drop) {
			pods[pod] = true
			peers[otherEnd(s.drop, pod)] = true
		}
	}
	if f.Packets < minDrops {
		return f, false
	}
	f.Pods = slices.SortedFunc(maps.Keys(pods), netip.Addr.Compare)
	f.Peers = hosts(slices.SortedFunc(maps.Keys(peers), netip.Addr.Compare))
	owner := c.owner()
	if c.dropsInvalid() {
		// A few late segments of closed connections are no fault.
		f.Severity = model.Info
	}
	by := owner
	if by == "" {
		by = "no program known to lasthop: made by hand, or by a script"
	}
	f.Title = fmt.Sprintf("%s %s drops packets of %s", c.table(), c.where(), addrs(f.Pods))
	f.Why = fmt.Sprintf("%s in table %s, chain %s (%s) dropped %s. It belongs to %s.",
		map[bool]string{true: "The policy", false: "A rule"}[c.chain != nil], c.table(), c.where(), c.backend(), count(f.Packets, "packet"), by)
	f.Evidence = append([]model.Evidence{c.evidence()}, dropEvidence(drops)...)
	most := mostDropped(drops)
	f.LastHopAlive = v.place(most[0].Link, model.Ingress)
	f.Fix = c.fix(owner)
	if !whole {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, tooManyRules)
	}
	v.weighPolicy(c, &f, rivals, covered)
	return f, true
}

// tooManyRules is what is not known where the search was cut off.
const tooManyRules = "the rules that a packet meets last: there are more than lasthop follows"

// weighPolicy says how sure it is that this was the rule.
func (v *view) weighPolicy(c *conviction, f *model.Finding, rivals []*suspect, covered bool) {
	if len(rivals) > 0 {
		f.Confidence = weaker(f.Confidence, model.Likely)
		for _, o := range rivals {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s %s, which counted %s and may match too",
				o.table(), o.where(), o.text(), count(o.delta(), "packet")))
		}
	}
	if !covered && (c.counted || c.restarted() || !v.Has(model.SourceNAT, model.SourceEbtables) || c.delta() == 0 && len(c.unread()) > 0) {
		f.Confidence = weaker(f.Confidence, model.Likely)
		f.Unseen = append(f.Unseen, "a counter that covers all of the drops: the rule was written anew in the window, was not read when it began, or counts nothing")
	}
	if f.Confidence != model.Proven {
		for _, m := range c.unread() {
			f.Unseen = append(f.Unseen, "whether the packets matched "+m)
		}
	}
	if f.Confidence != model.Proven && len(f.Unseen)+len(f.Alternatives) == 0 {
		f.Unseen = append(f.Unseen, "the packet at the rule itself")
	}
}

// struck are the pods that the rule is about: the receiver, or the sender
// where the rule or the way to it names the sender; both where neither is.
func (v *view) struck(s *suspect, d *model.Drop) []netip.Addr {
	src, dst := len(v.pods[d.Src]) > 0, len(v.pods[d.Dst]) > 0
	if !src || !dst {
		return []netip.Addr{v.pod(d)}
	}
	fromSrc, fromDst := s.pins()
	switch {
	case fromSrc && !fromDst:
		return []netip.Addr{d.Src}
	case fromDst && !fromSrc:
		return []netip.Addr{d.Dst}
	}
	switch in, out := s.leans(); {
	case in && !out:
		return []netip.Addr{d.Src}
	case out && !in:
		return []netip.Addr{d.Dst}
	}
	return []netip.Addr{d.Src, d.Dst}
}

// pins reports whether the suspect, or a jump to it, names one sender or one
// receiver.
func (s *suspect) pins() (src, dst bool) {
	one := func(m model.AddrMatch) bool { return !m.IsZero() && !m.Not && m.Prefix.IsSingleIP() }
	port := func(m model.IfMatch) bool {
		return m.Name != "" && !m.Not && !strings.HasSuffix(m.Name, "+")
	}
	rules := slices.Clone(s.jumps)
	if s.rule != nil {
		rules = append(rules, s.rule)
	}
	for _, r := range rules {
		src = src || one(r.Src) || port(r.In)
		dst = dst || one(r.Dst) || port(r.Out)
	}
	if s.frame != nil {
		src = one(s.frame.IPSrc) || port(s.frame.In)
		dst = one(s.frame.IPDst) || port(s.frame.Out)
	}
	return src, dst
}

// leans reports whether the way to the suspect is for what comes in by the
// links of pods, or for what goes out by them, whichever pod's they are.
func (s *suspect) leans() (in, out bool) {
	for _, r := range s.jumps {
		in = in || r.In.Name != "" && !r.In.Not
		out = out || r.Out.Name != "" && !r.Out.Not
	}
	return in, out
}

// dropsInvalid reports whether the rule drops what connection tracking calls
// invalid, as kube-proxy does.
func (s *suspect) dropsInvalid() bool {
	return s.rule != nil && slices.ContainsFunc(s.rule.Unknown, func(m string) bool {
		return strings.Contains(strings.ToLower(m), "state invalid") && !strings.HasPrefix(m, "!")
	})
}

// evidence is the suspect itself.
func (s *suspect) evidence() model.Evidence {
	e := model.Evidence{Source: model.SourceNAT}
	if s.family == "bridge" {
		e.Source = model.SourceEbtables
	}
	e.Text = fmt.Sprintf("%s %s %s (%s)", s.table(), s.where(), s.text(), s.backend())
	if len(s.path) > 1 {
		e.Text += ", reached by " + strings.Join(s.path, " > ")
	}
	if s.rule != nil && s.rule.Comment != "" && !strings.Contains(s.text(), s.rule.Comment) {
		e.Text += fmt.Sprintf(" — its comment: %q", s.rule.Comment)
	}
	switch {
	case s.delta() > 0:
		e.Text += fmt.Sprintf(" — counted %s in the window", count(s.delta(), "packet"))
	case s.restarted():
		e.Text += " — was written anew in the window, and its counter with it, or not read when it began"
	case !s.counted:
		e.Text += " — has no counter; no rule with one counted these drops"
	}
	return e
}

// restarted reports whether the suspect's counter began anew in the window.
func (s *suspect) restarted() bool {
	switch {
	case s.rule != nil:
		return s.rule.Counter.Restarted
	case s.frame != nil:
		return s.frame.Counter.Restarted
	}
	return s.chain.Counter.Restarted
}

// fix are the commands that end the drops. What a program keeps is changed
// where that program takes it from.
func (s *suspect) fix(owner string) []string {
	if s.rule != nil && strings.Contains(s.rule.Comment, "has no endpoints") {
		name, _, _ := strings.Cut(s.rule.Comment, " has no endpoints")
		namespace, service, _ := strings.Cut(name, "/")
		service, _, _ = strings.Cut(service, ":")
		return []string{fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s", shellWord(namespace), shellWord(service))}
	}
	switch owner {
	case "":
		return []string{s.remove()}
	case calicoOwner:
		return []string{
			"kubectl get networkpolicies -A; kubectl get globalnetworkpolicies.crd.projectcalico.org",
			"if Calico is no longer installed, the rule is left over: " + s.remove(),
		}
	case "Azure Network Policy Manager", "kube-router", "kindnet", "kube-network-policies", "Cilium", "Antrea", "Weave Net":
		return []string{
			"kubectl get networkpolicies -A",
			"if " + owner + " is no longer installed, the rule is left over: " + s.remove(),
		}
	}
	return []string{s.remove(), "where it comes back, change the configuration of " + owner}
}

// droppedUnread is the finding on drops by rules that could not be read.
func (v *view) droppedUnread(drops []*model.Drop) (model.Finding, bool) {
	var l lost
	for _, d := range drops {
		l.add(v, d)
	}
	f := l.finding()
	f.Confidence = model.Likely
	if f.Packets < minDrops {
		return f, false
	}
	f.Title = "a firewall rule drops packets of " + addrs(f.Pods)
	f.Why = fmt.Sprintf("Netfilter dropped %s; which rule it was could not be told.", count(f.Packets, "packet"))
	f.Evidence = dropEvidence(drops)
	f.Unseen = []string{tooManyRules}
	if !v.Has(model.SourceNAT) {
		f.Unseen = []string{"the rules: that source could not be read whole"}
	}
	f.LastHopAlive = v.place(mostDropped(drops)[0].Link, model.Ingress)
	tool := ip46tables(f.Pods[0])
	f.Fix = []string{fmt.Sprintf("%s-save -c | grep -E 'DROP|REJECT'; %s-legacy-save -c | grep -E 'DROP|REJECT'; nft list ruleset", tool, tool)}
	return f, true
}

// droppedInPod is the finding on drops by a pod's own rules, which are not
// read.
func (v *view) droppedInPod(pod netip.Addr, drops []*model.Drop) (model.Finding, bool) {
	var l lost
	for _, d := range drops {
		l.addFor(pod, d)
	}
	f := l.finding()
	f.Confidence = model.Likely
	if f.Packets < minDrops {
		return f, false
	}
	p := v.pods[pod][0]
	f.Title = fmt.Sprintf("%s drops packets by rules of its own", podName(p))
	f.Why = fmt.Sprintf("A firewall rule in the pod's own namespace dropped %s; the node's rules did not see them.", count(f.Packets, "packet"))
	f.Evidence = dropEvidence(drops)
	f.Unseen = []string{"the rules in the pod's namespace: only the node's are read"}
	f.LastHopAlive = v.place(p.Link, model.Egress)
	f.Fix = []string{inside(p) + "nft list ruleset"}
	return f, true
}
