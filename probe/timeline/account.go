package timeline

import (
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// account judges what was counted since the whole point before, where anything was lost. It returns the findings that
// the configuration of that point makes, if it is another by now.
func (t *Timeline) account(latest *mark, changed bool) (former []model.Finding) {
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
		return nil
	}
	t.since = t.diagnose(t.cut(before, t.last, new(lastState)))
	if then, harmed := harmed(old, t.last.Snapshot.Changes, old.Window.End); lost && t.since.On != nil && (changed || harmed) {
		former = t.former(before, latest, then)
	}
	return former
}

// harmed is a state without what was deleted since a time, and with what was put in the way of packets: a route to nowhere,
// an address's MAC. Of these changes the kernel notified; what they were may be back before the state is read again.
func harmed(s *model.Snapshot, changes []model.Change, since time.Time) (*model.Snapshot, bool) {
	out, any := *s, false
	for c := range model.Each(changes) {
		ours := func(r model.Route) bool { return r.Dst == c.Dst && r.Table == c.Table && (c.Deleted || r.Type == "unicast") }
		neighbor := func(n model.Neighbor) bool { return n.Addr == c.Dst.Addr() && n.IfIndex == c.Link }
		switch {
		case !c.At.After(since):
			continue
		case c.Kind == model.ChangedRoute && (c.Deleted || c.Type != "unicast") && len(model.Filter(out.Routes, ours)) <= 1:
			out.Routes = slices.DeleteFunc(slices.Clone(out.Routes), ours)
			if !c.Deleted {
				out.Routes = append(out.Routes, model.Route{Table: c.Table, Dst: c.Dst, Type: c.Type})
			}
		case c.Kind == model.ChangedRule && c.Deleted:
			out.Rules = slices.DeleteFunc(slices.Clone(out.Rules), func(r model.RoutingRule) bool {
				return r.From == c.From && r.To == c.Dst && r.Table == c.Table
			})
		case c.Kind == model.ChangedNeighbor && !c.Deleted && !c.MAC.IsZero():
			link := model.Find(out.Links, func(l model.Link) bool { return l.Index == c.Link }).Name
			out.Neighbors = append(slices.DeleteFunc(slices.Clone(out.Neighbors), neighbor),
				model.Neighbor{Addr: c.Dst.Addr(), IfIndex: c.Link, Link: link, MAC: c.MAC, State: "PERMANENT"})
		default:
			continue
		}
		any = true
	}
	return &out, any
}

// former are the findings that a state makes of the drops that the one after it, by which they were judged, leaves open:
// what made them may have gone. They get these drops.
func (t *Timeline) former(before, latest *mark, old *model.Snapshot) (found []model.Finding) {
	v := &t.since
	s, now := *v.On, v.On
	s.Links, s.Routes, s.Rules, s.Neighbors, s.FDB, s.Sysctls = old.Links, old.Routes, old.Rules, old.Neighbors, old.FDB, old.Sysctls
	s.FrameRules, s.PacketRules, s.Chains, s.Sets, s.Programs = old.FrameRules, old.PacketRules, old.Chains, old.Sets, old.Programs
	latest.rules.compare(&s, before.rules.packets, latest.unread, countedUntil)
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
	}
	v.Findings = append(v.Findings, found...)
	return found
}

// claimant is the finding of a verdict that claims a drop; nil where none does.
func claimant(v *model.Verdict, i int) *model.Finding {
	return model.First(v.Findings, func(f *model.Finding) bool { return claims(v, f, i) })
}

func claims(v *model.Verdict, f *model.Finding, i int) bool {
	d := &v.On.Traffic.Drops[i]
	return f.Code == v.Causes[i].Code && (len(f.Pods) == 0 || slices.Contains(f.Pods, d.Src) || slices.Contains(f.Pods, d.Dst))
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
