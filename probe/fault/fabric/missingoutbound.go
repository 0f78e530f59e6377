package fabric

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingOutbound reports subnets that have no way to the internet, where pods ask there in vain.
var MissingOutbound = fault.Kind{Code: "MissingOutbound", Severity: model.Warning, Find: missingOutbound,
	Rests: fault.Sources{model.SourceTC}, Ends: fault.Hops{model.HopBeyond}, Objects: fault.Objects{"no.Subnet.ID"},
	Traits: model.Unheard, Else: fault.Else{"!effective"}}

func missingOutbound(v *fault.Input) {
	no, lost := v.FindNoOutbound(), &node.Lost{}
	if no == nil {
		return
	}
	for p := range model.Each(v.Peers) {
		switch {
		case !no.Concerns(p.Remote) || v.IsTunnel(p.IfIndex):
		case v.Answered(p):
			return // There is a way that was not read.
		case v.Unanswered(p) && node.Lasted(p) && !v.LeftWithWrongMAC(p) && !v.Silenced(p.Local, model.Host(p.Remote)):
			if pods := v.Senders(p); len(pods) > 0 {
				lost.AddPair(p, pods, v.Asked(p))
			}
		}
	}
	if lost.Requests < node.MinAsks {
		return
	}
	f := fault.Fault{Lost: lost, Facts: words.Facts{
		"no": no, "effective": no.Effective, "asks": lost.Requests, "row": v.Associate(no.Subnet, nil),
	}}
	f.LastHopAlive = v.Place(v.LinkName(lost.Link), model.Egress)
	f.Silences = func(_ netip.Addr, asked netip.Prefix) bool { return no.Concerns(asked.Addr()) }
	v.Report(f)
}
