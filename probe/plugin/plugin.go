// Package plugin recognises a node's network plugin by the links, routes, rules and programs that it created. Its
// files, where they can be read, only add detail: they may be stale.
package plugin

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Conf is one plugin of a CNI configuration: of the list Network, in File.
type Conf struct {
	File    string `json:"-"`
	Network string `json:"-"`
	Type    string
	Bridge  string
	// IPMasq: the plugin is to translate what pods send to other networks.
	IPMasq bool
	IPAM   IPAM
}

// IPAM is what gives its pods addresses.
type IPAM struct{ Type, Mode string }

// Config holds what the plugins' files say.
type Config struct {
	Plugins []Conf
	// AzureMode is the mode of the network in azure-vnet's state.
	AzureMode string
	// Taken are the addresses that the host-local IPAM has assigned.
	Taken []netip.Addr
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
	// AWSVPC is Amazon's VPC CNI: pods have addresses of the node's NICs.
	AWSVPC = "aws-vpc-cni"
	// Flannel has the plugin bridge connect its pods.
	Flannel = "flannel"
	// Bridge and PTP are the CNI project's plugins bridge and ptp, however they were configured.
	Bridge  = "bridge"
	PTP     = "ptp"
	Unknown = "unknown"
)

// ResidueAzureVNet is state that azure-vnet's bridge mode left behind.
const ResidueAzureVNet = "azure-vnet"

// AzureNPM is Azure Network Policy Manager. Like Calico, it enforces network policies beside another plugin.
const AzureNPM = "azure-npm"

// Result is what was recognised, and by which signs.
type Result struct {
	Plugin  string
	By      []string
	Policy  string
	Residue string
	// Masquerades: the plugin's configuration says that it translates what pods send to other networks.
	Masquerades bool
	// Bridge is the name of the pods' bridge by the configuration, whatever plugin was recognised.
	Bridge string
}

// Recognise determines the plugin from the node's state. The snapshot must have
// links with their roles, routes and pods. Rules and files add certainty.
func Recognise(s *model.Snapshot, c Config) Result {
	g := gather(s, c)
	r := Result{Plugin: Unknown}
	for _, recognise := range []func(*signs) (string, []string){cilium, azureBridge, kubenet, calico, kindnet, awsVPC, azureRouted, flannel, ptp, bridge} {
		if name, by := recognise(g); name != "" {
			r.Plugin, r.By = name, by
			break
		}
	}
	conf, _ := g.conf(r.Plugin)
	r.Masquerades = conf.IPMasq
	if x, ok := g.conf("bridge", Flannel); ok {
		r.Bridge = cmp.Or(x.Bridge, "cni0") // the plugin's default
	}
	var by string
	if r.Policy, by = policy(g, r.Plugin); by != "" {
		r.By = append(r.By, by)
	}
	if r.Residue, by = residue(g); by != "" {
		r.By = append(r.By, by)
	}
	return r
}

// signs are the properties of a node that distinguish plugins.
type signs struct {
	s *model.Snapshot
	c Config
	// bridge has most pod links as its ports: others may be of second interfaces.
	// uplinked says that an uplink is a port of it too.
	bridge   *model.Link
	uplinked bool
	// bridged and routed count pods by how they are attached.
	bridged, routed int
	chains          []string // sorted
}

func gather(s *model.Snapshot, c Config) *signs {
	g := &signs{s: s, c: c, chains: model.Map(s.Chains, func(ch model.Chain) string { return ch.Name })}
	slices.Sort(g.chains)
	ports := map[*model.Link]int{}
	for l := range model.Each(s.Links) {
		if l.Role != model.RolePodLink {
			continue
		}
		if m := g.link(func(m *model.Link) bool { return m.Index == l.Master && m.Kind == "bridge" }); m != nil {
			if m.Engine != "" {
				continue // It connects containers.
			}
			g.bridged++
			ports[m]++
			if g.bridge == nil || ports[m] > ports[g.bridge] {
				g.bridge = m
			}
		} else {
			g.routed++
		}
	}
	if g.bridge == nil {
		// Without pods, the bridge is one that has an address.
		g.bridge = g.link(func(l *model.Link) bool { return l.Role == model.RoleBridge && l.Engine == "" && len(l.Addresses) > 0 })
	}
	g.uplinked = g.bridge != nil && g.link(func(l *model.Link) bool { return l.Master == g.bridge.Index && l.Role == model.RoleUplink }) != nil
	return g
}

func (g *signs) link(match func(*model.Link) bool) *model.Link { return model.First(g.s.Links, match) }

// chain returns the first chain in order whose name matches, empty if there is none.
func (g *signs) chain(match func(string) bool) string {
	return model.Find(g.chains, match)
}

func (g *signs) chainPrefix(prefix string) string {
	return g.chain(func(name string) bool { return strings.HasPrefix(name, prefix) })
}

// conf returns the first configuration of these plugin types.
func (g *signs) conf(types ...string) (Conf, bool) {
	p := model.Find(g.c.Plugins, func(p Conf) bool { return slices.Contains(types, p.Type) })
	return p, p.Type != ""
}

// file appends the file that configures one of these plugin types, if any.
func (g *signs) file(by []string, types ...string) []string {
	if p, ok := g.conf(types...); ok {
		by = append(by, fmt.Sprintf("%s names %s", p.File, p.Type))
	}
	return by
}

// program returns the first BPF program on a pod link whose name has the prefix,
// nil if there is none. Programs on other links may outlive their plugin.
func (g *signs) program(prefix string) *model.Program {
	return model.First(g.s.Programs, func(p *model.Program) bool {
		return strings.HasPrefix(p.Name, prefix) && p.Netns == g.s.Node.Netns &&
			g.link(func(l *model.Link) bool { return l.Index == p.IfIndex && l.Role == model.RolePodLink }) != nil
	})
}

// gateway returns a pod's gateway that is an address of the link to that pod, the zero address if there is none.
func (g *signs) gateway(link func(*model.Pod) *model.Link) netip.Addr {
	for p := range model.Each(g.s.Pods) {
		l := link(p)
		if l == nil {
			continue
		}
		for _, n := range p.Gateways {
			if l.Has(n.Addr) {
				return n.Addr
			}
		}
	}
	return netip.Addr{}
}

// masquerade appends the chain by which CNI plugins masquerade a pod, or their
// nftables table that masquerades all pods.
func (g *signs) masquerade(by []string) []string {
	if slices.ContainsFunc(g.s.Chains, func(ch model.Chain) bool { return ch.Table == model.CNIMasqueradeTable }) {
		return append(by, "table "+model.CNIMasqueradeTable)
	}
	if c := g.chain(model.CNIChain); c != "" {
		by = append(by, "chain "+c)
	}
	return by
}

// policy recognises what enforces network policies beside the plugin, by its
// chains or by the table of Calico's nftables dataplane.
func policy(g *signs, plugin string) (name, by string) {
	if c := g.chainPrefix("AZURE-NPM"); c != "" {
		return AzureNPM, "chain " + c
	}
	if plugin == Calico {
		return "", ""
	}
	if c := g.chainPrefix("cali-"); c != "" {
		return Calico, "chain " + c
	}
	ofCalico := func(c *model.Chain) bool { return c.Table == Calico && strings.Contains(c.Name, "cali-") }
	if c := model.First(g.s.Chains, ofCalico); c != nil {
		return Calico, fmt.Sprintf("nft table %s %s, chain %s", c.Family, c.Table, c.Name)
	}
	return "", ""
}
