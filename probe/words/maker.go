package words

import (
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Calico is who keeps its chains, by whatever plugin.
const Calico = "Calico"

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
	{"CNI-", "the CNI plugins"},
	{"DOCKER-USER", ""}, // what people put there stays
	{"DOCKER", "Docker"},
	{"FWD_", "firewalld"},
	{"FWDI_", "firewalld"},
	{"FWDO_", "firewalld"},
	{"FORWARD_direct", "firewalld"},
	{"ufw", "ufw"},
	{"f2b-", "fail2ban"},
	{"LIBVIRT_", "libvirt"},
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
	{"cni_", "the CNI plugins"},
	{"libvirt", "libvirt"},
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

// RuleMaker is the program that keeps a rule, empty where no known one does.
func RuleMaker(r *model.PacketRule) string { return Maker([]string{r.Chain}, r.Comment, r.Table) }

var policyMakers = []string{"Azure Network Policy Manager", "kube-router", "kindnet", "kube-network-policies", "Cilium", "Antrea", "Weave Net"}

// ChangeInstead is what to do about a rule that a program keeps. Nobody deletes one: the
// program would put it back, or no longer do its work.
func ChangeInstead(by string) Command {
	manages := Command(by) + " manages the rule: "
	switch {
	case by == Calico:
		return "kubectl get networkpolicies -A; kubectl get globalnetworkpolicies.crd.projectcalico.org # " + Command(by) + " makes its rules from them"
	case slices.Contains(policyMakers, by):
		return "kubectl get networkpolicies -A # " + Command(by) + " makes its rules from them"
	case by == "kube-proxy":
		return manages + "check the services and endpoints that it is made from; if they are right, restart kube-proxy on this node"
	case by == "ip-masq-agent":
		return manages + "change its ranges: kubectl -n kube-system get configmaps -o yaml | grep -A9 nonMasqueradeCIDRs"
	}
	return manages + "change the configuration of " + Command(by)
}

func madeBy(makers []makerOf, name string) string {
	return model.Find(makers, func(m makerOf) bool { return strings.HasPrefix(name, m.prefix) }).maker
}
