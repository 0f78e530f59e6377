package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// frame is a packet as a bridge's rules look at it. MACs are zero where they are
// not known.
type frame struct {
	src, dst       netip.Addr
	srcMAC, dstMAC model.MAC
	// in and out are ports, empty for the bridge itself.
	in, out string
	bridge  string
	// arp is the operation of an ARP message, 0 for a packet.
	arp uint16
}

// Numbers of the EtherTypes.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

func (f *frame) etherType() uint16 {
	switch {
	case f.arp != 0:
		return etherARP
	case isSix(f.dst):
		return etherIPv6
	}
	return etherIPv4
}

// frameRuling is what a bridge's chains do with a frame.
type frameRuling struct {
	verdict verdictOf
	// routed: the frame is taken from the bridge and given to the node's IP
	// layer.
	routed bool
	// decides are the rules that matched and change, answer or end.
	decides []*model.FrameRule
	// policy is the chain whose policy dropped it.
	policy *model.Chain
	// cutOff: there are more rules than were followed.
	cutOff bool
}

type frameKey struct {
	backend      model.Backend
	table, chain string
}

// frameFilter predicts the decisions of ebtables' chains and of nft's of the
// bridge family.
type frameFilter struct {
	chains   map[frameKey][]*model.FrameRule
	bases    []*model.Chain
	policies map[frameKey]*model.Chain
}

func newFrameFilter(s *model.Snapshot) *frameFilter {
	f := &frameFilter{chains: map[frameKey][]*model.FrameRule{}, policies: map[frameKey]*model.Chain{}}
	for i := range s.FrameRules {
		r := &s.FrameRules[i]
		k := frameKey{r.Backend, r.Table, r.Chain}
		f.chains[k] = append(f.chains[k], r)
	}
	for i := range s.Chains {
		c := &s.Chains[i]
		if c.Family != "bridge" {
			continue
		}
		f.policies[frameKey{c.Backend, c.Table, c.Name}] = c
		if c.Hook != "" {
			f.bases = append(f.bases, c)
		}
	}
	// A table whose chains were not told has those that are named as hooks.
	for k := range f.chains {
		if slices.Contains([]string{"BROUTING", "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, k.chain) && f.policies[k] == nil {
			f.bases = append(f.bases, &model.Chain{Backend: k.backend, Family: "bridge", Table: k.table, Name: k.chain, Hook: k.chain})
		}
	}
	slices.SortStableFunc(f.bases, func(a, b *model.Chain) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name))
	})
	return f
}

// pass walks the chains of a hook. Rules change the frame's MACs.
func (f *frameFilter) pass(hook string, fr *frame) frameRuling {
	out := frameRuling{verdict: accepted}
	for _, c := range f.bases {
		if c.Hook != hook {
			continue
		}
		w := frameWalk{frameFilter: f, frame: fr, ruling: &out, seen: map[frameVisit]macs{}}
		k := frameKey{c.Backend, c.Table, c.Name}
		end := w.chain(k, 0)
		if out.cutOff {
			out.verdict, out.policy = unknown, nil
			return out
		}
		switch end {
		case model.TargetDrop:
			if hook == "BROUTING" {
				out.routed = true
				continue
			}
			out.verdict = dropped
			return out
		case model.TargetContinue:
			if c.Policy == "DROP" {
				out.verdict, out.policy = dropped, c
				return out
			}
		}
	}
	return out
}

type frameWalk struct {
	*frameFilter
	frame  *frame
	ruling *frameRuling
	// seen is what became of the frame's MACs in the chains that let it go on.
	seen  map[frameVisit]macs
	steps int
}

type macs struct{ src, dst model.MAC }

// frameVisit is a chain and the MACs with which a frame comes to it.
type frameVisit struct {
	chain frameKey
	macs
}

// chain returns how the search ends: ACCEPT, DROP, or CONTINUE where it reached
// the end of the chain.
func (w *frameWalk) chain(k frameKey, depth int) model.FrameTarget {
	v := frameVisit{k, macs{w.frame.srcMAC, w.frame.dstMAC}}
	if after, again := w.seen[v]; again {
		w.frame.srcMAC, w.frame.dstMAC = after.src, after.dst
		return model.TargetContinue
	}
	w.seen[v] = v.macs // a ring, which the kernel refuses, ends
	end := w.rules(k, depth)
	w.seen[v] = macs{w.frame.srcMAC, w.frame.dstMAC}
	return end
}

// rules walks a chain's rules.
func (w *frameWalk) rules(k frameKey, depth int) model.FrameTarget {
	w.ruling.cutOff = w.ruling.cutOff || depth > maxJumps
	for _, r := range w.chains[k] {
		w.steps++
		w.ruling.cutOff = w.ruling.cutOff || w.steps > maxSteps
		if w.ruling.cutOff {
			return model.TargetContinue
		}
		m := w.frame.fits(r)
		if m == no {
			continue
		}
		if m == maybe {
			if r.Counter.Delta > 0 && (r.Target == model.TargetDrop || r.Target == model.TargetDNAT) {
				w.ruling.verdict = unknown
				w.ruling.decides = append(w.ruling.decides, r)
			}
			continue
		}
		end := r.Verdict
		switch r.Target {
		case model.TargetAccept, model.TargetDrop, model.TargetReturn:
			end = r.Target
		case model.TargetContinue:
			continue
		case model.TargetDNAT:
			w.frame.dstMAC = r.MAC
		case model.TargetSNAT:
			w.frame.srcMAC = r.MAC
		case model.TargetARPReply:
		case model.TargetRedirect:
			w.ruling.routed = true
		case model.TargetJump:
			end = w.chain(frameKey{k.backend, k.table, r.TargetName}, depth+1)
			if end == model.TargetContinue {
				if c := w.policies[frameKey{k.backend, k.table, r.TargetName}]; c != nil && c.Policy == "DROP" {
					w.ruling.policy = c
					return model.TargetDrop
				}
				continue
			}
			return end
		default:
			continue
		}
		w.ruling.decides = append(w.ruling.decides, r)
		switch end {
		case model.TargetAccept, model.TargetDrop:
			return end
		case model.TargetReturn:
			return model.TargetContinue
		}
	}
	return model.TargetContinue
}

// fits tells how surely the frame satisfies a rule.
func (f *frame) fits(r *model.FrameRule) fit {
	if r.EtherType != 0 && (r.EtherType == f.etherType()) == r.EtherTypeNot {
		return no
	}
	if f.arp != 0 {
		if r.ARPOp != 0 && (r.ARPOp == f.arp) == r.ARPOpNot || !r.ARPSrc.Matches(f.src) || !r.ARPDst.Matches(f.dst) {
			return no
		}
	} else if !r.IPSrc.Matches(f.src) || !r.IPDst.Matches(f.dst) || r.ARPOp != 0 || !r.ARPSrc.IsZero() || !r.ARPDst.IsZero() {
		return no
	}
	m := min(portFits(r.In, f.in), portFits(r.Out, f.out), portFits(r.LogicalIn, f.bridge), portFits(r.LogicalOut, f.bridge),
		macFits(r.SrcMAC, f.srcMAC), macFits(r.DstMAC, f.dstMAC))
	if len(r.Unknown) > 0 {
		m = min(m, maybe)
	}
	return m
}

// portFits compares a match with a port; frames of the node's own have none on
// the one side, and no rule that names one is for them.
func portFits(m model.IfMatch, port string) fit {
	if m.Name == "" || port != "" && m.Matches(port) {
		return yes
	}
	return no
}

func macFits(m model.MACMatch, a model.MAC) fit {
	switch {
	case !m.Set:
		return yes
	case a.IsZero():
		return maybe
	case m.Matches(a):
		return yes
	}
	return no
}
