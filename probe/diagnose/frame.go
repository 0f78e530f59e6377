package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// stale is a rule that hands a pod's frames to an Ethernet address that is
// not the pod's.
type stale struct {
	rule *model.FrameRule
	addr netip.Addr
	// holders are the addresses of the living interfaces that hold addr.
	owners []model.MAC
}

// staleRules finds the rules of one target that are in force and write a MAC
// for an address that nobody with that address has. of takes the address that
// a rule is about.
func (v *view) staleRules(target model.FrameTarget, of func(*model.FrameRule) model.AddrMatch) []stale {
	wrong := func(r *model.FrameRule) bool {
		addr := singleAddr(of(r))
		return r.Target == target && addr.IsValid() && isStale(v, r, addr)
	}
	last := len(v.FrameRules) - 1
	for last >= 0 && !wrong(&v.FrameRules[last]) {
		last--
	}
	if last < 0 {
		return nil
	}
	var out []stale
	reached := reachedChains(v)
	ended := map[frameChain]enders{}
	for i := range v.FrameRules[:last+1] {
		r := &v.FrameRules[i]
		k := frameChain{r.Backend, r.Table, r.Chain}
		if wrong(r) && reached[k] && !ended[k].shadow(r) {
			if addr := singleAddr(of(r)); !idle(v, r, addr) && !overruled(v, i, of) {
				out = append(out, stale{rule: r, addr: addr, owners: v.ownMACs(addr)})
			}
		}
		if endsSearch(r) {
			if ended[k] == nil {
				ended[k] = enders{}
			}
			key := aboutOf(r)
			ended[k][key] = append(ended[k][key], r)
		}
	}
	return out
}

// singleAddr is the one address that a match wants; not valid when it wants
// more, or all but one.
func singleAddr(m model.AddrMatch) netip.Addr {
	if m.Not || !m.Prefix.IsSingleIP() {
		return netip.Addr{}
	}
	return m.Prefix.Addr()
}

type frameChain struct {
	backend      model.Backend
	table, chain string
}

// reachedChains are the bridge chains that frames can come to: those with a
// hook, and those that a rule of such a one jumps to. Where a table's chains
// are not known, all are.
func reachedChains(v *view) map[frameChain]bool {
	known, out := map[frameChain]bool{}, map[frameChain]bool{}
	for _, c := range v.Chains {
		if c.Family == "bridge" {
			known[frameChain{backend: c.Backend, table: c.Table}] = true
			if c.Hook != "" {
				out[frameChain{c.Backend, c.Table, c.Name}] = true
			}
		}
	}
	for more := true; more; {
		more = false
		for r := range model.Each(v.FrameRules) {
			from := frameChain{r.Backend, r.Table, r.Chain}
			to := frameChain{r.Backend, r.Table, r.TargetName}
			if !known[frameChain{backend: r.Backend, table: r.Table}] {
				out[from] = true
			}
			if r.Target == model.TargetJump && out[from] && !out[to] {
				out[to], more = true, true
			}
		}
	}
	return out
}

// endsSearch reports whether a frame that the rule matches sees no later rule
// of its chain.
func endsSearch(r *model.FrameRule) bool {
	if len(r.Unknown) > 0 {
		return false
	}
	switch r.Target {
	case model.TargetAccept, model.TargetDrop, model.TargetReturn:
		return true
	case model.TargetDNAT, model.TargetSNAT, model.TargetARPReply, model.TargetRedirect:
		return r.Verdict != model.TargetContinue
	}
	return false
}

// about are the matches that differ from rule to rule in a chain of many.
type about struct {
	in                   model.IfMatch
	ipSrc, ipDst, arpDst model.AddrMatch
}

func aboutOf(r *model.FrameRule) about { return about{r.In, r.IPSrc, r.IPDst, r.ARPDst} }

// enders are the rules of a chain behind which no frame that they match comes.
type enders map[about][]*model.FrameRule

// shadow reports whether one of the rules takes every frame that a later rule
// matches: one that says the same, or nothing, of each of the matches.
func (e enders) shadow(later *model.FrameRule) bool {
	for said := range 1 << 4 {
		k := aboutOf(later)
		for i, silence := range []func(){
			func() { k.in = model.IfMatch{} }, func() { k.ipSrc = model.AddrMatch{} },
			func() { k.ipDst = model.AddrMatch{} }, func() { k.arpDst = model.AddrMatch{} },
		} {
			if said>>i&1 == 0 {
				silence()
			}
		}
		if slices.ContainsFunc(e[k], func(earlier *model.FrameRule) bool { return covers(earlier, later) }) {
			return true
		}
	}
	return false
}

// idle reports whether a rule harms nothing, as it counted nothing although it should
// have: no bridge has a port that its frames may come in by, a match of it could not be
// read, or what it is about came by and did not match.
func idle(v *view, r *model.FrameRule, addr netip.Addr) bool {
	bridged := func(ifindex int, link string) bool {
		l := v.links[ifindex]
		return l != nil && v.links[l.Master] != nil && v.links[l.Master].Kind == "bridge" && r.In.Matches(link)
	}
	if r.Counter.Delta > 0 {
		return false
	}
	if !slices.ContainsFunc(v.Links, func(l model.Link) bool { return bridged(l.Index, l.Name) }) {
		return true
	}
	if !r.Standing || len(r.Unknown) > 0 {
		return r.Standing
	}
	if r.Target == model.TargetARPReply {
		return slices.ContainsFunc(v.Traffic.ARP, func(a model.ARPCount) bool {
			return a.Addr == addr && !a.Reply && a.Direction == model.Ingress && bridged(a.IfIndex, a.Link)
		})
	}
	return slices.ContainsFunc(v.hops[addr], func(h *model.HopCount) bool {
		return h.Side == model.AsDestination && h.Direction == model.Ingress && bridged(h.IfIndex, h.Link)
	})
}

// overruled reports whether a later rule of the chain writes a right MAC over
// that of a rule which lets the search go on.
func overruled(v *view, at int, of func(*model.FrameRule) model.AddrMatch) bool {
	r := &v.FrameRules[at]
	if r.Verdict != model.TargetContinue {
		return false
	}
	addr := singleAddr(of(r))
	for i := at + 1; i < len(v.FrameRules); i++ {
		l := &v.FrameRules[i]
		if l.Backend == r.Backend && l.Table == r.Table && l.Chain == r.Chain && l.Target == r.Target &&
			singleAddr(of(l)) == addr && !isStale(v, l, addr) && len(l.Unknown) == 0 {
			return true
		}
	}
	return false
}

// isStale reports whether the MAC that a rule writes for an address is wrong.
// Right are an owner's MAC; a MAC of the bridge or its ports, since such frames
// are given to the node, which routes them on; and in an ARP answer the
// gateway's, since in tunnel mode pods are sent to the fabric on purpose. For an address
// without an owner on this node, the rule must have stood through the window:
// a pod's rules are made and removed a little before or after the pod.
func isStale(v *view, r *model.FrameRule, addr netip.Addr) bool {
	if v.bridgeMACs[r.MAC] || r.Target == model.TargetARPReply && v.isGatewayMAC(r.MAC) {
		return false
	}
	macs := v.ownMACs(addr)
	if len(v.pods[addr]) == 0 && len(macs) == 0 {
		return r.Standing && r.Counter.Delta > 0 && !v.past[addr] && v.Has(model.SourcePods)
	}
	for _, m := range macs {
		if m == r.MAC {
			return false
		}
	}
	return len(macs) > 0
}

// ownMACs are those that lead to an address: its pod's, or where it is the gateway of
// pods on a bridge that gateway's.
func (v *view) ownMACs(a netip.Addr) []model.MAC {
	if macs := v.podMACs(a); len(macs) > 0 || len(v.pods[a]) > 0 {
		return macs
	}
	for _, p := range v.behind(a) {
		for g := range model.Each(p.Gateways) {
			if right, _ := gatewayMACs(v, p, g); g.Addr == a && len(right) > 0 {
				return right
			}
		}
	}
	return nil
}

// behind are the pods on bridges that have the address for their gateway.
func (v *view) behind(gateway netip.Addr) []*model.Pod {
	if v.bridgedBy == nil {
		v.bridgedBy = map[netip.Addr][]*model.Pod{}
		for p := range model.Each(v.Pods) {
			for _, g := range p.Gateways {
				if !v.routed(p) {
					v.bridgedBy[g.Addr] = append(v.bridgedBy[g.Addr], p)
				}
			}
		}
	}
	return v.bridgedBy[gateway]
}

// covers reports whether every frame that the later rule matches ends at the
// earlier one.
func covers(earlier, later *model.FrameRule) bool {
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
	return seen(model.SourceEbtables, "%s", text)
}

// ownerEvidence says who holds the address and with which MAC.
func (v *view) ownerEvidence(s *stale) model.Evidence {
	e := model.Evidence{Source: model.SourcePods}
	if len(v.pods[s.addr]) == 0 && len(s.owners) > 0 {
		e.Text = fmt.Sprintf("%s is the gateway of %s, with MAC %s; %s has %s",
			s.addr, plural(uint64(len(v.behind(s.addr))), "pod", "pods"), s.owners[0], v.owner(s.rule.MAC), s.rule.MAC)
		return e
	}
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

// ownersInstead names the right MAC, where there is one.
func (v *view) ownersInstead(s *stale) string {
	switch {
	case len(s.owners) == 0:
		return ""
	case len(v.pods[s.addr]) == 0:
		return " instead of the gateway's " + s.owners[0].String()
	}
	return " instead of the pod's " + addrs(s.owners)
}
