package path

import (
	"cmp"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// frameDecision is what a bridge's chains decide over a frame.
type frameDecision struct {
	does does
	// routed: the frame is taken from the bridge and given to the node's IP
	// layer.
	routed bool
	// rules are those that matched and change, answer or end.
	rules []*model.FrameRule
	// policy is the chain whose policy dropped the frame.
	policy *model.Chain
	// cutOff: there are more rules than a walk follows.
	cutOff bool
}

// frameTables predicts what the chains of ebtables, and those of nft's bridge
// family, do with frames.
type frameTables struct {
	chains map[ChainKey][]*model.FrameRule
	bases  []*model.Chain
	// known are the chains that the snapshot has.
	known map[ChainKey]*model.Chain
}

func newFrameTables(s *model.Snapshot) *frameTables {
	f := &frameTables{chains: map[ChainKey][]*model.FrameRule{}, known: map[ChainKey]*model.Chain{}}
	for r := range model.Each(s.FrameRules) {
		k := ChainKey{r.Backend, "bridge", r.Table, r.Chain}
		f.chains[k] = append(f.chains[k], r)
	}
	for c := range model.Each(s.Chains) {
		if c.Family != "bridge" {
			continue
		}
		f.known[KeyOf(c)] = c
		if c.Hook != "" {
			f.bases = append(f.bases, c)
		}
	}
	// Where a table's chains were not read, those that are named like hooks
	// are its base chains.
	for k := range f.chains {
		if slices.Contains([]string{"BROUTING", "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, k.Chain) && f.known[k] == nil {
			f.bases = append(f.bases, &model.Chain{Backend: k.Backend, Family: k.Family, Table: k.Table, Name: k.Chain, Hook: k.Chain})
		}
	}
	slices.SortStableFunc(f.bases, func(a, b *model.Chain) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name))
	})
	return f
}

// pass judges a frame by the chains of a hook. Rules change the frame's MACs.
func (f *frameTables) pass(hook string, fr *Frame) frameDecision {
	w := &frameWalk{frameTables: f, frame: fr, decision: frameDecision{does: accepts}}
	w.Chains, w.Meet, w.State = f.chains, w.meet, macs{fr.SrcMAC, fr.DstMAC}
	for _, c := range f.bases {
		if c.Hook != hook {
			continue
		}
		action := w.Base(c)
		out := &w.decision
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
	return w.decision
}

// frameWalk is a walk of a frame. Its state are the frame's MACs, which rules
// rewrite.
type frameWalk struct {
	Walk[*model.FrameRule, macs]
	*frameTables
	frame    *Frame
	decision frameDecision
	// end is ACCEPT or DROP, where a rule or a policy ended the walk.
	end model.FrameTarget
}

type macs struct{ src, dst model.MAC }

func (w *frameWalk) meet(k ChainKey, _ int, r *model.FrameRule) Action {
	w.frame.SrcMAC, w.frame.DstMAC = w.State.src, w.State.dst
	switch w.frame.Fits(r) {
	case No:
		return Next
	case Maybe:
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
		w.State.dst = r.MAC
	case model.TargetSNAT:
		w.State.src = r.MAC
	case model.TargetARPReply:
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
