package below

import (
	"strings"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// AllowanceExceeded reports that the cloud dropped packets beyond what it allows the machine, by the counters of the NIC.
var AllowanceExceeded = fault.Kind{Code: "AllowanceExceeded", Severity: model.Warning, Find: allowanceExceeded,
	Ends: fault.Hops{model.HopBeyond}, Objects: fault.Objects{"conntrack", "linklocal"}}

func allowanceExceeded(v *fault.Input) {
	for d := range model.Each(v.Devices) {
		n := d.Lost(model.LossAllowance)
		if n < node.MinDrops {
			continue
		}
		list, severe := risen(d, model.LossAllowance)
		f := fault.Fault{Facts: words.Facts{"device": d, "moved": list, "window": v.Window.Duration()}}
		for _, c := range list {
			what, _, _ := strings.Cut(c.Name, "_") // bw, pps, conntrack, linklocal
			f.Facts[what] = true
		}
		f.Packets, f.Cause, f.LastHopAlive = n, v.Node.Name+" "+d.Link, v.Place(d.Link, model.Egress)
		f.InfoUnless(severe)
		v.Report(f)
	}
}
