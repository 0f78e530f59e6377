package plugin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// azureBridge has an uplink as a port of the pods' bridge, and ebtables rules that only azure-vnet writes.
func azureBridge(g *signs) (string, []string) {
	if !g.uplinked || g.routed > g.bridged {
		return "", nil
	}
	snat, tunnel := "", false
	for _, r := range g.s.FrameRules {
		switch {
		case r.Table != "nat":
		case r.Target == model.TargetSNAT && r.Out.Name != "":
			snat = r.Text
		case r.SendsToFabric():
			// All frames of pods go to the fabric first.
			tunnel = true
		}
	}
	by := []string{fmt.Sprintf("the uplink is a port of %s", g.bridge.Name)}
	if snat != "" {
		by = append(by, "ebtables nat POSTROUTING "+snat)
	}
	by = g.file(by, "azure-vnet")
	if _, ok := g.conf("azure-vnet"); !ok && snat == "" {
		return "", nil
	}
	if tunnel || g.c.AzureMode == "tunnel" {
		return AzureTunnel, append(by, "an ebtables rule sends pods' frames to the fabric")
	}
	return AzureBridge, by
}

// azureMAC is the MAC of the host end of a pod link in azure-vnet's transparent mode since 2022.
var azureMAC = model.MAC{0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}

// azureGateway is the pods' gateway in that mode. No interface has the address.
var azureGateway = netip.AddrFrom4([4]byte{169, 254, 1, 1})

// azureRouted recognises azure-vnet's transparent mode and its successors: routed pods with a link-local gateway.
// Calico's pods have that too, so the MAC or a file must confirm it.
func azureRouted(g *signs) (string, []string) {
	var by []string
	for p := range model.Each(g.s.Pods) {
		gateway := slices.ContainsFunc(p.Gateways, func(n model.Neighbor) bool { return n.Addr == azureGateway })
		if gateway && p.LinkMAC == azureMAC {
			by = append(by, fmt.Sprintf("link %s has MAC %s; its pod's gateway is %s", p.Link, p.LinkMAC, azureGateway))
			break
		}
		// Before 2022 the MAC was random, but the name had this prefix.
		if gateway && strings.HasPrefix(p.Link, "azv") {
			by = append(by, fmt.Sprintf("link %s has a name as azure-vnet gives it; its pod's gateway is %s", p.Link, azureGateway))
			break
		}
	}
	p, ok := g.conf("azure-vnet")
	if ok && g.routed > 0 {
		by = append(by, p.File+" names azure-vnet")
	}
	if len(by) == 0 {
		return "", nil
	}
	if c := g.chainPrefix("SWIFT"); c != "" {
		return AzurePodSubnet, append(by, "chain "+c)
	}
	if strings.Contains(p.IPAM.Mode, "overlay") {
		return AzureOverlay, append(by, "IPAM mode "+p.IPAM.Mode)
	}
	if excluded := overlay(g); excluded != "" {
		return AzureOverlay, append(by, excluded)
	}
	if p.IPAM.Type == "azure-cns" && p.IPAM.Mode == "v4swift" {
		return AzurePodSubnet, append(by, "IPAM mode "+p.IPAM.Mode)
	}
	if p.IPAM.Type == "" {
		if routed, own := apart(g); routed != "" {
			return AzurePodSubnet, append(by, routed)
		} else if own != "" {
			return AzureOverlay, append(by, own)
		}
	}
	return AzureTransparent, by
}

// apart describes addresses of pods that no uplink's network holds. A node whose pods have
// a subnet of their own has a route to it; in an overlay there is none.
func apart(g *signs) (routed, own string) {
	known := g.link(func(l *model.Link) bool {
		return l.Role == model.RoleUplink && slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool {
			r := offNode(g, a.Addr())
			return a.Addr().Is4() && r != nil && !r.Gateway.IsValid()
		})
	})
	if known == nil {
		return "", ""
	}
	for p := range model.Each(g.s.Pods) {
		if !slices.ContainsFunc(p.Gateways, func(n model.Neighbor) bool { return n.Addr == azureGateway }) {
			continue
		}
		for _, a := range p.Addresses {
			if !a.Addr().Is4() || !a.Addr().IsGlobalUnicast() {
				continue
			}
			r := offNode(g, a.Addr())
			switch {
			case r == nil:
				own = fmt.Sprintf("the pod address %s is in none of the node's networks", a.Addr())
			case !r.Gateway.IsValid():
				return "", ""
			default:
				routed = fmt.Sprintf("the pods' subnet %s is routed via %s", r.Dst, r.Gateway)
			}
		}
	}
	return routed, own
}

// offNode is the route of an uplink's to a range that holds an address: that of a network
// of the link's before others; nil without any but the default route.
func offNode(g *signs, a netip.Addr) *model.Route {
	var found *model.Route
	for r := range model.Each(g.s.Routes) {
		if r.Type == "unicast" && r.Dst.Bits() > 0 && !r.Dst.IsSingleIP() && r.Dst.Contains(a) && (found == nil || !r.Gateway.IsValid()) &&
			g.link(func(l *model.Link) bool { return l.Index == r.IfIndex && l.Role == model.RoleUplink }) != nil {
			found = r
		}
	}
	return found
}

// overlay describes a pod range that is not part of the uplinks' networks, empty if there is none.
func overlay(g *signs) string {
	for _, p := range g.s.Cluster.PodCIDRs {
		// kube-proxy is given the virtual network's range where pods have addresses from it.
		if g.link(func(l *model.Link) bool { return l.Role == model.RoleUplink && inRange(l.Addresses, p) }) != nil {
			continue
		}
		if slices.ContainsFunc(g.s.Pods, func(x model.Pod) bool { return inRange(x.Addresses, p) }) {
			return fmt.Sprintf("pods have their own range %s", p)
		}
	}
	return ""
}

func inRange(addrs []netip.Prefix, r netip.Prefix) bool {
	return slices.ContainsFunc(addrs, func(a netip.Prefix) bool { return r.Contains(a.Addr()) })
}

// residue recognises what azure-vnet's bridge mode left behind on a node whose pods are now routed: ebtables rules for
// single addresses, and permanent neighbours on a bridge.
func residue(g *signs) (name, by string) {
	if g.routed == 0 || g.routed < g.bridged {
		return "", ""
	}
	for _, r := range g.s.FrameRules {
		if r.Table != "nat" {
			continue
		}
		single := r.IPDst.Prefix.IsSingleIP() && r.Target == model.TargetDNAT ||
			r.ARPDst.Prefix.IsSingleIP() && r.Target == model.TargetARPReply && g.link(func(l *model.Link) bool { return l.Has(r.ARPDst.Prefix.Addr()) }) == nil
		if single {
			return ResidueAzureVNet, fmt.Sprintf("ebtables nat %s %s, while pods are routed", r.Chain, r.Text)
		}
	}
	for _, n := range g.s.Neighbors {
		if n.State == "PERMANENT" && g.link(func(l *model.Link) bool { return l.Index == n.IfIndex && l.Role == model.RoleBridge }) != nil {
			return ResidueAzureVNet, fmt.Sprintf("permanent neighbour %s on bridge %s, while pods are routed", n.Addr, n.Link)
		}
	}
	return "", ""
}
