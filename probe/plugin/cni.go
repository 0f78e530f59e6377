package plugin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// kubenet has a promiscuous bridge without an uplink, and a chain that drops the duplicates that this causes.
func kubenet(g *signs) (string, []string) {
	if g.bridge == nil || g.uplinked || g.bridged == 0 && g.routed > 0 {
		return "", nil
	}
	by := []string{"pods are ports of " + g.bridge.Name}
	for _, name := range []string{"KUBE-DEDUP", "AKS-DEDUP-PROMISC"} {
		if slices.Contains(g.chains, name) {
			by = append(by, "ebtables filter chain "+name)
			// Other programs have a file for the plugin bridge, too.
			if p := model.First(g.c.Plugins, func(p *Conf) bool { return p.Type == Kubenet || p.Network == Kubenet }); p != nil {
				by = append(by, p.File+" names "+Kubenet)
			}
			return Kubenet, by
		}
	}
	if r := model.First(g.s.PacketRules, func(r *model.PacketRule) bool { return strings.HasPrefix(r.Comment, "kubenet:") }); r != nil {
		return Kubenet, append(by, fmt.Sprintf("iptables comment %q", r.Comment))
	}
	if p := model.First(g.c.Plugins, func(p *Conf) bool { return p.Network == Kubenet && p.Bridge == g.bridge.Name }); p != nil {
		return Kubenet, append(by, p.File)
	}
	return "", nil
}

// calicoMAC is the MAC of the host end of every pod link.
var calicoMAC = model.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

func calico(g *signs) (string, []string) {
	l := g.link(func(l *model.Link) bool { return l.Role == model.RolePodLink && l.Master == 0 && l.MAC == calicoMAC })
	if l == nil {
		return "", nil
	}
	return Calico, g.file([]string{fmt.Sprintf("link %s has MAC %s", l.Name, l.MAC)}, "calico")
}

// kindnet has a masquerading chain or nftables tables of its own. Without these
// and its file it looks like ptp, the plugin that it uses.
func kindnet(g *signs) (string, []string) {
	if g.routed == 0 {
		return "", nil
	}
	if c := g.chainPrefix("KIND-MASQ"); c != "" {
		return Kindnet, g.file([]string{"chain " + c}, "ptp", "kindnet")
	}
	if ch := model.First(g.s.Chains, func(ch *model.Chain) bool { return strings.HasPrefix(ch.Table, "kindnet") }); ch != nil {
		return Kindnet, g.file([]string{"table " + ch.Table}, "ptp", "kindnet")
	}
	if p, ok := g.conf("ptp"); ok && p.Network == Kindnet {
		return Kindnet, []string{p.File}
	}
	return "", nil
}

// awsVPC routes each pod's address to its link, and has chains of its own for what leaves the
// VPC, unless that is translated elsewhere.
func awsVPC(g *signs) (string, []string) {
	if g.routed == 0 {
		return "", nil
	}
	if c := g.chainPrefix("AWS-"); c != "" {
		return AWSVPC, g.file([]string{"chain " + c}, "aws-cni")
	}
	if p, ok := g.conf("aws-cni"); ok {
		return AWSVPC, []string{p.File}
	}
	return "", nil
}

// flannel has chains of its own, or its tunnel; or its file says so.
func flannel(g *signs) (string, []string) {
	if g.bridge == nil || g.uplinked || g.routed > g.bridged {
		return "", nil
	}
	var by []string
	if c := g.chainPrefix("FLANNEL-"); c != "" {
		by = append(by, "chain "+c)
	}
	tunnel := func(l *model.Link) bool { return l.Role == model.RoleTunnel && strings.HasPrefix(l.Name, Flannel+".") }
	if l := g.link(tunnel); l != nil {
		by = append(by, "link "+l.Name)
	}
	if by = g.file(by, Flannel); len(by) == 0 {
		return "", nil
	}
	return Flannel, append([]string{"pods are ports of " + g.bridge.Name}, by...)
}

// bridge is the CNI plugin: pods on a bridge without an uplink. The bridge has the pods' gateway address or is named in
// the plugin's file, or the plugin's masquerading rules exist.
func bridge(g *signs) (string, []string) {
	if g.bridge == nil || g.uplinked || g.bridged == 0 || g.routed > g.bridged {
		return "", nil
	}
	var by []string
	if a := g.gateway(func(p *model.Pod) *model.Link { return g.bridge }); a.IsValid() {
		by = append(by, fmt.Sprintf("%s has the pods' gateway %s", g.bridge.Name, a))
	}
	by = g.masquerade(by)
	if p, ok := g.conf("bridge"); ok && (p.Bridge == g.bridge.Name || p.Bridge == "" && g.bridge.Name == "cni0") {
		by = append(by, fmt.Sprintf("%s names bridge and %s", p.File, g.bridge.Name))
	}
	if len(by) == 0 {
		return "", nil
	}
	return Bridge, append([]string{"pods are ports of " + g.bridge.Name}, by...)
}

// ptp is the CNI plugin: the host end of each pod link has the pod's gateway address.
func ptp(g *signs) (string, []string) {
	if g.routed == 0 || g.bridged > g.routed {
		return "", nil
	}
	a := g.gateway(func(p *model.Pod) *model.Link {
		return g.link(func(l *model.Link) bool {
			return l.Index == p.LinkIndex && l.Role == model.RolePodLink && l.Master == 0
		})
	})
	if !a.IsValid() {
		return "", nil
	}
	return PTP, g.file(g.masquerade([]string{fmt.Sprintf("pods' links have the pods' gateway address %s", a)}), "ptp")
}

// cilium has its pair of router links, programs on pod links, or its chains. The
// variant in Azure CNI has azure-ipam, or a router with a link-local address and
// no routing rules for single pods, which Cilium's own Azure IPAM mode creates.
func cilium(g *signs) (string, []string) {
	var by []string
	azure := false
	for _, l := range g.s.Links {
		if l.Role == model.RoleRouter && strings.HasPrefix(l.Name, "cilium_") {
			by = append(by, "link "+l.Name)
			azure = azure || slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool {
				return a.Addr().Is4() && a.Addr().IsLinkLocalUnicast()
			})
		}
	}
	if len(by) == 0 && g.routed == 0 {
		return "", nil
	}
	if p := g.program("cil_"); p != nil {
		by = append(by, fmt.Sprintf("%s on %s %s", p, p.Link, p.Direction))
	}
	if len(by) == 0 {
		c := g.chainPrefix("CILIUM_")
		if c == "" {
			return "", nil
		}
		by = append(by, "chain "+c)
	}
	if p, ok := g.conf("cilium-cni"); ok {
		azure = azure || p.IPAM.Type == "azure-ipam"
	}
	by = g.file(by, "cilium-cni")
	if rule := podRule(g); rule != "" {
		return Cilium, append(by, rule)
	}
	if azure {
		return AzureCilium, append(by, "router with a link-local address, or azure-ipam")
	}
	return Cilium, by
}

// podRule describes a routing rule for the packets of one pod, empty if there is none.
func podRule(g *signs) string {
	for _, r := range g.s.Rules {
		ofRule := func(p *model.Pod) bool { return p.Has(r.From.Addr()) }
		if r.From.IsValid() && r.From.IsSingleIP() && model.First(g.s.Pods, ofRule) != nil {
			return fmt.Sprintf("routing rule %d from %s lookup %d", r.Priority, r.From, r.Table)
		}
	}
	return ""
}
