package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// author says who changed what a finding lacks, or what it is about, last: as evidence, and at the beginning of why.
func author(v *fault.Input, f *fault.Fault) {
	c := madeBy(v, f)
	if c == nil {
		return
	}
	facts := words.Facts{"at": c.At.Format(time.TimeOnly), "author": c.Author(), "what": c.What()}
	if first, sampled := lossBegan(v, f, c.At); !c.At.Before(v.Window.Start) && !first.Before(c.At.Add(-fault.Notified)) {
		facts[model.Either(sampled, "after", "seen")] = fmt.Sprintf("%.1f s", max(0, first.Sub(c.At).Seconds()))
	}
	var said model.Finding
	words.Put("changed", facts, &said)
	f.Why, f.Evidence = said.Why+" "+f.Why, append(f.Evidence, said.Evidence...)
}

// lossBegan is when the first of a finding's drops was sampled or else, up to two seconds later, counted; zero for none.
// Those that had ended by the change are of something else.
func lossBegan(v *fault.Input, f *fault.Fault, changed time.Time) (first time.Time, sampled bool) {
	own := map[*model.Drop]bool{}
	if f.Lost != nil {
		own = model.Table(f.Lost.Drops, func(d **model.Drop) (*model.Drop, bool) { return *d, true })
	}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Last.Before(changed) {
			continue
		}
		if own[d] || f.Claims != nil && f.Claims(d) {
			at, exact := d.First, false
			for _, s := range v.Classifier.Samples.All(d) {
				if s.Location == d.Location && !s.Began.IsZero() && s.Began.Before(at) {
					at, exact = s.Began, true
				}
			}
			if first.IsZero() || at.Before(first) {
				first, sampled = at, exact
			}
		}
	}
	return first, sampled
}

// madeBy is the change that a finding is about; nil where none is known.
func madeBy(v *fault.Input, f *fault.Fault) *model.Change {
	switch {
	case len(v.Changes) == 0:
		return nil
	case f.Lacks == node.LacksRoute:
		return deletedRoute(v, f)
	case f.Lacks == node.LacksRule:
		return latest(v, func(c *model.Change) bool {
			still := func(r model.RoutingRule) bool { return r.From == c.From && r.To == c.Dst && r.Table == c.Table }
			held := func(a netip.Addr) bool { return c.From.Contains(a) }
			return c.Kind == model.ChangedRule && c.Deleted && slices.ContainsFunc(f.Pods, held) && !slices.ContainsFunc(v.Rules, still)
		})
	}
	if settings, _ := f.Facts["settings"].([]string); len(settings) > 0 {
		return latest(v, func(c *model.Change) bool {
			return c.Kind == model.ChangedSetting && slices.Contains(settings, c.Setting) && c.Value == v.Settings[c.Setting]
		})
	}
	if l, _ := f.Facts["link"].(*model.Link); l != nil && !l.Up {
		return latest(v, func(c *model.Change) bool { return c.Kind == model.ChangedLink && c.Deleted && c.Link == l.Index })
	}
	if of, is := f.About.(node.Binding); is {
		return latest(v, func(c *model.Change) bool {
			return c.Kind == model.ChangedNeighbor && !c.Deleted && c.Dst.Addr() == of.Addr && c.MAC == of.MAC
		})
	}
	filter := func(backend model.Backend, family, table, chain string, handle uint64) *model.Change {
		return latest(v, func(c *model.Change) bool {
			return c.Kind == model.ChangedFilter && !c.Deleted && backend == model.NFT && c.Chain == chain && c.Handle == handle &&
				c.Family == family && c.Filter == table
		})
	}
	switch x := f.Undoes.(type) {
	case *model.Route:
		rule, _ := f.Facts["rule"].(*node.ShownRule)
		return latest(v, func(c *model.Change) bool {
			if x == nil && rule != nil {
				return c.Kind == model.ChangedRule && !c.Deleted && c.From == rule.From && c.Dst == rule.To && c.Type == rule.Action
			}
			return x != nil && c.Kind == model.ChangedRoute && !c.Deleted && c.Dst == x.Dst && c.Table == x.Table && c.Type == x.Type
		})
	case *model.PacketRule:
		return filter(x.Backend, x.Family, x.Table, x.Chain, x.Handle)
	case *model.FrameRule:
		return filter(x.Backend, "bridge", x.Table, x.Chain, x.Handle)
	case *model.Chain:
		return filter(x.Backend, x.Family, x.Table, x.Name, 0)
	}
	return nil
}

// latest is the last change for which is holds.
func latest(v *fault.Input, is func(*model.Change) bool) *model.Change {
	for i := len(v.Changes) - 1; i >= 0; i-- {
		if c := &v.Changes[i]; is(c) {
			return c
		}
	}
	return nil
}

// deletedRoute is the last deletion of the most specific route to what a finding lacks a route to, which is not back.
func deletedRoute(v *fault.Input, f *fault.Fault) *model.Change {
	to, least, table := f.LacksTo, 1, node.MainTable
	if to == nil {
		to, least = f.Peers, 0
	}
	if rule, _ := f.Facts["rule"].(*node.ShownRule); rule != nil {
		table = rule.Table
	}
	gone := model.Chosen(v.Changes, func(c *model.Change) bool {
		led := func(p netip.Prefix) bool { return p.Bits() >= c.Dst.Bits() && c.Dst.Contains(p.Addr()) }
		back := func(r model.Route) bool { return r.Dst == c.Dst && r.Table == c.Table && r.Type == "unicast" }
		return c.Kind == model.ChangedRoute && c.Deleted && c.Type == "unicast" && c.Table == table && c.Dst.Bits() >= least &&
			slices.ContainsFunc(to, led) && !slices.ContainsFunc(v.Routes, back)
	})
	slices.SortStableFunc(gone, func(a, b *model.Change) int {
		return cmp.Or(cmp.Compare(b.Dst.Bits(), a.Dst.Bits()), b.At.Compare(a.At))
	})
	return cmp.Or(gone...)
}
