package plugin

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// Names and addresses are not those of any plugin, unless they identify it.

func uplink(master int) model.Link {
	return model.Link{Index: 2, Name: "nic", Role: model.RoleUplink, Master: master, Addresses: prefixes("172.20.1.4/16")}
}

func bridgeLink(name string, addr string) model.Link {
	return model.Link{Index: 3, Name: name, Kind: "bridge", Role: model.RoleBridge, Addresses: prefixes(addr)}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// podLinks are three links of pods with their pods.
func podLinks(s *model.Snapshot, master int, mac model.MAC, gateway string) {
	for i := range 3 {
		l := model.Link{Index: 10 + i, Name: fmt.Sprintf("h%d", i), Kind: "veth", Role: model.RolePodLink, Master: master, MAC: mac}
		s.Links = append(s.Links, l)
		s.Pods = append(s.Pods, model.Pod{
			Link: l.Name, LinkIndex: l.Index, LinkMAC: mac, Addresses: prefixes(fmt.Sprintf("10.8.3.%d/32", 7+i)),
			Gateways: []model.Neighbor{{Addr: netip.MustParseAddr(gateway)}},
		})
	}
}

func bridged(up int) *model.Snapshot {
	s := &model.Snapshot{Links: []model.Link{uplink(up), bridgeLink("pool", "10.8.3.1/24")}}
	podLinks(s, 3, model.MAC{2, 1}, "10.8.3.1")
	return s
}

func routed(mac model.MAC, gateway string) *model.Snapshot {
	s := &model.Snapshot{Links: []model.Link{uplink(0)}}
	podLinks(s, 0, mac, gateway)
	return s
}

func chains(s *model.Snapshot, names ...string) *model.Snapshot {
	for _, n := range names {
		s.Chains = append(s.Chains, model.Chain{Name: n})
	}
	return s
}

func frames(s *model.Snapshot, rules ...model.FrameRule) *model.Snapshot {
	s.FrameRules = append(s.FrameRules, rules...)
	return s
}

// gateless pods have no gateway that could be seen.
func gateless(s *model.Snapshot) *model.Snapshot {
	for i := range s.Pods {
		s.Pods[i].Gateways = nil
	}
	return s
}

// withGateway gives each pod's link the address.
func withGateway(s *model.Snapshot, addr string) *model.Snapshot {
	for i := range s.Links {
		if s.Links[i].Role == model.RolePodLink {
			s.Links[i].Addresses = prefixes(addr)
		}
	}
	return s
}

func inTable(s *model.Snapshot, table string) *model.Snapshot {
	s.Chains = append(s.Chains, model.Chain{Table: table, Name: "chain"})
	return s
}

func single(addr string) model.AddrMatch {
	return model.AddrMatch{Prefix: netip.MustParsePrefix(addr + "/32")}
}

var (
	snatOut = model.FrameRule{Table: "nat", Chain: "POSTROUTING", Target: model.TargetSNAT, Out: model.IfMatch{Name: "nic"}, Text: "-o nic -j snat"}
	podDNAT = model.FrameRule{
		Table: "nat", Chain: "PREROUTING", Target: model.TargetDNAT, EtherType: 0x0800,
		In: model.IfMatch{Name: "nic"}, IPDst: single("10.8.3.7"), Text: "--ip-dst 10.8.3.7 -j dnat",
	}
	toFabric = model.FrameRule{Table: "nat", Chain: "PREROUTING", Target: model.TargetDNAT, In: model.IfMatch{Name: "h+"}}
)

func withRouter(s *model.Snapshot, addr string) *model.Snapshot {
	s.Links = append(s.Links,
		model.Link{Index: 50, Name: "cilium_host", Kind: "veth", Role: model.RoleRouter, Addresses: prefixes(addr)},
		model.Link{Index: 51, Name: "cilium_net", Kind: "veth", Role: model.RoleRouter})
	return s
}

// secondNetwork gives two of the pods a second interface, on another bridge.
func secondNetwork(s *model.Snapshot) *model.Snapshot {
	s.Links = append(s.Links,
		model.Link{Index: 40, Name: "second", Kind: "bridge", Role: model.RoleBridge},
		model.Link{Index: 41, Name: "s0", Kind: "veth", Role: model.RolePodLink, Master: 40},
		model.Link{Index: 42, Name: "s1", Kind: "veth", Role: model.RolePodLink, Master: 40})
	return s
}

func TestRecognise(t *testing.T) {
	overBridge := frames(withRouter(routed(model.MAC{2, 1}, "10.8.3.250"), "10.8.3.250/32"), snatOut, podDNAT)
	overBridge.Links = append(overBridge.Links, bridgeLink("old", "172.20.1.5/16"))
	overBridge.Links[0].Master = 3
	neighbours := withRouter(routed(model.MAC{2, 1}, "10.8.3.250"), "10.8.3.250/32")
	neighbours.Links = append(neighbours.Links, bridgeLink("old", "172.20.1.5/16"))
	neighbours.Neighbors = []model.Neighbor{{Addr: netip.MustParseAddr("10.8.3.9"), IfIndex: 3, Link: "old", State: "PERMANENT"}}
	azureIPAM := withRouter(routed(model.MAC{2, 1}, "169.254.23.0"), "169.254.23.0/32")
	azureIPAM.Rules = []model.RoutingRule{{Priority: 110, From: netip.MustParsePrefix("10.8.3.7/32"), Table: 300}}
	overlayNode := routed(azureMAC, "169.254.1.1")
	overlayNode.Cluster.PodCIDRs = prefixes("10.8.0.0/16")
	wholeNetwork := routed(azureMAC, "169.254.1.1")
	wholeNetwork.Cluster.PodCIDRs = prefixes("0.0.0.0/1", "172.16.0.0/12")
	wholeNetwork.Links[0].Addresses = prefixes("10.8.0.4/16", "172.20.1.4/16")
	// beyond are nodes with the uplink's network, and further routes.
	beyond := func(routes ...model.Route) *model.Snapshot {
		s := routed(azureMAC, "169.254.1.1")
		s.Routes = append(routes, model.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("172.20.0.1"), IfIndex: 2, Type: "unicast"},
			model.Route{Dst: netip.MustParsePrefix("172.20.0.0/16"), IfIndex: 2, Type: "unicast"}, model.Route{Dst: netip.MustParsePrefix("10.8.3.7/32"), IfIndex: 10, Type: "unicast"})
		return s
	}
	subnet := netip.MustParsePrefix("10.8.0.0/16")
	swift := model.Route{Dst: subnet, Gateway: netip.MustParseAddr("172.20.0.1"), IfIndex: 2, Type: "unicast"}
	randomMAC := routed(model.MAC{2, 1}, "169.254.1.1")
	for i := range randomMAC.Pods {
		randomMAC.Pods[i].Link = fmt.Sprintf("azv0a%d", i)
	}
	dockershim := bridged(0)
	dockershim.PacketRules = []model.PacketRule{{Comment: "kubenet: SNAT for outbound traffic from cluster"}}

	programmed, leftBehind := routed(model.MAC{2, 1}, "10.8.3.1"), routed(azureMAC, "169.254.1.1")
	for _, s := range []*model.Snapshot{programmed, leftBehind} {
		s.Programs = []model.Program{{Kind: model.ProgramTC, ID: 7, Name: "cil_from_netdev-nic", IfIndex: s.Links[0].Index, Link: s.Links[0].Name, Direction: model.Ingress}}
	}
	pod := programmed.Links[len(programmed.Links)-1]
	programmed.Programs = append(programmed.Programs, model.Program{Kind: model.ProgramTCX, ID: 8, Name: "cil_from_contai", IfIndex: pod.Index, Link: pod.Name, Direction: model.Ingress})
	table := routed(azureMAC, "169.254.1.1")
	table.Chains = []model.Chain{{Backend: model.NFT, Family: "ip", Table: "calico", Name: "filter-cali-FORWARD"}}

	for _, tt := range []struct {
		name                    string
		s                       *model.Snapshot
		c                       Config
		plugin, policy, residue string
	}{
		{"nothing", &model.Snapshot{}, Config{}, Unknown, "", ""},
		{"kubenet, containerd", chains(bridged(0), "AKS-DEDUP-PROMISC"), Config{}, Kubenet, "", ""},
		{"kubenet, pods with a second network", secondNetwork(chains(bridged(0), "AKS-DEDUP-PROMISC")), Config{}, Kubenet, "", ""},
		{"azure-vnet's bridge, pods with a second network", secondNetwork(frames(bridged(3), snatOut, podDNAT)), Config{}, AzureBridge, "", ""},
		{"kubenet, dockershim", chains(bridged(0), "KUBE-DEDUP"), Config{}, Kubenet, "", ""},
		{"kubenet, by its comment", dockershim, Config{}, Kubenet, "", ""},
		{"kubenet, by its file", bridged(0), Config{Plugins: []Conf{{File: "f", Network: "kubenet", Type: "bridge", Bridge: "pool"}}}, Kubenet, "", ""},
		{"kubenet without pods", chains(&model.Snapshot{Links: []model.Link{uplink(0), bridgeLink("pool", "10.8.3.1/24")}}, "KUBE-DEDUP"), Config{}, Kubenet, "", ""},
		{"CNI bridge, by the gateway", bridged(0), Config{}, Bridge, "", ""},
		{"CNI bridge, by its chains", chains(gateless(bridged(0)), "CNI-0123456789abcdef01234567"), Config{}, Bridge, "", ""},
		{"CNI bridge, by its table", inTable(gateless(bridged(0)), "cni_plugins_masquerade"), Config{}, Bridge, "", ""},
		{"CNI bridge, by its file", gateless(bridged(0)), Config{Plugins: []Conf{{File: "f", Network: "n", Type: "bridge", Bridge: "pool"}}}, Bridge, "", ""},
		{"a file of another bridge", gateless(bridged(0)), Config{Plugins: []Conf{{File: "f", Network: "n", Type: "bridge", Bridge: "cni0"}}}, Unknown, "", ""},
		{"containers on a bridge of nobody's", chains(gateless(bridged(0)), "CNI-HOSTPORT-DNAT", "CNI-0123456789ABCDEF01234567"), Config{}, Unknown, "", ""},
		{"kubenet that masquerades by CNI's chains", chains(bridged(0), "AKS-DEDUP-PROMISC", "CNI-0123456789abcdef01234567"), Config{}, Kubenet, "", ""},
		{"flannel, by its chains", chains(bridged(0), "FLANNEL-POSTRTG"), Config{}, Flannel, "", ""},
		{"flannel, by its file", bridged(0), Config{Plugins: []Conf{{File: "f", Network: "cbr0", Type: "flannel"}}}, Flannel, "", ""},
		{"flannel, by its tunnel", func() *model.Snapshot {
			s := bridged(0)
			s.Links = append(s.Links, model.Link{Index: 90, Name: "flannel.1", Kind: "vxlan", Role: model.RoleTunnel})
			return s
		}(), Config{}, Flannel, "", ""},
		{"flannel's chains beside routed pods", chains(withGateway(routed(model.MAC{2, 1}, "10.8.3.1"), "10.8.3.1/32"), "FLANNEL-FWD"), Config{}, PTP, "", ""},
		{"CNI ptp", withGateway(routed(model.MAC{2, 1}, "10.8.3.1"), "10.8.3.1/32"), Config{}, PTP, "", ""},
		{"CNI ptp, with its chains", chains(withGateway(routed(model.MAC{2, 1}, "10.8.3.1"), "10.8.3.1/32"), "CNI-0123456789abcdef01234567"), Config{}, PTP, "", ""},
		{"kindnet, over ptp", chains(withGateway(routed(model.MAC{2, 1}, "10.8.3.1"), "10.8.3.1/32"), "KIND-MASQ-AGENT"), Config{}, Kindnet, "", ""},
		{"the VPC CNI", chains(routed(model.MAC{2, 1}, "169.254.1.1"), "AWS-SNAT-CHAIN-0"), Config{}, AWSVPC, "", ""},
		{"the VPC CNI, by its file", routed(model.MAC{2, 1}, "169.254.1.1"), Config{Plugins: []Conf{{File: "f", Type: "aws-cni"}}}, AWSVPC, "", ""},
		{"kindnet, by a table", inTable(withGateway(routed(model.MAC{2, 1}, "10.8.3.1"), "10.8.3.1/32"), "kindnet-network-policies"), Config{}, Kindnet, "", ""},
		{"kindnet, by its file", withGateway(routed(model.MAC{2, 1}, "10.8.3.1"), "10.8.3.1/32"), Config{Plugins: []Conf{{File: "f", Network: "kindnet", Type: "ptp"}}}, Kindnet, "", ""},
		{"azure bridge", frames(bridged(3), snatOut, podDNAT), Config{}, AzureBridge, "", ""},
		{"azure bridge with policies", chains(frames(bridged(3), snatOut, podDNAT), "AZURE-NPM-ACCEPT"), Config{}, AzureBridge, "azure-npm", ""},
		{"azure tunnel", frames(bridged(3), snatOut, toFabric), Config{}, AzureTunnel, "", ""},
		{"azure tunnel, by its file", frames(bridged(3), snatOut), Config{AzureMode: "tunnel"}, AzureTunnel, "", ""},
		{"an uplink on a bridge is not azure yet", bridged(3), Config{}, Unknown, "", ""},
		{"azure transparent", routed(azureMAC, "169.254.1.1"), Config{}, AzureTransparent, "", ""},
		{"azure transparent, older", routed(model.MAC{2, 1}, "169.254.1.1"), Config{Plugins: []Conf{{File: "f", Type: "azure-vnet", IPAM: IPAM{Type: "azure-vnet-ipam"}}}}, AzureTransparent, "", ""},
		{"azure transparent, older, by its links' names", randomMAC, Config{}, AzureTransparent, "", ""},
		{"azure transparent, the network given as the pods' range", wholeNetwork, Config{}, AzureTransparent, "", ""},
		{"azure transparent, Calico's policies", chains(routed(azureMAC, "169.254.1.1"), "cali-FORWARD"), Config{}, AzureTransparent, Calico, ""},
		{"azure transparent, pods in a network of the uplink's", beyond(model.Route{Dst: subnet, IfIndex: 2, Type: "unicast"}), Config{}, AzureTransparent, "", ""},
		{"azure transparent, by its file", beyond(), Config{Plugins: []Conf{{File: "f", Type: "azure-vnet", IPAM: IPAM{Type: "azure-vnet-ipam"}}}}, AzureTransparent, "", ""},
		{"azure overlay, without a rule or a file", beyond(), Config{}, AzureOverlay, "", ""},
		{"azure pod subnet, without a rule or a file", beyond(swift), Config{}, AzurePodSubnet, "", ""},
		{"azure overlay", overlayNode, Config{}, AzureOverlay, "", ""},
		{"azure overlay, by its file", routed(azureMAC, "169.254.1.1"), Config{Plugins: []Conf{{File: "f", Type: "azure-vnet", IPAM: IPAM{"azure-cns", "v4overlay"}}}}, AzureOverlay, "", ""},
		{"azure pod subnet", chains(routed(azureMAC, "169.254.1.1"), "SWIFT-POSTROUTING"), Config{}, AzurePodSubnet, "", ""},
		{"azure cilium", withRouter(routed(model.MAC{2, 1}, "169.254.23.0"), "169.254.23.0/32"), Config{}, AzureCilium, "", ""},
		{"azure cilium, by its file", withRouter(routed(model.MAC{2, 1}, "10.8.3.250"), "10.8.3.250/32"), Config{Plugins: []Conf{{File: "f", Type: "cilium-cni", IPAM: IPAM{Type: "azure-ipam"}}}}, AzureCilium, "", ""},
		{"cilium", withRouter(routed(model.MAC{2, 1}, "10.8.3.250"), "10.8.3.250/32"), Config{}, Cilium, "", ""},
		{"cilium, the IPAM of Azure", azureIPAM, Config{}, Cilium, "", ""},
		{"cilium over azure bridge", overBridge, Config{}, Cilium, "", ResidueAzureVNet},
		{"cilium over azure bridge, neighbours left", neighbours, Config{}, Cilium, "", ResidueAzureVNet},
		{"cilium, by its programs", programmed, Config{}, Cilium, "", ""},
		{"cilium is gone, one of its programs is not", leftBehind, Config{}, AzureTransparent, "", ""},
		{"azure transparent, Calico's table", table, Config{}, AzureTransparent, Calico, ""},
		{"calico", chains(routed(calicoMAC, "169.254.1.1"), "cali-FORWARD"), Config{}, Calico, "", ""},
		{"kindnet", chains(routed(model.MAC{2, 1}, "10.8.3.1"), "KIND-MASQ-AGENT"), Config{}, Kindnet, "", ""},
		{"routed by somebody", routed(model.MAC{2, 1}, "10.8.3.1"), Config{}, Unknown, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Recognise(tt.s, tt.c)
			if got.Plugin != tt.plugin || got.Policy != tt.policy || got.Residue != tt.residue {
				t.Errorf("got %+v", got)
			}
			if (got.Plugin != Unknown) != (len(got.By) > 0) || strings.TrimSpace(strings.Join(got.By, "")) == "" && got.Plugin != Unknown {
				t.Errorf("recognised by %q", got.By)
			}
		})
	}
}

// TestPodmanFile: the file of Podman's network names the plugin bridge, and says nothing of kubenet.
func TestPodmanFile(t *testing.T) {
	podman := Conf{File: "87-podman-bridge.conflist", Network: "podman", Type: "bridge", Bridge: "cni-podman0"}
	own := Conf{File: "10-containerd-net.conflist", Network: Kubenet, Type: "bridge", Bridge: "pool"}
	got := Recognise(chains(bridged(0), "AKS-DEDUP-PROMISC"), Config{Plugins: []Conf{podman, own}})
	if by := strings.Join(got.By, "; "); got.Plugin != Kubenet || !strings.Contains(by, own.File) || strings.Contains(by, podman.File) {
		t.Errorf("%+v", got)
	}
	if got := Recognise(bridged(0), Config{Plugins: []Conf{podman}}); got.Plugin == Kubenet {
		t.Errorf("by Podman's file: %+v", got)
	}
}
