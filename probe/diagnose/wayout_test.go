package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// private is a node in a private subnet, whose pods ask two addresses of the internet by the node's address, and get no reply.
func private(change func(*model.Azure)) func() *testNode {
	return func() *testNode {
		n := three()
		n.table(rightRows, subnetA)
		n.subnet(tableA)
		n.card("10.50.0.4", true)
		a := n.cloud()
		a.Subnets[0].Private = true
		a.Effective = []model.EffectiveRoutes{{NIC: a.NICs[0].ID, File: "Azure", Routes: append([]model.UDR{
			{Prefixes: []netip.Prefix{prefix("10.50.0.0/16")}, Type: "VnetLocal", Active: true},
			{Prefixes: []netip.Prefix{prefix("0.0.0.0/0")}, Type: "Internet", Active: true},
		}, rightRows...)}}
		change(a)
		for i, to := range []string{"93.184.216.34", "8.8.4.4"} {
			for k := range uint16(4) {
				n.begins("172.20.1.5", to, "10.50.0.4", 443, 40000+uint16(i)*100+k, 0.5+float64(k), false)
			}
			n.silent("10.50.0.4", to)
		}
		n.answered("172.20.1.5", "172.20.2.9")
		return n
	}
}

func TestMissingOutbound(t *testing.T) {
	noReply := []string{"NoReply likely 172.20.1.5 8.8.4.4 93.184.216.34"}
	check(t, []fixture{
		{"no way out", private(func(*model.Azure) {}), []string{"MissingOutbound proven 172.20.1.5 8.8.4.4 93.184.216.34"}},
		{"the routes of the table alone", private(func(a *model.Azure) { a.Effective = nil }),
			[]string{"MissingOutbound likely 172.20.1.5 8.8.4.4 93.184.216.34"}},
		{"the subnet is not private", private(func(a *model.Azure) { a.Subnets[0].Private = false }), noReply},
		{"a NAT gateway", private(func(a *model.Azure) { a.Subnets[0].NATGateway = "/x/natGateways/n" }), noReply},
		{"a load balancer or a public address", private(func(a *model.Azure) { a.NICs[0].Translated = true }), noReply},
		{"the NIC was not read", private(func(a *model.Azure) { a.NICs = nil }), noReply},
		{"its table was not read", private(func(a *model.Azure) { a.Effective, a.Tables = nil, nil }), noReply},
		{"a firewall", private(func(a *model.Azure) { a.Effective[0].Routes[1].Type = "VirtualAppliance" }), noReply},
		{"an endpoint of a service replies", func() *testNode {
			n := private(func(a *model.Azure) {
				a.Effective[0].Routes = append(a.Effective[0].Routes,
					model.UDR{Prefixes: []netip.Prefix{prefix("20.60.0.0/16")}, Type: "VirtualNetworkServiceEndpoint", Active: true})
			})()
			n.answered("10.50.0.4", "20.60.1.1")
			return n
		}, []string{"MissingOutbound proven 172.20.1.5 8.8.4.4 93.184.216.34"}},
		{"one of the internet replies", func() *testNode {
			n := private(func(*model.Azure) {})()
			n.answered("10.50.0.4", "1.1.1.1")
			return n
		}, noReply},
		{"untranslated packets: no masquerade helps", func() *testNode {
			n := private(func(*model.Azure) {})()
			n.Flows, n.PacketRules = nil, nil
			n.silent("172.20.1.6", "93.184.216.34")
			n.silent("172.20.1.6", "8.8.4.4")
			return n
		}, []string{"MissingOutbound proven 172.20.1.6 8.8.4.4 93.184.216.34"}},
	})
}

// blocks is a node whose pods have addresses of the virtual network, in blocks that NICs have. The first pod gets no reply.
func blocks(own, other string) func() *testNode {
	return func() *testNode {
		n := three()
		n.Node.Plugin, n.Cluster.Nodes = "azure-podsubnet", n.Cluster.Nodes[:1]
		n.subnet("")
		n.card("10.50.0.4", true)
		n.card("10.50.0.5", true)
		a := n.cloud()
		a.Subnets = append(a.Subnets, model.Subnet{ID: "/x/subnets/pods", Prefixes: []netip.Prefix{prefix("172.20.0.0/16")}, File: "subnet.json"})
		for i, block := range []string{own, other} {
			if block != "" {
				a.NICs[i].Blocks = []netip.Prefix{prefix(block)}
			}
		}
		n.silent("172.20.1.5", "10.50.7.7")
		n.silent("172.20.1.5", "10.50.7.9")
		return n
	}
}

func TestNICAddress(t *testing.T) {
	silent := []string{"NoReply possible 172.20.1.5 10.50.7.7 10.50.7.9"}
	check(t, []fixture{
		{"no NIC has the block", blocks("", "172.20.2.0/28"), []string{"NICAddress proven 172.20.1.5 10.50.7.7 10.50.7.9"}},
		{"another node's NIC has it", blocks("172.20.9.0/28", "172.20.1.0/28"), []string{"NICAddress proven 172.20.1.5 10.50.7.7 10.50.7.9"}},
		{"its NIC has it", blocks("172.20.1.0/28", "172.20.2.0/28"), silent},
		{"the network tells of no pod's address", blocks("", ""), silent},
		{"a uniform scale set's NIC does not tell its blocks, another machine's does", func() *testNode {
			n := blocks("", "172.20.2.0/28")()
			n.cloud().NICs[0].ID = "/x/virtualMachineScaleSets/nodes/virtualMachines/0/networkInterfaces/nic"
			return n
		}, silent},
		{"all that a uniform scale set's NIC tells of a block is its first address", func() *testNode {
			n := blocks("", "")()
			nic := &n.cloud().NICs[0]
			nic.ID = "/x/virtualMachineScaleSets/nodes/virtualMachines/0/networkInterfaces/nic"
			nic.Addresses = append(nic.Addresses, netip.MustParseAddr("172.20.1.0"))
			n.Pods[1].Addresses = []netip.Prefix{prefix("172.20.1.0/32")}
			return n
		}, silent},
		{"a route leads to the pods", func() *testNode {
			n := blocks("", "172.20.2.0/28")()
			n.table(rightRows, subnetA)
			return n
		}, silent},
		{"something replies", func() *testNode {
			n := blocks("", "172.20.2.0/28")()
			n.answered("172.20.1.5", "10.50.7.8")
			return n
		}, []string{"NoReply likely 172.20.1.5 10.50.7.7 10.50.7.9"}},
	})
}

// TestForeignTable: the subnet has a table of somebody else, in which the nodes' routes lack. They belong there: another table in its
// place would take its own route away.
func TestForeignTable(t *testing.T) {
	node := func(rows ...model.UDR) *testNode {
		n := three()
		n.table(rightRows)
		n.cloud().Tables = append(n.cloud().Tables, model.RouteTable{ID: tableA + "-own", Whole: true, Subnets: []string{subnetA}, File: "tables.json",
			Routes: append(rows, udr("0.0.0.0/0", "10.50.9.9"))})
		n.subnet(tableA + "-own")
		n.answered("10.50.0.4", "10.50.0.5")
		return n
	}
	n := node()
	n.silent("172.20.1.5", "172.20.2.9")
	n.silent("172.20.1.6", "172.20.3.9")
	verdicts(t, n, []string{"MissingUDR proven 172.20.1.5 172.20.2.0/24", "MissingUDR proven 172.20.1.6 172.20.3.0/24"})
	fix := strings.Join(Diagnose(&n.Snapshot)[0].Fix, "\n")
	if !strings.Contains(fix, "route-table-name rt-a-own") || strings.Contains(fix, "subnet update") {
		t.Errorf("fix %s", fix)
	}
	n = node(rightRows...)
	n.answered("172.20.1.5", "172.20.2.9")
	n.answered("172.20.1.6", "172.20.3.9")
	verdicts(t, n, nil)
	// A row may discard.
	n = node(rightRows[0], rightRows[1], model.UDR{Name: "hole", Prefixes: rightRows[2].Prefixes, Type: "None", Active: true})
	n.answered("172.20.1.5", "172.20.2.9")
	n.silent("172.20.1.6", "172.20.3.9")
	verdicts(t, n, []string{"WrongUDR proven 172.20.1.6 172.20.3.0/24"})
}
