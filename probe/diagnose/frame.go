package diagnose

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// stale is a rule that hands a pod's frames to an Ethernet address that is
// not the pod's.
type stale struct {
	rule *model.FrameRule
	addr netip.Addr
	// owners are the addresses of the living interfaces that hold addr.
	owners []model.MAC
}

// staleRules finds the rules of one target that are in force and write a MAC
// for an address that nobody with that address has. of takes the address that
// a rule is about.
func (v *view) staleRules(target model.FrameTarget, of func(*model.FrameRule) model.AddrMatch) []stale {
	var out []stale
	seen := map[ruleKey][]*model.FrameRule{}
	for i := range v.FrameRules {
		r := &v.FrameRules[i]
		if r.Target != target {
			continue
		}
		m := of(r)
		if !m.Prefix.IsSingleIP() || m.Not {
			continue
		}
		addr := m.Prefix.Addr()
		k := ruleKey{r.Backend, r.Table, r.Chain, addr}
		shadowed := false
		for _, earlier := range seen[k] {
			shadowed = shadowed || covers(earlier, r)
		}
		seen[k] = append(seen[k], r)
		if !shadowed && v.isStale(r, addr) {
			out = append(out, stale{rule: r, addr: addr, owners: v.podMACs(addr)})
		}
	}
	return out
}

type ruleKey struct {
	backend      model.Backend
	table, chain string
	addr         netip.Addr
}

// isStale reports whether the MAC that a rule writes for an address is wrong.
// Right are an owner's MAC; a MAC of the bridge or its ports, since such frames
// are given to the node, which routes them on; and in an ARP answer the
// gateway's, since in tunnel mode pods are sent to the fabric on purpose. For an address
// without an owner on this node, the rule must have stood through the window:
// a pod's rules are made and removed a little before or after the pod.
func (v *view) isStale(r *model.FrameRule, addr netip.Addr) bool {
	if v.bridgeMACs[r.MAC] || r.Target == model.TargetARPReply && v.isGatewayMAC(r.MAC) {
		return false
	}
	if len(v.pods[addr]) == 0 {
		return r.Standing && r.Counter.Delta > 0 && !v.past[addr] && v.Has(model.SourcePods)
	}
	macs := v.podMACs(addr)
	for _, m := range macs {
		if m == r.MAC {
			return false
		}
	}
	return len(macs) > 0
}

// covers reports whether every frame that the later rule matches ends at the
// earlier one.
func covers(earlier, later *model.FrameRule) bool {
	if len(earlier.Unknown) > 0 || earlier.Verdict == model.TargetContinue {
		return false
	}
	e, l := *earlier, *later
	return either(e.In, l.In) && either(e.Out, l.Out) &&
		either(e.LogicalIn, l.LogicalIn) && either(e.LogicalOut, l.LogicalOut) &&
		(e.EtherType == 0 || e.EtherType == l.EtherType && e.EtherTypeNot == l.EtherTypeNot) &&
		either(e.SrcMAC, l.SrcMAC) && either(e.DstMAC, l.DstMAC) &&
		either(e.IPSrc, l.IPSrc) && either(e.IPDst, l.IPDst) &&
		(e.ARPOp == 0 || e.ARPOp == l.ARPOp && e.ARPOpNot == l.ARPOpNot) &&
		either(e.ARPSrc, l.ARPSrc) && either(e.ARPDst, l.ARPDst)
}

// either reports whether the earlier match says nothing, or the same.
func either[T comparable](earlier, later T) bool {
	var none T
	return earlier == none || earlier == later
}

// ruleEvidence is the rule itself, with what it counted.
func ruleEvidence(r *model.FrameRule) model.Evidence {
	text := fmt.Sprintf("%s %s rule %d (%s): %s", r.Table, r.Chain, r.Number, r.Backend, r.Text)
	if r.Counter.Delta > 0 {
		text += fmt.Sprintf(" — counted %s in the window", count(r.Counter.Delta, "frame"))
	}
	return model.Evidence{Source: model.SourceEbtables, Text: text}
}

// ownerEvidence says who holds the address and with which MAC.
func (v *view) ownerEvidence(s *stale) model.Evidence {
	e := model.Evidence{Source: model.SourcePods}
	if len(s.owners) == 0 {
		e.Text = fmt.Sprintf("no pod on this node holds %s; %s has %s", s.addr, v.owner(s.rule.MAC), s.rule.MAC)
		return e
	}
	e.Text = fmt.Sprintf("%s is the address of the pod behind %s, with MAC %s; %s has %s",
		s.addr, v.pods[s.addr][0].Link, addrs(s.owners), v.owner(s.rule.MAC), s.rule.MAC)
	return e
}

// misled accounts for drops of frames for the address that carry the wrong MAC.
func misled(addr netip.Addr, mac model.MAC) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.Dst == addr && d.DstMAC == mac }
}
