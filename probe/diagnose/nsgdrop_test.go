package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

const groupA = "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/networkSecurityGroups/nsg-a"

// anywhere is what * matches.
var anywhere = []netip.Prefix{prefix("0.0.0.0/0"), prefix("::/0")}

// rule is one of a security group, from anywhere; to are ranges or names.
func securityRule(name string, priority int, outbound, deny bool, to ...string) model.SecurityRule {
	r := model.SecurityRule{Name: name, Priority: priority, Outbound: outbound, Deny: deny, From: model.SecurityEnd{Prefixes: anywhere}}
	for _, s := range to {
		if p, err := netip.ParsePrefix(s); err == nil {
			r.To.Prefixes = append(r.To.Prefixes, p)
		} else {
			r.To.Names = append(r.To.Names, s)
		}
	}
	return r
}

// secured gives the node's NIC a security group with these rules before Azure's own, as Azure applies them to it if effective.
func secured(effective bool, rules ...model.SecurityRule) *testNode {
	n := three()
	n.table(rightRows, subnetA)
	n.subnet(tableA)
	n.card("10.50.0.4", true)
	n.card("10.50.0.5", true)
	n.card("10.50.0.6", true)
	for _, outbound := range []bool{true, false} {
		rules = append(rules, securityRule("AllowVnet", 65000, outbound, false, model.Either(effective, "172.20.0.0/16", "VirtualNetwork")),
			securityRule("AllowInternet", 65001, outbound, false, "Internet"), securityRule("DenyAll", 65500, outbound, true, "0.0.0.0/0"))
	}
	slices.SortStableFunc(rules, func(a, b model.SecurityRule) int { return a.Priority - b.Priority })
	group := model.SecurityGroup{ID: groupA, Rules: rules, File: "Azure"}
	a := n.cloud()
	if effective {
		a.Rules = []model.EffectiveRules{{NIC: a.NICs[0].ID, Groups: []model.SecurityGroup{group}, File: "Azure"}}
	}
	a.Groups, a.NICs[0].SecurityGroup = []model.SecurityGroup{group}, strings.ToUpper(groupA)
	return n
}

func TestNSGDrop(t *testing.T) {
	denies := securityRule("deny-db", 200, true, true, "172.20.3.9/32")
	to := func(n *testNode) *testNode {
		n.answered("172.20.1.5", "172.20.2.9")
		n.silent("172.20.1.5", "172.20.3.9")
		return n
	}
	port := denies
	port.Protocol, port.To.Ports = tcp, []model.PortRange{{First: 5432, Last: 5433}}
	ports := func(n *testNode, silent, replied uint16) *testNode {
		n.answered("172.20.1.5", "172.20.2.9")
		for i := range uint16(10) {
			n.begins("172.20.1.5", "172.20.3.9", "172.20.1.5", model.Either(i%2 == 0, silent, replied), 40000+i, 0.5+float64(i)*0.7, i%2 == 1)
		}
		n.peer("172.20.1.5", "172.20.3.9", model.PeerCount{Packets: 60, Requests: 20, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
		return n
	}
	check(t, []fixture{
		{"effective rules", func() *testNode { return to(secured(true, denies)) }, []string{"NSGDrop proven 172.20.1.5 172.20.3.9"}},
		{"rules of the NIC's group", func() *testNode { return to(secured(false, denies)) }, []string{"NSGDrop likely 172.20.1.5 172.20.3.9"}},
		{"a rule before it allows", func() *testNode {
			return to(secured(true, denies, securityRule("allow-db", 150, true, false, "172.20.3.0/24")))
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"a rule before it has a tag whose addresses are not known", func() *testNode {
			return to(secured(false, denies, securityRule("allow-tag", 150, true, false, "Storage.WestEurope")))
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"the rule is of the other direction", func() *testNode {
			return to(secured(true, securityRule("deny-db", 200, false, true, "172.20.3.9/32")))
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"what it denies is not asked", func() *testNode {
			n := secured(true, denies)
			n.answered("172.20.1.5", "172.20.2.9")
			return n
		}, nil},
		{"what it denies replies: other rules apply", func() *testNode {
			n := to(secured(true, securityRule("deny-all", 200, true, true, "172.20.0.0/16")))
			n.flow("172.20.1.6", "172.20.2.9", true)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"all that pods ask of other nodes", func() *testNode {
			n := secured(true, securityRule("deny-pods", 200, true, true, "172.20.0.0/16"))
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.6", "172.20.3.9")
			return n
		}, []string{"NSGDrop proven " + twoPods + " 172.20.2.9 172.20.3.9"}},
		{"all that pods ask of other nodes, of whose routes nothing was read", func() *testNode {
			n := secured(true, securityRule("deny-pods", 200, true, true, "172.20.0.0/16"))
			n.cloud().Tables, n.cloud().Subnets = nil, nil
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.6", "172.20.3.9")
			return n
		}, []string{"NSGDrop proven " + twoPods + " 172.20.2.9 172.20.3.9"}},
		{"one port of two", func() *testNode { return ports(secured(true, port), 5432, 443) }, []string{"NSGDrop proven 172.20.1.5 172.20.3.9"}},
		{"another port than the rule's", func() *testNode { return ports(secured(true, port), 9090, 443) }, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"on the way into the other node, by its subnet's group", func() *testNode {
			n := to(secured(true))
			a := n.cloud()
			a.Groups = append(a.Groups, model.SecurityGroup{ID: groupA + "-in", File: "Azure",
				Rules: []model.SecurityRule{securityRule("deny-in", 100, false, true, "172.20.3.0/24")}})
			a.NICs[2].SecurityGroup = groupA + "-in"
			return n
		}, []string{"NSGDrop likely 172.20.1.5 172.20.3.9"}},
		{"part of it could not be read", func() *testNode {
			n := to(secured(true, denies))
			n.lose(model.SourceCloud, model.Partial)
			return n
		}, []string{"NSGDrop proven 172.20.1.5 172.20.3.9"}},
		{"nothing of it was read", func() *testNode {
			n := to(secured(true, denies))
			n.lose(model.SourceCloud, model.Missing)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
	})
}

// TestNSGFix: the rule that permits it is complete, and comes before the one that denies.
func TestNSGFix(t *testing.T) {
	n := secured(true, securityRule("deny-pods", 200, true, true, "172.20.0.0/16"), securityRule("taken", 199, true, false, "192.0.2.0/24"))
	n.answered("10.50.0.4", "10.50.0.5")
	n.silent("172.20.1.5", "172.20.2.9")
	n.silent("172.20.1.6", "172.20.3.9")
	const want = "az network nsg rule create --resource-group net --nsg-name nsg-a --name allow-pods-198 --priority 198 --direction Outbound " +
		"--access Allow --protocol '*' --source-address-prefixes 172.20.1.0/24 --destination-address-prefixes 172.20.2.0/24 172.20.3.0/24 " +
		"--destination-port-ranges '*' # unless the rule is intended"
	if f := Diagnose(&n.Snapshot); len(f) != 1 || len(f[0].Fix) != 1 || f[0].Fix[0] != want {
		t.Errorf("got  %+v\nwant %s", f, want)
	}
	full := secured(true, securityRule("deny-pods", 100, true, true, "172.20.3.9/32"))
	full.answered("172.20.1.5", "172.20.2.9")
	full.silent("172.20.1.5", "172.20.3.9")
	if f := Diagnose(&full.Snapshot); len(f) != 1 || len(f[0].Fix) != 0 || len(f[0].Next) != 1 || !strings.Contains(f[0].Next[0], "nsg-a") {
		t.Errorf("no priority is free: got %+v", f)
	}
}
