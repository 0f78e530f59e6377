package diagnose

import (
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// most is how many objects a fix removes behind each other.
const most = 16

// try applies the fixes to the tables, and follows a packet of each finding that ended by what its fix removes. While it
// ends at another rule of the same sort, the fix removes that as well. One after which it ends at none, although no other
// finding is about its pods, is not called a fix.
func try(v *fault.Input, list []fault.Fault) {
	var open []*fault.Fault
	var gone []any
	var trial *path.Trial
	for f := range model.Each(list) {
		if f.Undoes == nil && f.Sets == nil {
			continue
		}
		if trial == nil {
			trial = path.NewTrial(v.State)
		}
		if !f.Packet.Dst.IsValid() && f.Lost != nil && len(f.Lost.Drops) > 0 {
			f.Packet = firstOf(v, f)
		}
		if f.Undoes != nil {
			gone = append(gone, f.Undoes)
		}
		for _, setting := range f.Sets {
			gone = append(gone, setting)
		}
		if died, by := fate(trial, f); f.Undoes == nil && died || f.Undoes != nil && by == f.Undoes {
			open = append(open, f)
		}
	}
	for round := 0; round < most && len(open) > 0; round++ {
		trial = trial.Without(gone)
		gone = nil
		open = slices.DeleteFunc(open, func(f *fault.Fault) bool {
			died, by := fate(trial, f)
			if s := sort(by); s != "" && s == sort(f.Undoes) {
				var next model.Finding
				c, _ := by.(*model.Chain)
				words.Put("behind", words.Facts{"by": by, "kept": c != nil && model.PolicyKeeper(trial.PacketRules, c) != ""}, &next)
				gone, f.Fix = append(gone, by), append(f.Fix, next.Fix...)
				return false
			}
			others := slices.ContainsFunc(list, func(o fault.Fault) bool { return o.Code != f.Code && model.Meet(o.Pods, f.Pods) })
			if died && !others && sort(by) == "" {
				f.Fix, f.Next = nil, append(f.Fix, f.Next...)
			}
			return true
		})
	}
}

// sort is the same for a rule and what may end packets behind it; empty for what is no rule.
func sort(by any) string {
	switch by.(type) {
	case *model.FrameRule:
		return "bridge"
	case *model.PacketRule, *model.Chain:
		return "ip"
	}
	return ""
}

func fate(t *path.Trial, f *fault.Fault) (died bool, by any) {
	if rule, is := f.Undoes.(*model.FrameRule); is && rule.Target == model.TargetARPReply {
		right, _ := f.Facts["owners"].([]model.MAC)
		return t.Answer(rule, right)
	}
	return t.Fate(f.Packet)
}

// firstOf is a packet such as most of a finding's drops. What the IP layer dropped of a pod's came to it.
func firstOf(v *fault.Input, f *fault.Fault) path.Packet {
	d := node.MostDropped(f.Lost.Drops)[0]
	p := v.PacketOf(d)
	if _, bridged := f.Undoes.(*model.FrameRule); len(v.Owners[d.Src]) > 0 && !bridged {
		link := v.ByIndex[v.Owners[d.Src][0].LinkIndex]
		if b := v.Bridge(link); b != nil {
			link = b
		}
		if link != nil {
			p.In = []string{link.Name}
		}
	}
	return p
}
