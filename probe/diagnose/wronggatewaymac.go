package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// WrongGatewayMAC is the code of this finding.
const WrongGatewayMAC model.Code = "WrongGatewayMAC"

var wrongGatewayMAC = kind{
	code:     WrongGatewayMAC,
	severity: model.Critical,
	find:     needing(findWrongGatewayMAC, model.SourceLinks),
	ends:     []model.HopKind{model.HopLink, model.HopBridge},
}

func findWrongGatewayMAC(v *view) []finding {
	var out []finding
	for p := range model.Each(v.Pods) {
		for g := range model.Each(p.Gateways) {
			if !path.Resolved(g) || len(sameFamily(podAddrs(p), g.Addr)) == 0 {
				continue
			}
			right, who := v.GatewayMACs(p, g.Addr)
			if len(right) == 0 || slices.Contains(right, g.MAC) {
				continue
			}
			out = append(out, wrongGateway(v, p, g, right, who)...)
		}
	}
	return out
}

func wrongGateway(v *view, p *model.Pod, g *model.Neighbor, right []model.MAC, who string) []finding {
	pods := podAddrs(p)
	lost := func(d *model.Drop) bool {
		if slices.Contains(pods, d.Src) && d.DstMAC == g.MAC {
			return true
		}
		// By IPv6 the node asks with the gateway's own address, so that the
		// pod's answer goes to the wrong MAC too, and the node has no neighbour.
		return g.Addr.Is6() && d.Dst.Is6() && slices.Contains(pods, d.Dst) && d.NeighborFailed()
	}
	sent := uint64(0)
	for _, a := range pods {
		sent += v.frames(a, p.LinkIndex, model.Ingress, model.AsSource, g.MAC)
	}
	drops := v.dropped(func(d *model.Drop) bool { return lost(d) && d.OtherHost() })
	if g.State != "PERMANENT" && !v.stood(p) {
		return nil
	}
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         sameFamily(pods, g.Addr),
		LastHopAlive: v.place(p.Link, model.Ingress),
		Title:        fmt.Sprintf("%s has a wrong MAC for its gateway", words.PodName(p)),
		Why: fmt.Sprintf("%s sends what is for its gateway %s to %s; %s has %s. Frames for another MAC are freed unread.",
			words.PodName(p), g.Addr, g.MAC, who, right[0]),
		Evidence: []model.Evidence{
			seen(model.SourcePods,
				"in the pod, on %s: neighbour %s lladdr %s %s; %s has that MAC", p.Interface, g.Addr, g.MAC, g.State, v.owner(g.MAC)),
			seen(model.SourceLinks, "%s has %s", who, right[0]),
		},
		// A flood is freed by every pod that it reaches.
		Packets: cmp.Or(sent, drops),
	}
	observeSome(&f, sent, model.SourceTC, "%s ingress: %s from the pod for %s", p.Link, words.Count(sent, "frame"), g.MAC)
	observeSome(&f, drops, model.SourceDrops, "%s of the pod dropped: the destination MAC is not this host's", words.Count(drops, "packet"))
	if sent == 0 && drops == 0 {
		unusedEntry(&f, g, "a frame to the gateway: the pod sent none in the window")
	}
	f.Fix = []string{gatewayFix(v, p, g, right[0])}
	return []finding{{Finding: f, claims: lost, cause: belief{g.Addr, g.MAC}, cutOff: v.silentBy(g.MAC, f.Pods)}}
}

// gatewayFix writes the entry in the pod anew. One that a plugin pinned stays
// pinned: nobody may answer the pod's ARP. Where the pod's namespace has no name, its
// host link can be given the MAC that the pod wants, if nobody else has it and no
// other entry of the pod wants another.
func gatewayFix(v *view, p *model.Pod, g *model.Neighbor, right model.MAC) string {
	_, taken := v.macs[g.MAC]
	agreed := !slices.ContainsFunc(p.Gateways, func(o model.Neighbor) bool { return path.Resolved(&o) && o.MAC != g.MAC })
	if p.NetnsName == "" && !taken && agreed && v.routed(p) && !g.MAC.IsMulticast() {
		return fmt.Sprintf("ip link set dev %s address %s", words.Quote(p.Link), g.MAC)
	}
	state := "reachable"
	if g.State == "PERMANENT" {
		state = "permanent"
	}
	return fmt.Sprintf("%s%s neigh replace %s lladdr %s dev %s nud %s", words.Inside(p), words.IP(g.Addr), g.Addr, right, words.Quote(p.Interface), state)
}
