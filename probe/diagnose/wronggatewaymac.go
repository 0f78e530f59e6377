package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

func findWrongGatewayMAC(v *view) {
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.Gateways) {
			right, who := v.GatewayMACs(p, g.Addr)
			if path.Resolved(g) && len(sameFamily(podAddrs(p), g.Addr)) > 0 && len(right) > 0 && !slices.Contains(right, g.MAC) {
				wrongGateway(v, p, g, right[0], who)
			}
		}
	}
}

func wrongGateway(v *view, p *model.Pod, g *model.Neighbor, right model.MAC, who string) {
	if g.State != "PERMANENT" && !v.presentWholeWindow(p) {
		return
	}
	pods := podAddrs(p)
	sent := model.Sum(pods, func(a netip.Addr) uint64 {
		return v.framesBetween(a, p.LinkIndex, model.Ingress, model.AsSource, g.MAC)
	})
	f := v.faultOfEntry(g, sent, func(d *model.Drop) bool {
		// By IPv6 the node asks with the gateway's own address, so that the pod's answer
		// goes to the wrong MAC too, and the node has no neighbour.
		return slices.Contains(pods, d.Src) && d.DstMAC == g.MAC ||
			g.Addr.Is6() && d.Dst.Is6() && slices.Contains(pods, d.Dst) && d.Is(model.NeighborFailed)
	})
	f.Pods, f.LastHopAlive = sameFamily(pods, g.Addr), v.place(p.Link, model.Ingress)
	f.cutOff = v.silentBy(g.MAC, f.Pods)
	f.facts["pod"], f.facts["right"], f.facts["who"], f.facts["byLink"] = p, right, who, v.fitsLink(p, g)
	v.report(f)
}

// fitsLink reports whether the host link of a pod whose namespace has no name can be given
// the MAC that the pod wants: nobody else has it, and no other entry of the pod wants another.
func (v *index) fitsLink(p *model.Pod, g *model.Neighbor) bool {
	_, taken := v.macs[g.MAC]
	agreed := !slices.ContainsFunc(p.Gateways, func(o model.Neighbor) bool { return path.Resolved(&o) && o.MAC != g.MAC })
	return p.NetnsName == "" && !taken && agreed && v.routed(p) && !g.MAC.IsMulticast()
}
