package diagnose

import (
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

func findAllowanceExceeded(v *view) {
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
		f.infoUnless(severe)
		v.report(f)
	}
}
