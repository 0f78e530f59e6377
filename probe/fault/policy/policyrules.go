package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// ruleStep is a candidate, or a rule that leads to one.
type ruleStep struct {
	// One of these is set.
	packet *model.PacketRule
	frame  *model.FrameRule
	// candidate is set where the rule itself drops.
	candidate *candidateRule
	// targets are the chains that it leads to, and the verdicts of a map's elements.
	targets []string
}

// dropRules are all candidates of a node, with the chains that lead to them.
type dropRules struct {
	bases []*model.Chain
	steps map[path.ChainKey][]ruleStep
	// policies are the candidates at the ends of base chains, and of the chains of ebtables that have a policy.
	policies map[path.ChainKey]*candidateRule
	// loose are the chains that no rule leads to, by table: a map whose elements are not known may lead to any of them.
	loose map[path.ChainKey][]path.ChainKey
	// sets are what rules look packets up in; chosen are the candidates that an element of a map is, or leads to.
	sets   path.Sets
	chosen map[chosenBy]*candidateRule
	// pod is whose namespace they are in, nil for the node's.
	pod *model.Pod
	// inNFT: this kernel frees what nft drops in nft_do_chain itself, as Linux 6.12 does and 6.1 does not;
	// legacy tables and connection tracking never free there.
	inNFT bool
}

// chosenBy is an element of a map, as a rule, and what drops; nil is the element itself.
type chosenBy struct {
	element *model.PacketRule
	drops   *candidateRule
}

// newDropRules indexes the rules and policies of a node, or of a pod's own namespace, that may have dropped
// packets in the window: those that counted some, and those whose counter does not tell.
func newDropRules(v *path.State, pod *model.Pod) *dropRules {
	t := &dropRules{
		steps: map[path.ChainKey][]ruleStep{}, policies: map[path.ChainKey]*candidateRule{},
		loose: map[path.ChainKey][]path.ChainKey{}, sets: v.Tables().Sets, chosen: map[chosenBy]*candidateRule{},
		pod:   pod,
		inNFT: slices.ContainsFunc(v.Traffic.Drops, func(d model.Drop) bool { return d.Is(model.ByNFT) }),
	}
	chains := map[path.ChainKey]bool{}
	for c := range model.Each(v.Chains) {
		k := path.KeyOf(c)
		chains[k] = true
		if v.PassedBy(c) {
			continue
		} else if c.Hook != "" {
			t.bases = append(t.bases, c)
		}
		if c.Policy != "DROP" {
			continue
		}
		if p := policyOf(v, c); c.Counter.Delta > 0 || !p.Counted {
			p.Pod, t.policies[k] = pod, p
		}
	}
	slices.SortStableFunc(t.bases, func(a, b *model.Chain) int {
		return cmp.Or(cmp.Compare(hookOrder(a), hookOrder(b)), cmp.Compare(a.Priority, b.Priority))
	})
	for r := range model.Each(v.FrameRules) {
		k := path.ChainKey{Backend: r.Backend, Family: "bridge", Table: r.Table, Chain: r.Chain}
		switch s := (ruleStep{frame: r}); {
		case r.Counter.Unused(r.Native):
		case r.Target == model.TargetDrop && !loss.Deduplicates(v.Snapshot, r):
			s.candidate = newCandidateRule(k, r.Native, r.Counter, r.Unknown)
			s.candidate.Frame = r
			t.steps[k] = append(t.steps[k], s)
		case r.Target == model.TargetJump:
			s.targets = []string{r.TargetName}
			t.steps[k] = append(t.steps[k], s)
		}
	}
	for r := range model.Each(v.PacketRules) {
		k, s := path.ChainOf(r), ruleStep{packet: r}
		switch {
		case r.Map != "":
		case r.Counter.Unused(r.Native), r.OfAKS():
			continue
		case r.Target == "DROP" || r.Target == "REJECT" || mayDrop(r):
			s.candidate = newCandidateRule(k, r.Native, r.Counter, r.Unknown)
			s.candidate.Rule, s.candidate.Pod = r, pod
		case chains[k.To(r.Target)]:
			s.targets = []string{r.Target}
		default:
			s.targets = t.sets.Targets(r)
		}
		t.steps[k] = append(t.steps[k], s)
	}
	t.prune(v)
	return t
}

// mayDrop reports whether a rule does something with packets in which it may drop them: it hands them to a program
// that may not run, to a socket that may not be there, or to an address that the link may not have.
func mayDrop(r *model.PacketRule) bool {
	return r != nil && slices.Contains([]string{"NFQUEUE", "QUEUE", "TPROXY", "REDIRECT"}, r.Target)
}

// hookOrder is the order in which a packet meets the hooks; the bridge's come before the IP layer's of the same name.
func hookOrder(c *model.Chain) int {
	order := 2 * slices.Index([]string{"BROUTING", "INGRESS", "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING",
		"EGRESS"}, c.Hook)
	if c.Family != "bridge" {
		order++
	}
	return order
}

// drops reports whether the step itself may drop.
func (s *ruleStep) drops() bool {
	return s.candidate != nil || s.packet != nil && s.packet.Map != "" || slices.Contains(s.targets, "DROP")
}

// prune takes out the rules that lead to no candidate, so that searches are short.
func (t *dropRules) prune(v *path.State) {
	reached, from := slices.Collect(maps.Keys(t.policies)), map[path.ChainKey][]path.ChainKey{}
	for k, list := range t.steps {
		for _, s := range list {
			if s.drops() {
				reached = append(reached, k)
			}
			for _, to := range s.targets {
				from[k.To(to)] = append(from[k.To(to)], k)
			}
		}
	}
	leading := map[path.ChainKey]bool{}
	for len(reached) > 0 {
		k := reached[len(reached)-1]
		reached = reached[:len(reached)-1]
		if !leading[k] {
			leading[k], reached = true, append(reached, from[k]...)
		}
	}
	for k, list := range t.steps {
		t.steps[k] = slices.DeleteFunc(list, func(s ruleStep) bool {
			return !s.drops() && !slices.ContainsFunc(s.targets, func(to string) bool { return leading[k.To(to)] })
		})
	}
	for c := range model.Each(v.Chains) {
		if k := path.KeyOf(c); c.Hook == "" && from[k] == nil && leading[k] {
			t.loose[k.To("")] = append(t.loose[k.To("")], k)
		}
	}
}

// candidateRule is a rule, or a chain's policy, that may have dropped packets in the window.
type candidateRule struct {
	// ChainKey is its chain, or the chain whose policy it is.
	path.ChainKey
	// One of these is set; policy is the chain whose policy it is.
	Rule   *model.PacketRule
	Frame  *model.FrameRule
	policy *model.Chain
	// keeper is the program that sets that policy.
	keeper string
	// Counted: its counter covers the window. left is what that counted and no drop was attributed to it for.
	Counter model.Counter
	Counted bool
	left    uint64
	// Pod is the pod in whose own namespace it is; nil for the node's.
	Pod *model.Pod
	// unknown are its matches that were not decoded.
	unknown []string
	// Path are the chains that lead to it, its own last; jumps are the rules between them.
	Path  []string
	jumps []*model.PacketRule
}

func newCandidateRule(k path.ChainKey, native bool, c model.Counter, unknown []string) *candidateRule {
	return &candidateRule{ChainKey: k, Counter: c, Counted: c.Covers(native), left: c.Delta, unknown: unknown}
}

// ruleOf is a packet rule of the node.
func ruleOf(r *model.PacketRule) *candidateRule {
	c := newCandidateRule(path.ChainOf(r), r.Native, r.Counter, r.Unknown)
	c.Rule = r
	return c
}

// policyOf is a chain's policy.
func policyOf(v *path.State, c *model.Chain) *candidateRule {
	p := newCandidateRule(path.KeyOf(c), false, c.Counter, nil)
	p.policy, p.keeper = c, model.PolicyKeeper(v.PacketRules, c)
	p.Counted = !c.Counter.Restarted && (c.Counter.Packets > 0 || c.Backend == model.Legacy)
	return p
}

// Maker is the program that made it; empty where no known program did.
func (c *candidateRule) Maker() string {
	comment := ""
	switch {
	case c.policy != nil:
		return c.keeper
	case c.Rule != nil:
		comment = c.Rule.Comment
	}
	return model.Maker(c.Path, comment, c.Table)
}

// policies are the names of those that it was made from, where the rules have them.
func (c *candidateRule) policies(v *node.Index) []string {
	if c.Rule == nil || c.Pod != nil || c.Maker() == "" {
		return nil
	}
	return words.Policies(v.PacketRules, c.Rule.Family, c.Rule.Table, c.Rule.Chain)
}

// object is what its Undo ends, nil where that is a program's.
func (c *candidateRule) object() any {
	switch {
	case c.Maker() != "" || c.Pod != nil:
		return nil
	case c.Rule != nil:
		return c.Rule
	case c.Frame != nil:
		return c.Frame
	}
	return c.policy
}

// Target is what the rule does with packets; empty for the policy of a chain and a bridge's rule.
func (c *candidateRule) Target() string {
	if c.Rule == nil {
		return ""
	}
	return c.Rule.Target
}

// IsPolicy reports whether it is a chain's policy.
func (c *candidateRule) IsPolicy() bool { return c.policy != nil }

// Undo is the command that ends what the rule does to pods of these ranges, or sets the policy to accept. What a program
// keeps is changed where that program takes it from.
func (c *candidateRule) Undo(ranges []netip.Prefix) words.Command {
	switch by := c.Maker(); {
	case by == "" && c.Pod != nil:
		own := *c
		own.Pod = nil
		return words.Inside(c.Pod) + own.Undo(ranges)
	case by != "" && (c.policy != nil || c.Rule != nil && c.Rule.Keeper() != ""):
		return words.ChangeInstead(by, c.Chain, ranges...)
	case c.Rule != nil:
		return words.UndoPacketRule(c.Rule, c.Path...)
	case c.Frame != nil:
		return words.UndoFrameRule(c.Frame, c.Path...)
	case c.policy.Hook == "INPUT" && len(ranges) > 0:
		// What else it keeps from the node stays out.
		accept := func(r netip.Prefix) string { return string(words.AcceptPackets(c.policy, r, 0, 0)) }
		return words.Command(strings.Join(model.Map(ranges, accept), "; "))
	}
	return words.AcceptPolicy(c.policy)
}

// Elements are those of named sets and maps that lead to it.
func (c *candidateRule) Elements() []model.Lookup {
	var out []model.Lookup
	for _, r := range c.jumps {
		out = append(out, model.Filter(r.Lookups, func(l model.Lookup) bool { return l.Element != "" && !strings.HasPrefix(l.Set, "__") })...)
	}
	return out
}

// Remark is its comment, where its text does not have it.
func (c *candidateRule) Remark() string {
	if c.Rule == nil || strings.Contains(c.Rule.Text, c.Rule.Comment) {
		return ""
	}
	return c.Rule.Comment
}

// concerns reports whether the rule may drop packets of a flow, in either direction and before or after translation, as
// far as protocols and ports tell.
func (c *candidateRule) concerns(f *model.Flow) bool {
	asks, answers := f.Original, f.Reply
	return slices.ContainsFunc([]path.Packet{
		{SrcPort: asks.SrcPort, DstPort: asks.DstPort}, {SrcPort: asks.SrcPort, DstPort: answers.SrcPort},
		{SrcPort: answers.SrcPort, DstPort: answers.DstPort}, {SrcPort: asks.DstPort, DstPort: asks.SrcPort},
	}, func(x path.Packet) bool {
		x.Proto = f.Proto
		return !slices.ContainsFunc(c.leading(), func(r *model.PacketRule) bool {
			return x.Fits(&model.PacketRule{Proto: r.Proto, ProtoNot: r.ProtoNot, SrcPorts: r.SrcPorts, DstPorts: r.DstPorts}) == path.No
		})
	})
}

// leading are the rules that lead to it, its own last where that is a packet rule.
func (c *candidateRule) leading() []*model.PacketRule {
	if c.Rule == nil {
		return c.jumps
	}
	return append(slices.Clone(c.jumps), c.Rule)
}

// names reports whether the rule, or a jump to it, names one sender or one receiver.
func (c *candidateRule) names() (src, dst bool) {
	one := func(m model.AddrMatch) bool { return !m.IsZero() && !m.Not && m.Prefix.IsSingleIP() }
	port := func(m model.IfMatch) bool { return m.Name != "" && !m.Not && !strings.HasSuffix(m.Name, "+") }
	if r := c.Frame; r != nil {
		return one(r.IPSrc) || port(r.In), one(r.IPDst) || port(r.Out)
	}
	for _, r := range c.leading() {
		src = src || one(r.Src) || port(r.In)
		dst = dst || one(r.Dst) || port(r.Out)
	}
	return src, dst
}

// sides reports whether the jumps to the rule are for what comes in by links, or
// for what goes out by them, whichever links these are.
func (c *candidateRule) sides() (in, out bool) {
	for _, r := range c.jumps {
		in, out = in || r.In.Name != "" && !r.In.Not, out || r.Out.Name != "" && !r.Out.Not
	}
	return in, out
}

// dropsInvalid reports whether a rule drops what connection tracking calls invalid, as kube-proxy does.
func dropsInvalid(r *model.PacketRule) bool {
	return r != nil && slices.ContainsFunc(r.Unknown, func(m string) bool {
		return strings.Contains(strings.ToLower(m), "state invalid") && !strings.HasPrefix(m, "!")
	})
}

// dropsUnknownLink reports whether the rule is the one by which Calico drops
// what comes from, or goes to, a link that it has no chain for.
func (c *candidateRule) dropsUnknownLink() bool {
	return c.Rule != nil && strings.Contains(c.Rule.Text+c.Rule.Comment, "Unknown interface") && c.Maker() == model.Calico
}

// Comments of kube-proxy's rules, in its modes iptables and nftables.
const (
	noEndpoints      = " has no endpoints"
	noLocalEndpoints = " has no local endpoints"
	noSuchService    = "Drop traffic to unallocated ClusterIPs"
	noSuchPort       = "Reject traffic to invalid ports of ClusterIPs"
)

// serviceWithout is the service ("shop/cart") whose packets a rule of kube-proxy's
// refuses, since it has no endpoints, or none on this node; empty where it is another rule.
func (c *candidateRule) serviceWithout() (service string, local bool) {
	if c.Rule == nil || c.Maker() != "kube-proxy" {
		return "", false
	}
	for _, r := range c.leading() {
		port, none := strings.CutSuffix(r.Comment, noEndpoints)
		port, local = strings.CutSuffix(port, noLocalEndpoints)
		byMap := slices.ContainsFunc(r.Lookups,
			func(l model.Lookup) bool { return l.Element != "" && strings.HasPrefix(l.Set, "no-endpoint-") })
		if none || local || byMap {
			service, _, _ = strings.Cut(port, ":")
			return service, local || byMap && r.Target == "DROP"
		}
	}
	return "", false
}

// serviceFacts are what the drops of kube-proxy's rules mean: they tell who asks for a service that cannot reply.
func (c *candidateRule) serviceFacts(to words.Facts) {
	service, local := c.serviceWithout()
	switch {
	case service != "":
		namespace, object, _ := strings.Cut(service, "/")
		to["service"], to["namespace"], to["object"], to["local"] = service, namespace, object, local
	case c.Rule != nil && c.Maker() == "kube-proxy":
		to["noService"], to["noPort"] = c.Rule.Comment == noSuchService, c.Rule.Comment == noSuchPort
	}
}
