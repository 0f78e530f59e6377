package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// causes says for each drop which finding claims it, or that a healthy node frees such packets too.
func causes(v *fault.Input) []model.DropCause {
	out := make([]model.DropCause, len(v.Whole.Traffic.Drops))
	next := 0 // of the drops of single addresses
	for i := range out {
		if d := &v.Whole.Traffic.Drops[i]; d.Range.IsValid() {
			out[i] = v.FoldedCause(d)
			continue
		}
		out[i] = v.CauseOf(&v.Traffic.Drops[next])
		next++
	}
	return out
}

// judge runs the kinds in their order. A finding claims its losses for itself; one that is about an effect of an
// earlier one's cause becomes evidence of that; one about nothing but what earlier causes cut off is left out.
func judge(v *fault.Input) []model.Finding {
	var list []fault.Fault
	// By the finding that does, and by one that only state speaks for.
	cutOff, perhaps := map[netip.Addr]model.Code{}, map[netip.Addr]model.Code{}
	effects := map[any]int{} // The earlier fault of each, by its place in the list.
	for k := range model.Each(kinds) {
		if !v.Has(k.Needs...) {
			continue
		}
		v.Proposed = nil
		k.Find(v)
		before := len(list)
		for _, f := range v.Proposed {
			f.Complete(k)
			f.Doubt(model.Filter(k.Rests, func(source string) bool { return !v.Has(source) }))
			if f.Lost == nil && slices.Contains(k.Ends, model.HopBeyond) {
				f.Taken(v.Takers())
			}
			at, effect := effects[f.About]
			by := consequence(&f.Finding, cutOff)
			if k.Decides {
				by = ""
			} else if f.Severity == model.Info || f.Lost == nil || len(f.Lost.Drops) == 0 {
				by = cmp.Or(by, consequence(&f.Finding, perhaps))
			}
			switch {
			case effect:
				list[at].Absorb(&f)
				v.Claim(&f, list[at].Key(), v.Traffic.Drops)
			case by != "":
				v.Claim(&f, model.Key{Code: by}, v.Traffic.Drops)
			default:
				f.Code, f.EndsAt, f.Passes, f.Traits = k.Code, k.Ends, k.Passes, k.Traits
				f.Verify, f.Pods = k.Verify(), model.Unique(f.Pods)
				f.Cause = words.Cause(f.Cause, f.Facts, k.Objects)
				v.Claim(&f, f.Key(), v.Traffic.Drops)
				f.Evidence = append(f.Evidence, beside(v.Index, &f)...)
				author(v, &f)
				for _, e := range f.Effects {
					if _, known := effects[e]; !known {
						effects[e] = len(list)
					}
				}
				list = append(list, f)
			}
		}
		for _, f := range list[before:] {
			by := model.Either(f.Idle, perhaps, cutOff)
			for _, a := range f.CutOff {
				by[a] = cmp.Or(by[a], f.Code)
			}
		}
	}
	try(v, list)
	out := model.Map(list, func(f fault.Fault) model.Finding { return f.Finding })
	Sort(out)
	return out
}

// beside is what the node's configuration says beside a finding of any kind: where its pods ask
// for names, if these do not get there, and what may have removed the route or rule that it lacks.
func beside(v *node.Index, f *fault.Fault) []model.Evidence {
	n := v.Node.Networkd
	removed := n != nil && (f.Lacks == node.LacksRoute && n.RemovesRoutes || f.Lacks == node.LacksRule && n.RemovesRules)
	return words.Say("beside", words.Facts{"servers": askedInVain(v, f), "removed": removed, "lacks": f.Lacks})
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

// askedInVain are the name servers that a finding's pods, or those of its peers, have in their
// resolv.conf and do not reach because of it.
func askedInVain(v *node.Index, f *fault.Fault) []*node.NameServer {
	concerns := f.Silences
	if concerns == nil {
		concerns = node.SilencesPeers(&f.Finding)
	}
	var out []*node.NameServer
	for _, s := range v.NameServers() {
		x := *s
		x.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(pod netip.Addr) bool {
			asks := func(to netip.Addr) bool { return to.Is4() == pod.Is4() && concerns(pod, model.Host(to)) }
			// A range that holds the server's own address says nothing of what that leads to.
			own := len(s.Leads) == 0 || slices.Contains(f.Peers, model.Host(s.Server))
			return !(own && asks(s.Server)) && !slices.ContainsFunc(s.Leads, asks)
		})
		if len(x.Pods) > 0 {
			out = append(out, &x)
		}
	}
	return out
}

func newInput(s *model.Snapshot) *fault.Input { return inputOf(node.New(s)) }

func inputOf(index *node.Index) *fault.Input {
	return &fault.Input{Claims: fault.Claims{ByDrop: map[*model.Drop]fault.Claimant{}}, Index: index}
}
