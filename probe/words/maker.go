package words

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

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

// renew has what runs containers write its rules anew.
var renew = map[string]Command{
	"Docker": "systemctl restart docker # it writes its rules when it starts; its containers stop, unless live-restore is on",
	"Podman": "podman network reload --all # it writes the rules of its containers anew",
}

// ChangeInstead is what to do about a rule that a program keeps, for pods of these ranges. Nobody deletes one: the
// program would put it back, or no longer do its work.
func ChangeInstead(by, chain string, ranges ...netip.Prefix) Command {
	manages := "# " + Command(by) + " manages the rule: "
	each := func(allow func(netip.Prefix) Command) Command {
		return Command(strings.Join(texts(model.Map(ranges, allow)), "; "))
	}
	switch {
	case len(ranges) == 0 && strings.Contains(chain, "ISOLATION") && renew[by] != "":
		return "# " + Command(by) + " keeps its networks apart: if these containers need each other, " + Command(strings.ToLower(by)) +
			" network connect NETWORK CONTAINER"
	case len(ranges) == 0 && renew[by] != "":
		return renew[by]
	case len(ranges) > 0 && by == "Docker":
		return each(func(r netip.Prefix) Command {
			return Shell("%s -I DOCKER-USER -s %s -j ACCEPT; %s -I DOCKER-USER -d %s -j ACCEPT", IPTables(r.Addr()), r, IPTables(r.Addr()), r)
		}) + " # Docker leaves this chain to you"
	case by == "ufw" && strings.Contains(chain, "-user-"):
		return "ufw status numbered # somebody gave ufw this rule: ufw delete its number, unless this is intended"
	case len(ranges) > 0 && by == "ufw":
		return each(func(r netip.Prefix) Command { return Shell("ufw route allow from %s; ufw route allow to %s", r, r) })
	case len(ranges) > 0 && by == "firewalld":
		// A trusted zone would let pods reach the node as well, and none of those who ask them. A policy pods may be there: the
		// name is of the range, within firewalld's 17 characters.
		name := strings.NewReplacer(".", "", ":", "").Replace(ranges[0].Addr().String())
		// ANY zone is not the node itself, which has one of its own.
		to, prefix := Command("ANY"), "pods-"
		if strings.Contains(chain, "_IN") {
			to, prefix = "HOST", "node-"
		}
		do := Shell("firewall-cmd --permanent --policy=%s", prefix+name[:min(len(name), 12)])
		rich := func(r netip.Prefix, side string) Command {
			family := strings.ToLower(Family(r.Addr().Is6()))
			return do + Shell(" --add-rich-rule='rule family=%s %s address=%s accept'", family, side, r)
		}
		return Command(strings.Replace(string(do), "policy", "new-policy", 1)) + "; " + do + " --add-ingress-zone=ANY; " + do +
			" --add-egress-zone=" + to + "; " + each(func(r netip.Prefix) Command { return rich(r, "source") + "; " + rich(r, "destination") }) +
			"; firewall-cmd --reload"
	case by == model.Calico:
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

// ChangeRoute is where to change a route, or to find out why there is none, if a daemon keeps those of its protocol;
// empty for others.
func ChangeRoute(protocol string, to netip.Prefix) Command {
	var look Command
	by := model.RouteDaemons[protocol]
	switch by {
	case "":
		return ""
	case "BIRD":
		look = Shell("birdc show route for %s all", to) + " # in Calico: calicoctl node status;"
	case "FRR":
		look = Shell("vtysh -c %s", model.Either(to.Addr().Is6(), "show ipv6 route ", "show ip route ")+to.String()) + " #"
	case model.Calico:
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
