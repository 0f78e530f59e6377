package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Limits of one walk. A recording may hold any rules; the kernel itself allows 16 nested jumps (NFT_JUMP_STACK_SIZE).
const (
	// MaxDepth is how many jumps deep a chain may be.
	MaxDepth = 16
	// MaxSteps is how many rules are looked at and chains entered.
	MaxSteps = 200_000
)

// ChainKey identifies a chain. Family is the table's, as in model.Chain.
type ChainKey struct {
	Backend              model.Backend
	Family, Table, Chain string
}

// KeyOf is the key of a chain.
func KeyOf(c *model.Chain) ChainKey { return ChainKey{c.Backend, c.Family, c.Table, c.Name} }

// ChainOf is the chain that a rule belongs to.
func ChainOf(r *model.PacketRule) ChainKey { return ChainKey{r.Backend, r.Family, r.Table, r.Chain} }

// To is the chain of the given name in the same table.
func (k ChainKey) To(name string) ChainKey {
	k.Chain = name
	return k
}

// Action says how a walk goes on after a rule.
type Action int

const (
	// Next goes on with the next rule of the chain.
	Next Action = iota
	// Leave goes on behind the jump that led to the chain.
	Leave
	// End ends the walk.
	End
)

// Walk follows one packet through chains of rules of type R. State is whatever besides the chain decides how
// the packet passes it; a chain that the packet has passed in some state is not walked again in that state, so
// that neither cycles nor many ways through the same chains take long.
type Walk[R any, S comparable] struct {
	Chains map[ChainKey][]R
	// Meet decides over rule i of a chain. To jump it calls Chain.
	Meet  func(k ChainKey, i int, r R) Action
	State S
	// First, where set, finds the place of the first rule of a chain, from one on, that the
	// packet may match. The others are not met.
	First func(k ChainKey) func(from int) int
	// CutOff is set when the walk met one of its limits: what it found is then not all that there is.
	CutOff bool

	depth, steps int
	// passed holds the state in which the packet left a chain, by that in which it entered.
	passed map[entry[S]]S
}

type entry[S comparable] struct {
	chain ChainKey
	state S
}

// Base walks a base chain from its start, whatever chains were walked before it. It returns Next or End.
func (w *Walk[R, S]) Base(c *model.Chain) Action {
	clear(w.passed)
	return w.Chain(KeyOf(c))
}

// Chain walks a chain, as a jump does. It returns Next where the packet comes back from it, else End.
func (w *Walk[R, S]) Chain(k ChainKey) Action {
	if w.depth > MaxDepth {
		w.CutOff = true
		return Next
	}
	if !w.step() {
		return End
	}
	at := entry[S]{k, w.State}
	if w.depth > 0 {
		if after, passed := w.passed[at]; passed {
			w.State = after
			return Next
		}
		if w.passed == nil {
			w.passed = map[entry[S]]S{}
		}
		w.passed[at] = w.State // a cycle ends here
	}
	w.depth++
	action := w.rules(k, 0)
	w.depth--
	if action == End {
		return End
	}
	if w.depth > 0 {
		w.passed[at] = w.State
	}
	return Next
}

// rules walks the rules of a chain from the given one on.
func (w *Walk[R, S]) rules(k ChainKey, from int) Action {
	list := w.Chains[k]
	first := func(i int) int { return i }
	if w.First != nil {
		first = w.First(k)
	}
	for i := first(from); i < len(list); i = first(i + 1) {
		if !w.step() {
			return End
		}
		if action := w.Meet(k, i, list[i]); action != Next {
			return action
		}
	}
	return Next
}

// step counts against MaxSteps, and reports whether the walk goes on.
func (w *Walk[R, S]) step() bool {
	w.steps++
	if w.steps > MaxSteps {
		w.CutOff = true
	}
	return w.steps <= MaxSteps
}

// Tables predicts what the chains of the node's IP layer do with packets. They are not for concurrent use.
type Tables struct {
	chains map[ChainKey][]*model.PacketRule
	places places[*model.PacketRule]
	// hooks are the base chains in the order in which the kernel calls them.
	hooks map[hook][]*model.Chain
	state *State
	Sets  Sets
	// services are addresses that rules translate, a few of each block that was asked for.
	services map[netip.Prefix][]netip.Addr
	// counted: packets were counted in the window, so that a rule which stood
	// through it and counted none matches none of them.
	counted bool
	// writes are the bits of marks that rules write, translates those by which rules translate.
	writes, translates uint32
	// untracking are the rules that exclude what comes in from connection tracking.
	untracking []*model.PacketRule
}

type hook struct {
	name   string
	isIPv6 bool
}

func newTables(s *State) *Tables {
	t := &Tables{
		chains: model.Grouped(s.PacketRules, ChainOf), places: places[*model.PacketRule]{},
		hooks: map[hook][]*model.Chain{}, state: s, Sets: Sets{}, services: map[netip.Prefix][]netip.Addr{}, counted: len(s.Traffic.Hops) > 0,
	}
	for r := range model.Each(s.PacketRules) {
		if r.IsNotrack() && r.Chain != "OUTPUT" {
			t.untracking = append(t.untracking, r)
		}
		if setsMark(r) {
			t.writes |= model.Either(r.SetMark == model.MarkWrite{}, anyMark, r.SetMark.Mask|r.SetMark.Value)
		}
		if r.Mark.Set && (r.Table == "nat" || r.Native) {
			t.translates |= r.Mark.Mask
		}
	}
	for x := range model.Each(s.Snapshot.Sets) {
		t.Sets[setKey{x.Family, x.Table, x.Name}] = &set{Set: x, rules: map[choice]*model.PacketRule{}}
	}
	for c := range model.Each(s.Chains) {
		if c.Hook == "" || c.Family == "bridge" || s.PassedBy(c) {
			continue
		}
		for _, isIPv6 := range []bool{false, true} {
			if h := (hook{c.Hook, isIPv6}); c.Family == "inet" || (c.Family == "ip6") == isIPv6 {
				t.hooks[h] = append(t.hooks[h], c)
			}
		}
	}
	for _, list := range t.hooks {
		slices.SortStableFunc(list, func(a, b *model.Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	}
	return t
}

// first finds rules that a packet to the destination may match: a chain of kube-proxy's has one for each service.
func (t *Tables) first(dst netip.Addr) func(ChainKey) func(int) int {
	return t.places.first(t.chains, dst, func(r *model.PacketRule) netip.Addr { return r.Dst.Addr() })
}

// places are where the rules of long chains are, each made when it is first walked.
type places[R any] map[ChainKey]*index[netip.Addr]

// first finds the rules of a chain, each from a place on, that may be about an address. about is the only one that a rule
// is about, not valid where it is about several.
func (p places[R]) first(chains map[ChainKey][]R, dst netip.Addr, about func(R) netip.Addr) func(ChainKey) func(int) int {
	const short = 16
	return func(k ChainKey) func(int) int {
		rules := chains[k]
		if len(rules) <= short || !dst.IsValid() {
			return func(from int) int { return from }
		}
		x := p[k]
		if x == nil {
			x = &index[netip.Addr]{}
			for _, r := range rules {
				a := about(r)
				x.add(a, a.IsValid())
			}
			p[k] = x
		}
		lists := [][]int{x.about[dst], x.others}
		return func(from int) int {
			next := len(rules)
			for _, list := range lists {
				if i, _ := slices.BinarySearch(list, from); i < len(list) {
					next = min(next, list[i])
				}
			}
			return next
		}
	}
}

// hook lists the chains of a hook that see the packet.
func (t *Tables) hook(name string, p *Packet) []*model.Chain {
	return t.hooks[hook{name, isIPv6(p.Dst)}]
}

type tableState struct {
	// fit is how surely the packet comes to where the walk is.
	fit Fit
	// mark is the packet's, flow its connection's.
	mark, flow Mark
	// service: a rule that led here names the packet's destination alone.
	service bool
	// unused: a rule on the way matches the packet and counted none, so that no packet of the window came this way.
	unused bool
}

// at is the state in which the packet comes to a base chain.
func (s tableState) at() tableState { return tableState{fit: Yes, mark: s.mark, flow: s.flow} }

// Mark is a packet's or a connection's, but for the bits of Loose, which are not known.
type Mark struct{ Value, Loose uint32 }

func (m Mark) fits(r model.MarkMatch) Fit {
	differs := (m.Value^r.Value)&r.Mask&^m.Loose != 0
	return known(!r.Set || differs || r.Mask&m.Loose == 0, !r.Set || differs == r.Not)
}

// write has a rule that the packet meets write a mark, and reports whether that may have changed.
func (s *tableState) write(m model.MarkWrite, met Fit) bool {
	to, from := &s.mark, s.flow
	if m.OfFlow {
		to, from = &s.flow, s.mark
	}
	after := Mark{to.Value&^m.Mask ^ m.Value ^ from.Value&m.Copied, to.Loose&^m.Mask | from.Loose&m.Copied}
	switch before := *to; {
	case m == model.MarkWrite{}:
		to.Loose = anyMark
		return true
	case met == Yes:
		*to = after
		return before != after
	default:
		to.Loose |= after.Loose | (before.Value ^ after.Value)
		return before != *to
	}
}

// setsMark reports whether a rule sets the mark of packets or of connections.
func setsMark(r *model.PacketRule) bool { return r.Target == "MARK" || r.Target == "CONNMARK" }

type tableWalk struct {
	Walk[*model.PacketRule, tableState]
	packet Packet
	// counted is that of Tables.
	counted bool
}

func (t *Tables) walk(p Packet) *tableWalk {
	p.SrcLocal, p.DstLocal, p.Sets = t.state.Own[p.Src] != nil, t.state.Own[p.Dst] != nil, t.Sets
	w := &tableWalk{packet: p, counted: t.counted}
	w.Chains, w.First, w.State = t.chains, t.first(p.Dst), tableState{fit: Yes, mark: p.Mark, flow: p.Flow}
	return w
}

// meet has a function decide over each rule that the packet meets: over each element of
// a map, that is, which the packet may have.
func (w *tableWalk) meet(decide func(k ChainKey, i int, r *model.PacketRule) Action) {
	w.Meet = func(k ChainKey, i int, r *model.PacketRule) Action {
		// A packet has one element of a map, so that none is less sure for another.
		before := w.State.fit
		after := before
		for _, r := range w.packet.Choices(r) {
			w.State.fit = before
			if action := decide(k, i, r); action != Next {
				return action
			}
			after = min(after, w.State.fit)
		}
		w.State.fit = after
		return Next
	}
}

// meets says how surely the packet comes to a rule and matches it. A rule that
// may match and counted nothing in a window with traffic does not, where traffic came to it.
func (w *tableWalk) meets(r *model.PacketRule) Fit {
	w.packet.Mark, w.packet.Flow = w.State.mark, w.State.flow
	f, idle := min(w.State.fit, w.packet.Fits(r)), w.counted && !r.Counter.Added && r.Counter.Delta == 0
	w.State.unused = w.State.unused || idle && f == Yes
	return model.Either(f == Maybe && idle && r.Counter.Packets > 0 && !w.State.unused, No, f)
}

// follow does what RETURN, a jump and a goto do with a packet that meets such a rule; all other targets let it go on.
func (w *tableWalk) follow(k ChainKey, r *model.PacketRule, met Fit) Action {
	if r.Target == "RETURN" {
		if met == Yes {
			return Leave
		}
		// Only what did not match comes to the next rule.
		w.State.fit = Maybe
		return Next
	}
	to := k.To(r.Target)
	if len(w.Chains[to]) == 0 && !r.Goto {
		return Next
	}
	before := w.State
	w.State.fit = met
	action := w.Chain(to)
	before.mark, before.flow = w.State.mark, w.State.flow
	w.State = before
	switch {
	case action == End:
		return End
	case r.Goto && met == Yes:
		return Leave
	case r.Goto:
		w.State.fit = Maybe
	}
	return Next
}

// index finds the few of many elements that may be about a packet.
type index[K comparable] struct {
	// size is how many there are, about the places of those about one value alone, by this, others those of all others.
	size   int
	about  map[K][]int
	others []int
}

func (x *index[K]) add(value K, alone bool) {
	switch {
	case !alone:
		x.others = append(x.others, x.size)
	case x.about == nil:
		x.about = map[K][]int{value: {x.size}}
	default:
		x.about[value] = append(x.about[value], x.size)
	}
	x.size++
}

// of are the places of those that may be about one of the values: the ones about it alone
// first. Without values they are all.
func (x *index[K]) of(values ...K) []int {
	if len(values) == 0 {
		out := make([]int, x.size)
		for i := range out {
			out[i] = i
		}
		return out
	}
	return append(model.Flat(values, func(v K) []int { return x.about[v] }), x.others...)
}
