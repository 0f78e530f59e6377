package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

type frameDecision struct {
	does does
	// routed: the frame is taken from the bridge and given to the node's IP layer.
	routed bool
	// rules are those that matched and change, answer or end.
	rules []*model.FrameRule
	// policy is the chain whose policy dropped the frame.
	policy *model.Chain
	// cutOff: there are more rules than a walk follows.
	cutOff bool
}

// FrameTables predicts what the chains of ebtables, and those of nft's bridge family, do with frames.
type FrameTables struct {
	chains map[ChainKey][]*model.FrameRule
	bases  []*model.Chain
	known  map[ChainKey]*model.Chain
	places places[*model.FrameRule]
}

func newFrameTables(s *model.Snapshot) *FrameTables {
	f := &FrameTables{known: map[ChainKey]*model.Chain{}, places: places[*model.FrameRule]{}}
	f.chains = model.Grouped(s.FrameRules, func(r *model.FrameRule) ChainKey { return ChainKey{r.Backend, "bridge", r.Table, r.Chain} })
	for c := range model.Each(s.Chains) {
		if c.Family != "bridge" {
			continue
		}
		f.known[KeyOf(c)] = c
		if c.Hook != "" {
			f.bases = append(f.bases, c)
		}
	}
	// Where a table's chains were not read, those that are named like hooks are its base chains.
	for k := range f.chains {
		if slices.Contains([]string{"BROUTING", "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, k.Chain) &&
			f.known[k] == nil {
			f.bases = append(f.bases, &model.Chain{Backend: k.Backend, Family: k.Family, Table: k.Table, Name: k.Chain,
				Hook: k.Chain})
		}
	}
	slices.SortStableFunc(f.bases, func(a, b *model.Chain) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Table, b.Table),
			cmp.Compare(a.Name, b.Name))
	})
	return f
}

// pass judges a frame by the chains of hooks, up to the one that takes it from the bridge.
// Rules change the frame's MACs.
func (f *FrameTables) pass(fr *Frame, hooks ...string) frameDecision {
	w := f.walk(fr)
	out := &w.decision
	for _, hook := range hooks {
		for _, c := range f.bases {
			if c.Hook != hook {
				continue
			}
			action := w.Base(c)
			fr.SrcMAC, fr.DstMAC = w.State.src, w.State.dst
			switch {
			case w.CutOff:
				out.cutOff, out.does, out.policy = true, unknown, nil
				return *out
			case action == End && w.end == model.TargetDrop && hook == "BROUTING":
				out.routed = true
			case action == End && w.end == model.TargetDrop:
				out.does = drops
				return *out
			case action == Next && c.Policy == "DROP":
				out.does, out.policy = drops, c
				return *out
			}
		}
		if out.routed {
			break
		}
	}
	return *out
}

// Dropper is the rule that surely drops a frame as it comes into a bridge; nil for none.
func (f *FrameTables) Dropper(fr Frame) *model.FrameRule {
	d := f.pass(&fr, "BROUTING", "PREROUTING")
	if d.does != drops || d.policy != nil {
		return nil
	}
	return d.rules[len(d.rules)-1]
}

// InForce reports whether frames come to a rule that writes a MAC or answers with one, and
// no rule behind it overrules it.
func (f *FrameTables) InForce(r *model.FrameRule) bool {
	w := f.walk(frameFor(r))
	w.sought = r
	for _, c := range f.bases {
		if c.Backend == r.Backend && c.Table == r.Table {
			w.last = nil
			if w.Base(c); w.last == r {
				return true
			}
		}
	}
	return false
}

// frameFor is a frame that a rule is about, of which no more is known than the rule says.
func frameFor(r *model.FrameRule) *Frame {
	addr := func(a, b model.AddrMatch) netip.Addr {
		if a.IsZero() {
			a = b
		}
		return model.Either(a.Not, netip.Addr{}, a.Prefix.Addr())
	}
	link := func(m model.IfMatch) []string {
		return model.Either(m.Name == "" || m.Not, nil, []string{m.Name})
	}
	fr := &Frame{
		Src: addr(r.IPSrc, r.ARPSrc), Dst: addr(r.IPDst, r.ARPDst), SrcMAC: r.SrcMAC.Addr, DstMAC: r.DstMAC.Addr,
		In: link(r.In), Out: link(r.Out), LogicalIn: link(r.LogicalIn), LogicalOut: link(r.LogicalOut),
	}
	if r.Target == model.TargetARPReply {
		fr.ARP = 1
	}
	return fr
}

func (f *FrameTables) walk(fr *Frame) *frameWalk {
	w := &frameWalk{FrameTables: f, frame: fr, decision: frameDecision{does: accepts}}
	w.Chains, w.Meet, w.State = f.chains, w.meet, macs{fr.SrcMAC, fr.DstMAC}
	w.First = f.places.first(f.chains, fr.Dst, func(r *model.FrameRule) netip.Addr {
		// No rule is about both.
		return model.Either(r.ARPDst.IsZero(), r.IPDst, r.ARPDst).Addr()
	})
	return w
}

// frameWalk is a walk of a frame. Its state are the frame's MACs, which rules rewrite.
type frameWalk struct {
	Walk[*model.FrameRule, macs]
	*FrameTables
	frame    *Frame
	decision frameDecision
	// end is ACCEPT or DROP, where a rule or a policy ended the walk.
	end model.FrameTarget
	// last is the last rule that wrote the destination's MAC or answered. sought is a rule
	// that the frame is known to match.
	last, sought *model.FrameRule
}

type macs struct{ src, dst model.MAC }

func (w *frameWalk) meet(k ChainKey, _ int, r *model.FrameRule) Action {
	w.frame.SrcMAC, w.frame.DstMAC = w.State.src, w.State.dst
	switch fit := w.frame.Fits(r); {
	case r == w.sought:
	case fit == No:
		return Next
	case fit == Maybe:
		if r.Counter.Delta > 0 && (r.Target == model.TargetDrop || r.Target == model.TargetDNAT) {
			w.decision.does = unknown
			w.decision.rules = append(w.decision.rules, r)
		}
		return Next
	}
	then := r.Verdict
	switch r.Target {
	case model.TargetAccept, model.TargetDrop, model.TargetReturn:
		then = r.Target
	case model.TargetDNAT:
		w.State.dst, w.last = r.MAC, r
	case model.TargetSNAT:
		w.State.src = r.MAC
	case model.TargetARPReply:
		w.last = r
	case model.TargetRedirect:
		w.decision.routed = true
	case model.TargetJump:
		return w.jump(k.To(r.TargetName))
	default:
		return Next
	}
	w.decision.rules = append(w.decision.rules, r)
	switch then {
	case model.TargetAccept, model.TargetDrop:
		w.end = then
		return End
	case model.TargetReturn:
		return Leave
	}
	return Next
}

// jump walks a chain of a user of ebtables, which may have a policy.
func (w *frameWalk) jump(to ChainKey) Action {
	if action := w.Chain(to); action == End {
		return End
	}
	if c := w.known[to]; c != nil && c.Policy == "DROP" {
		w.decision.policy, w.end = c, model.TargetDrop
		return End
	}
	return Next
}
