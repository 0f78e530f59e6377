package policy

import (
	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// nearlyFull is the share of the limit from which the table is as good as full, in percent.
const nearlyFull = 95

// ConntrackFull reports that the table of connection tracking is full.
var ConntrackFull = fault.Kind{Code: "ConntrackFull", Severity: model.Critical, Find: conntrackFull,
	Ends: fault.Hops{model.HopConntrack, model.HopPolicy}, Objects: fault.Objects{"table.Max"},
	Else: fault.Else{"!dropped"}}

func conntrackFull(v *fault.Input) {
	c := &v.Conntrack
	if !v.Has(model.SourceConntrack) || c.Max == 0 || c.Count*100 < c.Max*nearlyFull {
		return
	}
	var l node.Lost
	for d := range model.Each(v.Traffic.Drops) {
		// Connection tracking drops in the hook itself, never within nft.
		if c.Drop > 0 && d.Is(model.Netfilter) && !d.Is(model.ByNFT) && v.OfPod(d) && !v.InPod(d).IsValid() {
			l.Add(v.Index, d)
		}
	}
	f := fault.Fault{Lost: &l, Facts: words.Facts{"table": c, "limit": 2 * c.Max, "dropped": c.Drop}}
	f.LastHopAlive.Direction, f.Packets = model.Ingress, c.Drop
	if c.Drop == 0 && c.EarlyDrop == 0 {
		f.Severity, f.Confidence = model.Warning, model.Possible
	}
	v.Report(f)
}
