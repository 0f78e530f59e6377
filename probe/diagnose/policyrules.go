package diagnose

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
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
	// policies are the candidates at the ends of base chains, and of the
	// chains of ebtables that have a policy.
	policies map[path.ChainKey]*candidateRule
	// loose are the chains that no rule leads to, by table: a map whose elements are not
	// known may lead to any of them.
	loose map[path.ChainKey][]path.ChainKey
	// sets are what rules look packets up in; chosen are the candidates that an
	// element of a map is, or leads to.
	sets   path.Sets
	chosen map[chosenBy]*candidateRule
	// pod is whose namespace they are in, nil for the node's.
	pod *model.Pod
	// inNFT: this kernel frees what nft drops in nft_do_chain itself, as Linux
	// 6.12 does and 6.1 does not; legacy tables and connection tracking never
	// free there.
	inNFT bool
}

// chosenBy is an element of a map, as a rule, and what drops; nil is the element itself.
type chosenBy struct {
	element *model.PacketRule
	drops   *candidateRule
}

// newDropRules indexes the rules and policies of a node, or of a pod's own namespace, that may
// have dropped packets in the window: those that counted some, and those whose counter does
// not tell.
func newDropRules(v *path.State, pod *model.Pod) *dropRules {
	t := &dropRules{
		steps: map[path.ChainKey][]ruleStep{}, policies: map[path.ChainKey]*candidateRule{},
		loose: map[path.ChainKey][]path.ChainKey{}, sets: v.Tables().Sets, chosen: map[chosenBy]*candidateRule{},
		pod:   pod,
		inNFT: slices.ContainsFunc(v.Traffic.Drops, func(d model.Drop) bool { return d.Location == model.LocationNFT }),
	}
	chains := map[path.ChainKey]bool{}
	for c := range model.Each(v.Chains) {
		k := path.KeyOf(c)
		chains[k] = true
		if c.Hook != "" {
			t.bases = append(t.bases, c)
		}
		counted := !c.Counter.Restarted && (c.Counter.Packets > 0 || c.Backend == model.Legacy)
		if c.Policy == "DROP" && (c.Counter.Delta > 0 || !counted) {
			p := newCandidateRule(k, false, c.Counter, nil)
			p.Pod, p.policy, p.Counted, t.policies[k] = pod, c, counted, p
		}
	}
	slices.SortStableFunc(t.bases, func(a, b *model.Chain) int {
		return cmp.Or(cmp.Compare(hookOrder(a), hookOrder(b)), cmp.Compare(a.Priority, b.Priority))
	})
	for r := range model.Each(v.FrameRules) {
		k := path.ChainKey{Backend: r.Backend, Family: "bridge", Table: r.Table, Chain: r.Chain}
		switch s := (ruleStep{frame: r}); {
		case unused(r.Native, r.Counter):
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
		k, s := keyOf(r), ruleStep{packet: r}
		switch {
		case r.Map != "":
		case unused(r.Native, r.Counter), loss.Bans(r):
			continue
		case r.Target == "DROP" || r.Target == "REJECT":
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

// hookOrder is the order in which a packet meets the hooks; the bridge's come
// before the IP layer's of the same name.
func hookOrder(c *model.Chain) int {
	order := 2 * slices.Index([]string{"BROUTING", "INGRESS", "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "EGRESS"}, c.Hook)
	if c.Family != "bridge" {
		order++
	}
	return order
}

// keyOf is the key of a rule's chain.
func keyOf(r *model.PacketRule) path.ChainKey {
	return path.ChainKey{Backend: r.Backend, Family: r.Family, Table: r.Table, Chain: r.Chain}
}

// counts reports whether a rule's counter covers the window, unused whether it does and
// counted nothing.
func counts(native bool, c model.Counter) bool {
	return !c.Restarted && (!native || c.Kept || c.Packets > 0)
}

func unused(native bool, c model.Counter) bool { return counts(native, c) && c.Delta == 0 }

// drops reports whether the step itself may drop.
func (s *ruleStep) drops() bool {
	return s.candidate != nil || s.packet != nil && s.packet.Map != "" || slices.Contains(s.targets, "DROP")
}

// prune takes out the rules that lead to no candidate, so that searches are short.
func (t *dropRules) prune(v *path.State) {
	reached := slices.Collect(maps.Keys(t.policies))
	from := map[path.ChainKey][]path.ChainKey{}
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
			leading[k] = true
			reached = append(reached, from[k]...)
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
