// Package path predicts what a node's tables do with a packet. It is pure:
// everything it knows is in a snapshot.
package path

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Packet is what a table may look at.
type Packet struct {
	Src, Dst netip.Addr
	// Proto is the IP protocol number, 0 when it is not known.
	Proto uint8
	// Out is the link through which the packet leaves.
	Out string
}

// SourceNAT is the decision of the nat tables' POSTROUTING chains over a
// packet.
type SourceNAT struct {
	// Translated says that a rule writes another source address.
	Translated bool
	// Rule is the rule that translates, or else the exclusion: the rule
	// that ended the search before Missed could translate. Nil when no
	// rule of POSTROUTING translates such a packet.
	Rule, Missed *model.PacketRule
	// Unsure are rules that end the search, whose match could not be read
	// whole, and that counted packets in the window.
	Unsure []*model.PacketRule
}

// maxJumps bounds the depth of chains, as the kernel does.
const maxJumps = 16

// NAT predicts the decisions of a snapshot's nat tables.
type NAT struct {
	chains map[chainKey][]*model.PacketRule
	local  map[netip.Addr]bool
	// hooks4 and hooks6 are the chains that see a packet in POSTROUTING.
	hooks4, hooks6 []chainKey
}

// NewNAT indexes the snapshot's rules.
func NewNAT(s *model.Snapshot) *NAT {
	n := &NAT{chains: map[chainKey][]*model.PacketRule{}, local: map[netip.Addr]bool{}}
	for _, l := range s.Links {
		for _, a := range l.Addresses {
			n.local[a.Addr()] = true
		}
	}
	for i := range s.PacketRules {
		r := &s.PacketRules[i]
		if r.Table == "nat" || r.Backend == model.NFT {
			k := chainKey{r.Backend, r.Family, r.Table, r.Chain}
			n.chains[k] = append(n.chains[k], r)
		}
	}
	n.hooks4 = natHooks(s.Chains, "ip")
	n.hooks6 = natHooks(s.Chains, "ip6")
	return n
}

// Source walks the POSTROUTING chains as the kernel would for the first
// packet of a flow with no mark. A rule whose match was not read whole is
// taken as not matching: where it counted nothing in the window that is a
// fact, else the rule is listed in Unsure.
func (n *NAT) Source(p Packet) SourceNAT {
	hooks := n.hooks4
	if p.Src.Is6() && !p.Src.Is4In6() {
		hooks = n.hooks6
	}
	w := walker{NAT: n, packet: p, walked: depths{}, barren: depths{}}
	for _, c := range hooks {
		if w.walk(c, 0) == verdictEnd {
			break
		}
	}
	return w.result
}

// natHooks lists the chains that see a family's packets in POSTROUTING with the
// power to translate, in the order in which the kernel calls them.
func natHooks(chains []model.Chain, family string) []chainKey {
	type hook struct {
		key      chainKey
		priority int
	}
	var hooks []hook
	for _, c := range chains {
		if c.Hook != "POSTROUTING" || c.Priority < natFirst || c.Priority > natLast {
			continue
		}
		if c.Family == family || c.Family == "inet" {
			hooks = append(hooks, hook{keyOf(&c), c.Priority})
		}
	}
	slices.SortStableFunc(hooks, func(a, b hook) int { return a.priority - b.priority })
	keys := make([]chainKey, len(hooks))
	for i, h := range hooks {
		keys[i] = h.key
	}
	return keys
}

// Source translation happens around NF_IP_PRI_NAT_SRC = 100; mangle is at
// -150 and the security table at 50.
const (
	natFirst = 90
	natLast  = 110
)

type chainKey struct {
	backend model.Backend
	family  string
	table   string
	chain   string
}

// to is the chain of that name in the same table.
func (k chainKey) to(name string) chainKey {
	k.chain = name
	return k
}

type verdict int

const (
	verdictNone verdict = iota // go on with the next rule or chain
	verdictEnd                 // the packet's fate is known
)

type walker struct {
	*NAT
	packet Packet
	result SourceNAT
	// walked are the chains that did not end the walk, barren those that
	// translate nothing.
	walked, barren depths
}

// depths says how deep a chain was when it was walked. As deep again it gives
// the same: where the walk had ended in it, it would be over.
type depths map[chainKey]int

// again notes a visit, and reports whether it would only repeat an earlier one.
func (d depths) again(k chainKey, depth int) bool {
	if before, seen := d[k]; seen && before <= depth {
		return true
	}
	d[k] = depth
	return false
}

// walk follows one chain. It returns verdictEnd or verdictNone: a RETURN ends
// the chain only.
func (w *walker) walk(k chainKey, depth int) verdict {
	if depth > maxJumps || w.walked.again(k, depth) {
		return verdictNone
	}
	for i, r := range w.chains[k] {
		if !w.matches(r) {
			continue
		}
		if len(r.Unknown) > 0 {
			if ends(r.Target) && r.Counter.Delta > 0 {
				w.result.Unsure = append(w.result.Unsure, r)
			}
			continue
		}
		switch r.Target {
		case "MASQUERADE", "SNAT":
			w.result.Translated, w.result.Rule, w.result.Missed = true, r, nil
			return verdictEnd
		case "ACCEPT", "RETURN":
			if missed := w.translator(k, i+1, depth); missed != nil {
				w.result.Rule, w.result.Missed = r, missed
			}
			if r.Target == "ACCEPT" {
				return verdictEnd
			}
			return verdictNone
		}
		if _, ok := w.chains[k.to(r.Target)]; !ok {
			continue
		}
		if w.walk(k.to(r.Target), depth+1) == verdictEnd {
			return verdictEnd
		}
		if r.Goto {
			return verdictNone
		}
	}
	return verdictNone
}

// translator finds the rule that would translate the packet, were the search
// to go on from the given rule of a chain.
func (w *walker) translator(k chainKey, from, depth int) *model.PacketRule {
	if depth > maxJumps || from == 0 && w.barren.again(k, depth) {
		return nil
	}
	for _, r := range w.chains[k][from:] {
		if !w.matches(r) || len(r.Unknown) > 0 {
			continue
		}
		if r.Target == "MASQUERADE" || r.Target == "SNAT" {
			return r
		}
		if t := w.translator(k.to(r.Target), 0, depth+1); t != nil {
			return t
		}
	}
	return nil
}

func (w *walker) matches(r *model.PacketRule) bool {
	p := w.packet
	if r.NFProto == 4 && isSix(p.Src) || r.NFProto == 6 && !isSix(p.Src) {
		return false
	}
	if !r.Src.Matches(p.Src) || !r.Dst.Matches(p.Dst) || !r.Out.Matches(p.Out) || !r.Mark.Matches(0) {
		return false
	}
	if r.Proto != 0 && p.Proto != 0 && (r.Proto == p.Proto) == r.ProtoNot {
		return false
	}
	return wants(r.DstLocal, w.local[p.Dst]) && wants(r.SrcLocal, w.local[p.Src])
}

// wants reports whether a three-way match is satisfied.
func wants(match int, local bool) bool {
	return match == 0 || (match > 0) == local
}

func ends(target string) bool {
	return slices.Contains([]string{"MASQUERADE", "SNAT", "ACCEPT", "RETURN"}, target)
}
