package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// DeadBackend is the code of this finding.
const DeadBackend model.Code = "DeadBackend"

var deadBackend = kind{
	code:     DeadBackend,
	severity: model.Warning,
	find:     needing(findDeadBackend, model.SourcePods, model.SourceConntrack),
	ends:     []model.HopKind{model.HopNeighbor, model.HopRoute, model.HopBeyond},
}

// backend is one that flows were sent to.
type backend struct {
	addr    netip.Addr
	silent  []*model.Flow
	answers bool
	// held are flows from before the window that had replies, and go on.
	held []*model.Flow
	// rules are those that lead there now.
	rules []*model.PacketRule
}

func findDeadBackend(v *view) []finding {
	found := map[netip.Addr]*backend{}
	of := func(a netip.Addr) *backend {
		if found[a] == nil {
			found[a] = &backend{addr: a}
		}
		return found[a]
	}
	for f := range model.Each(v.Flows) {
		to := f.Reply.Src
		if to == f.Original.Dst || !v.nobody(to) {
			continue
		}
		b := of(to)
		switch passed, _ := v.passed(f); {
		case !f.Replied:
			b.silent = append(b.silent, f)
		case !f.Start.IsZero():
			b.answers = true
		case passed || established(f):
			b.held = append(b.held, f)
		}
	}
	for i := range v.PacketRules {
		// A bridge asks for the neighbour before the flow is entered, so
		// that connection tracking may know nothing of it. nft's rules need not count.
		r := &v.PacketRules[i]
		if a := r.To.Addr(); r.Target == "DNAT" && v.nobody(a) && (found[a] != nil || r.Counter.Delta > 0 || v.droppedFor(a) > 0) {
			b := of(a)
			b.rules = append(b.rules, r)
		}
	}
	var out []finding
	for _, a := range sorted(found) {
		if b := found[a]; !b.answers && triedEnough(v, b) {
			out = append(out, finding{Finding: v.dead(b), claims: lostTo(a)})
		}
	}
	return out
}

// nobody reports whether an address is one of pods, here or on a node that says so, and
// no pod has it.
func (v *view) nobody(a netip.Addr) bool { return v.vacant(a) || v.others.Vacant[a] != "" }

// triedEnough reports whether traffic of the window died there: several flows
// began in it, or packets of older ones left the node for an address of its own.
func triedEnough(v *view, b *backend) bool {
	n, old := 0, map[netip.Addr]bool{}
	for _, f := range b.silent {
		if f.Start.IsZero() {
			old[f.Reply.Dst] = true
		} else {
			n++
		}
	}
	return n >= minPackets || v.droppedFor(b.addr) >= minDrops ||
		slices.ContainsFunc(v.peers, func(p model.Peer) bool {
			return p.Remote == b.addr && old[p.Local] && p.Out.Packets >= minDrops && p.In.Packets == 0 && lasted(&p)
		})
}

// dropsFor are the drops of packets for an address that nobody has.
func (v *view) dropsFor(a netip.Addr) []*model.Drop {
	var out []*model.Drop
	takes := lostTo(a)
	for d := range model.Each(v.Traffic.Drops) {
		if takes(d) {
			out = append(out, d)
		}
	}
	return out
}

func (v *view) droppedFor(a netip.Addr) uint64 {
	var n uint64
	for _, d := range v.dropsFor(a) {
		n += d.Packets
	}
	return n
}

// lostTo accounts for drops of packets for an address that nobody has: it has no
// neighbour, or the route that keeps the pods' range together discards what is
// for none of them (Calico's), or there is no route; or the packets went out by
// the default route and came back until their TTL ended; or a bridge floods them, since the
// node still has the neighbour of a pod that is gone.
func lostTo(a netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return d.Dst == a && (d.NeighborFailed() || d.LookupRefused() || d.Expired() || d.OtherHost())
	}
}

// deadRule names the rules that lead there, or else the flows that remember
// one.
func (v *view) deadRule(b *backend, f *model.Finding) {
	a := b.addr
	if len(b.rules) == 0 {
		observe(f, model.SourceNAT, "no rule translates to %s now", a)
		f.Confidence = weaker(f.Confidence, model.Likely)
		f.Unseen = append(f.Unseen, "what translated the flows: a rule that is gone, or a program beside netfilter")
		f.Fix = words.Forget(append(b.silent, b.held...))
		return
	}
	agent := false
	for _, r := range b.rules {
		f.Evidence = append(f.Evidence, packetRuleEvidence("this rule translates to it", r))
		if fix := words.UndoPacketRule(r); !slices.Contains(f.Fix, fix) {
			f.Fix = append(f.Fix, fix)
		}
		agent = agent || words.Maker([]string{r.Chain}, r.Comment, r.Table) != ""
	}
	if agent {
		f.Fix = append([]string{fmt.Sprintf("kubectl get endpointslices -A -o wide | grep -F %s # no slice should have it", a)}, f.Fix...)
	}
	// New flows go right then.
	f.Fix = append(f.Fix, words.Forget(b.held)...)
}
