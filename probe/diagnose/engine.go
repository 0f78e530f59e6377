package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// claims are the losses that findings have claimed. That is all that a kind knows of the
// kinds before it.
type claims struct {
	// byDrop are the codes of the findings that claim drops.
	byDrop map[*model.Drop]model.Code
	// silences are what the finding of each code says of requests that got no reply.
	silences []silenceClaim
	// returned are pods whose packets come back to the node.
	returned map[netip.Addr]bool
	// inserts: connection tracking refused new entries.
	inserts bool
}

type silenceClaim struct {
	code   model.Code
	claims func(asker netip.Addr, asked netip.Prefix) bool
}

// explained reports whether a finding claims the drop.
func (c *claims) explained(d *model.Drop) bool { return c.byDrop[d] != "" }

// silenced reports whether a finding claims that requests of one address to others got no
// reply. The zero asker is anybody.
func (c *claims) silenced(asker netip.Addr, asked netip.Prefix) bool {
	return c.silencedBy(asker, asked) != ""
}

// silencedBy is the code of the first finding that claims it; empty for none.
func (c *claims) silencedBy(asker netip.Addr, asked netip.Prefix) model.Code {
	for _, s := range c.silences {
		if s.claims(asker, asked) {
			return s.code
		}
	}
	return ""
}

// claim gives a finding the losses that its cause makes. Of a drop it gets what no finding
// before it has.
func (c *claims) claim(f *finding, code model.Code, drops []model.Drop) {
	if f.claims != nil {
		for d := range model.Each(drops) {
			if c.byDrop[d] == "" && f.claims(d) {
				c.byDrop[d] = code
			}
		}
	}
	for _, a := range f.returns {
		c.returned[a] = true
	}
	c.inserts = c.inserts || f.inserts
	switch {
	case f.silences != nil:
		c.silences = append(c.silences, silenceClaim{code, f.silences})
	case f.Severity != model.Info:
		c.silences = append(c.silences, silenceClaim{code, silencesPeers(&f.Finding)})
	}
}

// silencesPeers are the requests of a finding's pods to its peers, and those to its pods
// from its peers or, where it has none, from anywhere.
func silencesPeers(f *model.Finding) func(netip.Addr, netip.Prefix) bool {
	pods, peers, alone := setOf(f.Pods), len(f.Peers), map[netip.Addr]bool{}
	var ranges []netip.Prefix
	for _, p := range f.Peers {
		if p.IsSingleIP() {
			alone[p.Addr()] = true
		} else {
			ranges = append(ranges, p)
		}
	}
	peer := func(p netip.Prefix) bool {
		return p.IsSingleIP() && alone[p.Addr()] ||
			slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
	}
	return func(asker netip.Addr, asked netip.Prefix) bool {
		if (len(pods) == 0 || !asker.IsValid() || pods[asker]) && peer(asked) {
			return true
		}
		return asked.IsSingleIP() && pods[asked.Addr()] && (peers == 0 || !asker.IsValid() || peer(host(asker)))
	}
}

// silencesAll are all requests of pods, and to them.
func silencesAll(list []netip.Addr) func(netip.Addr, netip.Prefix) bool {
	pods := setOf(list)
	return func(asker netip.Addr, asked netip.Prefix) bool {
		return pods[asker] || asked.IsSingleIP() && pods[asked.Addr()]
	}
}

func setOf(list []netip.Addr) map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		out[a] = true
	}
	return out
}

// judge runs the kinds in their order. A finding claims its losses for itself; one that is
// about an effect of an earlier one's cause becomes evidence of that; one about nothing but
// what earlier causes cut off is left out.
func (v *view) judge() []model.Finding {
	var list []finding
	cutOff := map[netip.Addr]bool{}
	for k := range model.Each(kinds) {
		before := len(list)
		for _, f := range k.find(v) {
			f.complete(k.code)
			at := slices.IndexFunc(list[:before], func(p finding) bool { return f.cause != nil && slices.Contains(p.effects, f.cause) })
			switch {
			case at >= 0:
				list[at].absorb(&f)
				v.claim(&f, list[at].Code, v.Traffic.Drops)
			case !consequence(&f.Finding, cutOff):
				f.Code, f.EndsAt, f.Passes = k.code, k.ends, k.passes
				f.Severity = cmp.Or(f.Severity, k.severity)
				f.Verify = cmp.Or(f.Verify, Verify(k.code))
				f.Pods = sortedPods(f.Pods)
				if slices.Contains(k.ends, model.HopLocal) {
					// A socket has these pods' addresses, and no other node's.
					f.Cause = cmp.Or(f.Cause, words.Addrs(f.Pods))
				}
				v.claim(&f, f.Code, v.Traffic.Drops)
				list = append(list, f)
			}
		}
		for _, f := range list[before:] {
			for _, a := range f.cutOff {
				cutOff[a] = true
			}
		}
	}
	out := make([]model.Finding, len(list))
	for i, f := range list {
		out[i] = f.Finding
	}
	Sort(out)
	return out
}

// complete fills in what follows from the drops that a finding is about, its words, and how
// sure it is where its kind does not say: likely if there are alternatives.
func (f *finding) complete(code model.Code) {
	if l := f.lost; l != nil {
		of := l.finding()
		if f.Pods == nil {
			f.Pods = of.Pods
		}
		if f.Peers == nil {
			f.Peers = of.Peers
		}
		if f.claims == nil {
			f.claims = sameDrops(l.drops)
		}
		f.Packets = cmp.Or(f.Packets, l.packets)
	}
	if f.facts != nil {
		f.facts["f"] = &f.Finding
		if f.lost != nil {
			f.facts["lost"] = mostDropped(f.lost.drops)
		}
		words.Put(cmp.Or(f.page, string(code)), f.facts, &f.Finding)
	}
	if f.Confidence == "" {
		f.Confidence = model.Proven
		if len(f.Alternatives) > 0 {
			f.Confidence = model.Likely
		}
	}
}

// absorb makes a finding about an effect of this one's cause a part of it.
func (f *finding) absorb(effect *finding) {
	f.Pods = sortedPods(append(f.Pods, effect.Pods...))
	f.Evidence = withNew(f.Evidence, effect.Evidence...)
	if f.Packets == 0 {
		f.LastHopAlive = effect.LastHopAlive
	}
	if effect.Confidence == model.Proven {
		// What the cause made stays when the cause is gone.
		f.Fix = append(f.Fix, effect.Fix...)
	}
	f.Packets += effect.Packets
}

// consequence reports whether all that a finding is about is cut off: its pods, or its
// peers.
func consequence(f *model.Finding, cutOff map[netip.Addr]bool) bool {
	return len(f.Pods) > 0 && !slices.ContainsFunc(f.Pods, func(a netip.Addr) bool { return !cutOff[a] }) ||
		len(f.Peers) > 0 && !slices.ContainsFunc(f.Peers, func(x netip.Prefix) bool { return !x.IsSingleIP() || !cutOff[x.Addr()] })
}

func sortedPods(list []netip.Addr) []netip.Addr {
	return slices.Compact(slices.SortedFunc(slices.Values(list), netip.Addr.Compare))
}
