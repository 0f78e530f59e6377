package words

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Calico is who keeps its chains, by whatever plugin.
const Calico = "Calico"

// cniPlugins run once for each pod and keep nothing: what they left is the administrator's.
const cniPlugins = "the CNI plugins"

// makerOf names a program by how what it makes begins.
type makerOf struct{ prefix, maker string }

// chainMakers know chains, the more specific name first.
var chainMakers = []makerOf{
	{"cali-", Calico},
	{"AZURE-NPM", "Azure Network Policy Manager"},
	{"KUBE-ROUTER", "kube-router"},
	{"KUBE-NWPLCY", "kube-router"},
	{"KUBE-POD-FW", "kube-router"},
	{"KUBE-FIREWALL", "kubelet"},
	{"KUBE-DEDUP", "kubelet"},
	{"KUBE-", "kube-proxy"},
	{"IP-MASQ-AGENT", "ip-masq-agent"},
	{"KIND-MASQ-AGENT", "kindnet"},
	{"AKS-", "AKS"},
	{"CILIUM_", "Cilium"},
	{"OLD_CILIUM_", "Cilium"},
	{"ANTREA-", "Antrea"},
	{"WEAVE-", "Weave Net"},
	{"FLANNEL-", "flannel"},
	{"ISTIO_", "Istio"},
	{"AWS-", "the AWS VPC CNI"},
	{"SWIFT", "Azure CNI"},
	{"CNI-", cniPlugins},
	{"DOCKER-USER", ""}, // what people put there stays
	{"DOCKER", "Docker"},
	{"FWD_", "firewalld"},
	{"FWDI_", "firewalld"},
	{"FWDO_", "firewalld"},
	{"FORWARD_direct", "firewalld"},
	{"ufw", "ufw"},
	{"f2b-", "fail2ban"},
	{"LIBVIRT_", "libvirt"},
	{"NETAVARK", "Podman"},
	{"ts-", "Tailscale"},
}

var commentMakers = []makerOf{
	{"cali:", Calico},
	{"AKS managed", "AKS"},
	{"ip-masq-agent", "ip-masq-agent"},
	{"kubernetes ", "kube-proxy"},
	{"cilium", "Cilium"},
	{"kube-router", "kube-router"},
	{"flanneld", "flannel"},
}

// tableMakers know whole nft tables.
var tableMakers = []makerOf{
	{"calico", Calico},
	{"kube-proxy", "kube-proxy"},
	{"docker-", "Docker"},
	{"kube-router", "kube-router"},
	{"antrea", "Antrea"},
	{"cilium", "Cilium"},
	{"flannel", "flannel"},
	{"kindnet", "kindnet"},
	{"kube-network-policies", "kube-network-policies"},
	{"firewalld", "firewalld"},
	{"cni_", cniPlugins},
	{"libvirt", "libvirt"},
	{"netavark", "Podman"},
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

// Keeper is the program that made a rule and keeps it: it puts back what is deleted, and removes what is added.
func Keeper(chains []string, comment, table string) string {
	by := Maker(chains, comment, table)
	return model.Either(by == cniPlugins, "", by)
}

// RuleKeeper is the program that keeps a rule, empty where no known one does.
func RuleKeeper(r *model.PacketRule) string { return Keeper([]string{r.Chain}, r.Comment, r.Table) }

// PolicyKeeper is the program that sets the policy of a base chain, by its table or by the chains that its rules jump to.
func PolicyKeeper(rules []model.PacketRule, c *model.Chain) string {
	if by := Keeper(nil, "", c.Table); by != "" {
		return by
	}
	for r := range model.Each(rules) {
		by := madeBy(chainMakers, r.Target)
		if (by == "Docker" || by == "ufw") && r.Chain == c.Name && r.Table == c.Table && r.Family == c.Family && r.Backend == c.Backend {
			return by
		}
	}
	return ""
}

// policyNames are how the rules of programs name the policies that they are made from: kube-router's, and Calico's.
var policyNames = regexp.MustCompile(`run through nw policy ([^" ]+)|Policy (\S+/\S+) (?:in|e)gress`)

// Policies are those that a chain, and the chains that it jumps to, are made from, by the comments of their rules.
func Policies(rules []model.PacketRule, family, table, chain string) (out []string) {
	chains := map[string]bool{chain: true}
	within := func(r *model.PacketRule, chain bool) bool { return r.Family == family && r.Table == table && chain }
	for r := range model.Each(rules) {
		if within(r, r.Chain == chain) && r.Target != "" {
			chains[r.Target] = true
		}
	}
	for r := range model.Each(rules) {
		if m := policyNames.FindStringSubmatch(r.Text + r.Comment); m != nil && within(r, chains[r.Chain]) {
			out = model.With(out, cmp.Or(m[1:]...))
		}
	}
	return out
}

var policyMakers = []string{"Azure Network Policy Manager", "kube-router", "kindnet", "kube-network-policies", "Cilium", "Antrea", "Weave Net"}

// ChangeInstead is what to do about a rule that a program keeps, for pods of these ranges. Nobody deletes one: the
// program would put it back, or no longer do its work.
func ChangeInstead(by string, ranges ...netip.Prefix) Command {
	manages := Command(by) + " manages the rule: "
	each := func(allow func(netip.Prefix) Command) Command {
		return Command(strings.Join(texts(model.Map(ranges, allow)), "; "))
	}
	switch {
	case len(ranges) > 0 && by == "Docker":
		return each(func(r netip.Prefix) Command {
			return Shell("%s -I DOCKER-USER -s %s -j ACCEPT; %s -I DOCKER-USER -d %s -j ACCEPT", IPTables(r.Addr()), r, IPTables(r.Addr()), r)
		}) + " # Docker leaves this chain to you"
	case len(ranges) > 0 && by == "ufw":
		return each(func(r netip.Prefix) Command { return Shell("ufw route allow from %s; ufw route allow to %s", r, r) })
	case len(ranges) > 0 && by == "firewalld":
		return each(func(r netip.Prefix) Command {
			return Shell("firewall-cmd --permanent --zone=trusted --add-source=%s", r)
		}) +
			"; firewall-cmd --reload"
	case by == Calico:
		return "kubectl get networkpolicies -A; kubectl get globalnetworkpolicies.crd.projectcalico.org # " + Command(by) + " makes its rules from them"
	case slices.Contains(policyMakers, by):
		return "kubectl get networkpolicies -A # " + Command(by) + " makes its rules from them"
	case by == "kube-proxy":
		return manages + "check the services and endpoints that it is made from; if they are right, restart kube-proxy on this node"
	case by == "ip-masq-agent":
		return manages + "change nonMasqueradeCIDRs: kubectl -n kube-system edit configmap ip-masq-agent # AKS: azure-ip-masq-agent-config"
	}
	return manages + "change the configuration of " + Command(by)
}

// routeDaemons are the programs that keep routes, by the protocol that they write into them (rtnetlink.h, and rt_protos
// of iproute2): they put back what is deleted, and remove or replace what another writes in its place.
var routeDaemons = map[string]string{
	"bird": "BIRD", "zebra": "FRR", "bgp": "FRR", "ospf": "FRR", "isis": "FRR", "rip": "FRR", "eigrp": "FRR", "196": "FRR",
	"80": Calico, "mrouted": "kube-router", "18": "keepalived",
}

// ChangeRoute is where to change a route, or to find out why there is none, if a daemon keeps those of its protocol;
// empty for others.
func ChangeRoute(protocol string, to netip.Prefix) Command {
	var look Command
	by := routeDaemons[protocol]
	switch by {
	case "":
		return ""
	case "BIRD":
		look = Shell("birdc show route for %s all", to) + " # in Calico: calicoctl node status;"
	case "FRR":
		look = Shell("vtysh -c %s", model.Either(to.Addr().Is6(), "show ipv6 route ", "show ip route ")+to.String()) + " #"
	case Calico:
		look = "kubectl get ippools.crd.projectcalico.org; calicoctl ipam check #"
	case "keepalived":
		look = "grep -A9 virtual_routes /etc/keepalived/keepalived.conf #"
	default:
		look = "kubectl get nodes -o custom-columns=NAME:.metadata.name,PODS:.spec.podCIDRs #"
	}
	return look + Command(" "+by+" keeps these routes: correct its configuration, or what it learns them from")
}

// DeleteRoute deletes a route, or says where to change it if a daemon keeps it.
func DeleteRoute(r *model.Route, link string) Command {
	return cmp.Or(ChangeRoute(r.Protocol, r.Dst), IP(r.Dst.Addr())+" route del "+TypedRoute(r, link))
}

func madeBy(makers []makerOf, name string) string {
	return model.Find(makers, func(m makerOf) bool { return strings.HasPrefix(name, m.prefix) }).maker
}
