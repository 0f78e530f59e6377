package diagnose

import (
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// AllowanceExceeded is the code of this finding.
const AllowanceExceeded model.Code = "AllowanceExceeded"

var allowanceExceeded = kind{
	code:     AllowanceExceeded,
	severity: model.Warning,
	find:     findAllowanceExceeded,
	ends:     []model.HopKind{model.HopBeyond},
}

func findAllowanceExceeded(v *view) []finding {
	var out []finding
	for d := range model.Each(v.Devices) {
		n := d.Lost(model.LossAllowance)
		if n < minDrops {
			continue
		}
		list, severe := risen(d, model.LossAllowance)
		f := finding{facts: facts{"device": d, "moved": list, "window": v.Window.Duration()}}
		for _, c := range list {
			what, _, _ := strings.Cut(c.Name, "_") // bw, pps, conntrack, linklocal
			f.facts[what] = true
		}
		f.Packets, f.Cause, f.LastHopAlive = n, v.Node.Name+" "+d.Link, v.place(d.Link, model.Egress)
		if !severe {
			f.Severity = model.Info
		}
		out = append(out, f)
	}
	return out
}
