package fault

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// Claims are the losses that findings have claimed. That is all that a kind knows of the kinds before it.
type Claims struct {
	// ByDrop are the findings that claim drops.
	ByDrop map[*model.Drop]Claimant
	// Silences are what the finding of each code says of requests that got no reply.
	Silences []SilenceClaim
	// Returned are pods whose packets come back to the node.
	Returned node.AddrSet
	// Inserts: connection tracking refused new entries.
	Inserts bool
}

// Claimant is a finding that claims losses. Flows are those that it concerns by their protocols and ports; nil for all.
type Claimant struct {
	model.Key
	Flows func(*model.Flow) bool
}

// Concerns reports whether the finding is about a flow, nil for any.
func (c *Claimant) Concerns(f *model.Flow) bool { return c.Flows == nil || f == nil || c.Flows(f) }

// SilenceClaim is what a finding says of requests that got no reply.
type SilenceClaim struct {
	Claimant
	Claims func(asker netip.Addr, asked netip.Prefix) bool
}

// Explained reports whether a finding claims a drop.
func (c *Claims) Explained(d *model.Drop) bool { return c.ByDrop[d].Code != "" }

// Silenced reports whether a finding claims that requests of one address to others got no
// reply. The zero asker is anybody.
func (c *Claims) Silenced(asker netip.Addr, asked netip.Prefix) bool {
	return c.SilencedBy(asker, asked, nil) != ""
}

// SilencedBy is the code of the first finding that claims that requests of a flow, nil for any, got none; empty for none.
func (c *Claims) SilencedBy(asker netip.Addr, asked netip.Prefix, f *model.Flow) model.Code {
	for s := range model.Each(c.Silences) {
		if s.Claims(asker, asked) && s.Concerns(f) {
			return s.Code
		}
	}
	return ""
}

// Claim gives a finding the losses that its cause makes. Of a drop it gets what no finding before it has.
func (c *Claims) Claim(f *Fault, of model.Key, drops []model.Drop) {
	by := Claimant{of, f.Flows}
	switch {
	case f.Claims != nil:
		for d := range model.Each(drops) {
			if !c.Explained(d) && f.Claims(d) {
				c.ByDrop[d] = by
			}
		}
	case f.Lost != nil:
		for _, d := range f.Lost.Drops {
			if !c.Explained(d) {
				c.ByDrop[d] = by
			}
		}
	}
	c.Returned.Add(f.Returns...)
	c.Inserts = c.Inserts || f.Inserts
	if f.Silences == nil && f.Severity != model.Info {
		f.Silences = node.SilencesPeers(&f.Finding)
	}
	if f.Silences != nil {
		c.Silences = append(c.Silences, SilenceClaim{by, f.Silences})
	}
}

// Report proposes a fault, unless nothing but state speaks for it and its pods' own packets speak against it. What lost
// nothing claims no silence.
func (v *Input) Report(f Fault) {
	switch {
	case f.Idle && v.Converse(f.Pods):
		return
	case f.Idle:
		f.Silences = func(netip.Addr, netip.Prefix) bool { return false }
	}
	v.Proposed = append(v.Proposed, f)
}

// Complete fills in what follows from the drops that a finding is about, how severe it is and
// how sure, where that is not said of this one, and its words.
func (f *Fault) Complete(k *Kind) {
	f.Severity = cmp.Or(f.Severity, k.Severity)
	f.Confidence = cmp.Or(f.Confidence, model.Either(k.doubted(f), model.Likely, model.Proven))
	if l := f.Lost; l != nil {
		l.Common()
		if f.Pods == nil {
			f.Pods = node.Sorted(l.Pods)
		}
		if f.Peers == nil {
			f.Peers = append(model.Hosts(node.Sorted(l.Peers)), slices.SortedFunc(slices.Values(l.Ranges), netip.Prefix.Compare)...)
		}
		f.Packets = cmp.Or(f.Packets, l.Packets)
	}
	if f.Facts != nil {
		f.Facts["f"] = &f.Finding
		if f.Lost != nil {
			f.Facts["lost"] = node.MostDropped(f.Lost.Drops)
		}
		words.Put(cmp.Or(f.Page, string(k.Code)), f.Facts, &f.Finding)
	}
}

// Doubt makes a finding no more than likely where there are sources that were not read whole.
func (f *Fault) Doubt(unread []string) {
	if f.Confidence == model.Proven && len(unread) > 0 {
		words.Put("unread", words.Facts{"sources": unread}, &f.Finding)
		f.Confidence = model.Likely
	}
}

// Taken weakens a finding that silence beyond this node shows where programs may take the packets away unseen.
func (f *Fault) Taken(by []*model.Program) {
	if f.Confidence != model.Proven && len(by) > 0 {
		words.Put("taken", words.Facts{"programs": by}, &f.Finding)
		f.Confidence, f.Severity = model.Possible, model.Either(f.Severity == model.Info, model.Info, model.Warning)
	}
}

// Absorb makes a finding about an effect of this one's cause a part of it.
func (f *Fault) Absorb(effect *Fault) {
	f.Pods = model.Unique(append(f.Pods, effect.Pods...))
	f.Evidence = model.With(f.Evidence, effect.Evidence...)
	if f.Packets == 0 {
		f.LastHopAlive = effect.LastHopAlive
	}
	if effect.Confidence == model.Proven {
		// What the cause made stays when the cause is gone.
		f.Fix, f.Next = append(f.Fix, effect.Fix...), append(f.Next, effect.Next...)
	}
	f.Packets += effect.Packets
}
