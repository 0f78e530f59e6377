package silence

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// scanned tells of what pods looked for in vain.
func reportScans(v *fault.Input) {
	for _, s := range v.Scans {
		var silent []netip.Addr
		f := fault.Fault{Page: "NoReply-scan"}
		f.Facts = words.Facts{"pod": v.Owners[s.Pod][0], "asked": len(s.Remotes), "ports": s.Ports}
		f.Severity, f.Pods = model.Info, []netip.Addr{s.Pod}
		for p := range model.Each(v.Peers) {
			if _, found := slices.BinarySearchFunc(s.Remotes, p.Remote, netip.Addr.Compare); found &&
				v.Swept[node.Pair{Local: p.Local, Remote: p.Remote}] && v.Unanswered(p) {
				silent = append(silent, p.Remote)
				f.Packets += p.Out.Packets
				f.LastHopAlive = v.Place(v.LinkName(p.IfIndex), model.Egress)
			}
		}
		if s.Network.IsValid() {
			f.Facts["network"] = s.Network
		}
		if f.Peers = model.Hosts(model.Unique(silent)); len(silent) > 0 {
			v.Report(f)
		}
	}
}
