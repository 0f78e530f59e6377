package pod

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// atSockets are the findings on pods whose sockets did not take the packets that match.
func atSockets(v *fault.Input, match func(*model.Drop) bool, find func(netip.Addr, *node.Lost) fault.Fault) {
	fault.ReportBy(v, func(d *model.Drop) (pod, _ netip.Addr) {
		if match(d) && len(v.Owners[d.Dst]) > 0 && (d.Netns == 0 || v.InPod(d) == d.Dst) {
			return d.Dst, d.Dst
		}
		return pod, pod
	}, find)
}

// atSocket is a finding on these, by a page. It has the ports that samples of the drops were for.
func atSocket(v *node.Index, page string, l *node.Lost) fault.Fault {
	d := l.Drops[0]
	f := fault.Fault{Page: page, Lost: l, Facts: words.Facts{"addr": d.Dst, "ports": v.SampledPorts(l)}}
	if pods := v.Owners[d.Dst]; len(pods) > 0 {
		f.Facts["pod"], f.LastHopAlive = pods[0],
			model.Place{Link: pods[0].Interface, Role: model.RolePod, Direction: model.Ingress}
	}
	return f
}
