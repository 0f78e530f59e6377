// Package plugin recognises a node's network plugin by what it left in the
// kernel. The plugins' own files, where they could be read, only add to it:
// they may be stale, and often are not there to see.
package plugin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Conf is one plugin of a CNI configuration.
type Conf struct {
	File, Network string
	Type          string
	Bridge, Mode  string
	IPAM          string
	IPAMMode      string
}

// Config is what the plugins' files say.
type Config struct {
	Plugins []Conf
	// AzureMode is the mode of the network in azure-vnet's state.
	AzureMode string
	// AzureCNS is true where azure-cns keeps the endpoints.
	AzureCNS bool
	// HostLocal are the networks of the host-local IPAM, Taken the
	// addresses that it has given out.
	HostLocal []string
	Taken     []netip.Addr
}

// The plugins.
const (
	Kubenet          = "kubenet"
	AzureBridge      = "azure-bridge"
	AzureTunnel      = "azure-tunnel"
	AzureTransparent = "azure-transparent"
	AzureOverlay     = "azure-overlay"
	AzurePodSubnet   = "azure-podsubnet"
	AzureCilium      = "azure-cilium"
	Cilium           = "cilium"
	Calico           = "calico"
	Kindnet          = "kindnet"
	// Bridge and PTP are the plain plugins of the CNI project, whoever
	// configured them: pods on a bridge, or each on a link of its own.
	Bridge  = "bridge"
	PTP     = "ptp"
	Unknown = "unknown"
)

// ResidueAzureVNet is what azure-vnet's bridge mode leaves behind.
const ResidueAzureVNet = "azure-vnet"

// AzureNPM is Azure Network Policy Manager, Calico the other program that keeps
// policies beside a plugin.
const AzureNPM = "azure-npm"

// Verdict is what was recognised, and by what.
type Verdict struct {
	Plugin  string
	By      []string
	Policy  string
	Residue string
}

// signs are the traits of a node that tell the plugins apart.
type signs struct {
	s *model.Snapshot
	c Config
	// bridge is the bridge that the pods' links are ports of, uplinked
	// whether an uplink is a port of it too.
	bridge   *model.Link
	uplinked bool
	// bridged and routed count pods by how they are attached.
	bridged, routed int
	chains          map[string]bool
}

// Recognise tells the plugin from the node's state. Links, routes and pods
// must be in the snapshot, with their roles; rules and files add certainty.
func Recognise(s *model.Snapshot, c Config) Verdict {
	g := gather(s, c)
	v := Verdict{Plugin: Unknown}
	for _, t := range []func(*signs) (string, []string){cilium, azureBridge, kubenet, calico, kindnet, azureRouted, ptp, bridge} {
		if name, by := t(g); name != "" {
			v.Plugin, v.By = name, by
			break
		}
	}
	var by string
	if v.Policy, by = policy(g, v.Plugin); by != "" {
		v.By = append(v.By, by)
	}
	if v.Residue, by = residue(g); by != "" {
		v.By = append(v.By, by)
	}
	return v
}

func gather(s *model.Snapshot, c Config) *signs {
	g := &signs{s: s, c: c, chains: map[string]bool{}}
	for _, ch := range s.Chains {
		g.chains[ch.Name] = true
	}
	byIndex := map[int]*model.Link{}
	for i := range s.Links {
		byIndex[s.Links[i].Index] = &s.Links[i]
	}
	for i := range s.Links {
		l := &s.Links[i]
		if l.Role != model.RolePodLink {
			continue
		}
		if m := byIndex[l.Master]; m != nil && m.Kind == "bridge" {
			g.bridged++
			g.bridge = m
		} else {
			g.routed++
		}
	}
	if g.bridge == nil {
		// Without pods, a bridge with an address is where they would be.
		for i := range s.Links {
			if l := &s.Links[i]; l.Role == model.RoleBridge && len(l.Addresses) > 0 {
				g.bridge = l
				break
			}
		}
	}
	for i := range s.Links {
		if l := &s.Links[i]; g.bridge != nil && l.Master == g.bridge.Index && l.Role == model.RoleUplink {
			g.uplinked = true
		}
	}
	return g
}

// chain returns a chain whose name starts so, empty when there is none. The
// first in order, so that the answer is always the same.
func (g *signs) chain(prefix string) string {
	first := ""
	for name := range g.chains {
		if strings.HasPrefix(name, prefix) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// conf returns the configuration of a plugin type.
func (g *signs) conf(types ...string) (Conf, bool) {
	for _, p := range g.c.Plugins {
		if slices.Contains(types, p.Type) {
			return p, true
		}
	}
	return Conf{}, false
}

// said adds what a file says, when one does.
func (g *signs) said(by []string, types ...string) []string {
	if p, ok := g.conf(types...); ok {
		by = append(by, fmt.Sprintf("%s names %s", p.File, p.Type))
	}
	return by
}

// program returns the first program on a pod's link whose name starts so, nil
// when there is none. Those on other links stay behind when a plugin goes.
func (g *signs) program(prefix string) *model.Program {
	for i := range g.s.Programs {
		p := &g.s.Programs[i]
		if strings.HasPrefix(p.Name, prefix) && p.Netns == g.s.Node.Netns && slices.ContainsFunc(g.s.Links, func(l model.Link) bool {
			return l.Index == p.IfIndex && l.Role == model.RolePodLink
		}) {
			return p
		}
	}
	return nil
}

// cilium is told by its pair of router links, by its programs on pods' links, or by
// its chains. Azure's own variant has
// azure-ipam, or a router with a link-local address and no routing rules for
// single pods, which the Azure IPAM mode of Cilium itself writes.
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
		c := g.chain("CILIUM_")
		if c == "" {
			return "", nil
		}
		by = append(by, "chain "+c)
	}
	if p, ok := g.conf("cilium-cni"); ok {
		azure = azure || p.IPAM == "azure-ipam"
	}
	by = g.said(by, "cilium-cni")
	if rule := podRule(g); rule != "" {
		return Cilium, append(by, rule)
	}
	if azure {
		return AzureCilium, append(by, "router with a link-local address, or azure-ipam")
	}
	return Cilium, by
}

// podRule describes a routing rule that sends what a pod sends to a table of
// its own, empty when there is none.
func podRule(g *signs) string {
	for _, r := range g.s.Rules {
		if !r.From.IsValid() || !r.From.IsSingleIP() {
			continue
		}
		for i := range g.s.Pods {
			if g.s.Pods[i].Has(r.From.Addr()) {
				return fmt.Sprintf("routing rule %d from %s lookup %d", r.Priority, r.From, r.Table)
			}
		}
	}
	return ""
}

// azureBridge is told by an uplink that is a port of the pods' bridge, with
// frames rewritten as only azure-vnet does.
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
			// Whatever a pod sends goes to the fabric first.
			tunnel = true
		}
	}
	by := []string{fmt.Sprintf("the uplink is a port of %s", g.bridge.Name)}
	if snat != "" {
		by = append(by, "ebtables nat POSTROUTING "+snat)
	}
	by = g.said(by, "azure-vnet")
	if _, ok := g.conf("azure-vnet"); !ok && snat == "" {
		return "", nil
	}
	if tunnel || g.c.AzureMode == "tunnel" {
		return AzureTunnel, append(by, "frames of pods are sent to the fabric")
	}
	return AzureBridge, by
}

// kubenet is told by its deduplicating chain for a promiscuous bridge that has
// no uplink.
func kubenet(g *signs) (string, []string) {
	if g.bridge == nil || g.uplinked || g.bridged == 0 && g.routed > 0 {
		return "", nil
	}
	by := []string{"pods are ports of " + g.bridge.Name}
	for _, name := range []string{"KUBE-DEDUP", "AKS-DEDUP-PROMISC"} {
		if g.chains[name] {
			return Kubenet, g.said(append(by, "ebtables filter chain "+name), "kubenet", "bridge")
		}
	}
	for _, r := range g.s.PacketRules {
		if strings.HasPrefix(r.Comment, "kubenet:") {
			return Kubenet, append(by, fmt.Sprintf("iptables comment %q", r.Comment))
		}
	}
	for _, p := range g.c.Plugins {
		if p.Network == Kubenet && p.Bridge == g.bridge.Name {
			return Kubenet, append(by, p.File)
		}
	}
	return "", nil
}

// calicoMAC is what Calico gives to the host's end of every link.
var calicoMAC = model.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

func calico(g *signs) (string, []string) {
	for _, l := range g.s.Links {
		if l.Role == model.RolePodLink && l.Master == 0 && l.MAC == calicoMAC {
			return Calico, g.said([]string{fmt.Sprintf("link %s has MAC %s", l.Name, l.MAC)}, "calico")
		}
	}
	return "", nil
}

// kindnet is told by its masquerading chain or its tables of nft's own.
// Without them, and its file, it is the plugin that it uses: ptp.
func kindnet(g *signs) (string, []string) {
	if g.routed == 0 {
		return "", nil
	}
	if c := g.chain("KIND-MASQ"); c != "" {
		return Kindnet, g.said([]string{"chain " + c}, "ptp", "kindnet")
	}
	for _, ch := range g.s.Chains {
		if strings.HasPrefix(ch.Table, "kindnet") {
			return Kindnet, g.said([]string{"table " + ch.Table}, "ptp", "kindnet")
		}
	}
	if p, ok := g.conf("ptp"); ok && p.Network == Kindnet {
		return Kindnet, []string{p.File}
	}
	return "", nil
}

// azureMAC is the host's end of a pod's link in azure-vnet's transparent mode,
// since 2022.
var azureMAC = model.MAC{0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}

// azureGateway is the pods' gateway in that mode; nobody has the address.
var azureGateway = netip.AddrFrom4([4]byte{169, 254, 1, 1})

// azureRouted tells azure-vnet's transparent mode and its relatives: routed
// pods behind a link-local gateway. Calico's pods have that too, so that the
// MAC or a file has to say it.
func azureRouted(g *signs) (string, []string) {
	var by []string
	for i := range g.s.Pods {
		p := &g.s.Pods[i]
		gateway := slices.ContainsFunc(p.Gateways, func(n model.Neighbor) bool { return n.Addr == azureGateway })
		if gateway && p.LinkMAC == azureMAC {
			by = append(by, fmt.Sprintf("link %s has MAC %s, its pod's gateway is %s", p.Link, p.LinkMAC, azureGateway))
			break
		}
		// Before that the MAC was random, but the name has always been so.
		if gateway && strings.HasPrefix(p.Link, "azv") {
			by = append(by, fmt.Sprintf("link %s is named as azure-vnet does, its pod's gateway is %s", p.Link, azureGateway))
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
	if c := g.chain("SWIFT"); c != "" {
		return AzurePodSubnet, append(by, "chain "+c)
	}
	if strings.Contains(p.IPAMMode, "overlay") {
		return AzureOverlay, append(by, "IPAM mode "+p.IPAMMode)
	}
	if excluded := overlay(g); excluded != "" {
		return AzureOverlay, append(by, excluded)
	}
	if p.IPAM == "azure-cns" && p.IPAMMode == "v4swift" {
		return AzurePodSubnet, append(by, "IPAM mode "+p.IPAMMode)
	}
	return AzureTransparent, by
}

// overlay tells pods that have a range of their own, outside the networks of
// the uplinks.
func overlay(g *signs) string {
	for _, p := range g.s.Cluster.PodCIDRs {
		if slices.ContainsFunc(g.s.Links, func(l model.Link) bool {
			return l.Role == model.RoleUplink && slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return p.Contains(a.Addr()) })
		}) {
			// The network's own, which kube-proxy is told for the range
			// of pods that have its addresses.
			continue
		}
		for i := range g.s.Pods {
			for _, a := range g.s.Pods[i].Addresses {
				if p.Contains(a.Addr()) {
					return fmt.Sprintf("pods have the range %s of their own", p)
				}
			}
		}
	}
	return ""
}

// bridge is the plain plugin: pods on a bridge without an uplink, which holds
// their gateway's address or is the one of its file, or rules that the plugin
// makes for each pod.
func bridge(g *signs) (string, []string) {
	if g.bridge == nil || g.uplinked || g.bridged == 0 || g.routed > g.bridged {
		return "", nil
	}
	var by []string
	if a := g.gateway(func(p *model.Pod) *model.Link { return g.bridge }); a.IsValid() {
		by = append(by, fmt.Sprintf("%s has the pods' gateway %s", g.bridge.Name, a))
	}
	by = g.masquerades(by)
	if p, ok := g.conf("bridge"); ok && (p.Bridge == g.bridge.Name || p.Bridge == "" && g.bridge.Name == "cni0") {
		by = append(by, fmt.Sprintf("%s names bridge and %s", p.File, g.bridge.Name))
	}
	if len(by) == 0 {
		return "", nil
	}
	return Bridge, append([]string{"pods are ports of " + g.bridge.Name}, by...)
}

// ptp is the plain plugin of the other kind: each pod's link holds the pod's
// gateway, an address of its own.
func ptp(g *signs) (string, []string) {
	if g.routed == 0 || g.bridged > g.routed {
		return "", nil
	}
	byIndex := map[int]*model.Link{}
	for i := range g.s.Links {
		if l := &g.s.Links[i]; l.Role == model.RolePodLink && l.Master == 0 {
			byIndex[l.Index] = l
		}
	}
	a := g.gateway(func(p *model.Pod) *model.Link { return byIndex[p.LinkIndex] })
	if !a.IsValid() {
		return "", nil
	}
	return PTP, g.said(g.masquerades([]string{fmt.Sprintf("pods' links have their gateway %s", a)}), "ptp")
}

// gateway is a pod's gateway that the link to the pod itself holds; not valid
// where there is none.
func (g *signs) gateway(link func(*model.Pod) *model.Link) netip.Addr {
	for i := range g.s.Pods {
		p := &g.s.Pods[i]
		l := link(p)
		if l == nil {
			continue
		}
		for _, n := range p.Gateways {
			if slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr() == n.Addr }) {
				return n.Addr
			}
		}
	}
	return netip.Addr{}
}

// masquerades adds the chain by which the plugins masquerade a pod, or the
// table of theirs that does so for all.
func (g *signs) masquerades(by []string) []string {
	for _, ch := range g.s.Chains {
		if ch.Table == model.CNIMasqueradeTable {
			return append(by, "table "+ch.Table)
		}
	}
	first := ""
	for name := range g.chains {
		if model.CNIChain(name) && (first == "" || name < first) {
			first = name
		}
	}
	if first == "" {
		return by
	}
	return append(by, "chain "+first)
}

// policy tells what keeps network policies beside the plugin, by its chains, or
// by the table of Calico's nftables dataplane.
func policy(g *signs, plugin string) (name, by string) {
	if c := g.chain("AZURE-NPM"); c != "" {
		return AzureNPM, "chain " + c
	}
	if plugin == Calico {
		return "", ""
	}
	if c := g.chain("cali-"); c != "" {
		return Calico, "chain " + c
	}
	for _, c := range g.s.Chains {
		if c.Table == Calico && strings.Contains(c.Name, "cali-") {
			return Calico, fmt.Sprintf("nft table %s %s, chain %s", c.Family, c.Table, c.Name)
		}
	}
	return "", ""
}

// residue tells what azure-vnet's bridge mode left behind once pods are routed
// over other links: rules that rewrite frames for single addresses, and
// permanent neighbours on a bridge that holds an uplink or nothing.
func residue(g *signs) (name, by string) {
	if g.routed == 0 || g.routed < g.bridged {
		return "", ""
	}
	for _, r := range g.s.FrameRules {
		if r.Table != "nat" {
			continue
		}
		single := r.IPDst.Prefix.IsSingleIP() && r.Target == model.TargetDNAT ||
			r.ARPDst.Prefix.IsSingleIP() && r.Target == model.TargetARPReply && !ownAddress(g.s, r.ARPDst.Prefix.Addr())
		if single {
			return ResidueAzureVNet, fmt.Sprintf("ebtables nat %s %s, while pods are routed", r.Chain, r.Text)
		}
	}
	for _, n := range g.s.Neighbors {
		if n.State == "PERMANENT" && slices.ContainsFunc(g.s.Links, func(l model.Link) bool {
			return l.Index == n.IfIndex && l.Role == model.RoleBridge
		}) {
			return ResidueAzureVNet, fmt.Sprintf("permanent neighbour %s on bridge %s, while pods are routed", n.Addr, n.Link)
		}
	}
	return "", ""
}

func ownAddress(s *model.Snapshot, a netip.Addr) bool {
	return slices.ContainsFunc(s.Links, func(l model.Link) bool {
		return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}
