package neighbor

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
)

// WrongGatewayMAC reports pods that send frames for their gateway to a MAC that is not the gateway's.
var WrongGatewayMAC = fault.Kind{Code: "WrongGatewayMAC", Severity: model.Critical, Find: wrongGatewayMAC,
	Needs: fault.Sources{model.SourceLinks},
	Rests: fault.Sources{model.SourceEbtables, model.SourceRoutes, model.SourceNeighbors},
	Ends:  fault.Hops{model.HopLink, model.HopBridge}, Objects: fault.Objects{"pod.Link"}, Traits: model.ByNextHop}

func wrongGatewayMAC(v *fault.Input) {
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.Gateways) {
			right, who := v.GatewayMACs(p, g.Addr)
			if own := sentToItself(v.Index, p, g); own != nil {
				g = own
			}
			if path.Resolved(g) && len(node.SameFamily(node.PodAddrs(p), g.Addr)) > 0 && len(right) > 0 && !slices.Contains(right, g.MAC) {
				wrongGateway(v, p, g, right[0], who)
			}
		}
	}
}

// sentToItself is the entry of an interface without ARP, which sends all to its own MAC; nil where the pod has another.
func sentToItself(v *node.Index, p *model.Pod, g *model.Neighbor) *model.Neighbor {
	if path.Resolved(g) || !v.Routed(p) || !slices.ContainsFunc(node.PodAddrs(p), func(a netip.Addr) bool {
		return v.FramesBetween(a, p.LinkIndex, model.Ingress, model.AsSource, p.MAC) >= node.MinPackets
	}) {
		return nil
	}
	return &model.Neighbor{Addr: g.Addr, MAC: p.MAC, IfIndex: g.IfIndex, Link: g.Link, State: "NOARP"}
}

func wrongGateway(v *fault.Input, p *model.Pod, g *model.Neighbor, right model.MAC, who string) {
	if g.State != "PERMANENT" && !v.PresentWholeWindow(p) {
		return
	}
	pods := node.PodAddrs(p)
	sent := model.Sum(pods, func(a netip.Addr) uint64 {
		return v.FramesBetween(a, p.LinkIndex, model.Ingress, model.AsSource, g.MAC)
	})
	f := faultOfEntry(v, g, sent, func(d *model.Drop) bool {
		// By IPv6 the node asks with the gateway's own address, so that the pod's answer
		// goes to the wrong MAC too, and the node has no neighbour.
		return slices.Contains(pods, d.Src) && d.DstMAC == g.MAC ||
			g.Addr.Is6() && d.Dst.Is6() && slices.Contains(pods, d.Dst) && d.Is(model.NeighborFailed)
	})
	f.Pods, f.LastHopAlive = node.SameFamily(pods, g.Addr), v.Place(p.Link, model.Ingress)
	f.CutOff = v.SilentBy(g.MAC, f.Pods)
	f.Facts["pod"], f.Facts["right"], f.Facts["who"], f.Facts["byLink"] = p, right, who, fitsLink(v.Index, p, g)
	to := model.Find(v.Peers, func(x model.Peer) bool { return slices.Contains(f.Pods, x.Local) })
	f.Undoes, f.Packet = g, path.Packet{Src: to.Local, Dst: to.Remote}
	v.Report(f)
}

// fitsLink reports whether the host link of a pod whose namespace has no name can be given
// the MAC that the pod wants: nobody else has it, and no other entry of the pod wants another.
func fitsLink(v *node.Index, p *model.Pod, g *model.Neighbor) bool {
	_, taken := v.MACNames[g.MAC]
	agreed := !slices.ContainsFunc(p.Gateways, func(o model.Neighbor) bool { return path.Resolved(&o) && o.MAC != g.MAC })
	return p.NetnsName == "" && !taken && agreed && v.Routed(p) && !g.MAC.IsMulticast()
}
