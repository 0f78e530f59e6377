package diagnose

import (
	"cmp"
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
	// candidate is set where the rule itself drops; to is the chain that it
	// leads to; targets are those of a map's elements; mapped says that a map
	// whose elements are not known decides.
	candidate *candidateRule
	to        string
	targets   []string
	mapped    bool
}

// dropRules are all candidates of a node, with the chains that lead to them.
type dropRules struct {
	bases []*model.Chain
	steps map[path.ChainKey][]ruleStep
	// policies are the candidates at the ends of base chains, and of the
	// chains of ebtables that have a policy.
	policies map[path.ChainKey]*candidateRule
	// mapped are the chains that maps may lead to whose elements are not known, by
	// table.
	mapped map[path.ChainKey][]path.ChainKey
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
func newDropRules(v *model.Snapshot, pod *model.Pod) *dropRules {
	t := &dropRules{
		steps: map[path.ChainKey][]ruleStep{}, policies: map[path.ChainKey]*candidateRule{},
		mapped: map[path.ChainKey][]path.ChainKey{}, sets: path.NewSets(v), chosen: map[chosenBy]*candidateRule{},
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
			p := newCandidateRule(k, c.Backend == model.NFT && !madeByIptables(c), c.Counter, counted, nil)
			p.Pod, p.policy, t.policies[k] = pod, c, p
		}
	}
	slices.SortStableFunc(t.bases, func(a, b *model.Chain) int {
		return cmp.Or(cmp.Compare(hookOrder(a), hookOrder(b)), cmp.Compare(a.Priority, b.Priority))
	})
	t.addFrameRules(v)
	t.addPacketRules(v, chains)
	t.findMapped(v)
	t.prune()
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

// counts reports whether a rule's counter covers the window.
func counts(native bool, c model.Counter) bool {
	return !c.Restarted && (!native || c.Kept || c.Packets > 0)
}

func (t *dropRules) addPacketRules(v *model.Snapshot, chains map[path.ChainKey]bool) {
	for r := range model.Each(v.PacketRules) {
		k := path.ChainKey{Backend: r.Backend, Family: r.Family, Table: r.Table, Chain: r.Chain}
		s := ruleStep{packet: r}
		counted := counts(r.Native, r.Counter)
		idle := counted && r.Counter.Delta == 0
		switch {
		case r.Map != "":
			s.mapped = true
		case idle:
			continue
		case t.sets.Targets(r) != nil:
			s.targets = t.sets.Targets(r)
		case r.Target == "DROP" || r.Target == "REJECT":
			if loss.Bans(r) {
				continue
			}
			s.candidate = newCandidateRule(k, r.Native, r.Counter, counted, r.Unknown)
			s.candidate.Rule, s.candidate.Pod = r, t.pod
		case chains[k.To(r.Target)]:
			s.to = r.Target
		default:
			continue
		}
		t.steps[k] = append(t.steps[k], s)
	}
}

func (t *dropRules) addFrameRules(v *model.Snapshot) {
	for r := range model.Each(v.FrameRules) {
		k := path.ChainKey{Backend: r.Backend, Family: "bridge", Table: r.Table, Chain: r.Chain}
		s := ruleStep{frame: r}
		counted := counts(r.Native, r.Counter)
		switch {
		case counted && r.Counter.Delta == 0:
			continue
		case r.Target == model.TargetDrop && !loss.Deduplicates(v, r):
			s.candidate = newCandidateRule(k, r.Native, r.Counter, counted, r.Unknown)
			s.candidate.Frame = r
		case r.Target == model.TargetJump:
			s.to = r.TargetName
		default:
			continue
		}
		t.steps[k] = append(t.steps[k], s)
	}
}

// leads are the chains that the step leads to, but by maps whose elements are not known.
func (s *ruleStep) leads(k path.ChainKey) []path.ChainKey {
	var out []path.ChainKey
	if s.to != "" {
		out = append(out, k.To(s.to))
	}
	for _, to := range s.targets {
		out = append(out, k.To(to))
	}
	return out
}

// drops reports whether the step itself may drop.
func (s *ruleStep) drops() bool { return s.candidate != nil || slices.Contains(s.targets, "DROP") }

// findMapped lists the chains that no rule leads to, by table: a map whose elements are
// not known may lead to any of them.
func (t *dropRules) findMapped(v *model.Snapshot) {
	led := map[path.ChainKey]bool{}
	for k, list := range t.steps {
		for _, s := range list {
			for _, to := range s.leads(k) {
				led[to] = true
			}
		}
	}
	for i := range v.Chains {
		if k := path.KeyOf(&v.Chains[i]); v.Chains[i].Hook == "" && !led[k] {
			t.mapped[k.To("")] = append(t.mapped[k.To("")], k)
		}
	}
}

// prune takes out the rules that lead to no candidate. A way to one leads through one
// map at most whose elements are not known, so that many maps and chains do not multiply.
func (t *dropRules) prune() {
	direct := t.leading(false)
	for table, chains := range t.mapped {
		t.mapped[table] = slices.DeleteFunc(chains, func(k path.ChainKey) bool { return !direct[k] })
	}
	leading := t.leading(true)
	for k, list := range t.steps {
		t.steps[k] = slices.DeleteFunc(list, func(s ruleStep) bool {
			if s.mapped {
				return len(t.mapped[k.To("")]) == 0
			}
			return !s.drops() && !slices.ContainsFunc(s.leads(k), func(to path.ChainKey) bool { return leading[to] })
		})
	}
}

// leading are the chains that lead to a candidate, by maps whose elements are not known
// too where asked for.
func (t *dropRules) leading(maps bool) map[path.ChainKey]bool {
	var reached []path.ChainKey
	from := map[path.ChainKey][]path.ChainKey{}
	for k := range t.policies {
		reached = append(reached, k)
	}
	for k, list := range t.steps {
		for _, s := range list {
			if s.drops() || s.mapped && maps && len(t.mapped[k.To("")]) > 0 {
				reached = append(reached, k)
			}
			for _, to := range s.leads(k) {
				from[to] = append(from[to], k)
			}
		}
	}
	out := map[path.ChainKey]bool{}
	for len(reached) > 0 {
		k := reached[len(reached)-1]
		reached = reached[:len(reached)-1]
		if !out[k] {
			out[k] = true
			reached = append(reached, from[k]...)
		}
	}
	return out
}
