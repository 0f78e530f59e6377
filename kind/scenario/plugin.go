package scenario

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// Plugin is the network plugin of a node.
type Plugin string

// The plugins that a node can have.
const (
	Kubenet          Plugin = "kubenet"
	AzureBridge      Plugin = "azure-bridge"
	AzureTunnel      Plugin = "azure-tunnel"
	AzureTransparent Plugin = "azure-transparent"
	AzureOverlay     Plugin = "azure-overlay"
	AzurePodSubnet   Plugin = "azure-podsubnet"
	AzureCilium      Plugin = "azure-cilium"
	Cilium           Plugin = "cilium"
	Calico           Plugin = "calico"
	Kindnet          Plugin = "kindnet"
	// AWSVPC gives pods addresses of the node's network cards.
	AWSVPC Plugin = "aws-vpc"
	// Bridge and PTP are the plain plugins of the CNI project. Flannel has its pods connected
	// by the first.
	Bridge  Plugin = "bridge"
	PTP     Plugin = "ptp"
	Flannel Plugin = "flannel"
)

// Datapath is how Cilium's programs are attached and what they do.
type Datapath string

// The datapaths.
const (
	// DatapathTC: filters of clsact, handle 1, priority 1, as Cilium has them
	// before 1.16 and on AKS; they leave every packet to the kernel's stack.
	DatapathTC Datapath = "tc"
	// DatapathTCX: the same by tcx.
	DatapathTCX Datapath = "tcx"
	// DatapathRedirect: filters that move packets for pods past the stack and
	// past the egress of pods' links, and packets from pods to the network
	// card, as with host routing by BPF.
	DatapathRedirect Datapath = "redirect"
)

// Card is how a network card is made: over a link that is the next one's of the
// fabric, LowerLink.
type Card string

// The kinds. A bond stands for Azure's accelerated networking, where the card is
// the master of a virtual function that carries its packets.
const (
	CardBond Card = "bond"
	CardVLAN Card = "vlan"
)

// LowerLink is the name of the link under such a card.
const LowerLink = "lower"

// Policy is a program that keeps network policies beside the plugin.
type Policy string

// The programs. Calico's iptables dataplane and its nftables one differ in all
// that can be seen.
const (
	PolicyCalico    Policy = "calico"
	PolicyCalicoNFT Policy = "calico-nft"
	PolicyNPM       Policy = "azure-npm"
)

// allPlugins are those above, for what reads their names.
var allPlugins = []Plugin{
	Kubenet, AzureBridge, AzureTunnel, AzureTransparent, AzureOverlay, AzurePodSubnet,
	AzureCilium, Cilium, Calico, Kindnet, AWSVPC, Bridge, PTP, Flannel,
}

// traits are how nodes of the plugins differ.
type traits struct {
	// bridge is what the plugin calls its bridge; empty: pods are routed.
	bridge string
	// podCIDR: each node has a range of its own for its pods.
	podCIDR bool
	// udr: the fabric knows that range by a user-defined route, and the
	// network card has to forward.
	udr bool
	// router: there is the router of Cilium.
	router bool
	// gateway: the first address of the node's range is the pods' gateway.
	gateway bool
	// link begins the names of the pods' links, and hash is how many hex
	// digits follow.
	link string
	hash int
	// mac is the fixed address of the host's side of pods' links.
	mac model.MAC
	// clusterOnly: only what goes to pods keeps its source; what goes to
	// machines of the network does not.
	clusterOnly bool
	// ipv6: the lab knows what the plugin does for IPv6.
	ipv6 bool
	// cni: pods get their links by the plugin itself, which names them.
	cni bool
}

var (
	azureHostMAC  = model.MAC{0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}
	calicoHostMAC = model.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
)

var pluginTraits = map[Plugin]traits{
	Kubenet:          {bridge: "cbr0", podCIDR: true, udr: true, gateway: true, link: "veth", hash: 8, ipv6: true},
	AzureBridge:      {bridge: azureBridgeName, link: azureLink, hash: 11},
	AzureTunnel:      {bridge: azureBridgeName, link: azureLink, hash: 11},
	AzureTransparent: {link: azureLink, hash: 11, mac: azureHostMAC},
	AzureOverlay:     {podCIDR: true, link: azureLink, hash: 11, mac: azureHostMAC, clusterOnly: true, ipv6: true},
	AzurePodSubnet:   {link: azureLink, hash: 11, mac: azureHostMAC},
	AzureCilium:      {podCIDR: true, router: true, link: "lxc", hash: 12, clusterOnly: true, ipv6: true},
	Cilium:           {router: true, link: "lxc", hash: 12, ipv6: true},
	Calico:           {podCIDR: true, udr: true, link: "cali", hash: 11, mac: calicoHostMAC, clusterOnly: true, ipv6: true},
	Kindnet:          {podCIDR: true, udr: true, gateway: true, link: "veth", hash: 8, clusterOnly: true, ipv6: true},
	Bridge:           {bridge: "cni0", podCIDR: true, udr: true, gateway: true, link: "veth", hash: 8, clusterOnly: true, cni: true, ipv6: true},
	Flannel:          {bridge: "cni0", podCIDR: true, udr: true, gateway: true, link: "veth", hash: 8, clusterOnly: true, cni: true},
	AWSVPC:           {link: "eni", hash: 11},
	PTP:              {podCIDR: true, udr: true, gateway: true, link: "veth", hash: 8, clusterOnly: true, cni: true, ipv6: true},
}

// The names of azure-vnet's links.
const (
	azureBridgeName = "azure0"
	azureLink       = "azv"
)

// LinkLocalGateway is the gateway of pods whose host answers every ARP request
// of theirs; no link has it.
var LinkLocalGateway = netip.AddrFrom4([4]byte{169, 254, 1, 1})

// HasPodCIDR reports whether each node has a range of its own for its pods.
func (p Plugin) HasPodCIDR() bool { return pluginTraits[p].podCIDR }

// HasRouter reports whether nodes have Cilium's router.
func (p Plugin) HasRouter() bool { return pluginTraits[p].router }

// CNI reports whether pods get their links by a plugin's own program, as a
// container runtime calls it.
func (p Plugin) CNI() bool { return pluginTraits[p].cni }

// NodeRoutes reports whether each node has a route to every other's pods.
func (p Plugin) NodeRoutes() bool { return p == Kindnet || p.CNI() }

// MayRoute reports whether nodes may have such routes, where the network does not know the pods.
func (p Plugin) MayRoute() bool { return p == Calico || p.NodeRoutes() }

// Executable is the CNI plugin that makes the pods' links.
func (p Plugin) Executable() string {
	if p == Flannel {
		p = Bridge
	}
	return string(p)
}

// Bridges reports whether pods are ports of a bridge.
func (p Plugin) Bridges() bool { return pluginTraits[p].bridge != "" }

// HostMAC is what the plugin gives to the host's side of every pod's link;
// zero where the kernel chooses.
func (p Plugin) HostMAC() model.MAC { return pluginTraits[p].mac }

// LinkPrefix begins the names of the pods' links.
func (p Plugin) LinkPrefix() string { return pluginTraits[p].link }

// routedByUDR reports whether the fabric knows the node's pods by a
// user-defined route alone.
func (p Plugin) routedByUDR() bool { return pluginTraits[p].udr }

// hasCalico reports whether Calico keeps the node's network policies.
func (n *Node) hasCalico() bool {
	return n.Plugin == Calico || n.Policy == PolicyCalico || n.Policy == PolicyCalicoNFT
}
