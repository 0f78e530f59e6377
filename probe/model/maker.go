package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Calico is who keeps its chains, by whatever plugin.
const Calico = "Calico"

// cniPlugins run once for each pod and keep nothing: what they left is the administrator's.
const cniPlugins = "the CNI plugins"

// makerOf names a program by how what it makes begins.
type makerOf struct{ prefix, maker string }

// chainMakers know chains, the more specific name first.
var chainMakers = []makerOf{
	{"cali-", Calico}, {"AZURE-NPM", "Azure Network Policy Manager"}, {"KUBE-ROUTER", "kube-router"},
	{"KUBE-NWPLCY", "kube-router"}, {"KUBE-POD-FW", "kube-router"}, {"KUBE-FIREWALL", "kubelet"},
	{"KUBE-KUBELET", "kubelet"}, {"KUBE-DEDUP", "kubelet"}, {"KUBE-", "kube-proxy"},
	{"IP-MASQ-AGENT", "ip-masq-agent"}, {"KIND-MASQ-AGENT", "kindnet"}, {"AKS-", "AKS"}, {"CILIUM_", "Cilium"},
	{"OLD_CILIUM_", "Cilium"}, {"ANTREA-", "Antrea"}, {"WEAVE-", "Weave Net"}, {"FLANNEL-", "flannel"},
	{"ISTIO_", "Istio"}, {"AWS-", "the AWS VPC CNI"}, {"SWIFT", "Azure CNI"}, {"CNI-", cniPlugins},
	{"DOCKER-USER", ""}, // what people put there stays
	{"DOCKER", "Docker"}, {"FWD_", "firewalld"}, {"FWDI_", "firewalld"}, {"FWDO_", "firewalld"},
	{"FORWARD_direct", "firewalld"}, {"ufw", "ufw"}, {"f2b-", "fail2ban"}, {"LIBVIRT_", "libvirt"},
	{"NETAVARK", "Podman"}, {"ts-", "Tailscale"},
}

var commentMakers = []makerOf{
	{"cali:", Calico}, {"AKS managed", "AKS"}, {"ip-masq-agent", "ip-masq-agent"},
	{"kubernetes ", "kube-proxy"}, {"cilium", "Cilium"}, {"kube-router", "kube-router"},
	{"flanneld", "flannel"},
}

// tableMakers know whole nft tables.
var tableMakers = []makerOf{
	{"calico", Calico}, {"kube-proxy", "kube-proxy"}, {"docker-", "Docker"}, {"kube-router", "kube-router"},
	{"antrea", "Antrea"}, {"cilium", "Cilium"}, {"flannel", "flannel"}, {"kindnet", "kindnet"},
	{"kube-network-policies", "kube-network-policies"}, {"firewalld", "firewalld"}, {"cni_", cniPlugins},
	{"libvirt", "libvirt"}, {"netavark", "Podman"},
}

// Maker is the program that made a rule, from the chains that lead to it, its own last, its comment and its table. It
// is empty where no known program did: a person or a script.
func Maker(chains []string, comment, table string) string {
	for _, c := range slices.Backward(chains) {
		if m := madeBy(chainMakers, c); m != "" {
			return m
		}
	}
	if m := madeBy(commentMakers, comment); m != "" {
		return m
	}
	return madeBy(tableMakers, table)
}

// Keeper is the program that keeps the rule; empty where no known one does.
func (r *PacketRule) Keeper() string {
	return Either(r.OfAKS(), "AKS", Keeper([]string{r.Chain}, r.Comment, r.Table))
}

// Keeper is the program that made a rule and keeps it: it puts back what is deleted, and removes what is added.
func Keeper(chains []string, comment, table string) string {
	by := Maker(chains, comment, table)
	return Either(by == cniPlugins, "", by)
}

// PolicyKeeper is the program that sets the policy of a base chain, by its table or by the chains that its rules jump to.
func PolicyKeeper(rules []PacketRule, c *Chain) string {
	if by := Keeper(nil, "", c.Table); by != "" {
		return by
	}
	for r := range Each(rules) {
		by := madeBy(chainMakers, r.Target)
		if (by == "Docker" || by == "ufw") && r.Chain == c.Name && r.Table == c.Table && r.Family == c.Family && r.Backend == c.Backend {
			return by
		}
	}
	return ""
}

// RouteDaemons are the programs that keep routes, by the protocol that they write into them (rtnetlink.h, and rt_protos
// of iproute2): they put back what is deleted, and remove or replace what another writes in its place.
var RouteDaemons = map[string]string{
	"bird": "BIRD", "zebra": "FRR", "bgp": "FRR", "ospf": "FRR", "isis": "FRR", "rip": "FRR", "eigrp": "FRR", "196": "FRR",
	"80": Calico, "mrouted": "kube-router", "18": "keepalived",
}

// Programs are those that made chains, rules or routes of the node's, by name.
func Programs(s *Snapshot) (out []string) {
	for c := range Each(s.Chains) {
		out = With(out, Maker([]string{c.Name}, "", c.Table))
	}
	for r := range Each(s.PacketRules) {
		out = With(out, madeBy(commentMakers, r.Comment))
	}
	for r := range Each(s.Routes) {
		out = With(out, RouteDaemons[r.Protocol])
	}
	slices.Sort(out)
	return slices.DeleteFunc(out, func(by string) bool { return by == "" || by == cniPlugins })
}

// SetEngines marks the bridges of Docker and Podman, which a rule of theirs names, or its network, and the pods on these, or
// in such a network if their bridge is gone. One that Kubernetes knows is no container of theirs: Docker may run its pods.
func SetEngines(s *Snapshot) {
	names, networks := map[string]string{}, map[netip.Prefix]string{}
	for r := range Each(s.PacketRules) {
		if by := Maker([]string{r.Chain, r.Target}, "", r.Table); by == "Docker" || by == "Podman" {
			names[r.In.Name], names[r.Out.Name], networks[r.Src.Prefix], networks[r.Dst.Prefix] = by, by, by, by
		}
	}
	delete(names, "")
	for r := range Each(s.PacketRules) {
		if by := names[r.Out.Name]; by != "" && r.Out.Not && r.Target == "MASQUERADE" {
			networks[r.Src.Prefix] = by
		}
	}
	of := func(list []netip.Prefix) string {
		return cmp.Or(Map(list, func(a netip.Prefix) string { return networks[a.Masked()] })...)
	}
	links := map[int]*Link{}
	for l := range Each(s.Links) {
		if links[l.Index] = l; l.Kind == "bridge" {
			l.Engine = cmp.Or(names[l.Name], of(l.Addresses))
		}
	}
	for p := range Each(s.Pods) {
		l := links[p.LinkIndex]
		if l == nil || p.UID != "" || p.Name != "" {
			continue
		}
		if p.Engine = of(p.Addresses); l.Master != 0 {
			p.Engine = Either(links[l.Master] == nil, &Link{}, links[l.Master]).Engine
		}
	}
}

// WireServer is Azure's address for DNS, health probes and the guest
// agent. Pods may not reach all of it, by design of AKS.
var WireServer = netip.AddrFrom4([4]byte{168, 63, 129, 16})

// wireServerPorts are those of it that pods may not reach.
var wireServerPorts = []uint16{80, 32526}

// OfAKS reports whether a rule is one of AKS's own bans. A ban of the
// wire server's other ports is not: its DNS is for everybody.
func (r *PacketRule) OfAKS() bool {
	if r.Target != "DROP" && r.Target != "REJECT" || r.Dst.Not || !r.Dst.Prefix.IsSingleIP() || r.ProtoNot {
		return false
	}
	if r.Dst.Prefix.Addr() != WireServer {
		return strings.HasPrefix(r.Comment, "AKS managed")
	}
	return r.Proto == TCP && len(r.DstPorts) > 0 && !slices.ContainsFunc(r.DstPorts, func(p PortRange) bool {
		return p.First != p.Last || !slices.Contains(wireServerPorts, p.First)
	})
}

func madeBy(makers []makerOf, name string) string {
	return Find(makers, func(m makerOf) bool { return strings.HasPrefix(name, m.prefix) }).maker
}
