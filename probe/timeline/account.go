package timeline

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// account judges what was counted since the whole point before, where anything was lost. It returns the findings that
// the configuration between makes, if it is another by now, or was meanwhile: anew.
func (t *Timeline) account(latest *mark, changed bool) (former []model.Finding, anew bool) {
	before, old := t.origin, t.whole
	if n := len(t.marks); n > 0 {
		before = t.marks[n-1]
	}
	t.whole = t.last.Snapshot
	s := *t.last.Snapshot
	s.Window.Start = before.at
	s.Traffic = cut{base: before}.traffic(&s.Traffic)
	classes := loss.NewClassifier(&s)
	lost := slices.ContainsFunc(s.Traffic.Drops, func(d model.Drop) bool { return classes.Lost(&d) })
	if !lost && len(t.tracker.open) == 0 {
		t.since = model.Verdict{On: &s, Causes: model.Map(s.Traffic.Drops, func(d model.Drop) model.DropCause {
			return model.DropCause{Ordinary: classes.Class(&d)}
		})}
		return nil, changed
	}
	t.since = t.diagnose(t.cut(before, t.last, new(lastState)))
	if !lost {
		return nil, changed
	}
	then, deleted, undone := between(old, t.last.Snapshot)
	if changed = changed || undone; changed && t.since.On != nil {
		former = t.former(before, latest, then, deleted)
	}
	return former, changed
}

// between is a state without what was deleted since, and with what was put in the way of packets: a route to nowhere, an
// address's MAC, a chain's policy, a setting, a link that was down. Of these changes the kernel notified, and now they are
// undone: undone reports whether there are any. Rules that were deleted are added later, with what they counted.
func between(old, now *model.Snapshot) (then *model.Snapshot, deleted []*model.Change, undone bool) {
	out := *old
	changes := model.Chosen(now.Changes, func(c *model.Change) bool { return c.At.After(old.Window.End) })
	type target struct {
		dst   netip.Prefix
		table int
	}
	wanted := model.Table(changes, func(c **model.Change) (target, bool) { return target{(*c).Dst, (*c).Table}, true })
	led := func(routes []model.Route) map[target][]model.Route {
		to := map[target][]model.Route{}
		for r := range model.Each(routes) {
			if k := (target{r.Dst, r.Table}); wanted[k] {
				to[k] = append(to[k], *r)
			}
		}
		return to
	}
	had, has := led(old.Routes), led(now.Routes)
	for _, c := range changes {
		to := target{c.Dst, c.Table}
		rule := func(r model.RoutingRule) bool { return r.From == c.From && r.To == c.Dst && r.Table == c.Table }
		neighbor := func(n model.Neighbor) bool { return n.Addr == c.Dst.Addr() && n.IfIndex == c.Link }
		chained := func(x *model.Chain) bool {
			return chain{x.Backend, x.Family, x.Table, x.Name} == chain{model.NFT, c.Family, c.Filter, c.Chain}
		}
		setting := func(x *model.Sysctl) bool { return x.Name == c.Setting || follows(x.Name, c.Setting) }
		link := func(x *model.Link) bool { return x.Index == c.Link }
		switch {
		case c.Kind == model.ChangedRoute && (c.Deleted || c.Type != "unicast") && len(had[to]) == 1 && len(has[to]) == 1 &&
			has[to][0].Type == "unicast":
			out.Routes = slices.DeleteFunc(slices.Clone(out.Routes), func(r model.Route) bool { return target{r.Dst, r.Table} == to })
			if !c.Deleted {
				out.Routes = append(out.Routes, model.Route{Table: c.Table, Dst: c.Dst, Type: c.Type})
			}
		case c.Kind == model.ChangedRule && c.Deleted && slices.ContainsFunc(out.Rules, rule) && slices.ContainsFunc(now.Rules, rule):
			out.Rules = slices.DeleteFunc(slices.Clone(out.Rules), rule)
		case c.Kind == model.ChangedRule && !c.Deleted && c.Type != "" && c.Type != "unicast" && len(old.Rules) > 0 &&
			!slices.ContainsFunc(slices.Concat(old.Rules, now.Rules), rule):
			out.Rules = append(slices.Clone(out.Rules), model.RoutingRule{
				Family: model.Either(c.From.Addr().Is6() || c.Dst.Addr().Is6(), 6, 4), Priority: c.Priority, From: c.From, To: c.Dst, Action: c.Type})
			slices.SortStableFunc(out.Rules, func(a, b model.RoutingRule) int { return a.Priority - b.Priority })
		case c.Kind == model.ChangedNeighbor && !c.Deleted && !c.MAC.IsZero() && model.Find(now.Neighbors, neighbor).MAC != c.MAC:
			link := model.Find(out.Links, func(l model.Link) bool { return l.Index == c.Link }).Name
			out.Neighbors = append(slices.DeleteFunc(slices.Clone(out.Neighbors), neighbor),
				model.Neighbor{Addr: c.Dst.Addr(), IfIndex: c.Link, Link: link, MAC: c.MAC, State: "PERMANENT"})
		case c.Packet != nil && !slices.ContainsFunc(now.PacketRules, func(r model.PacketRule) bool {
			return keyOfPacket(&r) == keyOfPacket(c.Packet)
		}), c.Frame != nil && !slices.ContainsFunc(now.FrameRules, func(r model.FrameRule) bool {
			return r.Table == c.Frame.Table && r.Chain == c.Frame.Chain && r.Text == c.Frame.Text
		}):
			deleted = append(deleted, c)
		case c.Policy == "DROP" && slices.ContainsFunc(now.Chains, func(x model.Chain) bool { return chained(&x) && x.Policy != c.Policy }):
			out.Chains = edited(out.Chains, chained, func(x *model.Chain) { x.Policy = c.Policy })
		case c.Kind == model.ChangedSetting && slices.ContainsFunc(now.Sysctls, func(x model.Sysctl) bool {
			return x.Name == c.Setting && x.Value != c.Value
		}):
			out.Sysctls = edited(out.Sysctls, setting, func(x *model.Sysctl) { x.Value = c.Value })
		case c.Kind == model.ChangedLink && c.Deleted &&
			slices.ContainsFunc(now.Links, func(x model.Link) bool { return link(&x) && x.Up }):
			out.Links = edited(out.Links, link, func(x *model.Link) { x.Up, x.Carrier = false, false })
		default:
			continue
		}
		undone = true
	}
	return &out, deleted, undone
}

// edited is a list in which some are changed.
func edited[T any](list []T, is func(*T) bool, how func(*T)) []T {
	out := slices.Clone(list)
	for x := range model.Each(out) {
		if is(x) {
			how(x)
		}
	}
	return out
}

// restore puts rules that were deleted into the state before, with all that they counted.
func restore(s *model.Snapshot, deleted []*model.Change) {
	for _, c := range deleted {
		if c.Packet != nil {
			s.PacketRules = restored(s.PacketRules, *c.Packet, func(x *model.PacketRule) (chain, uint64, *model.Counter) {
				return chain{x.Backend, x.Family, x.Table, x.Chain}, x.Handle, &x.Counter
			})
		} else {
			s.FrameRules = restored(s.FrameRules, *c.Frame, func(x *model.FrameRule) (chain, uint64, *model.Counter) {
				return chain{x.Backend, "bridge", x.Table, x.Chain}, x.Handle, &x.Counter
			})
		}
	}
}

type chain struct {
	backend             model.Backend
	family, table, name string
}

// restored has a rule in its place or, where it was not there yet, first in its chain.
func restored[T any](rules []T, r T, of func(*T) (in chain, handle uint64, c *model.Counter)) []T {
	in, handle, gone := of(&r)
	first := len(rules)
	for i := range rules {
		switch x, h, c := of(&rules[i]); {
		case x == in && h == handle:
			gone.Delta = gone.Packets - min(gone.Packets, c.Packets)
			rules = slices.Clone(rules)
			_, _, c = of(&rules[i])
			*c = *gone
			return rules
		case x == in:
			first = min(first, i)
		}
	}
	gone.Delta, gone.Added = gone.Packets, true
	return slices.Insert(slices.Clone(rules), first, r)
}

// former are the findings that a state makes of the drops that the one after it, by which they were judged, leaves open:
// what made them may have gone. They get these drops.
func (t *Timeline) former(before, latest *mark, old *model.Snapshot, deleted []*model.Change) (found []model.Finding) {
	v := &t.since
	s, now := *v.On, v.On
	s.Links, s.Routes, s.Rules, s.Neighbors, s.FDB, s.Sysctls = old.Links, old.Routes, old.Rules, old.Neighbors, old.FDB, old.Sysctls
	s.FrameRules, s.PacketRules, s.Chains, s.Sets, s.Programs = old.FrameRules, old.PacketRules, old.Chains, old.Sets, old.Programs
	latest.rules.compare(&s, before.rules.packets, latest.unread, countedUntil)
	restore(&s, deleted)
	// A younger pod may still have been being set up.
	s.Pods = model.Filter(now.Pods, func(p model.Pod) bool { return before.at.Sub(p.Since) >= grounds })
	s.Traffic.Drops = nil
	var places []int
	for i, d := range now.Traffic.Drops {
		if f := claimant(v, i); !v.Causes[i].Expected() && (f == nil || f.Confidence != model.Proven || f.Is(model.Unknown)) {
			s.Traffic.Drops, places = append(s.Traffic.Drops, d), append(places, i)
		}
	}
	if len(places) == 0 {
		return nil
	}
	then := t.diagnose(&s)
	v.Findings = slices.Clone(v.Findings)
	for i := range then.Causes {
		f := claimant(&then, i)
		if f == nil || f.Is(model.Unknown) || f.Severity.Rank() < model.Warning.Rank() || within(*f, v.Findings) {
			continue
		}
		if !within(*f, found) {
			found = append(found, *f)
		}
		if g := slices.IndexFunc(v.Findings, func(g model.Finding) bool { return claims(v, &g, places[i]) }); g >= 0 {
			left := &v.Findings[g].Packets
			if *left -= min(*left, s.Traffic.Drops[i].Packets); *left == 0 {
				v.Findings = slices.Delete(v.Findings, g, g+1)
			}
		}
		v.Causes[places[i]] = then.Causes[i]
		t.settled = append(t.settled, settled{s.Traffic.Drops[i].Key(), s.Traffic.Drops[i].Packets, latest.at})
	}
	v.Findings = append(v.Findings, found...)
	return found
}

// settled are drops that were put down to what is not in the state any more: a later judgement does not see them.
type settled struct {
	drop    model.Drop
	packets uint64
	at      time.Time
}

// unsettled is the snapshot of a window, which began then, without what is settled.
func (t *Timeline) unsettled(s *model.Snapshot, began time.Time) *model.Snapshot {
	left := map[model.Drop]uint64{}
	for _, x := range t.settled {
		if x.at.After(began) {
			left[x.drop] += x.packets
		}
	}
	if len(left) == 0 {
		return s
	}
	out := *s
	out.Traffic.Drops = since(s.Traffic.Drops, func(d *model.Drop) bool {
		d.Packets -= min(d.Packets, left[d.Key()])
		return d.Packets > 0
	})
	return &out
}

// claimant is the finding of a verdict that claims a drop; nil where none does.
func claimant(v *model.Verdict, i int) *model.Finding {
	return model.First(v.Findings, func(f *model.Finding) bool { return claims(v, f, i) })
}

func claims(v *model.Verdict, f *model.Finding, i int) bool {
	d, c := &v.On.Traffic.Drops[i], v.Causes[i]
	return f.Code == c.Code && (c.Object == "" || c.Object == f.Cause) &&
		(len(f.Pods) == 0 || slices.Contains(f.Pods, d.Src) || slices.Contains(f.Pods, d.Dst))
}

// inherit has drops that were too few since the whole point before belong to who claims them in the window.
func (t *Timeline) inherit() {
	var known map[model.Drop]model.DropCause
	for i := range t.since.Causes {
		c := &t.since.Causes[i]
		if c.Code != "" || c.Expected() {
			continue
		}
		if known == nil {
			known = map[model.Drop]model.DropCause{}
			for j, w := range t.verdict.Causes {
				known[t.verdict.On.Traffic.Drops[j].Key()] = w
			}
		}
		if w := known[t.since.On.Traffic.Drops[i].Key()]; w.Code != "" {
			*c = w
		}
	}
}

// lostTo is when the drops were first and last counted that a verdict puts down to a finding, zero where it does to none,
// and how much its cause lost.
func lostTo(v *model.Verdict, f *model.Finding) (first, last time.Time, packets uint64) {
	for i := range v.Causes {
		d := &v.On.Traffic.Drops[i]
		if !claims(v, f, i) {
			continue
		}
		if first.IsZero() || d.First.Before(first) {
			first = d.First
		}
		if d.Last.After(last) {
			last = d.Last
		}
		packets += d.Packets
	}
	return first, last, max(packets, model.Find(v.Findings, func(g model.Finding) bool { return f.Same(&g) }).Packets)
}
