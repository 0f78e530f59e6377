package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// claims are the losses that findings have claimed. That is all that a kind knows of the kinds before it.
type claims struct {
	// byDrop are the findings that claim drops.
	byDrop map[*model.Drop]claimant
	// silences are what the finding of each code says of requests that got no reply.
	silences []silenceClaim
	// returned are pods whose packets come back to the node.
	returned addrSet
	// inserts: connection tracking refused new entries.
	inserts bool
}

// claimant is a finding that claims losses. flows are those that it concerns by their protocols and ports; nil for all.
type claimant struct {
	code  model.Code
	flows func(*model.Flow) bool
}

// concerns reports whether the finding is about a flow, nil for any.
func (c *claimant) concerns(f *model.Flow) bool { return c.flows == nil || f == nil || c.flows(f) }

type silenceClaim struct {
	claimant
	claims func(asker netip.Addr, asked netip.Prefix) bool
}

func (c *claims) explained(d *model.Drop) bool { return c.byDrop[d].code != "" }

// silenced reports whether a finding claims that requests of one address to others got no
// reply. The zero asker is anybody.
func (c *claims) silenced(asker netip.Addr, asked netip.Prefix) bool {
	return c.silencedBy(asker, asked, nil) != ""
}

// silencedBy is the code of the first finding that claims that requests of a flow, nil for any, got none; empty for none.
func (c *claims) silencedBy(asker netip.Addr, asked netip.Prefix, f *model.Flow) model.Code {
	for s := range model.Each(c.silences) {
		if s.claims(asker, asked) && s.concerns(f) {
			return s.code
		}
	}
	return ""
}

// claim gives a finding the losses that its cause makes. Of a drop it gets what no finding before it has.
func (c *claims) claim(f *finding, code model.Code, drops []model.Drop) {
	by := claimant{code, f.flows}
	switch {
	case f.claims != nil:
		for d := range model.Each(drops) {
			if !c.explained(d) && f.claims(d) {
				c.byDrop[d] = by
			}
		}
	case f.lost != nil:
		for _, d := range f.lost.drops {
			if !c.explained(d) {
				c.byDrop[d] = by
			}
		}
	}
	c.returned.add(f.returns...)
	c.inserts = c.inserts || f.inserts
	if f.silences == nil && f.Severity != model.Info {
		f.silences = silencesPeers(&f.Finding)
	}
	if f.silences != nil {
		c.silences = append(c.silences, silenceClaim{by, f.silences})
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
		return asked.IsSingleIP() && pods[asked.Addr()] && (peers == 0 || !asker.IsValid() || peer(model.Host(asker)))
	}
}

// silencesAll are all requests of pods, and to them.
func silencesAll(list []netip.Addr) func(netip.Addr, netip.Prefix) bool {
	pods := setOf(list)
	return func(asker netip.Addr, asked netip.Prefix) bool {
		return pods[asker] || asked.IsSingleIP() && pods[asked.Addr()]
	}
}

func (v *view) report(f finding) { v.proposed = append(v.proposed, f) }

// judge runs the kinds in their order. A finding claims its losses for itself; one that is about an effect of an
// earlier one's cause becomes evidence of that; one about nothing but what earlier causes cut off is left out.
func (v *view) judge() []model.Finding {
	var list []finding
	cutOff := map[netip.Addr]model.Code{} // by the finding that does
	for k := range model.Each(kinds) {
		if !v.Has(k.needs...) {
			continue
		}
		v.proposed = nil
		k.find(v)
		before := len(list)
		for _, f := range v.proposed {
			f.Severity = cmp.Or(f.Severity, k.severity)
			f.complete(k.code)
			f.doubt(model.Filter(k.rests, func(source string) bool { return !v.Has(source) }))
			at := slices.IndexFunc(list[:before],
				func(p finding) bool { return f.cause != nil && slices.Contains(p.effects, f.cause) })
			switch {
			case at >= 0:
				list[at].absorb(&f)
				v.claim(&f, list[at].Code, v.Traffic.Drops)
			case consequence(&f.Finding, cutOff) != "":
				v.claim(&f, consequence(&f.Finding, cutOff), v.Traffic.Drops)
			default:
				f.Code, f.EndsAt, f.Passes, f.Traits = k.code, k.ends, k.passes, k.traits
				f.Verify = cmp.Or(f.Verify, Verify(k.code))
				f.Pods = model.Unique(f.Pods)
				f.Cause = words.Cause(f.Cause, f.facts, k.objects)
				v.claim(&f, f.Code, v.Traffic.Drops)
				f.Evidence = append(f.Evidence, v.beside(&f)...)
				list = append(list, f)
			}
		}
		for _, f := range list[before:] {
			for _, a := range f.cutOff {
				cutOff[a] = cmp.Or(cutOff[a], f.Code)
			}
		}
	}
	out := model.Map(list, func(f finding) model.Finding { return f.Finding })
	Sort(out)
	return out
}

// beside is what the node's configuration says beside a finding of any kind: where its pods ask
// for names, if these do not get there, and what may have removed the route or rule that it lacks.
func (v *index) beside(f *finding) []model.Evidence {
	n := v.Node.Networkd
	removed := n != nil && (f.lacks == lacksRoute && n.RemovesRoutes || f.lacks == lacksRule && n.RemovesRules)
	return words.Say("beside", facts{"servers": v.askedInVain(f), "removed": removed, "lacks": f.lacks})
}

// complete fills in what follows from the drops that a finding is about, its words, and how
// sure it is where its kind does not say: likely if there are alternatives.
func (f *finding) complete(code model.Code) {
	if l := f.lost; l != nil {
		l.common()
		if f.Pods == nil {
			f.Pods = sorted(l.pods)
		}
		if f.Peers == nil {
			f.Peers = append(model.Hosts(sorted(l.peers)), slices.SortedFunc(slices.Values(l.ranges), netip.Prefix.Compare)...)
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
		f.Confidence = model.Either(len(f.Alternatives) > 0, model.Likely, model.Proven)
	}
}

// doubt makes a finding no more than likely where there are sources that were not read whole.
func (f *finding) doubt(unread sources) {
	if f.Confidence == model.Proven && len(unread) > 0 {
		words.Put("unread", facts{"sources": unread}, &f.Finding)
		f.Confidence = model.Likely
	}
}

// absorb makes a finding about an effect of this one's cause a part of it.
func (f *finding) absorb(effect *finding) {
	f.Pods = model.Unique(append(f.Pods, effect.Pods...))
	f.Evidence = model.With(f.Evidence, effect.Evidence...)
	if f.Packets == 0 {
		f.LastHopAlive = effect.LastHopAlive
	}
	if effect.Confidence == model.Proven {
		// What the cause made stays when the cause is gone.
		f.Fix = append(f.Fix, effect.Fix...)
	}
	f.Packets += effect.Packets
}

// consequence is the finding that cuts off all that another is about, its pods or its peers; empty where none does.
func consequence(f *model.Finding, cutOff map[netip.Addr]model.Code) model.Code {
	for _, ends := range [][]netip.Prefix{model.Hosts(f.Pods), f.Peers} {
		left := func(x netip.Prefix) bool { return !x.IsSingleIP() || cutOff[x.Addr()] == "" }
		if len(ends) > 0 && !slices.ContainsFunc(ends, left) {
			return cutOff[ends[0].Addr()]
		}
	}
	return ""
}
